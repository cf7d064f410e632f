//! A device that hangs with a write for longer than every timeout of the host: the write must not land over a
//! later one. The target keeps the controller until the write has landed, and the host waits for that.
//!
//! `ISOLANE_STALL_S=120` lets the device hang for 120 s, beyond what the time rule alone would wait for.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isolane_host::{Buffer, Client, Completion, Mode, Options, Reconnect, Request as HostRequest, Wait};
use isolane_memory::Pool;
use isolane_reactor::file::FileOp;
use isolane_target::{Target, TargetConfig};
use isolane_volume::{Request, Step, Task, Volume, VolumeDescription, open, spec};

const NQN: &str = "nqn.2024-01.org.example:stalled";

/// No command of the host is for these blocks: the last 4 KiB of 16 MiB.
const SCRATCH_LBA: u64 = (16 << 20) / 512 - 8;

/// A file volume whose device hangs with one write: in its place it reads the same blocks again and again.
struct StalledVolume {
    inner: Arc<dyn Volume>,
    /// The next write hangs.
    armed: AtomicBool,
    stalled_now: AtomicBool,
    stalled: Mutex<Option<Request>>,
    /// First bytes of writes, in the order in which the device got them.
    started: Mutex<Vec<u8>>,
}

impl StalledVolume {
    fn begin(&self, request: Request, pool: &mut Pool) -> Step {
        let first = match &request {
            Request::Write { data, .. } => Some(data.to_vec()[0]),
            _ => None,
        };
        let step = self.inner.start(request, pool);
        if !matches!(step, Step::Retry(_)) {
            self.started.lock().unwrap().extend(first);
        }
        step
    }

    fn hang(&self, pool: &mut Pool) -> Step {
        match self.inner.start(Request::Read { lba: SCRATCH_LBA, blocks: 8 }, pool) {
            Step::File(operation, task) => Step::File(operation, task),
            Step::Done(_) | Step::Pending(_) | Step::Retry(_) => {
                panic!("the host does not read these blocks")
            }
        }
    }
}

impl Volume for StalledVolume {
    fn description(&self) -> &VolumeDescription {
        self.inner.description()
    }

    fn file(&self) -> Option<&Arc<File>> {
        self.inner.file()
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        if request.is_change() && self.armed.swap(false, Ordering::SeqCst) {
            *self.stalled.lock().unwrap() = Some(request);
            return self.hang(pool);
        }
        self.begin(request, pool)
    }

    fn resume(&self, task: Task, result: io::Result<usize>, operation: FileOp, pool: &mut Pool) -> Step {
        let step = self.inner.resume(task, result, operation, pool);
        let mut stalled = self.stalled.lock().unwrap();
        let (Step::Done(Ok(payload)), Some(_)) = (&step, &*stalled) else { return step };
        if payload.is_empty() {
            return step;
        }
        if let Step::Done(Ok(payload)) = step {
            pool.recycle_payload(payload);
        }
        if self.stalled_now.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
            return self.hang(pool);
        }
        let request = stalled.take().expect("it hangs");
        drop(stalled);
        self.begin(request, pool)
    }
}

fn write(fill: u8) -> HostRequest {
    let mut buffer = Buffer::contiguous(4096);
    buffer.as_mut_slice().unwrap().fill(fill);
    HostRequest::Write { lba: 0, buffer, fua: false }
}

fn turn_until(client: &mut Client, completions: &mut Vec<Completion>, mut done: impl FnMut(usize) -> bool) {
    let end = Instant::now() + Duration::from_secs(600);
    while !done(completions.len()) {
        assert!(Instant::now() < end, "{completions:?}");
        client.turn(completions, Wait::Until(Instant::now() + Duration::from_millis(5)));
    }
}

#[test]
fn hung_write_does_not_overwrite_a_later_one() {
    let stall = std::env::var("ISOLANE_STALL_S").map_or(2, |seconds| seconds.parse().unwrap());
    let stall = Duration::from_secs(stall);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let inner = open(&spec::parse(&format!("{},size=16M", path.display())).unwrap()).unwrap();
    let volume = Arc::new(StalledVolume {
        inner,
        armed: AtomicBool::new(true),
        stalled_now: AtomicBool::new(true),
        stalled: Mutex::default(),
        started: Mutex::default(),
    });
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.subsystems[0].volumes.push((1, Arc::clone(&volume) as Arc<dyn Volume>));
    config.listen.push("127.0.0.1:0".parse().unwrap());
    let target = Target::start(config).unwrap();
    let options = Options {
        mode: Mode::Sleep,
        keep_alive: Duration::from_secs(1),
        command_timeout: Duration::from_secs(1),
        reconnect: Reconnect { max_delay: Duration::from_millis(500), ..Reconnect::default() },
        ..Options::default()
    };
    let uri = format!("nvme+tcp://{}/{NQN}", target.local_addrs()[0]).parse().unwrap();
    let mut client = Client::connect(&uri, options).unwrap();

    let mut completions = Vec::new();
    client.submit(0, write(1), 1);
    turn_until(&mut client, &mut completions, |_| volume.stalled.lock().unwrap().is_some());
    let cntlid = client.info().controller.cntlid;
    while client.is_connected() && client.info().controller.cntlid == cntlid {
        client.turn(&mut completions, Wait::Until(Instant::now() + Duration::from_millis(5)));
    }
    client.submit(0, write(2), 2);
    let start = Instant::now();
    turn_until(&mut client, &mut completions, |_| start.elapsed() >= stall);
    assert!(completions.is_empty(), "acknowledged while the device hangs: {completions:?}");
    assert!(volume.started.lock().unwrap().is_empty(), "nothing may overtake the write that hangs");
    volume.stalled_now.store(false, Ordering::SeqCst);
    turn_until(&mut client, &mut completions, |count| count == 2);
    assert!(completions.iter().all(|completion| completion.result.is_ok()), "{completions:?}");
    let started = volume.started.lock().unwrap().clone();
    println!("the device hung for {stall:?}; order of writes at the device: {started:?}");
    assert_eq!(
        (started.len(), started[0]),
        (3, 1),
        "the lost write comes first, then its repetition and the later one"
    );
}
