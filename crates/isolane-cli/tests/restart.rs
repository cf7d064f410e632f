//! Targets that restart while a host has unflushed writes.
//!
//! Invariant: the next flush succeeds if the writes survived, and fails with the reason otherwise.

mod program;
mod stop;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use isolane_host::{BlockingVolume, LossCause, Options, RequestError};

use stop::stop;

const NQN: &str = "nqn.2024-01.org.example:restart";
const MEMORY: &str = "mem:16M,uuid=1b4e28ba-2fa1-4d2b-883f-0016d3cca427";

fn isolane() -> Command {
    Command::new(env!("CARGO_BIN_EXE_isolane"))
}

/// A running `isolane serve`, killed with the test.
struct Target {
    process: Child,
    /// Open, so that the program can print.
    _stdout: BufReader<ChildStdout>,
    address: String,
}

impl Target {
    /// Serves a volume; the target is listening when this returns.
    fn serve(volume: &str, listen: &str) -> Target {
        Target::serve_with(&[volume, "--listen", listen])
    }

    fn serve_with(arguments: &[&str]) -> Target {
        let mut command = isolane();
        command.args(["--log-level", "error", "serve", "--nqn", NQN, "--mode", "sleep"]).args(arguments);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "the target does not listen");
            if let Some(address) = line.trim().strip_prefix("listening on ") {
                break address.to_owned();
            }
        };
        Target { process, _stdout: stdout, address }
    }

    /// Kills the target, and starts another at the same address.
    fn restart(&mut self, volume: &str) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let address = self.address.clone();
        *self = Target::serve(volume, &address);
    }

    /// Returns the text of the first namespace as a volume.
    fn text(&self) -> String {
        format!("nvme+tcp://{}/{NQN}?nsid=1", self.address)
    }

    /// Connects to the volume, with parameters of its URI.
    fn connect(&self, parameters: &str) -> BlockingVolume {
        let uri = format!("{}{parameters}", self.text()).parse().unwrap();
        BlockingVolume::connect(&uri, Options::default()).unwrap()
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Waits until cores drive all remote volumes: before, each has a thread.
    fn wait_for_cores(&self) {
        while self.threads().iter().any(|name| name == "isolane-remote") {
            std::thread::yield_now();
        }
    }

    /// Returns the names of its threads.
    fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        // A thread can end in the meantime.
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.map(|name| name.trim().to_owned()).collect()
    }

    fn connect_via(&self, engine: &Path) -> BlockingVolume {
        self.connect(&format!("&via={}", engine.display()))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn engine() -> program::Engine {
    program::Engine::start_by(isolane(), &["--mode", "sleep"])
}

/// Error of a flush that reports lost writes.
fn lost(volume: &BlockingVolume) -> (u64, LossCause) {
    match volume.flush() {
        Err(RequestError::WritesLost { writes, cause }) => (writes, cause),
        other => panic!("{other:?}"),
    }
}

#[test]
fn fails_first_flush_after_memory_volume_kill() {
    let (mut target, engine) = (Target::serve(MEMORY, "127.0.0.1:0"), engine());
    let volumes = [target.connect(""), target.connect_via(&engine.path())];
    for volume in &volumes {
        volume.write_at(&[7; 4096], 0).unwrap();
        volume.flush().unwrap();
        volume.write_at(&[8; 4096], 4096).unwrap();
    }
    target.restart(MEMORY);
    for volume in &volumes {
        assert_eq!(lost(volume), (2, LossCause::Content));
        volume.flush().unwrap();
        let mut block = [1; 4096];
        volume.read_at(&mut block, 0).unwrap();
        assert_eq!(block, [0; 4096], "the write survived");
    }
}

#[test]
fn keeps_flushing_after_file_target_kill() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk").display().to_string();
    let (mut target, engine) = (Target::serve(&format!("{path},size=16M"), "127.0.0.1:0"), engine());
    let volumes = [target.connect(""), target.connect_via(&engine.path())];
    for (volume, fill) in volumes.iter().zip([1, 2]) {
        volume.write_at(&[fill; 4096], u64::from(fill) * 4096).unwrap();
    }
    target.restart(&path);
    for (volume, fill) in volumes.iter().zip([1, 2]) {
        volume.flush().unwrap();
        let mut block = [0; 4096];
        volume.read_at(&mut block, u64::from(fill) * 4096).unwrap();
        assert_eq!(block, [fill; 4096]);
    }
}

#[test]
fn fails_first_flush_after_target_and_engine_kill() {
    let (mut target, engine) = (Target::serve(MEMORY, "127.0.0.1:0"), engine());
    let volume = target.connect_via(&engine.path());
    volume.write_at(&[7; 4096], 0).unwrap();
    volume.write_durable_at(&[7; 4096], 0).unwrap();
    let pid = engine.pid().to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    target.restart(MEMORY);
    assert_eq!(lost(&volume), (2, LossCause::Content));
    volume.flush().unwrap();
}

#[test]
fn keeps_flushing_after_the_engine_was_killed() {
    let (target, engine) = (Target::serve(MEMORY, "127.0.0.1:0"), engine());
    let volume = target.connect_via(&engine.path());
    volume.write_at(&[7; 4096], 0).unwrap();
    let pid = engine.pid().to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    volume.flush().unwrap();
}

