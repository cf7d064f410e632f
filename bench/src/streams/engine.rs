//! An engine for one measurement, and what processor time it takes.

use std::io;
use std::time::Duration;

use isolane_attach::{self as attach, Session};
use tempfile::TempDir;

use super::options::Options;
use crate::measure::{Program, Running};
use crate::processor;

/// A running engine, ended when it is dropped.
pub struct Engine {
    supervisor: Running,
    session: Session,
    /// Holds the engine's socket, and what its program says.
    _folder: TempDir,
}

impl Engine {
    /// Starts one and attaches to it.
    pub fn start(options: &Options) -> io::Result<Engine> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("engine.sock");
        let program = Program::new(&options.isolane, None, folder.path());
        let program = program.args("--log-level warn engine --mode").arg(&options.engine_mode);
        let program = program.arg("--cores").arg(options.engine_core.to_string());
        let program = if options.engine_lock { program.arg("--needless-lock") } else { program };
        let mut supervisor = program.arg("--socket").arg(&path).start()?;
        supervisor.wait_for(START_LIMIT, |said| said.contains("listening on ").then_some(()))?;
        // One that the session starts by itself would not be the one that is measured.
        let session = Session::open(&attach::Options { path, starts: false, ..attach::Options::default() });
        Ok(Engine { supervisor, session: session.map_err(io::Error::other)?, _folder: folder })
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

const START_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    /// Why no engine is there.
    fn refusal(arguments: [&str; 4]) -> String {
        let arguments = Arguments::parse_from(["streams"].iter().chain(&arguments));
        Engine::start(&arguments.options).err().expect("there is none").to_string()
    }

    #[test]
    fn a_program_that_ends_is_named_and_its_complaint_shown() {
        let error = refusal(["--isolane", "ls", "--engine-mode", "adaptive"]);
        assert!(error.contains("ls ended with") && error.contains("--log-level"), "{error}");
    }

    #[test]
    fn an_engine_that_does_not_listen_is_not_replaced_by_one_that_nobody_measures() {
        // It says what an engine says, and ends.
        let error = refusal(["--isolane", "echo", "--engine-mode", "listening on nothing"]);
        assert!(error.contains("no engine listens on"), "{error}");
        assert!(!error.contains("none can be started"), "{error}");
    }
}
