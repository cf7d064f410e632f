//! An engine for one measurement, and its processor time.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use isolane_attach::{self as attach, Session};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::options::Options;
use crate::cpu;

/// A running engine, ended on drop.
pub struct Engine {
    /// A session, once the engine listens.
    pub session: Session,
    supervisor: Supervisor,
}

/// The engine's supervisor, whose end ends the engine. `setpriv` has the kernel kill it with this program.
struct Supervisor {
    child: Child,
    output: BufReader<ChildStdout>,
    /// Holds the socket and the log.
    directory: TempDir,
}

impl Engine {
    /// Starts an engine and attaches to it.
    pub fn start(options: &Options) -> io::Result<Engine> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("engine.sock");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&options.isolane);
        command.args(["--log-level", "warn", "engine", "--mode", &options.engine_mode, "--cores"]);
        command.arg(options.engine_core.to_string()).arg("--socket").arg(&path);
        if options.engine_lock {
            command.arg("--needless-lock");
        }
        let log = File::create(directory.path().join("log"))?;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let mut supervisor = Supervisor { child, output, directory };
        supervisor.wait_until_listening(options)?;
        // A session must not start another engine, which would not be measured.
        let session = Session::open(&attach::SessionOptions {
            path,
            spawn_engine: false,
            ..attach::SessionOptions::default()
        });
        Ok(Engine { session: session.map_err(io::Error::other)?, supervisor })
    }

    /// Returns the processor time of supervisor and engine.
    pub fn processor_time(&self) -> io::Result<Duration> {
        let supervisor = self.supervisor.child.id();
        let children = cpu::children(supervisor)?.into_iter();
        children.chain([supervisor]).map(cpu::process_time).sum()
    }
}

impl Supervisor {
    fn wait_until_listening(&mut self, options: &Options) -> io::Result<()> {
        let mut line = String::new();
        while !line.contains("listening on ") {
            line.clear();
            if self.output.read_line(&mut line)? == 0 {
                let status = self.child.wait()?;
                let log = fs::read_to_string(self.directory.path().join("log"))?;
                let name = options.isolane.display();
                return Err(io::Error::other(format!("{name} ended with {status}: {}", log.trim())));
            }
        }
        Ok(())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    fn start_error(arguments: [&str; 4]) -> String {
        let arguments = Arguments::parse_from(["streams"].iter().chain(&arguments));
        Engine::start(&arguments.options).err().expect("no engine starts").to_string()
    }

    #[test]
    fn reports_a_failed_program_with_its_log() {
        let error = start_error(["--isolane", "ls", "--engine-mode", "adaptive"]);
        assert!(error.contains("ls ended with") && error.contains("--log-level"), "{error}");
    }

    #[test]
    fn never_starts_a_replacement_engine() {
        // It prints the line of an engine, and ends.
        let error = start_error(["--isolane", "echo", "--engine-mode", "listening on nothing"]);
        assert!(error.contains("no engine listens on"), "{error}");
        assert!(!error.contains("none can be started"), "{error}");
    }
}
