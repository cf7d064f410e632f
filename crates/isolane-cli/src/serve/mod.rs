//! `isolane serve`: files, block devices, and memory as NVMe/TCP namespaces.
//!
//! Opens the volumes, starts the target, prints the commands that connect to it, and waits for signals. The target has
//! its own threads; this one sleeps.

mod apply;
mod auth;
mod banner;
pub(crate) mod conditions;
mod counters;
mod differences;
mod dump;
mod edits;
mod exposure;
mod from_file;
mod handover;
mod limits;
mod live_config;
mod load;
mod memory_images;
pub(crate) mod model;
pub(crate) mod nqn;
mod numbering;
pub(crate) mod observe;
mod operator;
mod parse;
mod port_changes;
mod present;
mod qos;
mod service;
mod state;
mod state_file;
mod subsystem;
mod times;
mod upgrade;
mod upgrade_request;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::builder::UnknownArgumentValueParser;
use clap::{Args as _, FromArgMatches, ValueHint};
use isolane_host::{Cores, IoChoice, Mode};
use isolane_inspect::program::OnSlow;
use isolane_memory::PAGE_SIZE;
use isolane_rbd::Rbd;
use isolane_reactor::inherited;
use isolane_target::{
    AuthConfig, Listen, Placement, Target, TargetConfig, TargetLimits, TargetPort, parse_address,
};
use isolane_volume::file;
use isolane_volume::spec::VolumeSpec;
use isolane_volumes::Kinds;
use signal_hook::consts::{SIGHUP, SIGUSR1, SIGUSR2};

pub(crate) use from_file::unsupported;
pub(crate) use state::{check as check_state, unreadable as unreadable_state};

use banner::Banner;
use conditions::Conditions;
use load::Loaded;
use observe::{ControlSocket, parse_control_socket, parse_on_slow};
use operator::Operator;
use parse::{
    Acks, Listeners, Threshold, parse_acks, parse_listen, parse_memory, parse_pool, parse_threshold,
};
use service::Service;
use subsystem::{Opened, Planned};
use times::Times;
use upgrade::Started;

use crate::choice::{Choice, one_of};
use crate::cores;
use crate::failure::{Context, Failure};
use crate::host_args::{IO_CHOICES, MODES};
use crate::invocation;
use crate::output;
use crate::signals;
use crate::volume;

