//! `isolane serve`: files, block devices and memory as NVMe/TCP namespaces.
//!
//! Opens the volumes, starts the target, says what to paste, and waits for signals. The target runs in its
//! own threads; this one only sleeps.

mod announce;
mod counters;
mod memory;
mod nqn;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::UnknownArgumentValueParser;
use isolane_host::Cores;
use isolane_target::{Listen, Placement, Target, TargetConfig, parse_address};
use isolane_volume::Volume;
use isolane_volume::spec::{Source, VolumeSpec};

use announce::Offer;

use crate::called;
use crate::cores::{self, parse_cores};
use crate::failure::{Context, Failure};
use crate::output;
use crate::remote::{IoArg, ModeArg, is_like_address, parse_host_nqn};
use crate::signals::{self, Wish, Wishes};
use crate::units::{parse_bytes, show_bytes};

/// How long a shutdown waits for commands in flight.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(5);

/// How often the dynamic scheduler looks at the load.
const SCHEDULE: Duration = Duration::from_secs(1);

/// Serve files, block devices or memory as NVMe/TCP namespaces
///
/// Each VOLUME becomes the next namespace, from 1 on:
///
///   mem:1G      memory, gone when the program ends
///   null:1T     reads as zeroes, drops writes
///   PATH        a regular file or a block device
///
/// Options follow after commas, as in disk.img,size=10G,block-size=4096:
///
///   size=10G              a sparse file of this size if there is none
///   block-size=512|4096   bytes of a logical block; 512 unless told
///   ro                    read only
///   nsid=N                the namespace id
///   uuid=U                the identity, instead of the volume's own
///   write-through         every write is durable: no volatile cache
///   buffered              through the page cache, never O_DIRECT
///
/// Sizes are in bytes, with k, M, G or T (or KiB, MiB, …) in powers of 1024,
/// or with kB, MB, GB or TB in powers of 1000. A comma in a path is written
/// twice. Memory is allocated as it is written; memory volumes that are
/// larger than the machine's memory and swap are refused.
///
/// An address that is in use is waited for, 5 s at the most: the kernel may
/// keep that of a target that was killed for a moment.
///
/// Without any VOLUME, mem:1G is served. For each listener `listening on
/// ADDR:PORT` is printed once it accepts connections, then the volumes, and
/// commands that connect to them.
///
/// SIGINT and SIGTERM end the target in order: commands in flight are
/// finished (for at most 5 s), everything is made durable. A volume that
/// hangs is named in the log and given up within 12 s more, and the exit
/// status is 1. A second signal ends the target at once. What hangs in the
/// kernel itself can hold up either. SIGUSR1 prints counters, and where each
/// connection is, on stderr, as text or, with --json, as JSON.
///
/// Connections of a listener can have socket options, behind its address as in
/// --listen 10.0.0.1:4420,priority=5,congestion=bbr:
///
///   priority=N            what the network card chooses a queue set by
///   tos=N                 type of service: DSCP * 4
///   congestion=NAME       the congestion control algorithm; without it
///                         the system's, or Reno instead of BBR for a
///                         host on this machine
///   busy-poll=US          how long a receive asks the network card, in
///                         microseconds
///   prefer-busy-poll=on   its interrupts stay off while it is asked
///   send-buffer=BYTES     instead of what the kernel tunes, or 512 KiB
///                         for a host on this machine
///   receive-buffer=BYTES  instead of what the kernel tunes; with few KiB
///                         the kernel of the other side sends at a crawl
///   unsent-max=BYTES      how much waits in the kernel, where nothing can
///                         pass it, before it is sent
///
/// There is neither authentication nor encryption yet: whoever reaches the
/// port reads and writes the volumes. Names of hosts, as --allow-host checks
/// them, can be forged.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// What to serve
    #[arg(value_name = "VOLUME")]
    volumes: Vec<String>,
    /// Listen here, as 10.0.0.1:4420, [::1]:4420 or localhost:4420; a port alone is one of 127.0.0.1, and port 0
    /// a free one; may be repeated
    #[arg(long, value_name = "[ADDR:]PORT[,OPTION...]", default_value = nqn::LISTEN)]
    listen: Vec<Listen>,
    /// Is called --listen
    #[arg(long, hide = true, value_parser = UnknownArgumentValueParser::suggest_arg("--listen"))]
    port: Option<String>,
    /// Name this address in the discovery log instead of the one a host connected to; may be repeated
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    advertise: Vec<SocketAddr>,
    /// Name of the subsystem, as nqn.2014-08.org.example:disk (default: made from this machine and the first
    /// --listen, so that it stays the same; random with port 0)
    #[arg(long, value_name = "NQN")]
    nqn: Option<String>,
    /// Admit only hosts of this name; may be repeated
    #[arg(long, value_name = "NQN")]
    allow_host: Vec<String>,
    /// Run one reactor on each of these cores, as 0,1 or 0-3 (default: every core this process may use)
    #[arg(long, value_name = "LIST", value_parser = parse_cores)]
    cores: Option<Cores>,
    /// Which reactor a new connection goes to; SIGUSR1 shows where each is
    #[arg(long, value_enum, default_value_t = PlacementArg::IncomingCpu)]
    placement: PlacementArg,
    /// Whether connections stay where they were placed
    #[arg(long, value_enum, default_value_t = SchedulerArg::Static)]
    scheduler: SchedulerArg,
    /// What a reactor does when there is nothing to do
    #[arg(long, value_enum, default_value_t = ModeArg::Adaptive)]
    mode: ModeArg,
    /// Which interface of the kernel carries files, readiness and sleep
    #[arg(long, value_enum, default_value_t = IoArg::Auto)]
    io: IoArg,
    /// The most I/O queues of one host
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    io_queues: u16,
    /// The most entries of one queue
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(2..=4096))]
    queue_depth: u16,
    /// Whether short commands pass long ones on their connection
    #[arg(long, value_enum, default_value_t = SchedulingArg::On)]
    scheduling: SchedulingArg,
    /// Send at least so many bytes without a copy, where the network card can; 0 for every send. A copy is
    /// cheaper for little, over loopback the kernel copies in any case, and to a host whose receive buffer is
    /// a few KiB sends crawl, with a copy or without
    #[arg(long, value_name = "BYTES|off", default_value = "off", value_parser = parse_threshold)]
    zero_copy_above: Threshold,
    /// Print the counters that SIGUSR1 asks for as JSON
    #[arg(long)]
    json: bool,
}

