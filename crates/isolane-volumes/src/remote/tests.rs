use std::path::Path;

use isolane_host::BlockingVolume;
use isolane_reactor::{Event, Mode, Reactor, ReactorConfig};
use isolane_target::{Target, TargetConfig};
use isolane_volume::BlockRange;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::Kinds;
use crate::testing::Driver;

const NQN: &str = "nqn.2024-01.org.example:remote";

/// Serves a volume, and returns the address of the namespace.
fn serve(text: &str) -> (Target, String) {
    serve_on(Vec::new(), crate::open(&crate::parse(text).unwrap()).unwrap())
}

fn serve_on(cores: Vec<usize>, volume: Arc<dyn Volume>) -> (Target, String) {
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.subsystems[0].volumes.push((1, volume));
    config.cores = cores;
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.mode = Mode::Sleep;
    let target = Target::start(config).unwrap();
    let text = format!("nvme+tcp://{}/{NQN}?nsid=1", target.local_addrs()[0]);
    (target, text)
}

#[test]
fn writes_shared_pages_even_if_pool_is_empty() {
    let (_target, text) = serve("mem:4M");
    let mut driver = Driver::open(&text);
    for pages in [1024, 8] {
        driver.pool = Pool::new(pages);
        let mut data = driver.pool.buffer(32 << 10).unwrap();
        data.copy_in(0, &[pages as u8 ^ 7; 32 << 10]);
        let _shared = data.share(0, data.len());
        driver.write_buffer(8, data, true).unwrap();
        driver.pool = Pool::new(1024);
        assert_eq!(driver.read(8, 64).unwrap(), [pages as u8 ^ 7; 32 << 10]);
    }
}

#[test]
fn waiting_part_leaves_no_request_behind() {
    const REQUESTS: usize = MAX_REQUESTS + 500;
    let (_target, text) = serve("mem:4M");
    let volume = crate::open(&crate::parse(&text).unwrap()).unwrap();
    let mut part = volume.take_core_parts().pop().unwrap();
    assert!(volume.take_core_parts().is_empty());
    let config = ReactorConfig { mode: Mode::Sleep, ..ReactorConfig::default() };
    let (mut reactor, mut pool) = (Reactor::new(config).unwrap(), Pool::new(REQUESTS));
    for token in 0..REQUESTS as u64 {
        let step = volume.start(Request::Read { lba: 0, blocks: 8 }, &mut pool);
        let Step::Pending(pending) = step else { panic!("a remote read is pending") };
        pending.register(reactor.register_external(token));
    }
    let (mut events, mut completed) = (Vec::new(), 0);
    loop {
        part.turn();
        while part.prepare_wait().is_none() {
            part.turn();
        }
        // As in a core: what completes turns the core, but not the part.
        reactor.turn(Some(Instant::now()), &mut events).unwrap();
        while !events.is_empty() {
            completed += events.drain(..).filter(|event| matches!(event, Event::File(_))).count();
            reactor.turn(Some(Instant::now()), &mut events).unwrap();
        }
        if completed == REQUESTS {
            break;
        }
        let mut fds = [PollFd::from_borrowed_fd(part.wait_fd(), PollFlags::IN)];
        let ready = poll(&mut fds, Some(&Timespec { tv_sec: 30, tv_nsec: 0 })).unwrap();
        assert_eq!(ready, 1, "{completed} requests have completed, and nothing more will");
        part.finish_wait();
    }
}

#[test]
fn serves_other_cores_and_outlives_its_core() {
    let (_rear, text) = serve("mem:4M");
    let volume = crate::open(&crate::parse(&text).unwrap()).unwrap();
    let one_core_twice = vec![isolane_reactor::cpu::allowed().unwrap()[0]; 2];
    let (front, address) = serve_on(one_core_twice, Arc::clone(&volume));
    // The target places local hosts in turn.
    let hosts = [1, 2].map(|fill| {
        let host = BlockingVolume::connect(&address.parse().unwrap(), Options::default()).unwrap();
        host.write_at(&[fill; 65_536], u64::from(fill) * 65_536).unwrap();
        host
    });
    let mut read = [0; 65_536];
    hosts[0].read_at(&mut read, 2 * 65_536).unwrap();
    assert_eq!(read, [2; 65_536]);
    drop((hosts, front));
    assert_eq!(Driver::new(volume).read(128, 128).unwrap(), [1; 65_536]);
}

