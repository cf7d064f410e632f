//! `isolane engine`: network processing on dedicated cores, for applications that attach.
//!
//! The started process is the supervisor. The engine is a second process of the same program with `--supervised`, which
//! has its supervisor at standard input.

mod daemon;
mod manage;
mod observe;
mod run;

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::builder::{PathBufValueParser, TypedValueParser};
use isolane_engine::supervisor::{self, Binary, SignalFds, SupervisorConfig, run_engine};
use isolane_engine::{EngineConfig, SessionLimits};
use isolane_host::{Cores, Mode};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::choice::{Choice, one_of};
use crate::cores;
use crate::failure::{Context, Failure};
use crate::host_args::{MODES, is_like_address};
use crate::output;
use crate::serve::observe::{ControlSocket, parse_control_socket};
use crate::units::{parse_bytes, parse_time, parse_time_with_unit};

/// Process the network traffic of other programs on dedicated cores
///
/// Applications attach through a Unix socket and share memory with the engine:
/// they read and write that memory, and the engine sends and receives. An
/// application starts an engine if none is running, unless it opts out; such an
/// engine exits after a while without clients.
///
/// There are two processes: the engine, and a supervisor that persists its
/// state. If the engine crashes, the supervisor starts another one, and
/// applications continue. If the supervisor dies, the engine ends also, and
/// applications get an error; they can reclaim their connections and continue
/// without an engine.
///
/// The program prints `listening on PATH` once applications can attach.
///
/// SIGINT and SIGTERM shut the engine down cleanly: it returns or sends written
/// data (for up to 5 s). A second signal ends it immediately. SIGHUP restarts
/// the engine from the current file of the program; if that does not run, the
/// log has the reason, and the engine continues. SIGUSR1 prints the attached
/// applications and their objects to stderr. Send signals to the supervisor,
/// whose PID is in PATH.lock next to the socket; the engine ignores them.
/// `isolane engine status`, `stop`, `upgrade`, and `logs` send them and wait for
/// the result.
///
/// Applications of the same user and of root can attach, and of users named
/// with --allow-uid. With --allow-uid, every user may write to the socket, and
/// the engine rejects others; its directory must be accessible to the allowed
/// users. An application attaches only to an engine of the same user or of root,
/// unless ISOLANE_TRUSTED_UIDS in its environment names other user IDs, as
/// 1000,1001.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    action: Option<manage::Action>,
    /// Run on these cores, one thread each, as 1 or 2,4-6 (default: the last core of this process)
    #[arg(long, value_name = "LIST")]
    cores: Option<Cores>,
    /// Socket for applications (default: isolane/engine.sock in $XDG_RUNTIME_DIR, else
    /// /tmp/isolane-UID/engine.sock)
    #[arg(long, value_name = "PATH", value_parser = socket_parser())]
    socket: Option<PathBuf>,
    /// Idle behavior of a core
    #[arg(long, value_parser = one_of(&MODES), default_value = "adaptive")]
    mode: Mode,
    /// Spin time of an adaptive core before it sleeps
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = parse_time_with_unit)]
    spin: Duration,
    /// Maximum memory that one application may share, at least 4k
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = parse_memory)]
    max_memory: u64,
    /// Maximum streams of one application
    #[arg(long, value_name = "N", default_value_t = SessionLimits::default().streams)]
    max_streams: u32,
    /// Maximum volumes of one application
    #[arg(long, value_name = "N", default_value_t = SessionLimits::default().volumes)]
    max_volumes: u32,
    /// Maximum notification queues of one application, one for each thread that waits for several objects
    #[arg(long, value_name = "N", default_value_t = SessionLimits::default().queues)]
    max_notification_queues: u32,
    /// Maximum number of applications
    #[arg(long, value_name = "N", default_value_t = EngineConfig::MAX_CLIENTS as u32, value_parser = at_least_one)]
    max_clients: u32,
    /// Let applications of this user attach also; repeatable
    #[arg(long, value_name = "UID", value_parser = parse_uid)]
    allow_uid: Vec<u32>,
    /// Record latencies of volumes, their stages, and slow operations
    #[arg(long, value_parser = one_of(&OBSERVE), default_value = "on", action = clap::ArgAction::Set)]
    observe: bool,
    /// Socket from which commands such as `isolane explain` read: a path, or off (default: engine-PID.sock next to the
    /// socket for applications, with the PID of the supervisor)
    #[arg(long, value_name = "PATH|off", value_parser = parse_control_socket)]
    control_socket: Option<ControlSocket>,
    /// Exit after this long without clients (default: never)
    #[arg(long, value_name = "TIME", value_parser = parse_time_above_zero)]
    idle_timeout: Option<Duration>,
    /// Run in the background, return once applications can attach, and write the log to PATH.log next to the socket
    #[arg(long)]
    daemon: bool,
    /// Leave the session of the caller
    #[arg(long, hide = true)]
    detached: bool,
    /// Run as the engine of the supervisor at standard input
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
        let link = std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .context("cannot duplicate the socket of the supervisor")?;
        let cores = config.cores.clone();
        let start = |source| observe::start(source, &path, &cores, args.control_socket.as_ref());
        return run_engine(config, link, Vec::new(), ignored_signals()?, start).map_err(Failure::from_error);
    }
    if let Some(ControlSocket::At(socket)) = &args.control_socket {
        observe::check(socket)?;
    }
    if args.daemon {
        return daemon::start(&path);
    }
    if args.detached {
        // Fails only for a session leader.
        let _ = rustix::process::setsid();
    }
    let ready = format!("listening on {}\n", path.display());
    let options = SupervisorConfig {
        path,
        allowed_uids: args.allow_uid.clone(),
        program: program()?,
        on_ready: Box::new(move || output::announce(ready.clone())),
    };
    supervisor::supervise(options, signal_fds()?).map_err(Failure::from_error)
}

