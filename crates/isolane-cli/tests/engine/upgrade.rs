//! Upgrades after the file of the program was replaced or removed.

use super::*;

/// An engine whose program's file the test replaces.
struct Replaceable {
    supervisor: Child,
    dir: tempfile::TempDir,
    session: Session,
}

impl Replaceable {
    fn start() -> Replaceable {
        let dir = tempfile::tempdir().unwrap();
        let (file, path) = (dir.path().join("isolane"), dir.path().join("sock"));
        copy_to_run(Path::new(env!("CARGO_BIN_EXE_isolane")), &file);
        let mut supervisor = Command::new(&file)
            .args(["--log-level", "info", "engine", "--mode", "sleep", "--socket"])
            .arg(&path)
            .stdout(Stdio::piped())
            .stderr(fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        BufReader::new(supervisor.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let options =
            SessionOptions { path, memory_bytes: 4 << 20, spawn_engine: false, ..SessionOptions::default() };
        let session = Session::open(&options).unwrap();
        Replaceable { supervisor, dir, session }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Replaces the file; running processes keep the old one.
    fn replace(&self, content: &[u8], mode: u32) {
        let (bytes, other) = (self.dir.path().join("bytes"), self.dir.path().join("other"));
        fs::write(&bytes, content).unwrap();
        copy_to_run(&bytes, &other);
        fs::set_permissions(&other, PermissionsExt::from_mode(mode)).unwrap();
        fs::rename(other, self.dir.path().join("isolane")).unwrap();
    }

    /// Requests an upgrade that fails, and checks the logged reason.
    fn check_failed_upgrade(&self, content: Option<&[u8]>, mode: u32, reason: &str) {
        let (epoch, before) = (self.session.epoch(), self.log().len());
        match content {
            Some(content) => self.replace(content, mode),
            None => fs::remove_file(self.dir.path().join("isolane")).unwrap(),
        }
        kill(self.supervisor.id(), "HUP");
        until(reason, || self.log()[before..].contains(reason).then_some(()));
        let file = self.dir.path().join("isolane");
        assert!(self.log()[before..].contains(file.to_str().unwrap()), "{}", self.log());
        is_served(&self.session);
        assert_eq!(self.session.epoch(), epoch, "another engine: {}", self.log());
    }

    fn kill_engine(&self) {
        let (epoch, children) =
            (self.session.epoch(), format!("/proc/{0}/task/{0}/children", self.supervisor.id()));
        let children = fs::read_to_string(children).unwrap();
        children.split_whitespace().for_each(|pid| kill(pid.parse().unwrap(), "KILL"));
        until("the next engine", || (self.session.epoch() > epoch).then_some(()));
        is_served(&self.session);
    }
}

impl Drop for Replaceable {
    fn drop(&mut self) {
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

/// Says, as an engine does first, that it speaks version 99.
const OTHER_VERSION: &[u8] = b"#!/bin/sh\nprintf '\\000\\143' >&0\nexec sleep 600\n";

#[test]
fn failed_upgrade_keeps_the_engine() {
    let engine = Replaceable::start();
    engine.check_failed_upgrade(Some(b""), 0o644, "Permission denied");
    engine.check_failed_upgrade(Some(b"#!/nowhere\n"), 0o755, "No such file");
    engine.check_failed_upgrade(Some(b"#!/bin/sh\nexit 3\n"), 0o755, "exit status: 3");
    engine.check_failed_upgrade(Some(OTHER_VERSION), 0o755, "version 99");
    engine.check_failed_upgrade(
        Some(b"#!/bin/sh\nexec </dev/null\nexec sleep 600\n"),
        0o755,
        "closed its link",
    );
    engine.check_failed_upgrade(None, 0, "No such file");
    // A restart also works without the file.
    engine.kill_engine();
    engine.kill_engine();
    let (epoch, program) = (engine.session.epoch(), fs::read(env!("CARGO_BIN_EXE_isolane")).unwrap());
    engine.replace(&program, 0o755);
    kill(engine.supervisor.id(), "HUP");
    until("the next engine", || (engine.session.epoch() > epoch).then_some(()));
    is_served(&engine.session);
    let file = engine.dir.path().join("isolane");
    let replacement = format!("replacing the engine by {}", file.display());
    assert!(engine.log().contains(&replacement), "{}", engine.log());
    let version = format!("isolane {} ({})", env!("CARGO_PKG_VERSION"), file.display());
    until("its version in the log", || {
        engine.log().rsplit("replacing the engine").next()?.contains(&version).then_some(())
    });
}

#[test]
fn restarts_from_image_if_file_is_invalid() {
    for content in [b"#!/nowhere\n".as_slice(), b"#!/bin/sh\nexit 3\n", OTHER_VERSION] {
        let engine = Replaceable::start();
        engine.replace(content, 0o755);
        engine.kill_engine();
        assert!(engine.log().contains("continues with the supervisor's program"), "{}", engine.log());
    }
}

#[test]
fn upgrade_to_crashing_program_is_reverted() {
    let engine = Replaceable::start();
    // Enough descriptors to report a version and take over, but not to start.
    let program = env!("CARGO_BIN_EXE_isolane");
    engine.replace(format!("#!/bin/sh\nulimit -n 12; exec {program} \"$@\"\n").as_bytes(), 0o755);
    kill(engine.supervisor.id(), "HUP");
    until("the next engine", || (engine.session.epoch() > 1).then_some(()));
    is_served(&engine.session);
    assert!(engine.log().contains("continues with the supervisor's program"), "{}", engine.log());
}
