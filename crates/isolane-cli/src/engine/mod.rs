//! `isolane engine`: network processing on cores of its own, for applications that attach.
//!
//! The process that is started here supervises; the engine is a second one, the same program with
//! `--supervised`, which finds its supervisor at its standard input.

mod background;
mod manage;

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::builder::{PathBufValueParser, TypedValueParser};
use isolane_engine::supervisor::{self, Options, Program, Wishes, supervised};
use isolane_engine::{Config, Limits};
use isolane_host::Cores;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::cores::{self, parse_cores};
use crate::failure::{Context, Failure};
use crate::output;
use crate::remote::{ModeArg, is_like_address};
use crate::units::{parse_bytes, parse_time, parse_time_with_unit};

/// Do the network processing of other programs on cores of its own
///
/// Applications attach through a Unix socket and share memory with the engine:
/// they write and read there, and the engine does what the network needs. It
/// is started by an application that finds none, unless that says otherwise;
/// an engine of that kind ends once nobody has been attached for a while.
///
/// Two processes run: a supervisor, which only keeps what must not be lost,
/// and the engine. If the engine dies, the supervisor starts the next, and
/// applications go on without noticing. If the supervisor dies, the engine
/// ends with it, and applications get an error; they can take their
/// connections back and go on without an engine.
///
/// `listening on PATH` is printed once applications can attach.
///
/// SIGINT and SIGTERM end the engine in order: what was written is handed
/// back or finished (for at most 5 s). A second signal ends it at once.
/// SIGHUP starts the engine anew, from the program's file as it is then; if
/// that does not run, the log says why and the engine goes on as it is.
/// SIGUSR1 prints who is attached and what they have to stderr. Send them to
/// the supervisor, whose number is in PATH.lock beside the socket: the engine
/// itself acts on none of them. `isolane engine status`, `stop`, `upgrade` and
/// `logs` do that, and wait for the outcome.
///
/// Applications of the same user and of root may attach, and those of users
/// named with --allow-uid. With that every user may write to the socket, and
/// the engine turns others away; it must be in a folder that those who are
/// allowed may enter. An application itself attaches to an engine of its own
/// user or of root only, unless ISOLANE_TRUST_UIDS in its environment names
/// others by their numbers, as 1000,1001.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    action: Option<manage::Action>,
    /// Run on these cores, one thread each, as 1 or 2,4-6 (default: the last that this process may use)
    #[arg(long, value_name = "LIST", value_parser = parse_cores)]
    cores: Option<Cores>,
    /// Where applications attach (default: isolane/engine.sock in $XDG_RUNTIME_DIR, else
    /// /tmp/isolane-UID/engine.sock)
    #[arg(long, value_name = "PATH", value_parser = socket_parser())]
    socket: Option<PathBuf>,
    /// What a core does when there is nothing to do
    #[arg(long, value_enum, default_value_t = ModeArg::Adaptive)]
    mode: ModeArg,
    /// How long an adaptive core spins after work before it sleeps
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = parse_time_with_unit)]
    spin: Duration,
    /// The most memory that one application may share, at least 4k
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = parse_memory)]
    memory_max: u64,
    /// The most streams of one application; 0: none
    #[arg(long, value_name = "N", default_value_t = Limits::default().streams)]
    streams_max: u32,
    /// The most volumes of one application; 0: none
    #[arg(long, value_name = "N", default_value_t = Limits::default().volumes)]
    volumes_max: u32,
    /// The most notification queues (threads that wait for many things) of one application; 0: none
    #[arg(long, value_name = "N", default_value_t = Limits::default().queues)]
    queues_max: u32,
    /// The most applications
    #[arg(long, value_name = "N", default_value_t = Config::CLIENTS_MAX as u32, value_parser = at_least_one)]
    clients_max: u32,
    /// Let applications of this user attach, too; may be repeated
    #[arg(long, value_name = "UID", value_parser = parse_uid)]
    allow_uid: Vec<u32>,
    /// End once nobody has been attached for so long (default: never)
    #[arg(long, value_name = "TIME", value_parser = parse_time_above_zero)]
    idle_max: Option<Duration>,
    /// Return once applications can attach; the log goes to a file beside the socket, PATH.log
    #[arg(long)]
    background: bool,
    /// Take a needless lock at each look at a stream, to measure what it costs
    #[arg(long, hide = true)]
    needless_lock: bool,
    /// Leave the session of who has started it
    #[arg(long, hide = true)]
    detached: bool,
    /// Be the engine of the supervisor at the standard input
    #[arg(long, hide = true)]
    supervised: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    if let Some(action) = &args.action {
        return manage::run(action);
    }
    let config = configure(args)?;
    let path = args.socket.clone().unwrap_or_else(isolane_engine::default_path);
    if args.supervised {
        let link = std::io::stdin().as_fd().try_clone_to_owned().context("cannot have the link")?;
        return supervised(config, link, strays()?).map_err(Failure::whole);
    }
    if args.background {
        return background::start(&path);
    }
    if args.detached {
        // It fails only for who leads a session already.
        let _ = rustix::process::setsid();
    }
    let options = Options {
        path: path.clone(),
        allowed_uids: args.allow_uid.clone(),
        program: program()?,
        on_ready: announce(path),
    };
    supervisor::supervise(options, wishes()?).map_err(Failure::whole)
}