/// Whether short commands pass long ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SchedulingArg {
    /// Long reads are sent in chunks, write data is asked for in bounded amounts
    On,
    /// First come, first served
    Off,
}

/// From how many bytes on, if at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Threshold(Option<usize>);

/// Which reactor a new connection goes to. None gets more than twice as many as another, and four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PlacementArg {
    /// The one on the core that its packets arrive on, or next to it; in turn for hosts on this machine
    IncomingCpu,
    /// One after the other
    RoundRobin,
    /// The one with the fewest connections
    LeastLoaded,
}

/// Whether connections stay where they were placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SchedulerArg {
    /// They do
    Static,
    /// Idle ones and light loads gather on the first core, so that the others sleep; busy ones leave a core
    /// that has too much to do. Where cpufreq lets us, the clock of the first core follows its load; an
    /// orderly end puts it back as it was
    Dynamic,
}

impl PlacementArg {
    fn placement(self) -> Placement {
        match self {
            PlacementArg::IncomingCpu => Placement::IncomingCpu,
            PlacementArg::RoundRobin => Placement::RoundRobin,
            PlacementArg::LeastLoaded => Placement::LeastLoaded,
        }
    }
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Failure> {
    let mut wishes = Wishes::listen()?;
    let (config, volumes) = configure(&args)?;
    let nqn = config.nqn;
    let target = Target::start(config).context("cannot start the target")?;
    log::info!("the kernel's interface is {}", target.io_description());
    let addresses = target.local_addrs();
    for address in addresses.iter().filter(|address| !address.ip().is_loopback()) {
        log::warn!(
            "{address} is reachable from other machines, and there is neither authentication nor encryption"
        );
    }
    let program = called::program();
    let offer = Offer { listeners: &addresses, nqn: nqn.as_str(), volumes: &volumes, program: &program };
    output::write_stdout(offer.to_text().as_bytes())?;
    while wishes.wait() == Wish::ShowCounters {
        eprint!("{}", counters::show(&target.counters(), &target.connections(), args.json)?);
    }
    signals::end_at_next_signal()?;
    stop(target)
}

fn stop(target: Target) -> Result<(), Failure> {
    log::info!("finishing what is in flight; a second signal ends at once");
    let report = target.shutdown(SHUTDOWN_TIME_MAX);
    report.into_result().map_err(|why| {
        Failure::new("the shutdown was not clean", why)
            .remedy("the log names what may be lost; check it before you use it again")
    })
}

/// The configuration of the target, and the description of each volume.
fn configure(args: &Args) -> Result<(TargetConfig, Vec<(u32, String)>), Failure> {
    let nqn = match &args.nqn {
        Some(nqn) => nqn::chosen(nqn)?,
        None => nqn::of_this_machine(args.listen[0].address)?,
    };
    let mut config = TargetConfig::new(nqn);
    config.serial = nqn::serial(&nqn);
    let specs = parse_volumes(&args.volumes)?;
    memory::check(&specs)?;
    config.volumes = open_volumes(&specs)?;
    let described = specs.iter().zip(&config.volumes);
    let described = described.map(|(spec, (nsid, volume))| (*nsid, describe(spec, &**volume))).collect();
    config.listen = args.listen.clone();
    config.advertise = args.advertise.clone();
    config.allowed_hosts = allowed_hosts(&args.allow_host)?;
    config.cores = cores(args.cores.as_ref())?;
    config.placement = args.placement.placement();
    config.mode = args.mode.mode();
    config.io = args.io.choice();
    config.io_queues = args.io_queues;
    config.queue_depth = args.queue_depth;
    config.schedule = (args.scheduler == SchedulerArg::Dynamic).then_some(SCHEDULE);
    config.zero_copy_above = args.zero_copy_above.0;
    config.scheduling = args.scheduling == SchedulingArg::On;
    if args.advertise.iter().any(|address| address.ip().is_unspecified()) {
        return Err(Failure::new("cannot advertise 0.0.0.0 or [::]", "no host can connect there")
            .remedy("name an address that hosts can reach"));
    }
    Ok((config, described))
}

fn parse_threshold(text: &str) -> Result<Threshold, String> {
    match text {
        "off" => Ok(Threshold(None)),
        text => Ok(Threshold(Some(parse_bytes(text)? as usize))),
    }
}

/// A namespace id and its volume.
type Numbered = (u32, Arc<dyn Volume>);

fn parse_volumes(texts: &[String]) -> Result<Vec<VolumeSpec>, Failure> {
    let default = [String::from("mem:1G")];
    let texts = if texts.is_empty() { &default[..] } else { texts };
    texts.iter().map(|text| parse_volume(text)).collect()
}

/// Parses one volume. An address is none, unless a file has that name.
fn parse_volume(text: &str) -> Result<VolumeSpec, Failure> {
    let spec: VolumeSpec = text.parse().map_err(Failure::whole)?;
    if let Source::Path { path, .. } = &spec.source
        && path.to_str().is_some_and(|name| is_like_address(name) || name.parse::<u16>().is_ok())
        && !path.exists()
    {
        return Err(Failure::new(format!("cannot serve {text}"), "it looks like an address").remedy(
            "give an address with --listen, as in --listen 127.0.0.1:4420, and name a volume, as mem:1G; write \
             ./NAME for a file",
        ));
    }
    Ok(spec)
}

fn open_volumes(specs: &[VolumeSpec]) -> Result<Vec<Numbered>, Failure> {
    let open = |(spec, nsid): (&VolumeSpec, u32)| {
        let volume = isolane_volume::open(spec).map_err(Failure::whole)?;
        Ok((nsid, volume))
    };
    specs.iter().zip(number(specs)?).map(open).collect()
}

/// Name, kind, size, and whether it can be written.
fn describe(spec: &VolumeSpec, volume: &dyn Volume) -> String {
    let kind = match &spec.source {
        Source::Memory { .. } => "memory",
        Source::Null { .. } => "null",
        Source::Path { path, .. } if path.is_file() => "file",
        Source::Path { .. } => "block device",
    };
    let geometry = volume.geometry();
    let read_only = if geometry.read_only { ", read-only" } else { "" };
    format!("{}, {kind}, {}{read_only}", volume.name(), show_bytes(geometry.bytes() as f64))
}

/// Namespace ids: the one that was asked for, else the next that is free.
fn number(specs: &[VolumeSpec]) -> Result<Vec<u32>, Failure> {
    let asked: Vec<u32> = specs.iter().filter_map(|spec| spec.nsid).collect();
    if let Some(twice) = asked.iter().enumerate().find(|(at, nsid)| asked[..*at].contains(nsid)) {
        return Err(Failure::new(format!("namespace id {} is given twice", twice.1), "ids are unique")
            .remedy("give every volume its own nsid"));
    }
    let mut free = (1..).filter(|nsid| !asked.contains(nsid));
    Ok(specs.iter().map(|spec| spec.nsid.or_else(|| free.next()).unwrap_or(u32::MAX)).collect())
}

fn allowed_hosts(texts: &[String]) -> Result<Option<Vec<isolane_wire::Nqn>>, Failure> {
    if texts.is_empty() {
        return Ok(None);
    }
    texts.iter().map(|text| parse_host_nqn(text)).collect::<Result<_, _>>().map(Some)
}

fn cores(asked: Option<&Cores>) -> Result<Vec<usize>, Failure> {
    asked.map_or_else(cores::usable, |asked| cores::checked(asked.as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(texts: &[&str]) -> Vec<VolumeSpec> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn volumes_are_numbered_from_one_around_the_ids_that_were_asked_for() {
        let specs = specs(&["mem:1M", "mem:1M,nsid=2", "mem:1M", "mem:1M,nsid=9"]);
        assert_eq!(number(&specs).unwrap(), [1, 2, 3, 9]);
    }

    #[test]
    fn an_id_given_twice_is_refused() {
        let failure = number(&specs(&["mem:1M,nsid=2", "mem:1M,nsid=2"])).unwrap_err();
        assert!(failure.to_string().contains("namespace id 2"), "{failure}");
    }
}