/// Serve files, block devices, or memory as NVMe/TCP namespaces
///
/// Each VOLUME becomes the next namespace, starting with 1:
///
///   mem:1G      memory, lost when the program ends
///   null:1T     reads return zeros, writes are discarded
///   PATH        a regular file or a block device
///   nvme+tcp:…  a volume of another target, nvme+tcp://HOST:PORT/NQN?nsid=N
///   rbd:…       a Ceph RBD image, rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]
///
/// A volume can also be made of other volumes. Quote it, because ; and ( are special
/// to the shell. A member that has options or members is written in parentheses:
///
///   mirror:A;B,bitmap=F    the same data on A and B, of the same size
///   stripe:64k:A;B;C       64 KiB from each volume in turn, all of the same size
///   read-only:A            rejects writes
///   delay:5ms:A            delays every request
///   delay:200us-400us:A    delays every request, uniformly between two bounds
///   delay:5ms:A,depth=4    delays at most 4 requests at a time, so that others wait
///   fault:100:A            fails every 100th request
///   stall:2s:A,every=60s   completes no request for 2 s in every 60 s
///   stall:20ms:A,one-in=200,seed=N
///                          stalls one request in 200, at random, and the same
///                          ones in each run with the same seed
///   log:A                  logs every request at level info
///
/// The filters nest, and their delays add up, as in delay:1ms:(stall:20ms:A,one-in=9).
/// Options limit them to some requests, as in delay:5ms:A,on=write:
///
///   on=read|write|flush    requests of one kind; not with read-only:A
///   from=30s               from this time after the volume was opened
///   for=10s                for this long
///
/// Options of a mirror:
///
///   bitmap=FILE      regions in which the members can differ after a crash
///   create=yes       make a new mirror: OVERWRITES B with the data of A, and the
///                    last 64 KiB of both; creates FILE
///   degraded=yes     start although one member is missing
///   keep=GENERATION  overwrite the other member, after a split brain
///   member-timeout=5s
///                    continue without a member that does not answer for this
///                    long, if the other one has all data; 0s waits forever
///
/// Options of a volume of another target:
///
///   reconnect=600s   reconnect for this long after a connection is lost; requests
///                    wait, then fail
///   keep-alive=15s   keep-alive timeout
///
/// Options of a Ceph RBD image, which needs the Debian package librbd1:
///
///   conf=FILE        Ceph's configuration (default: Ceph's places, as
///                    /etc/ceph/ceph.conf)
///   id=NAME          user, without "client." (default: admin)
///   keyring=FILE     key of the user
///
/// Options follow after commas, as in disk.img,size=10G,block-size=4096. Volumes made
/// of others accept only ro, nsid, uuid, group, and their own options.
///
///   size=10G              create a sparse file of this size if it is missing; of a
///                         larger file, serve as much
///   block-size=512|4096   size of a logical block in bytes (default: 512)
///   ro                    read-only
///   nsid=N                namespace ID
///   uuid=U                identity, instead of the volume's
///   group=NAME            volumes of one group are expected to behave alike, and
///                         are compared with each other
///   write-through         make every write durable: no volatile cache
///   buffered              use the page cache, never O_DIRECT
///
/// Sizes are in bytes, with k, M, G, or T (or KiB, MiB, …) in powers of 1024,
/// or with kB, MB, GB, or TB in powers of 1000. Write a comma in a path twice,
/// and a path that starts with a word and a colon as ./a:b. Write a slash or @ in
/// a name of Ceph twice.
/// Memory is allocated when it is written; memory volumes larger than the
/// memory and swap of the machine are rejected.
///
/// If an address is in use, the program waits up to 5 s for it, because the
/// kernel may keep a killed target's port for a few seconds.
///
/// The default VOLUME is mem:1G. The program prints `listening on ADDR:PORT`
/// for each listener once it accepts connections, then the volumes, and
/// commands that connect to them.
///
/// SIGHUP applies the file of --config, as `isolane config apply` does. Without a file, it
/// shuts the target down, as SIGINT and SIGTERM do, cleanly: it completes commands in flight (for up to 5 s) and makes all data durable. If a volume hangs for 12 s
/// more, the log names it, and the exit status is 1. A second signal ends the
/// target immediately. Only a call that hangs in the kernel can delay these. If a
/// served file was deleted, moved, or replaced, the log reports it within seconds,
/// with a way to save its data, and the exit status is 1.
/// SIGUSR1 prints counters, the age of the oldest command of each volume, the state
/// of each mirror, and the core of each connection to stderr, as text or, with
/// --json, as JSON. The log names a volume that has not completed a command for
/// 10 s.
///
/// Listeners can have socket options after the address, as in
/// --listen 10.0.0.1:4420,priority=5,congestion=bbr:
///
///   priority=N            selects a queue set of the network card
///   tos=N                 type of service: DSCP * 4
///   congestion=NAME       congestion control algorithm (default: the
///                         system's, or Reno instead of BBR for a host on
///                         this machine)
///   busy-poll=US          busy polling of the network card by a receive, in
///                         microseconds
///   prefer-busy-poll=on   disable interrupts during busy polling
///   send-buffer=BYTES     (default: tuned by the kernel, or 512 KiB for a
///                         host on this machine)
///   receive-buffer=BYTES  (default: tuned by the kernel); with a few KiB the
///                         kernel of the host sends very slowly
///   max-unsent=BYTES      limit of data that waits in the kernel, where other
///                         data cannot overtake it
///
/// There is no encryption yet, and authentication needs a file of --config.
/// Otherwise anyone who can reach the port can read and write the volumes:
/// --allow-host checks names of hosts, which can be forged.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Volumes to serve
    #[arg(value_name = "VOLUME", value_hint = ValueHint::AnyPath)]
    volumes: Vec<String>,
    /// Serve what this file describes, instead of volumes and options; `isolane config check FILE` reports its errors.
    #[arg(long, value_name = "FILE", conflicts_with_all = FILE_OPTIONS)]
    config: Option<PathBuf>,
    /// With --config: fail if a host on another machine has access without authentication
    #[arg(long, requires = "config")]
    strict: bool,
    /// Listen here, as 10.0.0.1, [::1]:4420, [fe80::1%eth0], or a name, which means all of its addresses; a port alone
    /// means 127.0.0.1, [::] also accepts IPv4 unless an IPv4 address with that port is listed, and port 0 selects a
    /// free port (default port: 4420); repeatable
    #[arg(long, value_name = "ADDR[:PORT][,OPTION...]", default_value = nqn::LISTEN, value_parser = parse_listen)]
    listen: Vec<Listeners>,
    /// Renamed to --listen
    #[arg(long, hide = true, value_parser = UnknownArgumentValueParser::suggest_arg("--listen"))]
    port: Option<String>,
    /// Report this address in the discovery log instead of the listeners that the host can reach; repeatable
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = parse_address)]
    advertise: Vec<SocketAddr>,
    /// Name of the subsystem, as nqn.2014-08.org.example:disk (default: derived from this machine and the
    /// identities of the volumes, such as files; of memory alone, from the first --listen, and random with port 0)
    #[arg(long, value_name = "NQN")]
    nqn: Option<String>,
    /// Admit only hosts with this name; repeatable
    #[arg(long, value_name = "NQN")]
    allow_host: Vec<String>,
    /// Run one reactor on each of these cores, as 0,1 or 0-3 (default: all cores of this process)
    #[arg(long, value_name = "LIST")]
    cores: Option<Cores>,
    /// Reactor of a new connection; SIGUSR1 shows the reactor of each
    #[arg(long, value_parser = one_of(&PLACEMENTS), default_value = "incoming-cpu")]
    placement: Placement,
    /// Migration of connections between reactors
    #[arg(long, value_parser = one_of(&SCHEDULERS), default_value = "static")]
    scheduler: RebalanceInterval,
    /// Idle behavior of a reactor
    #[arg(long, value_parser = one_of(&MODES), default_value = "adaptive")]
    mode: Mode,
    /// Kernel interface for files, readiness, and sleep
    #[arg(long, value_parser = one_of(&IO_CHOICES), default_value = "auto")]
    io: IoChoice,
    /// Maximum I/O queues of one host
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    io_queues: u16,
    /// Maximum entries of one queue
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(2..=4096))]
    queue_depth: u16,
    /// Let short commands overtake long ones on their connection
    #[arg(long, value_parser = one_of(&FAIR_QUEUEING), default_value = "on", action = clap::ArgAction::Set)]
    fair_queueing: bool,
    /// Record latencies, their stages, and slow operations
    #[arg(long, value_parser = one_of(&OBSERVE), default_value = "on", action = clap::ArgAction::Set)]
    observe: bool,
    /// Measure the stage peer of one send in N, as 1/1000: from its last byte until the host has acknowledged it. The
    /// core checks that, so the times are upper bounds
    #[arg(long, value_name = "1/N|off", default_value = "off", value_parser = parse_acks)]
    acks: Acks,
    /// Memory for these numbers; volumes beyond it are counted together
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_memory)]
    observe_memory: usize,
    /// What to do about a device that is slower than its peers, as a list: a line in the log (log), the metrics
    /// isolane_device_slow and isolane_device_ratio (metric), the locate light at its slot while it is slow (light),
    /// reads of a mirror avoid the member for at least 60 s (avoid), or none
    #[arg(long, value_name = "ACTIONS", default_value = "log,metric", value_parser = parse_on_slow)]
    on_slow: OnSlow,
    /// Maximum Ceph RBD images of one connection to a cluster: more connections use more threads and cores
    #[arg(long, value_name = "N", default_value_t = volume::RBD_IMAGES_PER_CONNECTION, value_parser = clap::value_parser!(u16).range(1..))]
    rbd_images_per_connection: u16,
    /// Memory of each reactor for data in flight; at least 4M
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = parse_pool)]
    pool: usize,
    /// Minimum size of a send without a copy, if the network card supports it; 0 for every send. A copy is cheaper for
    /// small sends, and over loopback the kernel always copies
    #[arg(long, value_name = "BYTES|off", default_value = "off", value_parser = parse_threshold)]
    zerocopy_threshold: Threshold,
    #[command(flatten)]
    times: Times,
    /// Serve the other volumes if one cannot be opened; SIGUSR1 shows it, and the exit status is 1. Needs --nqn, because
    /// the default name depends on the volumes
    #[arg(long, requires = "nqn")]
    skip_missing: bool,
    /// Socket from which commands such as `isolane explain` read: a path, or off (default: serve-PID.sock in
    /// $RUNTIME_DIRECTORY, else in isolane in $XDG_RUNTIME_DIR, else in /tmp/isolane-UID)
    #[arg(long, value_name = "PATH|off", value_parser = parse_control_socket)]
    control_socket: Option<ControlSocket>,
    /// Serve metrics for Prometheus at http://ADDR:PORT/metrics, and /snapshot.json and /healthz; port 0 selects a free
    /// port, which the log shows
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Print the counters of SIGUSR1 as JSON
    #[arg(long)]
    json: bool,
    /// Continue the connections of the program before, whose state has this descriptor
    #[arg(long, hide = true, value_name = "FD")]
    resume_from: Option<i32>,
    /// Report whether this program can continue the connections of another one
    #[arg(long, hide = true, value_name = "FD")]
    rehearse: Option<i32>,
}

