//! `isolane engine run`: starts an unmodified program whose TCP connections move to the engine.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use isolane_attach::{Session, SessionOptions};
use isolane_shm::{deny_io_uring, seccomp_filters};

use super::socket_parser;
use crate::failure::{Failure, IoContext};
use crate::logging;
use crate::preload::{Calls, Library, check_program, prepend};

/// Run a program whose TCP connections move to the engine
///
/// The library libisolane_preload.so, next to this program, in ../lib, or the file that ISOLANE_PRELOAD names, is loaded
/// into the program and its children. A TCP connection that the program itself has connected or accepted moves to the
/// engine after 32 messages of at most 4 KiB within 100 ms. It returns to the kernel before any call that the engine
/// cannot serve, and when the engine ends, without losing a byte. An engine is started if none is running.
///
/// The program cannot use io_uring, whose operations no library sees, and set-user-ID programs that it starts gain no
/// rights; `--io-uring` permits both. Programs that are linked statically, written in Go, or set-user-ID call the system past preloaded libraries,
/// and are refused.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Socket of the engine (default: as of `isolane engine`)
    #[arg(long, value_name = "PATH", value_parser = socket_parser())]
    socket: Option<PathBuf>,
    /// Print for each process how many messages went through the engine when it exits, to stderr or a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    stats: Option<OsString>,
    /// Let the program use io_uring; once a process has a ring, none of its connections moves any longer
    #[arg(long)]
    io_uring: bool,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the subcommand: replaces this process.
pub fn run(args: &Args) -> Result<(), Failure> {
    check_adopt()?;
    let library = LIBRARY.find()?;
    let (path, calls) = check_program(&args.program[0])?;
    let reason = match calls {
        Calls::Library => None,
        Calls::Static => Some("it is linked statically, and calls the system past preloaded libraries"),
        Calls::Go => Some("it is written in Go, and calls the system past preloaded libraries"),
        Calls::OtherLibrary => Some("it uses another C library than this program"),
    };
    if let Some(reason) = reason {
        return Err(Failure::new(format!("cannot run {}", path.display()), reason).with_hint(
            "run it without the engine, or link it dynamically with the C library of this program",
        ));
    }
    let socket = args.socket.clone().unwrap_or_else(isolane_engine::default_path);
    let socket = std::path::absolute(&socket).io_context("--socket")?;
    // Starts an engine outside of the filter, and names the reason if there is none.
    let options = SessionOptions { path: socket.clone(), ..SessionOptions::default() };
    Session::probe(&options).map_err(Failure::from_error)?;
    let mut program = Command::new(&args.program[0]);
    program.args(&args.program[1..]).env("ISOLANE_PRELOAD_SOCKET", socket);
    program.env("LD_PRELOAD", prepend(library.as_os_str(), env::var_os("LD_PRELOAD").as_deref()));
    match &args.stats {
        Some(file) if file.is_empty() => program.env("ISOLANE_PRELOAD_STATS", ""),
        Some(file) => program.env("ISOLANE_PRELOAD_STATS", std::path::absolute(file).io_context("--stats")?),
        None => program.env_remove("ISOLANE_PRELOAD_STATS"),
    };
    if !args.io_uring {
        deny_io_uring().io_context("cannot forbid io_uring")?;
    }
    // A program below a further filter, which may forbid calls of the library, keeps its connections.
    let filters = seccomp_filters().map(|count| count.to_string());
    program.env("ISOLANE_PRELOAD_FILTERS", filters.unwrap_or_default());
    // The other program ends this one's threads.
    logging::finish(None);
    let error = program.exec();
    Err(error).io_context(format!("cannot run {}", args.program[0].display()))
}

/// Rejects a value that the library would ignore.
fn check_adopt() -> Result<(), Failure> {
    match env::var_os("ISOLANE_ADOPT") {
        Some(value) if value != "always" => {
            Err(Failure::new(format!("ISOLANE_ADOPT={}", value.display()), "not a policy")
                .with_hint("write always, or unset the variable"))
        }
        _ => Ok(()),
    }
}

const LIBRARY: Library = Library {
    package: "isolane-preload",
    names: ["libisolane_preload.so", "libisolane-preload.so"],
    variable: "ISOLANE_PRELOAD",
    description: "the library that moves connections",
};
