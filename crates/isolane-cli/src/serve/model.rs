//! The arguments of `serve` as a configuration.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, absolute};

use isolane_config::{
    AbsolutePath, Addresses, Config, Host, Hosts, Idle, KernelInterface, ListenAddress, Metrics, Name, Names,
    Namespace, Namespaces, Number, OnSlow, OneIn, Placement, Port, Scheduler, Server, Size, StandardNqn,
    Subsystem, SubsystemNqn, Time, Volume,
};
use isolane_inspect::program;
use isolane_target::Listen;
use isolane_volume::spec::{Source, VolumeSpec, format_size};
use isolane_volumes::Kinds;
use isolane_wire::Nqn;

use super::numbering::number;
use super::{Args, PLACEMENTS, SCHEDULERS, nqn};
use crate::choice::name_of;
use crate::config_file;
use crate::failure::{Context, Failure};
use crate::host_args::{IO_CHOICES, MODES, parse_host_nqn};
use crate::serve::observe;

/// Returns the configuration with the meaning of these arguments. Opens no volume.
pub fn of_args(args: &Args, kinds: &Kinds) -> Result<Config, Failure> {
    if let Some(path) = &args.config {
        return config_file::load(path);
    }
    let mut config = without_subsystem(args, args.listeners())?;
    let namespaces = namespaces(args, kinds)?;
    let subsystem = subsystem(name(args, kinds, &args.specs(kinds)?)?, namespaces, &config);
    config.subsystems.insert(subsystem.nqn, subsystem);
    check(&config, kinds)
}

/// Returns the configuration of a target that runs with these arguments: the name that it has, the addresses at which it
/// listens, and the volumes that it serves now.
pub fn of_running(args: &Args, nqn: Nqn, addresses: &[SocketAddr]) -> Result<Config, Failure> {
    let listeners = args.listeners().into_iter().zip(addresses);
    let listeners = listeners.map(|(listen, address)| Listen { address: *address, ..listen }).collect();
    let mut config = without_subsystem(args, listeners)?;
    let subsystem = subsystem(nqn, Namespaces::new(), &config);
    config.subsystems.insert(subsystem.nqn, subsystem);
    Ok(config)
}

/// Returns a configuration as the file that has it.
///
/// # Errors
/// Those of a file, as one volume in two namespaces.
pub fn check(config: &Config, kinds: &Kinds) -> Result<Config, Failure> {
    Config::parse(&config.to_toml(), "arguments", kinds).map_err(Failure::from_error)
}

fn without_subsystem(args: &Args, listeners: Vec<Listen>) -> Result<Config, Failure> {
    let mut config = Config { server: server(args)?, ..Config::default() };
    for (at, listen) in listeners.into_iter().enumerate() {
        let name = numbered("port", at)?;
        let port = Port { name: name.clone(), listen: ListenAddress(listen), discovery_only: None };
        config.ports.insert(name, port);
    }
    for (at, nqn) in args.allow_host.iter().enumerate() {
        let (name, nqn) = (numbered("host", at)?, StandardNqn(parse_host_nqn(nqn)?));
        let host = Host {
            name: name.clone(),
            nqn,
            auth_key: None,
            auth_target_key: None,
            require: None,
            limits: None,
        };
        config.hosts.insert(name, host);
    }
    Ok(config)
}

fn numbered(kind: &str, at: usize) -> Result<Name, Failure> {
    Name::new(&format!("{kind}{}", at + 1)).map_err(Failure::from_error)
}

fn namespaces(args: &Args, kinds: &Kinds) -> Result<Namespaces, Failure> {
    let specs = args.specs(kinds)?;
    let texts = args.texts();
    let mut namespaces = Namespaces::new();
    for ((spec, text), nsid) in specs.iter().zip(&texts).zip(number(&specs)?) {
        let nsid = Number::new(nsid).ok_or_else(|| {
            Failure::new(format!("cannot number {text}"), "a subsystem has at most 1024 namespaces")
        })?;
        let text = without_nsid(&absolute_text(spec, text)?, spec);
        let volume = Volume::new(&text, kinds).context(format!("cannot write {text} into a file"))?;
        namespaces.insert(nsid, Namespace { nsid, volume, hosts: None, qos: None });
    }
    Ok(namespaces)
}