/// Options with keys in a file.
pub(crate) const FILE_OPTIONS: [&str; 25] = [
    "volumes",
    "listen",
    "advertise",
    "nqn",
    "allow_host",
    "cores",
    "placement",
    "scheduler",
    "mode",
    "io",
    "io_queues",
    "queue_depth",
    "fair_queueing",
    "observe",
    "acks",
    "observe_memory",
    "on_slow",
    "rbd_images_per_connection",
    "pool",
    "zerocopy_threshold",
    "stall_after",
    "answer_within",
    "skip_missing",
    "control_socket",
    "metrics",
];

impl Args {
    /// Returns the texts of the volumes.
    fn texts(&self) -> Vec<&str> {
        if self.volumes.is_empty() {
            vec!["mem:1G"]
        } else {
            self.volumes.iter().map(String::as_str).collect()
        }
    }

    /// Returns the specifications of the volumes.
    fn specs(&self, kinds: &Kinds) -> Result<Vec<VolumeSpec>, Failure> {
        let parse = |text| volume::parse(kinds, text, "serve", Some("--listen 127.0.0.1:4420"));
        self.texts().into_iter().map(parse).collect()
    }

    fn listeners(&self) -> Vec<Listen> {
        self.listen.iter().flat_map(|listeners| listeners.0.clone()).collect()
    }