#[test]
fn accepts_flush_choice_by_option_and_uri() {
    let target = Target::serve(MEMORY, "127.0.0.1:0");
    let uri = format!("nvme+tcp://{}/{NQN}?flush-after-loss=perhaps", target.address);
    let output = isolane().args(["info", &uri]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("flush-after-loss=trust"), "{text}");
    let uri = format!("nvme+tcp://{}/{NQN}", target.address);
    let output = isolane().args(["info", "--flush-after-loss", "fail", &uri]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the target that serves the volume of another.
fn serve_remote(rear: &Target) -> Target {
    Target::serve(&rear.text(), "127.0.0.1:0")
}

fn block(number: u64) -> [u8; 4096] {
    [number as u8 ^ (number >> 8) as u8; 4096]
}

/// Writes 16 MiB, calls `disturb` in the meantime, and reads the data back.
fn write_during(volume: &BlockingVolume, disturb: impl FnOnce()) {
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..4096 {
                volume.write_at(&block(number), number * 4096).unwrap();
            }
            volume.flush().unwrap();
        });
        disturb();
        writer.join().unwrap();
    });
    let mut read = vec![0; 16 << 20];
    volume.read_at(&mut read, 0).unwrap();
    assert!(read.chunks(4096).zip(0..).all(|(bytes, number)| bytes == block(number)));
}

#[test]
fn serves_file_of_restarting_target() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk").display().to_string();
    let mut rear = Target::serve(&format!("{path},size=16M"), "127.0.0.1:0");
    let front = serve_remote(&rear);
    let volume = front.connect("");
    assert_eq!(volume.namespace(), rear.connect("").namespace());
    write_during(&volume, || {
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(100));
            rear.restart(&path);
        }
    });
    let mut read = vec![0; 16384];
    volume.write_zeroes(4096, 8192).unwrap();
    volume.read_at(&mut read, 0).unwrap();
    assert!(read[4096..12288] == [0; 8192] && read[12288..] == block(3));
}

#[test]
fn serves_members_of_restarting_targets() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    for (kind, names, options) in [
        ("stripe:64k", ["a", "b"], String::new()),
        ("mirror", ["c", "d"], format!(",bitmap={},create=yes", path("map"))),
    ] {
        let serve = |name| Target::serve(&format!("{},size=17M", path(name)), "127.0.0.1:0");
        let mut rears = names.map(serve);
        let [first, second] = rears.each_ref().map(Target::text);
        let front = Target::serve(&format!("{kind}:{first};{second}{options}"), "127.0.0.1:0");
        front.wait_for_cores();
        write_during(&front.connect(""), || {
            for (rear, name) in rears.iter_mut().zip(names) {
                std::thread::sleep(Duration::from_millis(100));
                rear.restart(&path(name));
            }
        });
        assert!(!front.threads().contains(&"isolane-remote".to_owned()));
    }
}

#[test]
fn stalled_target_delays_no_other_volume() {
    let rear = Target::serve("mem:16M", "127.0.0.1:0");
    let mut front = Target::serve_with(&[&rear.text(), "mem:16M,nsid=2", "--listen", "127.0.0.1:0"]);
    front.wait_for_cores();
    let remote = front.connect("");
    let uri = front.text().replace("nsid=1", "nsid=2").parse().unwrap();
    let local = BlockingVolume::connect(&uri, Options::default()).unwrap();
    stop(rear.process.id());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| remote.write_at(&block(1), 0).unwrap());
        for number in 0..100 {
            local.write_at(&block(number), number * 4096).unwrap();
        }
        assert!(!writer.is_finished());
        rear.signal("-CONT");
        writer.join().unwrap();
    });
    let mut read = [0; 4096];
    remote.read_at(&mut read, 0).unwrap();
    assert_eq!(read, block(1));
    // Without the rear target, there is nothing to flush.
    drop(rear);
    front.signal("-TERM");
    front.process.wait().unwrap();
}

#[test]
fn core_drives_the_connections_of_members() {
    let rears = [Target::serve("mem:16M", "127.0.0.1:0"), Target::serve("mem:16M", "127.0.0.1:0")];
    let [first, second] = rears.each_ref().map(Target::text);
    let front = Target::serve(&format!("log:(stripe:64k:{first};(read-only:{second},ro),ro)"), "127.0.0.1:0");
    front.wait_for_cores();
    rears[1].connect("").write_at(&[7; 8192], 0).unwrap();
    let mut read = [1; 128 * 1024];
    front.connect("").read_at(&mut read, 0).unwrap();
    assert!(read[..64 * 1024].iter().all(|byte| *byte == 0));
    assert!(read[64 * 1024..][..8192] == [7; 8192] && read[64 * 1024 + 8192..].iter().all(|byte| *byte == 0));
    assert!(!front.threads().contains(&"isolane-remote".to_owned()));
}

#[test]
fn fails_all_requests_after_remote_memory_is_lost() {
    let mut rear = Target::serve(MEMORY, "127.0.0.1:0");
    let front = serve_remote(&rear);
    let volume = front.connect("");
    volume.write_at(&[7; 4096], 0).unwrap();
    rear.restart(MEMORY);
    assert!(volume.flush().is_err());
    assert!(volume.read_at(&mut [0; 4096], 0).is_err());
    assert!(volume.write_at(&[8; 4096], 0).is_err());
    assert!(volume.flush().is_err());
}