/// Parses the path of a socket. Rejects addresses.
fn socket_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| if path.to_str().is_some_and(is_like_address) { Err(format!(
        "looks like an address, but a socket has a path: write isolane.sock, or ./{} for a file of that name",
        path.display()
    )) } else { Ok(path) })
}

fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    let enough = bytes >= MIN_MEMORY;
    enough.then_some(bytes).ok_or_else(|| "memory is shared in whole pages: write 4k or more".into())
}

fn at_least_one(text: &str) -> Result<u32, String> {
    let number: u32 = text.parse().map_err(|_| format!("{text:?} is not a number from 1 to {}", u32::MAX))?;
    (number > 0).then_some(number).ok_or_else(|| "no application could attach: write 1 or more".into())
}

fn parse_time_above_zero(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    (!time.is_zero())
        .then_some(time)
        .ok_or_else(|| "no application could attach before the exit: write 1s or more".into())
}

fn parse_uid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("not a user ID: write the output of `id -u {text}`"))
}

fn configure(args: &Args) -> Result<EngineConfig, Failure> {
    let cores = match &args.cores {
        None => cores::usable()?.into_iter().next_back().into_iter().collect(),
        Some(requested) => cores::checked(requested.as_slice())?,
    };
    let mut config = EngineConfig::new(cores);
    config.mode = args.mode;
    config.spin = args.spin;
    config.limits = SessionLimits {
        memory_bytes: args.max_memory,
        streams: args.max_streams,
        volumes: args.max_volumes,
        queues: args.max_notification_queues,
    };
    config.max_clients = args.max_clients as usize;
    config.allowed_uids = args.allow_uid.clone();
    config.max_idle = args.idle_timeout;
    config.observe = args.observe;
    Ok(config)
}

/// Returns commands that run this program again with the same arguments: its current file, or its running image.
fn program() -> Result<Box<dyn FnMut(Binary) -> Command>, Failure> {
    let path = std::env::current_exe().context("cannot find this program's file")?;
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    Ok(Box::new(move |program| {
        let mut command = match program {
            Binary::OnDisk => Command::new(&path),
            Binary::Running => Command::new("/proc/self/exe"),
        };
        command.args(&arguments).arg("--supervised");
        command
    }))
}

/// Returns descriptors that become readable with signals.
fn signal_fds() -> Result<SignalFds, Failure> {
    Ok(SignalFds {
        stop: signal_fd(&[SIGINT, SIGTERM])?,
        upgrade: signal_fd(&[SIGHUP])?,
        status: signal_fd(&[SIGUSR1])?,
    })
}

/// Returns a flag that is set by the signals of a supervisor, which an engine ignores.
fn ignored_signals() -> Result<Arc<AtomicBool>, Failure> {
    let received = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGUSR1] {
        signal_hook::flag::register(signal, Arc::clone(&received)).context("cannot listen for signals")?;
    }
    Ok(received)
}

/// Returns a descriptor that becomes readable with each of these signals.
fn signal_fd(signals: &[i32]) -> Result<OwnedFd, Failure> {
    let failed = "cannot listen for signals";
    let (reads, writes) = UnixStream::pair().context(failed)?;
    reads.set_nonblocking(true).context(failed)?;
    for signal in signals {
        let writes = writes.try_clone().context(failed)?;
        signal_hook::low_level::pipe::register(*signal, writes).context(failed)?;
    }
    Ok(reads.into())
}

const OBSERVE: [Choice<bool>; 2] = [
    ("on", "Time each command from the application's push until its outcome is published", true),
    ("off", "Record nothing, to measure the cost of the above", false),
];

/// One page.
const MIN_MEMORY: u64 = 4 << 10;