    /// Returns the listeners as ports without names.
    fn ports(&self) -> Vec<TargetPort> {
        self.listeners().into_iter().map(TargetPort::from).collect()
    }

    /// Returns the values without arguments.
    fn default_values() -> Result<Args, Failure> {
        let command = Args::augment_args(clap::Command::new("serve"));
        let parsed =
            command.try_get_matches_from(["serve"]).and_then(|matches| Args::from_arg_matches(&matches));
        parsed.map_err(Failure::from_error)
    }
}

/// Orders of commands on a connection.
const FAIR_QUEUEING: [Choice<bool>; 2] = [
    ("on", "Send long reads in chunks and request write data in bounded amounts", true),
    ("off", "First come, first served", false),
];

const OBSERVE: [Choice<bool>; 2] = [
    ("on", "Time each command from its receive to the last byte of its response", true),
    ("off", "Record nothing, to measure the cost of the above", false),
];

/// Reactor of a new connection. No reactor gets more than four connections and twice as many as another.
const PLACEMENTS: [Choice<Placement>; 3] = [
    (
        "incoming-cpu",
        "The reactor on the core where its packets arrive, or next to it; in turn for hosts on this machine",
        Placement::IncomingCpu,
    ),
    ("round-robin", "Each reactor in turn", Placement::RoundRobin),
    ("least-loaded", "The reactor with the fewest connections", Placement::LeastLoaded),
];

/// Interval of migrations of connections between reactors, if enabled.
type RebalanceInterval = Option<Duration>;

