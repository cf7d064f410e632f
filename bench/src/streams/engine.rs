//! An engine for one measurement, and what processor time it takes.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use isolane_attach::Session;
use tempfile::TempDir;

use super::options::Options;
use super::processor;

/// A running engine, ended when it is dropped.
pub struct Engine {
    supervisor: Child,
    session: Session,
    /// Holds the engine's socket.
    _folder: TempDir,
}

impl Engine {
    /// Starts one and attaches to it.
    pub fn start(options: &Options) -> io::Result<Engine> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("engine.sock");
        let mut command = Command::new(&options.isolane);
        command.args(["--log-level", "warn", "engine", "--mode", &options.engine_mode, "--cores"]);
        command.arg(options.engine_core.to_string()).arg("--socket").arg(&socket);
        let mut supervisor = command.stdout(Stdio::null()).spawn()?;
        match attach(&socket) {
            Ok(session) => Ok(Engine { supervisor, session, _folder: folder }),
            Err(error) => {
                let _ = supervisor.kill().and_then(|()| supervisor.wait());
                Err(error)
            }
        }
    }

    /// The session with it.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What the supervisor and the engine have taken.
    pub fn processor_time(&self) -> io::Result<Duration> {
        let supervisor = self.supervisor.id();
        let children = processor::children(supervisor)?.into_iter();
        children.chain([supervisor]).map(processor::of_process).sum()
    }
}

fn attach(socket: &Path) -> io::Result<Session> {
    let begun = Instant::now();
    loop {
        match Session::connect(socket) {
            Ok(session) => return Ok(session),
            Err(error) if begun.elapsed() > START_LIMIT => return Err(io::Error::other(error)),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.supervisor);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.supervisor.wait();
    }
}

const START_LIMIT: Duration = Duration::from_secs(10);