fn subsystem(nqn: Nqn, namespaces: Namespaces, config: &Config) -> Subsystem {
    let names = config.hosts.keys().cloned().collect();
    Subsystem {
        nqn: SubsystemNqn(nqn),
        ports: Names(config.ports.keys().cloned().collect()),
        hosts: if config.hosts.is_empty() { Hosts::Any } else { Hosts::Listed(names) },
        serial: None,
        model: None,
        cntlid_min: None,
        cntlid_max: None,
        require: None,
        limits: None,
        namespaces: Some(namespaces),
    }
}

/// Returns the name of the subsystem. The one that depends on identities of volumes needs open volumes.
fn name(args: &Args, kinds: &Kinds, specs: &[VolumeSpec]) -> Result<Nqn, Failure> {
    if let Some(nqn) = &args.nqn {
        return nqn::parse_nqn(nqn);
    }
    for spec in specs {
        if nqn::has_identity(kinds, spec)? {
            let reason = format!("the default depends on the identity of {}", spec.name());
            return Err(Failure::new("cannot name the subsystem", reason)
                .with_hint("give the name with --nqn; a running target prints it"));
        }
    }
    nqn::derive(Vec::new(), args.listen[0].0[0].address)
}

/// Returns the text of a volume with the path of a file from the root.
pub fn absolute_text(spec: &VolumeSpec, text: &str) -> Result<String, Failure> {
    match &spec.source {
        Source::Path { path, .. } if path.is_relative() => {
            let directory = std::env::current_dir().context("cannot read the working directory")?;
            let directory = directory.display().to_string().replace(',', ",,");
            Ok(format!("{directory}/{}", text.strip_prefix("./").unwrap_or(text)))
        }
        _ => Ok(text.to_owned()),
    }
}

/// Removes the option with the namespace ID, which is a key of its own in a file.
pub fn without_nsid(text: &str, spec: &VolumeSpec) -> String {
    let option = spec.nsid.and_then(|_| find_option(text, "nsid"));
    option.map_or_else(|| text.to_owned(), |at| format!("{}{}", &text[..at.start], &text[at.end..]))
}

/// Replaces the size of a new file, if the text has one.
pub fn with_size(text: &str, bytes: u64) -> Option<String> {
    let at = find_option(text, "size")?;
    Some(format!("{},size={}{}", &text[..at.start], format_size(bytes), &text[at.end..]))
}

/// Returns the place of an option of a volume without members, with the comma before it. A double comma separates no
/// options.
fn find_option(text: &str, key: &str) -> Option<Range<usize>> {
    let start = format!(",{key}=");
    let is_option = |at: &usize| {
        let commas = text[..=*at].chars().rev().take_while(|char| *char == ',').count();
        !commas.is_multiple_of(2)
    };
    let at = text.match_indices(&start).map(|(at, _)| at).find(is_option)?;
    let end = text[at + 1..].find(',').map_or(text.len(), |end| at + 1 + end);
    Some(at..end)
}