#[test]
fn mirror_keeps_remote_member() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (_target, remote) = serve("mem:4M");
    let text = format!("mirror:{remote};({},size=4M),bitmap={},create=yes", path("a"), path("map"));
    let mut mirror = Driver::open(&text);
    mirror.write(0, &[5; 65_536], true).unwrap();
    drop(mirror);
    assert_eq!(Driver::open(&remote).read(0, 128).unwrap(), [5; 65_536]);
}

#[test]
fn completes_deallocation_of_no_blocks() {
    let (_target, text) = serve("mem:4M");
    let mut driver = Driver::open(&text);
    for fua in [false, true] {
        for ranges in [&[][..], &[BlockRange { lba: 3, blocks: 0 }]] {
            driver.run(Request::Deallocate { ranges: ranges.iter().copied().collect(), fua }).unwrap();
        }
    }
    driver.write(0, &[1; 65_536], false).unwrap();
    let mut stripe = Driver::open(&format!("stripe:64k:{text};mem:4M"));
    stripe.deallocate(128, 1).unwrap();
    assert_eq!(stripe.read(0, 128).unwrap(), [1; 65_536]);
}

#[test]
fn refuses_target_that_cannot_write_zeroes() {
    let (_target, text) = serve("mem:4M");
    let client = Client::connect(&text.parse().unwrap(), Options::default()).unwrap();
    let (mut namespace, mut controller) = (client.namespace().clone(), client.info().controller.clone());
    let parts = Parts { name: text, ..Parts::default() };
    assert!(info(&parts, &namespace, &controller).is_ok());
    controller.has_write_zeroes = false;
    let error = info(&parts, &namespace, &controller).unwrap_err().to_string();
    assert!(error.contains("cannot write zeroes"), "{error}");
    namespace.read_only = true;
    assert!(info(&parts, &namespace, &controller).is_ok());
}

#[test]
fn rejects_members_that_share_a_namespace() {
    let (_target, text) = serve("mem:4M");
    let other = text.replace("127.0.0.1", "localhost");
    let uuid = |number: u8| format!("uuid=00000000-0000-4000-8000-00000000000{number}");
    for (first, second) in [
        (format!("({text},{})", uuid(1)), format!("({other},{})", uuid(2))),
        (format!("log:({text},{})", uuid(1)), format!("(read-only:{other},{})", uuid(2))),
        (format!("(stripe:4k:{text};mem:4M)"), format!("(stripe:4k:mem:4M;({other},{}))", uuid(1))),
    ] {
        let spec = crate::parse(&format!("stripe:64k:{first};{second}")).unwrap();
        let error = crate::open(&spec).unwrap_err().to_string();
        assert!(error.contains("share a volume; use different volumes"), "{error}");
    }
}

#[test]
fn applies_options_of_connection() {
    let (target, text) = serve("mem:4M");
    for (option, reason) in [("reconnect=1x", "invalid duration"), ("depth=9", "no option \"depth\"")] {
        let spec = crate::parse(&format!("{text},{option}"));
        let error =
            spec.map_or_else(|error| error.to_string(), |spec| crate::open(&spec).unwrap_err().to_string());
        assert!(error.contains(reason), "{option}: {error}");
    }
    let mut driver = Driver::open(&format!("{text},reconnect=0s,keep-alive=2s"));
    driver.write(0, &[1; 512], true).unwrap();
    drop(target);
    // Without reconnecting, requests fail instead of waiting.
    assert_eq!(driver.read(0, 1).unwrap_err(), VolumeError::ReadFailed { raw_os_error: EIO });
}

