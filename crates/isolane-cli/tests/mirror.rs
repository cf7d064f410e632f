//! Mirrors: kills of the target under writes, degraded starts, and split brains.

mod stop;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use isolane_host::{BlockingVolume, Options};

use stop::stop;

const NQN: &str = "nqn.2024-01.org.example:mirror";
const SIZE: u64 = 16 << 20;
/// Bytes at the end of a member that hold its label.
const LABEL: usize = 64 << 10;

fn serve(directory: &Path, options: &str) -> Command {
    serve_volume(directory, &format!("mirror:a.img;b.img,bitmap=m.bitmap{options}"))
}

fn serve_volume(directory: &Path, volume: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isolane"));
    command.args(["--log-level", "info", "serve", volume, "--listen", "127.0.0.1:0", "--nqn", NQN]);
    command.args(["--mode", "sleep"]).current_dir(directory);
    command
}

/// Starts a mirror that must be refused, and returns the error.
fn refusal(directory: &Path, options: &str) -> String {
    let output = serve(directory, options).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

/// Creates two files of different contents.
fn members(directory: &Path) {
    for (name, fill) in [("a.img", 1), ("b.img", 2)] {
        fs::write(directory.join(name), vec![fill; SIZE as usize]).unwrap();
    }
}

/// Returns the data of a member without its label.
fn data(directory: &Path, name: &str) -> Vec<u8> {
    let mut data = fs::read(directory.join(name)).unwrap();
    data.truncate(data.len() - LABEL);
    data
}

/// A running mirror, killed when dropped.
struct Target {
    process: Child,
    _stdout: BufReader<ChildStdout>,
    volume: BlockingVolume,
}

impl Target {
    fn start(directory: &Path, options: &str) -> Target {
        Target::spawn(serve(directory, options)).0
    }

    /// Starts a target, and returns it with the address of its volume.
    fn spawn(mut command: Command) -> (Target, String) {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "the target does not listen");
            if let Some(address) = line.trim().strip_prefix("listening on ") {
                break address.to_owned();
            }
        };
        let uri = format!("nvme+tcp://{address}/{NQN}?nsid=1");
        let volume = BlockingVolume::connect(&uri.parse().unwrap(), Options::default()).unwrap();
        (Target { process, _stdout: stdout, volume }, uri)
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    fn write(&self, offset: u64, fill: u8) {
        self.volume.write_at(&[fill; 4096], offset).unwrap();
    }

    /// Reads a block several times, so that both members are read.
    fn read(&self, offset: u64) -> u8 {
        let mut blocks = [[0; 4096]; 4];
        blocks.iter_mut().for_each(|block| self.volume.read_at(block, offset).unwrap());
        assert!(blocks.as_flattened().iter().all(|byte| *byte == blocks[0][0]), "reads differ");
        blocks[0][0]
    }

    /// Ends the target by SIGTERM and waits for it.
    fn stop(mut self) {
        self.signal("-TERM");
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until the label of member 1 calls both members complete; then they have the same data.
fn wait_for_copy(directory: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let states = || fs::read(directory.join("a.img")).unwrap()[SIZE as usize - LABEL..][24..40].to_vec();
    while states() != [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0] {
        assert!(Instant::now() < deadline, "the members differ");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(data(directory, "a.img") == data(directory, "b.img"), "the members differ");
}

#[test]
fn copies_new_member_and_survives_kills() {
    let directory = tempfile::tempdir().unwrap();
    members(directory.path());
    let mut target = Target::start(directory.path(), ",create=yes");
    assert_eq!(target.read(8 << 20), 1, "member 1 is the source");
    for round in 10..14 {
        for block in 0..200 {
            target.write(block * 65_536, round);
        }
        drop(target);
        target = Target::start(directory.path(), "");
        assert!((0..200).all(|block| target.read(block * 65_536) == round));
    }
    wait_for_copy(directory.path());
    target.stop();
    let target = Target::start(directory.path(), "");
    assert_eq!((target.read(0), target.read(4096)), (13, 1));
}

#[test]
fn starts_degraded_on_request_and_copies_returning_member() {
    let directory = tempfile::tempdir().unwrap();
    members(directory.path());
    Target::start(directory.path(), ",create=yes").stop();
    let [path, hidden] = ["b.img", "hidden.img"].map(|name| directory.path().join(name));
    fs::rename(&path, &hidden).unwrap();
    let error = refusal(directory.path(), "");
    assert!(error.contains("member 2 is missing") && error.contains("degraded=yes"), "{error}");
    let target = Target::start(directory.path(), ",degraded=yes");
    target.write(0, 9);
    assert_eq!(target.read(0), 9);
    drop(target);
    fs::rename(&hidden, &path).unwrap();
    fs::rename(directory.path().join("a.img"), &hidden).unwrap();
    let error = refusal(directory.path(), ",degraded=yes");
    assert!(error.contains("the member with all data is missing"), "{error}");
    fs::rename(&hidden, directory.path().join("a.img")).unwrap();
    let target = Target::start(directory.path(), "");
    assert_eq!(target.read(0), 9);
    wait_for_copy(directory.path());
}

#[test]
fn refuses_split_brain_until_one_side_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    members(directory.path());
    let target = Target::start(directory.path(), ",create=yes");
    wait_for_copy(directory.path());
    target.stop();
    let path = |name: &str| directory.path().join(name);
    fs::copy(path("m.bitmap"), path("old.bitmap")).unwrap();
    // Each member continues alone, with its own bitmap file.
    for (fill, missing) in [(7, "b.img"), (8, "a.img")] {
        fs::rename(path(missing), path("hidden.img")).unwrap();
        let target = Target::start(directory.path(), ",degraded=yes");
        target.write(0, fill);
        target.stop();
        fs::rename(path("hidden.img"), path(missing)).unwrap();
        fs::copy(path("old.bitmap"), path("m.bitmap")).unwrap();
    }
    let error = refusal(directory.path(), "");
    assert!(error.contains("split brain") && error.contains("keep="), "{error}");
    let generations: Vec<&str> = error.split("keep=").skip(1).map(|text| &text[..36]).collect();
    assert_eq!(generations.len(), 2, "{error}");
    let target = Target::start(directory.path(), &format!(",keep={}", generations[1]));
    assert_eq!(target.read(0), 8);
    wait_for_copy(directory.path());
}

#[test]
fn refuses_unlabeled_and_foreign_members() {
    let directory = tempfile::tempdir().unwrap();
    members(directory.path());
    let error = refusal(directory.path(), "");
    assert!(error.contains("create=yes"), "{error}");
    Target::start(directory.path(), ",create=yes").stop();
    let path = |name: &str| directory.path().join(name);
    let swap = || {
        fs::rename(path("a.img"), path("c.img")).unwrap();
        fs::rename(path("b.img"), path("a.img")).unwrap();
        fs::rename(path("c.img"), path("b.img")).unwrap();
    };
    swap();
    let error = refusal(directory.path(), "");
    assert!(error.contains("in the wrong order; swap them"), "{error}");
    swap();
    fs::remove_file(path("m.bitmap")).unwrap();
    let error = refusal(directory.path(), "");
    assert!(error.contains("bitmap file"), "{error}");
    let output = Command::new(env!("CARGO_BIN_EXE_isolane"))
        .args(["serve", "mirror:a.img;b.img"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("add bitmap=FILE"));
}

#[test]
fn continues_and_stops_without_remote_member_that_vanishes() {
    let directory = tempfile::tempdir().unwrap();
    members(directory.path());
    let (rear, remote) = Target::spawn(serve_volume(directory.path(), "b.img"));
    let volume = format!(
        "mirror:a.img;({remote},reconnect=3600s,keep-alive=5s),bitmap=m.bitmap,create=yes,member-timeout=3s"
    );
    let (front, _) = Target::spawn(serve_volume(directory.path(), &volume));
    wait_for_copy(directory.path());
    front.write(0, 7);
    stop(rear.process.id());
    assert_eq!((front.read(0), front.read(4096)), (7, 1));
    front.write(0, 8);
    assert_eq!(front.read(0), 8);
    front.stop();
}