fn server(args: &Args) -> Result<Server, Failure> {
    let default = Args::default_values()?;
    let word = |is_default: bool, name: &'static str| (!is_default).then_some(name);
    let mut server = Server {
        cores: args.cores.clone(),
        placement: choice(
            Placement::ALL,
            word(args.placement == default.placement, name_of(&PLACEMENTS, &args.placement)),
        ),
        scheduler: choice(
            Scheduler::ALL,
            word(args.scheduler == default.scheduler, name_of(&SCHEDULERS, &args.scheduler)),
        ),
        mode: choice(Idle::ALL, word(args.mode == default.mode, name_of(&MODES, &args.mode))),
        io: choice(KernelInterface::ALL, word(args.io == default.io, name_of(&IO_CHOICES, &args.io))),
        fair_queueing: (args.fair_queueing != default.fair_queueing).then_some(args.fair_queueing),
        observe: (args.observe != default.observe).then_some(args.observe),
        skip_missing: args.skip_missing.then_some(true),
        acks: args.acks.map(OneIn),
        metrics: args.metrics.map(Metrics),
        advertise: (!args.advertise.is_empty()).then(|| Addresses(args.advertise.clone())),
        ..Server::default()
    };
    if args.io_queues != default.io_queues {
        server.io_queues = Number::new(args.io_queues.into());
    }
    if args.queue_depth != default.queue_depth {
        server.queue_depth = Number::new(args.queue_depth.into());
    }
    if args.rbd_images_per_connection != default.rbd_images_per_connection {
        server.rbd_images_per_connection = Number::new(args.rbd_images_per_connection.into());
    }
    if args.pool != default.pool {
        server.pool = Size::new(args.pool as u64);
    }
    if args.observe_memory != default.observe_memory {
        server.observe_memory = Size::new(args.observe_memory as u64);
    }
    if args.times.stall_after != default.times.stall_after {
        server.stall_after = Time::new(args.times.stall_after);
    }
    if args.times.answer_within != default.times.answer_within {
        server.answer_within = Time::new(args.times.answer_within);
    }
    server.zerocopy_threshold = args.zerocopy_threshold.and_then(|bytes| Size::new(bytes as u64));
    if args.on_slow != default.on_slow {
        server.on_slow = OnSlow::new(&show_on_slow(args.on_slow));
    }
    server.control_socket = match &args.control_socket {
        None | Some(observe::ControlSocket::Default) => None,
        Some(observe::ControlSocket::Off) => Some(isolane_config::ControlSocket::Off),
        Some(observe::ControlSocket::At(path)) => {
            Some(isolane_config::ControlSocket::At(absolute_path(path)?))
        }
    };
    Ok(server)
}

/// Returns the value of a word that is not the default.
fn choice<T: Copy>(all: &[(&str, T)], word: Option<&str>) -> Option<T> {
    all.iter().find(|(name, _)| Some(*name) == word).map(|(_, value)| *value)
}

fn absolute_path(path: &Path) -> Result<AbsolutePath, Failure> {
    let what = format!("cannot write {} into a file", path.display());
    AbsolutePath::new(&absolute(path).context(&what)?).map_err(|error| Failure::new(what, error))
}

fn show_on_slow(on_slow: program::OnSlow) -> String {
    let program::OnSlow { log, metric, light, avoid } = on_slow;
    let actions = [(log, "log"), (metric, "metric"), (light, "light"), (avoid, "avoid")];
    let actions: Vec<&str> =
        actions.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect();
    if actions.is_empty() { "none".to_owned() } else { actions.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_only_the_option() {
        let spec = |text: &str| isolane_volumes::parse(text).unwrap();
        for (text, expected) in [
            ("/a,nsid=2", "/a"),
            ("/a,nsid=2,ro", "/a,ro"),
            ("/a,,nsid=2,nsid=2", "/a,,nsid=2"),
            ("/a,,,nsid=2", "/a,,"),
            ("/a,nsid=20", "/a"),
            ("/a", "/a"),
        ] {
            assert_eq!(without_nsid(text, &spec(text)), expected);
        }
    }

    #[test]
    fn replaces_only_the_size() {
        for (text, expected) in [
            ("/a,size=1M,ro", Some("/a,size=3G,ro")),
            ("/a,,size=1M,size=1M", Some("/a,,size=1M,size=3G")),
            ("/a,ro", None),
            ("/a,,size=1M", None),
        ] {
            assert_eq!(with_size(text, 3 << 30).as_deref(), expected);
        }
        assert_eq!(with_size("/a,size=1M", 5000).as_deref(), Some("/a,size=5000"));
    }
}