/// Migration of connections between reactors.
const SCHEDULERS: [Choice<RebalanceInterval>; 2] = [
    ("static", "Keep each connection on its initial core", None),
    (
        "dynamic",
        "Collect idle connections and light loads on the first core, so that the others sleep, and move busy \
         connections away from an overloaded core. With access to cpufreq, adapt the clock of the first core to its \
         load until a clean shutdown",
        Some(Duration::from_secs(1)),
    ),
];

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Failure> {
    // Its default values hide this from the parser.
    if args.strict && args.config.is_none() {
        return Err(Failure::new("cannot serve with --strict", "it checks a configuration file")
            .with_hint("name one with --config, or leave out --strict")
            .of_usage());
    }
    let rehearse = args.rehearse;
    let (handover, state) = rehearse.or(args.resume_from).map(upgrade::read).transpose()?.unzip();
    let mut handover = handover.unwrap_or_default();
    let (args, described) = match &args.config {
        Some(path) => {
            let Loaded { options, ports, subsystems, auth, limits, file } =
                load::load(path, args.strict, handover.file.take())?;
            (Args { json: args.json, ..options }, Some((ports, subsystems, auth, limits, file)))
        }
        None => (args, None),
    };
    let (mut signals, is_starting) = (signals::listen()?, Arc::new(AtomicBool::new(true)));
    signals::exit_while(&is_starting)?;
    let rbd = Arc::new(Rbd::new(args.rbd_images_per_connection.into()));
    let kinds = volume::kinds(&rbd);
    let ((mut ports, referrals), mut planned, auth, limits, mut file) = match described {
        Some((ports, subsystems, auth, limits, file)) => (ports, subsystems, Some(auth), limits, Some(file)),
        None => {
            let planned = vec![Planned::of_args(&args, &kinds)?];
            ((args.ports(), Vec::new()), planned, None, TargetLimits::default(), None)
        }
    };
    if state.is_some() {
        let resume = |one: Planned| one.resume(&handover.subsystems);
        planned = planned.into_iter().map(resume).collect::<Result<_, _>>()?;
    }
    let mut images = memory_images::take(&handover)?;
    if let Some(state) = state.as_ref().filter(|_| rehearse.is_some()) {
        return upgrade::report(state);
    }
    let state_lock = handover.take_state_lock();
    let first_generation =
        file.as_mut().map(|file| file.open_state(state_lock, &mut ports, &kinds)).transpose()?;
    file::inherit(handover.take_files());
    let (opened, conditions) = subsystem::open(planned, &args, &kinds, &mut images)?;
    match file::close_inherited() {
        0 => {}
        count => log::warn!("{count} files of the program before are not served any longer"),
    }
    let conditions = Arc::new(conditions);
    let sockets = state.as_ref().map_or_else(service::sockets, |_| Ok(Vec::new()))?;
    let mut config = TargetConfig { referrals, sockets, ..configure(&args, ports, &opened, auth)? };
    config.discovery_generation = first_generation.flatten();
    config.max_connections = config.max_connections.max(limits.target.connections.unwrap_or(0));
    config.limits = limits;
    let ports = config.listen.clone();
    is_starting.store(false, Ordering::Relaxed);
    let cores = config.cores.clone();
    let is_resumed = state.is_some();
    let started = Started::from_config(&config);
    let by = file.as_ref().map_or_else(|| "--listen".to_owned(), |file| file.listen_setting());
    let target = match state {
        Some(state) => Target::start_from(config, state, inherited::take),
        None => Target::start(config),
    };
    let mut target = target.map_err(|error| banner::cannot_start(&error, &by))?;
    log::info!("using {}", target.io_description());
    let addresses = target.local_addrs();
    exposure::warn(&addresses, &opened, file.is_some());
    let socket = args.control_socket.as_ref().unwrap_or(&ControlSocket::Default);
    let summary = summary(&opened);
    let banner = Banner {
        ports: &ports,
        listeners: &addresses,
        subsystems: &opened,
        program: &invocation::program_name(),
    };
    let banner = banner.to_text();
    let has_file = file.is_some();
    let operator = Operator::new(&target, kinds, &conditions, opened, file, handover.upgrades);
    let operator = Arc::new(operator.with_arguments(&args, &addresses));
    operator.resume(&handover.subsystems, images);
    let observed = Arc::clone(&operator);
    let mut side_threads = observe::start(&target, observed, &cores, (socket, args.metrics), args.on_slow)?;
    if is_resumed {
        log::info!("upgrade {}: version {} continues", handover.upgrades, env!("CARGO_PKG_VERSION"));
    } else {
        output::announce(banner);
    }
    let service = Service::start(&target, &summary)?;
    signals.handle().add_signal(SIGUSR2).context("cannot listen for signals")?;
    let running = upgrade::Running { started, operator: &operator, upgrades: handover.upgrades };
    for signal in signals.forever() {
        match signal {
            SIGUSR1 => {
                let (counters, connections) = (target.counters(), target.connections());
                log::write_stderr(counters::show(&counters, &connections, &conditions, args.json)?);
            }
            SIGUSR2 => {
                if let Some(request) = operator.upgrades().take() {
                    target = running.upgrade(target, request)?;
                }
            }
            SIGHUP if has_file => Operator::start_reload(&operator)?,
            _ => break,
        }
    }
    drop(operator);
    signals::exit_on_next_signal()?;
    service.stop();
    // Lights go off while commands complete; the drop waits for them.
    side_threads.detach();
    let stopped = stop(target, &conditions);
    drop(conditions);
    rbd.wait_for_closed(volume::RBD_CLOSE_TIMEOUT);
    stopped
}