#[test]
fn unreachable_target_has_one_remedy() {
    let error = crate::open(&crate::parse("nvme+tcp://127.0.0.1:1/nqn.2024-01.org.example:x").unwrap());
    let text = error.err().unwrap().to_string();
    assert!(text.ends_with("; is a target listening there?") && text.matches("; ").count() == 1, "{text}");
}

/// Keeps writes until the test completes them.
struct Held {
    inner: Arc<dyn Volume>,
    writes: Mutex<Vec<(u8, Completer)>>,
}

impl Held {
    fn new() -> Arc<Held> {
        let inner = crate::open(&crate::parse("mem:1M").unwrap()).unwrap();
        Arc::new(Held { inner, writes: Mutex::default() })
    }

    /// Returns the first byte of each write.
    fn writes(&self) -> Vec<u8> {
        self.writes.lock().iter().map(|(value, _)| *value).collect()
    }

    fn complete_first(&self) {
        let (_, completer) = self.writes.lock().remove(0);
        completer.complete(Ok(Payload::default()));
    }
}

impl Volume for Held {
    fn description(&self) -> &VolumeDescription {
        self.inner.description()
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        let Request::Write { data, .. } = &request else { return self.inner.start(request, pool) };
        let value = data.to_vec()[0];
        let (completer, step) = Step::pending(&request);
        self.writes.lock().push((value, completer));
        step
    }
}

/// Leaves a write of a killed process at the target, and its association in the journal. The target holds only commands
/// on the same blocks back, because the next process has another host ID.
fn kill_with_a_write(held: &Held, address: &str, path: &Path) {
    let host_id = Uuid::new_v4();
    let host_nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{host_id}").parse().unwrap();
    let options = Options { host_nqn, host_id, ..Options::default() };
    let journal: Arc<dyn AssociationJournal> = JournalFile::open(path).unwrap();
    let connected = Client::connect_with_journal(&address.parse().unwrap(), options, &journal, &[]);
    let mut client = connected.unwrap();
    let mut buffer = Buffer::contiguous(512);
    buffer.copy_in(0, &[1; 512]);
    client.submit(0, isolane_host::Request::Write { lba: 0, buffer, fua: false }, 1);
    while held.writes().is_empty() {
        client.turn(&mut Vec::new(), Wait::None);
    }
}

#[test]
fn late_write_of_a_killed_process_does_not_follow_a_newer_one() {
    for has_journal in [false, true] {
        let (held, dir) = (Held::new(), tempfile::tempdir().unwrap());
        let path = dir.path().join("journal");
        let (_target, address) = serve_on(Vec::new(), Arc::clone(&held) as _);
        kill_with_a_write(&held, &address, &path);
        let (journal, mut kinds) = (JournalFile::open(&path).unwrap(), Kinds::default());
        assert_eq!(journal.stale(None).len(), 1);
        if has_journal {
            kinds.set_journal(Arc::clone(&journal));
        }
        let volume = kinds.open(&kinds.parse(&address).unwrap()).unwrap();
        let mut driver = Driver::new(Arc::clone(&volume));
        let mut data = driver.pool.buffer(512).unwrap();
        data.copy_in(0, &[2; 512]);
        let write = Request::Write { lba: 0, blocks: 1, data, fua: false };
        let Step::Pending(_newer) = volume.start(write, &mut driver.pool) else {
            panic!("a remote write is pending")
        };
        // It does not wait, and follows the write on the same connection.
        driver.read(8, 1).unwrap();
        assert_eq!(held.writes(), [1], "writes at the volume of the target");
        held.complete_first();
        while held.writes() != [2] {
            thread::yield_now();
        }
        held.complete_first();
        while has_journal && !journal.stale(None).is_empty() {
            thread::yield_now();
        }
    }
}
