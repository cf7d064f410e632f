//! `isolane verbs run`: starts an unmodified RDMA program.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

use isolane_reactor::SocketOptions;
use isolane_verbs::ProgressMode;
use isolane_verbs::wire::Hello;

use crate::cores;
use crate::failure::{Failure, IoContext};
use crate::logging;
use crate::preload::{Calls, Library, check_program, prepend};

/// Run a program with RDMA devices over TCP
///
/// The program and its children find one device for each local address, with the interface of libibverbs. No driver,
/// network card, or privilege is needed. The library of the devices is libisolane_ibverbs.so, next to this program, in
/// ../lib, or the file that ISOLANE_IBVERBS names. The system loads it neither into programs that are linked statically
/// nor into set-user-ID programs. Programs that are built with AddressSanitizer run with
/// ASAN_OPTIONS=verify_asan_link_order=0, because they otherwise refuse preloaded libraries.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Options of the sockets, as for `isolane serve --listen`, separated by commas
    #[arg(long, default_value = "", value_name = "OPTIONS")]
    socket: SocketOptions,
    /// Driver of the connections: `polling`, or `thread:CORE` for one thread of each process that never sleeps
    ///
    /// Threads that share a core take turns: if two processes name one core, or a thread of a program runs there, an
    /// operation takes milliseconds instead of microseconds. Give each process a core that nothing else uses.
    #[arg(long, default_value = "polling", value_name = "MODE")]
    progress: ProgressMode,
    /// TCP connections of each queue pair, 1 to 8; each end can have fewer
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(Hello::MAX_LANES)), value_name = "N")]
    lanes: u8,
    /// TCP ports of the queue pairs, 256 of which share one (default: the system chooses)
    #[arg(long, value_parser = parse_ports, value_name = "LOW-HIGH")]
    ports: Option<String>,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn parse_ports(text: &str) -> Result<String, &'static str> {
    let range = text
        .split_once('-')
        .and_then(|(low, high)| Some((low.parse::<u16>().ok()?, high.parse::<u16>().ok()?)));
    match range {
        Some((low, high)) if 0 < low && low <= high => Ok(text.into()),
        _ => Err("not a range: write for example 20000-20007"),
    }
}

/// Runs the subcommand: replaces this process.
pub fn run(args: &Args) -> Result<(), Failure> {
    cores::check_progress(args.progress)?;
    let library = LIBRARY.find()?;
    if let (path, Calls::Static) = check_program(&args.program[0])? {
        log::warn!(
            "{} is linked statically: only programs that it starts have RDMA devices; link it dynamically",
            path.display()
        );
    }
    let mut program = Command::new(&args.program[0]);
    program.args(&args.program[1..]);
    for (name, first) in
        [("LD_PRELOAD", library.as_os_str()), ("ASAN_OPTIONS", OsStr::new(PRELOAD_WITH_ASAN))]
    {
        program.env(name, prepend(first, env::var_os(name).as_deref()));
    }
    let settings = [
        ("ISOLANE_VERBS_SOCKET", args.socket.to_string()),
        ("ISOLANE_VERBS_PROGRESS", args.progress.to_string()),
        ("ISOLANE_VERBS_LANES", args.lanes.to_string()),
        ("ISOLANE_VERBS_PORTS", args.ports.clone().unwrap_or_default()),
    ];
    program.envs(settings.into_iter().filter(|(_, value)| !value.is_empty()));
    // The other program ends this one's threads.
    logging::finish(None);
    let error = program.exec();
    Err(error).io_context(format!("cannot run {}", args.program[0].display()))
}

/// The library of the devices.
const LIBRARY: Library = Library {
    names: ["libisolane_ibverbs.so", "libisolane-ibverbs.so"],
    variable: "ISOLANE_IBVERBS",
    description: "the library of the devices",
};

/// Without this option, AddressSanitizer ends programs that have a preloaded library.
const PRELOAD_WITH_ASAN: &str = "verify_asan_link_order=0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_a_range() {
        assert_eq!(parse_ports("20000-20007").as_deref(), Ok("20000-20007"));
        for wrong in ["", "1", "0-5", "5-4", "1-70000", "a-b"] {
            assert!(parse_ports(wrong).is_err(), "{wrong}");
        }
    }
}