fn summary(subsystems: &[Opened]) -> String {
    let volumes: usize = subsystems.iter().map(|one| one.volumes.len()).sum();
    let volumes = format!("{volumes} volume{}", if volumes == 1 { "" } else { "s" });
    match subsystems {
        [only] => format!("serving {volumes} as {}", only.subsystem.nqn),
        several => format!("serving {volumes} in {} subsystems", several.len()),
    }
}

fn stop(target: Target, conditions: &Conditions) -> Result<(), Failure> {
    log::info!("completing commands in flight; a second signal ends the target immediately");
    let failures = conditions.log_failures();
    let report = target.shutdown(Target::SHUTDOWN_TIMEOUT);
    report.into_result().map_err(|error| {
        Failure::new("the shutdown was not clean", error)
            .with_hint("the log names the data that may be lost; check it before you use it again")
    })?;
    conditions::reject_failures(failures)
}

/// Returns the configuration of the target.
fn configure(
    args: &Args,
    ports: Vec<TargetPort>,
    opened: &[Opened],
    auth: Option<AuthConfig>,
) -> Result<TargetConfig, Failure> {
    let mut config = TargetConfig::new(opened[0].subsystem.nqn);
    config.subsystems = opened.iter().map(|one| one.subsystem.clone()).collect();
    config.listen = ports;
    config.advertise = args.advertise.clone();
    config.auth = auth;
    config.cores = match &args.cores {
        Some(requested) => cores::checked(requested.as_slice())?,
        None => cores::usable()?,
    };
    config.placement = args.placement;
    config.mode = args.mode;
    config.io = args.io;
    (config.io_queues, config.queue_depth) = (args.io_queues, args.queue_depth);
    config.rebalance_interval = args.scheduler;
    config.zerocopy_threshold = args.zerocopy_threshold;
    config.scheduling = args.fair_queueing;
    (config.observe, config.observe_memory) = (args.observe, args.observe_memory);
    config.acks = args.acks;
    if args.acks.is_some() && !args.observe {
        return Err(Failure::new("cannot measure acknowledgments", "--observe off records nothing")
            .with_hint("leave out --acks or --observe off"));
    }
    (config.stall_after, config.answer_within) = args.times.checked()?;
    config.max_pool_pages = args.pool / PAGE_SIZE;
    if args.advertise.iter().any(|address| address.ip().is_unspecified()) {
        return Err(Failure::new("cannot advertise 0.0.0.0 or [::]", "no host can connect there")
            .with_hint("name an address that hosts can reach"));
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_replaces_all_options_of_the_target() {
        let command = Args::augment_args(clap::Command::new("serve"));
        let options = command.get_arguments().map(|argument| argument.get_id().as_str().to_owned());
        let others: Vec<String> = options.filter(|id| !FILE_OPTIONS.contains(&id.as_str())).collect();
        assert_eq!(others, ["config", "strict", "port", "json", "resume_from", "rehearse"]);
    }
}
