//! Volumes through an isolated engine, against our target: what comes through is what comes through in
//! process, whoever else uses the engine.

mod clients;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isolane_attach::control::{Object, Open, Reply, Request as Ask};
use isolane_attach::{AttachError, Session};
use isolane_engine::{Config, Engine, listen};
use isolane_host::attached::wire::{Details, Operation, Outcome, Submission, VolumePlace};
use isolane_host::{
    BlockRange, BlockingVolume, Buffer, Class, Client, ConnectError, Mode, Options, Request, RequestError,
    Uri, Via, Volume, Wait,
};
use isolane_ring::Flag;
use isolane_ring::entries::{Receiver, Sender};
use isolane_ring::mock::Vandal;
use isolane_target::{Target, TargetConfig};
use isolane_volume::{open, spec};

use clients::{PATIENCE, options, pattern, run, wait_for, write_and_verify};

const NQN: &str = "nqn.2024-01.org.example:engine-volumes";
/// Of a command without data.
const CAPSULE_BYTES: usize = 72;

/// An engine and a target, in this process.
struct World {
    _engine: Engine,
    folder: tempfile::TempDir,
    target: Target,
}

impl World {
    fn new() -> World {
        World::of(|_| {})
    }

    /// With a target that is as the test wants it.
    fn of(change: impl FnOnce(&mut TargetConfig)) -> World {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::new(vec![isolane_reactor::core::usable().unwrap()[0]]);
        config.mode = Mode::Sleep;
        let engine = Engine::start(config, listen(&folder.path().join("sock")).unwrap()).unwrap();
        let mut config = TargetConfig::new(NQN.parse().unwrap());
        config.volumes = [(1, open(&spec::parse("mem:64m").unwrap()).unwrap())].into();
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.mode = Mode::Sleep;
        change(&mut config);
        World { _engine: engine, folder, target: Target::start(config).unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    fn address(&self) -> SocketAddr {
        self.target.local_addrs()[0]
    }

    /// Through the engine.
    fn uri(&self) -> Uri {
        Uri { via: Some(Via::EngineAt(self.path())), ..self.place() }
    }

    /// The volume alone.
    fn place(&self) -> Uri {
        format!("nvme+tcp://{}/{NQN}", self.address()).parse().unwrap()
    }

    fn connect(&self, options: Options) -> Client {
        Client::connect(&self.uri(), options).unwrap()
    }

    /// Whoever comes now is served as if nothing had happened.
    fn serves_others(&self) {
        let mut client = self.connect(Options { depth: 16, ..options() });
        let lba = 60_000;
        let written = run(&mut client, Request::Write { lba, buffer: pattern(lba, 4096, 3), fua: false });
        assert!(written.result.is_ok(), "{written:?}");
        let read = run(&mut client, Request::Read { lba, buffer: Buffer::contiguous(4096) });
        assert!(read.result.is_ok() && read.buffer.unwrap().to_vec() == pattern(lba, 4096, 3).to_vec());
        client.close();
    }
}

#[test]
fn data_of_all_lengths_comes_through_with_and_without_digests() {
    let world = World::new();
    for data_digest in [false, true] {
        let options = Options { lanes: 2, header_digest: data_digest, data_digest, ..options() };
        let mut client = world.connect(options);
        assert_eq!(client.info().negotiated.data_digest, data_digest);
        assert_eq!(client.namespace().len_bytes(), 64 << 20);
        write_and_verify(&mut client, 2);
        client.close();
    }
}

#[test]
fn zeroing_deallocating_and_flushing_do_what_they_do_in_process() {
    let world = World::new();
    let mut client = world.connect(options());
    assert!(
        run(&mut client, Request::Write { lba: 0, buffer: pattern(0, 8192, 1), fua: false }).result.is_ok()
    );
    let range = BlockRange { lba: 2, blocks: 3 };
    assert!(run(&mut client, Request::WriteZeroes { range, fua: true, deallocate: false }).result.is_ok());
    let ranges = vec![BlockRange { lba: 10, blocks: 1 }, BlockRange { lba: 12, blocks: 2 }];
    assert!(run(&mut client, Request::Deallocate { ranges }).result.is_ok());
    let whole = BlockRange { lba: 4096, blocks: 100_000 };
    assert!(
        run(&mut client, Request::WriteZeroes { range: whole, fua: false, deallocate: true }).result.is_ok()
    );
    assert!(run(&mut client, Request::Flush).result.is_ok());
    let read = run(&mut client, Request::Read { lba: 0, buffer: Buffer::contiguous(8192) });
    let mut expected = pattern(0, 8192, 1).to_vec();
    expected[1024..2560].fill(0);
    expected[5120..5632].fill(0);
    expected[6144..7168].fill(0);
    assert!(read.result.is_ok() && read.buffer.unwrap().to_vec() == expected);
}

#[test]
fn what_fails_fails_with_the_same_errors_as_in_process() {
    let world = World::new();
    let mut client = world.connect(options());
    let mut error = |request| run(&mut client, request).result.unwrap_err();
    let read = |lba, bytes| Request::Read { lba, buffer: Buffer::contiguous(bytes) };
    assert!(matches!(error(read(131_072, 512)), RequestError::OutOfRange { capacity: 131_072, .. }));
    assert!(matches!(error(read(0, 100)), RequestError::Unaligned { bytes: 100, block_bytes: 512 }));
    assert!(matches!(error(Request::Deallocate { ranges: vec![] }), RequestError::Ranges));
    client.submit(7, read(0, 512), 9);
    let completion = wait_for(&mut client, 1).remove(0);
    assert!(matches!(completion.result, Err(RequestError::Lane { lane: 7, lanes: 1 })));
    assert_eq!(completion.buffer.unwrap().len(), 512);
}

#[test]
fn who_cannot_be_connected_is_told_why() {
    let world = World::new();
    let nobody = Uri { port: 1, ..world.uri() };
    let error = Client::connect(&nobody, options()).err().unwrap();
    assert!(matches!(&error, ConnectError::Engine(why) if why.contains("TCP connection")), "{error}");
    let nowhere = Uri { via: Some(Via::EngineAt("/nonexistent/engine.sock".into())), ..world.uri() };
    let error = Client::connect(&nowhere, options()).err().unwrap().to_string();
    assert!(error.contains("isolane engine"), "{error}");
    let other = Uri { nqn: Some("nqn.2024-01.org.example:other".parse().unwrap()), ..world.uri() };
    assert!(Client::connect(&other, options()).is_err());
    world.serves_others();
}

/// The engine would have deeper lanes than one application asks for, because it shares them.
#[test]
fn lanes_are_as_deep_as_the_target_lets_them_be_and_who_asked_for_less_is_told_so() {
    let world = World::of(|config| config.queue_depth = 32);
    let mut client = world.connect(Options { depth: 8, ..options() });
    assert_eq!(client.info().negotiated.depth, 8);
    assert!(run(&mut client, Request::Flush).result.is_ok());
    let error = Client::connect(&world.uri(), Options { depth: 64, ..options() }).err().unwrap().to_string();
    assert!(error.contains("64") && error.contains("31"), "{error}");
    world.serves_others();
}

#[test]
fn futures_and_blocking_callers_use_the_engine_by_the_uri_alone() {
    let world = World::new();
    let text = format!("{}?via={}", world.place(), world.path().display());
    let uri: Uri = text.parse().unwrap();
    let blocking = BlockingVolume::connect(&uri, options()).unwrap();
    let bytes = pattern(8, 65_536, 9).to_vec();
    blocking.write_at(&bytes, 8 * 512).unwrap();
    let mut back = vec![0; bytes.len()];
    blocking.read_at(&mut back, 8 * 512).unwrap();
    assert!(back == bytes);
    let volume = block_on(Volume::connect(&uri, options())).unwrap();
    let reads: Vec<_> = (0..64).map(|_| volume.read(8 * 512, Buffer::contiguous(4096))).collect();
    for read in reads {
        assert!(block_on(read).unwrap().to_vec() == bytes[..4096]);
    }
    let mut submitter = blocking.submitter(16);
    for tag in 0..16 {
        submitter.submit(Request::Read { lba: 8, buffer: Buffer::contiguous(512) }, tag).unwrap();
    }
    let mut completions = Vec::new();
    while submitter.outstanding() > 0 {
        submitter.wait(&mut completions);
    }
    assert!(completions.iter().all(|completion| completion.result.is_ok()));
    block_on(volume.close());
    blocking.close();
}

#[test]
fn who_opens_the_same_shares_the_lanes_and_who_wants_others_does_not() {
    let world = World::new();
    let connections = || world.target.connections().len();
    let (mut one, mut two) = (world.connect(options()), world.connect(options()));
    assert_eq!(connections(), 2, "an admin queue and a lane for both");
    let (other, cntlid) = (world.connect(Options { lanes: 3, ..options() }), one.info().controller.cntlid);
    assert_eq!((connections(), two.info().controller.cntlid), (6, cntlid));
    assert_ne!(other.info().controller.cntlid, cntlid);
    assert!(run(&mut one, Request::Write { lba: 0, buffer: pattern(0, 4096, 1), fua: false }).result.is_ok());
    one.close();
    let read = run(&mut two, Request::Read { lba: 0, buffer: Buffer::contiguous(4096) });
    assert!(read.buffer.unwrap().to_vec() == pattern(0, 4096, 1).to_vec());
    two.close();
    other.close();
    let end = Instant::now() + PATIENCE;
    while connections() > 0 {
        assert!(Instant::now() < end, "{} connections are still there", connections());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A client that uses the rings as it likes.
struct Rogue {
    session: Session,
    room: isolane_attach::Room,
    id: u32,
    core: u32,
    told: u64,
    submissions: Sender,
    outcomes: Receiver,
}

const ENTRIES: u32 = 128;

impl Rogue {
    fn new(world: &World, options: Options) -> Rogue {
        let session = Session::open(&isolane_attach::Options {
            path: world.path(),
            memory_bytes: 16 << 20,
            starts: false,
            ..Default::default()
        });
        let session = session.unwrap();
        let bytes = VolumePlace::bytes(ENTRIES, ENTRIES) + Flag::BYTES;
        let room = session.take(bytes).unwrap();
        room.clear(bytes).unwrap();
        let (flag, offset) = (room.offset(), room.offset() + Flag::BYTES as u64);
        let place = VolumePlace { offset, flag, submissions: ENTRIES, outcomes: ENTRIES };
        let (memory, id) = (session.memory().clone(), session.next_id());
        let details = Details { place, options }.encode().unwrap();
        let object = Object::Volume { uri: world.place().to_string(), details };
        let asked = session.ask("it", &Ask::Open(Open { id, core: None, queue: None, object }), &[]);
        let Reply::Opened { core, .. } = asked.unwrap() else { panic!("not opened") };
        Rogue {
            submissions: Sender::new(&memory, place.submissions().unwrap()).unwrap(),
            outcomes: Receiver::new(&memory, place.outcomes().unwrap()).unwrap(),
            told: place.told().unwrap(),
            session,
            room,
            id,
            core,
        }
    }

    fn push(&mut self, submission: &Submission) -> bool {
        self.submissions.push(&submission.encode()).unwrap_or(false)
    }

    fn ring(&self) {
        self.submissions.publish();
        self.tell();
    }

    fn tell(&self) {
        if self.session.memory().flag(self.told).unwrap().take() {
            // It may be dropped already.
            let _ = self.session.port(self.core).tell(self.id);
        }
    }

    fn outcome(&mut self) -> Outcome {
        let end = Instant::now() + PATIENCE;
        while self.outcomes.refresh().unwrap() == 0 {
            assert!(Instant::now() < end, "no outcome");
            self.ring();
            std::thread::yield_now();
        }
        let outcome = Outcome::decode(&self.outcomes.pop().unwrap()).unwrap();
        self.outcomes.publish();
        outcome
    }

    fn wait_for_the_end(&self) {
        let end = Instant::now() + PATIENCE;
        while !matches!(self.session.check(), Err(AttachError::Over(_))) {
            assert!(Instant::now() < end, "the engine still serves it");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn read(tag: u64, offset: u64, len: u64) -> Submission {
    let range = BlockRange { lba: tag % 1000, blocks: len / 512 };
    Submission { tag, operation: Operation::Read, class: Class::Default, lane: 0, range, offset, len }
}

#[test]
fn commands_that_make_no_sense_fail_alone() {
    let world = World::new();
    let mut rogue = Rogue::new(&world, options());
    let good = read(1, 8 << 20, 4096);
    let bad = [
        Submission { offset: 16 << 20, ..good },
        Submission { offset: u64::MAX - 10, ..good },
        Submission { len: u64::MAX, ..good },
        Submission { len: 4097, ..good },
        Submission { range: BlockRange { lba: 0, blocks: u64::MAX / 512 }, ..good },
        Submission { range: BlockRange { lba: u64::MAX, blocks: 8 }, ..good },
        Submission { lane: 9, ..good },
        Submission { operation: Operation::Deallocate, ..good },
        Submission {
            operation: Operation::Deallocate,
            range: BlockRange { lba: 0, blocks: 1 << 40 },
            ..good
        },
        Submission {
            operation: Operation::WriteZeroes { fua: false, deallocate: false },
            range: BlockRange { lba: 0, blocks: 1 << 50 },
            ..good
        },
        Submission { range: BlockRange { lba: 0, blocks: 0 }, len: 0, ..good },
    ];
    for submission in bad {
        assert!(rogue.push(&submission));
        rogue.ring();
        let outcome = rogue.outcome();
        assert!(outcome.result.is_err(), "{submission:?}");
        assert!(rogue.push(&good));
        rogue.ring();
        assert!(rogue.outcome().result.is_ok(), "after {submission:?}");
    }
    world.serves_others();
}

/// Where data has a digest the engine copies it, and does so in no more memory than the session has given.
#[test]
fn a_place_that_many_commands_share_takes_no_more_memory_than_there_is() {
    let world = World::new();
    let mut rogue = Rogue::new(&world, Options { data_digest: true, ..options() });
    let count = 64;
    for tag in 0..count {
        assert!(rogue.push(&read(tag, 8 << 20, 1 << 20)));
    }
    rogue.ring();
    let results: Vec<_> = (0..count).map(|_| rogue.outcome().result).collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 16, "as many as fit into 16 MiB");
    assert!(rogue.push(&read(count, 8 << 20, 1 << 20)));
    rogue.ring();
    assert!(rogue.outcome().result.is_ok());
    world.serves_others();
}

#[test]
fn a_uri_that_is_too_long_for_a_message_is_an_error() {
    let world = World::new();
    let uri: Uri = format!("nvme+tcp://{}:4420/{NQN}", "a".repeat(2000)).parse().unwrap();
    let uri = Uri { via: Some(Via::EngineAt(world.path())), ..uri };
    let error = Client::connect(&uri, options()).err().unwrap();
    assert!(matches!(&error, ConnectError::Unsupported(what) if what.contains("1024")), "{error}");
}

#[test]
fn an_entry_that_is_none_and_an_index_that_cannot_be_end_their_session_alone() {
    let world = World::new();
    let mut rogue = Rogue::new(&world, options());
    assert!(rogue.submissions.push(&[0xff; 8]).unwrap());
    rogue.ring();
    rogue.wait_for_the_end();
    let rogue = Rogue::new(&world, options());
    // The index of what was submitted, far ahead.
    rogue.session.memory().copy_in(rogue.room.offset() + 256, &u64::MAX.to_le_bytes()).unwrap();
    rogue.tell();
    rogue.wait_for_the_end();
    world.serves_others();
}

#[test]
fn garbage_in_every_word_harms_nobody_else() {
    let world = World::new();
    let mut good = world.connect(options());
    for seed in 0..8 {
        let mut rogue = Rogue::new(&world, options());
        let vandal = Vandal::of(rogue.session.memory());
        let first = rogue.room.offset() as usize / 8;
        let mut random = fastrand::Rng::with_seed(seed);
        for step in 0..200 {
            rogue.push(&read(step, random.u64(..16 << 20), 512 << random.u32(..5)));
            let place = first + random.usize(..rogue.room.bytes() / 8);
            match random.bool() {
                true => vandal.scribble(place, random.u64(..)),
                false => vandal.nudge(place, random.u64(..4)),
            }
            rogue.ring();
        }
        let lba = 50_000 + seed * 8;
        let written = run(&mut good, Request::Write { lba, buffer: pattern(lba, 4096, 7), fua: false });
        assert!(written.result.is_ok());
        let read = run(&mut good, Request::Read { lba, buffer: Buffer::contiguous(4096) });
        assert!(read.buffer.unwrap().to_vec() == pattern(lba, 4096, 7).to_vec());
    }
    world.serves_others();
}

/// It never takes an outcome and always submits: it gets as many as its ring has room for, and no more; others
/// get their turns.
/// Between an engine and its target: forwards, counts what the host sends, and withholds what the target answers
/// while it is told to.
struct Relay {
    address: SocketAddr,
    sent: Arc<AtomicUsize>,
    answers: Arc<Mutex<()>>,
}

impl Relay {
    fn start(target: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (sent, answers) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(())));
        let relay = Relay { address: listener.local_addr().unwrap(), sent, answers };
        let (sent, answers) = (Arc::clone(&relay.sent), Arc::clone(&relay.answers));
        std::thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                let target = TcpStream::connect(target).unwrap();
                let (sent, answers) = (Arc::clone(&sent), Arc::clone(&answers));
                let (from, to) = (host.try_clone().unwrap(), target.try_clone().unwrap());
                std::thread::spawn(move || {
                    forward(&from, &to, |count| {
                        sent.fetch_add(count, Ordering::SeqCst);
                    });
                });
                std::thread::spawn(move || forward(&target, &host, |_| drop(answers.lock().unwrap())));
            }
        });
        relay
    }
}

/// Until one of them ends.
fn forward(mut from: &TcpStream, mut to: &TcpStream, before: impl Fn(usize)) {
    let mut bytes = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        before(count);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn those_who_have_one_request_at_a_time_do_not_wait_for_each_other() {
    let world = World::new();
    let relay = Relay::start(world.address());
    let uri: Uri = format!("nvme+tcp://{}/{NQN}", relay.address).parse().unwrap();
    let uri = Uri { via: Some(Via::EngineAt(world.path())), ..uri };
    let connect =
        || Client::connect(&uri, Options { depth: 1, keep_alive: Duration::ZERO, ..options() }).unwrap();
    let mut clients = [connect(), connect()];
    let withheld = relay.answers.lock().unwrap();
    let before = relay.sent.load(Ordering::SeqCst);
    for client in &mut clients {
        client.submit(0, Request::Read { lba: 0, buffer: Buffer::contiguous(4096) }, 0);
        assert_eq!(client.turn(&mut Vec::new(), Wait::None), 0);
    }
    let end = Instant::now() + PATIENCE;
    while relay.sent.load(Ordering::SeqCst) < before + 2 * CAPSULE_BYTES {
        assert!(Instant::now() < end, "the second command waits for the first one's answer");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(withheld);
    for client in &mut clients {
        assert!(wait_for(client, 1)[0].result.is_ok());
    }
}

#[test]
fn a_waker_ends_the_sleep_of_one_who_waits_for_an_engine() {
    let world = World::new();
    let mut client = world.connect(options());
    let waker = client.waker();
    let (turned, heard) = std::sync::mpsc::channel();
    let caller = std::thread::spawn(move || {
        for () in heard {
            waker.wake();
        }
    });
    for _ in 0..1000 {
        turned.send(()).unwrap();
        assert_eq!(client.turn(&mut Vec::new(), Wait::Forever), 0);
    }
    drop(turned);
    caller.join().unwrap();
}

#[test]
fn who_floods_and_does_not_reap_waits_for_itself() {
    let world = World::new();
    let mut rogue = Rogue::new(&world, options());
    let mut floods = [Rogue::new(&world, options()), Rogue::new(&world, options())];
    for tag in 0..u64::from(ENTRIES) {
        assert!(rogue.push(&read(tag, 8 << 20, 65_536)));
    }
    rogue.ring();
    let is_over = Arc::new(AtomicBool::new(false));
    let flooded = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for flood in &mut floods {
            let (is_over, flooded) = (Arc::clone(&is_over), Arc::clone(&flooded));
            scope.spawn(move || {
                let mut tag = 0;
                while !is_over.load(Ordering::Relaxed) {
                    while flood.push(&read(tag, 8 << 20, 65_536)) {
                        tag += 1;
                    }
                    flood.ring();
                    assert!(flood.outcome().result.is_ok());
                    flooded.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut good = world.connect(options());
        for round in 0..200 {
            let lba = 40_000 + round * 8;
            let done = run(&mut good, Request::Write { lba, buffer: pattern(lba, 4096, 1), fua: false });
            assert!(done.result.is_ok());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(flooded.load(Ordering::Relaxed) > 0);
    // All that the first one has room for came; what it submits beyond that is not taken.
    assert!((0..u64::from(ENTRIES)).all(|tag| rogue.push(&read(1000 + tag, 8 << 20, 512))));
    rogue.ring();
    world.serves_others();
    assert!(!rogue.push(&read(5000, 8 << 20, 512)), "nothing more was taken");
    let outcomes: Vec<u64> = (0..2 * ENTRIES).map(|_| rogue.outcome().tag).collect();
    assert!((0..u64::from(ENTRIES)).all(|tag| outcomes.contains(&tag) && outcomes.contains(&(1000 + tag))));
}

/// The last of its commands takes the last room there is, and then it wants none.
#[test]
fn who_has_had_its_turn_and_wants_no_other_keeps_nobody_waiting() {
    let world = World::new();
    let mut one = Rogue::new(&world, options());
    for count in 30..=33 {
        assert!((0..count).all(|tag| one.push(&read(tag, 8 << 20, 512))));
        one.ring();
        (0..count).for_each(|_| assert!(one.outcome().result.is_ok()));
        world.serves_others();
    }
}

#[test]
fn sessions_that_die_with_commands_under_way_leave_nothing_behind() {
    let world = World::new();
    for _ in 0..20 {
        let mut rogue = Rogue::new(&world, options());
        for tag in 0..u64::from(ENTRIES) {
            let operation = if tag % 2 == 0 { Operation::Write { fua: false } } else { Operation::Read };
            rogue.push(&Submission { operation, ..read(tag, (8 << 20) + tag * 8192, 8192) });
        }
        rogue.ring();
        // Its memory is unmapped here at once.
        drop(rogue);
    }
    world.serves_others();
    let end = Instant::now() + PATIENCE;
    while !world.target.connections().is_empty() {
        assert!(Instant::now() < end, "the association outlives its sessions");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whoever changes data after its digest was computed would have the target drop the lane of all.
#[test]
fn data_that_its_owner_changes_while_it_is_sent_costs_the_others_nothing() {
    let world = World::new();
    let digests = || Options { data_digest: true, ..options() };
    let mut rogue = Rogue::new(&world, digests());
    let mut good = world.connect(digests());
    let cntlid = good.info().controller.cntlid;
    let is_over = AtomicBool::new(false);
    let vandal = Vandal::of(rogue.session.memory());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            while !is_over.load(Ordering::Relaxed) {
                vandal.nudge((8 << 20) / 8 + at % 8192, 1);
                at += 1;
            }
        });
        for round in 0..300u64 {
            let write =
                Submission { operation: Operation::Write { fua: false }, ..read(round, 8 << 20, 65_536) };
            assert!(rogue.push(&write));
            rogue.ring();
            let lba = 40_000 + round * 8;
            let done = run(&mut good, Request::Write { lba, buffer: pattern(lba, 4096, 1), fua: false });
            assert!(done.result.is_ok(), "{done:?}");
            assert!(rogue.outcome().result.is_ok(), "what was sent was a copy");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(good.info().controller.cntlid, cntlid);
    let another = world.connect(digests());
    assert_eq!(another.info().controller.cntlid, cntlid, "the association was never lost");
}

fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}