/// Reads the path of a socket. An address is none.
fn socket_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.to_str().is_some_and(is_like_address) {
        true => Err(format!(
            "it looks like an address, and applications attach at a path: write isolane.sock, or ./{} for that name",
            path.display()
        )),
        false => Ok(path),
    })
}

fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    let is_enough = bytes >= MEMORY_MIN;
    is_enough.then_some(bytes).ok_or_else(|| "it is shared in whole pages: write 4k or more".into())
}

fn at_least_one(text: &str) -> Result<u32, String> {
    let number: u32 = text.parse().map_err(|_| format!("{text:?} is no number from 1 to {}", u32::MAX))?;
    (number > 0).then_some(number).ok_or_else(|| "nobody could attach: write 1 or more".into())
}

fn parse_time_above_zero(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    (!time.is_zero())
        .then_some(time)
        .ok_or_else(|| "nobody could attach before it ends: write 1s or more".into())
}

fn parse_uid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("a user is meant by number: write what `id -u {text}` prints"))
}

fn configure(args: &Args) -> Result<Config, Failure> {
    let cores = match &args.cores {
        None => cores::usable()?.into_iter().next_back().into_iter().collect(),
        Some(asked) => cores::checked(asked.as_slice())?,
    };
    let mut config = Config::new(cores);
    config.mode = args.mode.mode();
    config.spin = args.spin;
    config.limits = Limits {
        memory_bytes: args.memory_max,
        streams: args.streams_max,
        volumes: args.volumes_max,
        queues: args.queues_max,
    };
    config.clients_max = args.clients_max as usize;
    config.allowed_uids = args.allow_uid.clone();
    config.idle_max = args.idle_max;
    config.needless_lock = args.needless_lock;
    Ok(config)
}

/// The engine's program: this one, as its file is when it is started or as it runs here, called as this was.
fn program() -> Result<Box<dyn FnMut(Program) -> Command>, Failure> {
    let path = std::env::current_exe().context("cannot find this program's file")?;
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    Ok(Box::new(move |program| {
        let mut command = match program {
            Program::Newest => Command::new(&path),
            Program::Own => Command::new("/proc/self/exe"),
        };
        command.args(&arguments).arg("--supervised");
        command
    }))
}

fn announce(path: PathBuf) -> Box<dyn FnMut()> {
    Box::new(move || {
        // Nobody may be there to read it.
        let _ = output::write_stdout(format!("listening on {}\n", path.display()).as_bytes());
    })
}

/// What signals wish.
fn wishes() -> Result<Wishes, Failure> {
    Ok(Wishes { stop: wish(&[SIGINT, SIGTERM])?, upgrade: wish(&[SIGHUP])?, show: wish(&[SIGUSR1])? })
}

/// Is set by each of the signals that a supervisor acts on.
fn strays() -> Result<Arc<AtomicBool>, Failure> {
    let strays = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGUSR1] {
        signal_hook::flag::register(signal, Arc::clone(&strays)).context("cannot listen for signals")?;
    }
    Ok(strays)
}

/// Becomes readable with each of these signals.
fn wish(signals: &[i32]) -> Result<OwnedFd, Failure> {
    let cannot = "cannot listen for signals";
    let (reads, writes) = UnixStream::pair().context(cannot)?;
    reads.set_nonblocking(true).context(cannot)?;
    for signal in signals {
        let writes = writes.try_clone().context(cannot)?;
        signal_hook::low_level::pipe::register(*signal, writes).context(cannot)?;
    }
    Ok(reads.into())
}

/// A page.
const MEMORY_MIN: u64 = 4 << 10;
