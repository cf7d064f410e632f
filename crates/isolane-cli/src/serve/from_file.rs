//! A configuration file as options of `serve`, and the subsystems that it describes.

use std::path::Path;

use clap::{Args as _, FromArgMatches};
use isolane_config::{Config, Hosts, Port, Subsystem, Table, gaps};
use isolane_target::{AuthConfig, TargetLimits};

use super::subsystem::Planned;
use super::{Args, auth, limits, qos};
use crate::config_file;
use crate::failure::Failure;

/// What a file describes.
pub struct Loaded {
    /// Options of the target.
    pub options: Args,
    /// Its subsystems.
    pub subsystems: Vec<Planned>,
    /// Keys of hosts.
    pub auth: Option<AuthConfig>,
    /// Limits of connections.
    pub limits: TargetLimits,
}

/// Reads a file. `strict` rejects access without authentication from other machines; otherwise the log has it. Every
/// failure has the exit status of a wrong file.
pub fn load(path: &Path, strict: bool) -> Result<Loaded, Failure> {
    read(path, strict).map_err(Failure::of_usage)
}

fn read(path: &Path, strict: bool) -> Result<Loaded, Failure> {
    let config = config_file::load(path)?;
    let arguments = arguments(&config).map_err(|unsupported| {
        let lines: Vec<String> = unsupported.iter().map(|line| format!("\n  {line}")).collect();
        let reason = format!("this version has no support for:{}", lines.concat());
        Failure::new(format!("cannot serve {}", path.display()), reason)
    })?;
    for gap in gaps(&config) {
        if strict && gap.is_open {
            return Err(Failure::new(format!("cannot serve {} with --strict", path.display()), gap));
        }
        log::warn!("{gap}");
    }
    let command = Args::augment_args(clap::Command::new("serve"));
    let parsed = command.try_get_matches_from(arguments).and_then(|matches| Args::from_arg_matches(&matches));
    let mut options = parsed.map_err(Failure::from_error)?;
    options.skip_missing = config.server.skip_missing == Some(true);
    Ok(Loaded {
        options,
        subsystems: config.subsystems.values().map(|one| plan(&config, one)).collect(),
        auth: auth::load(&config)?,
        limits: limits::plan(&config),
    })
}

fn plan(config: &Config, subsystem: &Subsystem) -> Planned {
    let allowed_hosts = match &subsystem.hosts {
        Hosts::Any => None,
        Hosts::Listed(names) => {
            Some(names.iter().filter_map(|name| config.hosts.get(name)).map(|host| host.nqn.0).collect())
        }
    };
    let namespaces = subsystem.namespaces.iter().flat_map(|all| all.values());
    Planned {
        nqn: Some(subsystem.nqn.0),
        serial: subsystem.serial.as_ref().map(|serial| serial.as_str().to_owned()),
        allowed_hosts,
        qos: qos::plan(subsystem),
        volumes: namespaces.map(|one| (one.nsid.get(), one.volume.spec().clone())).collect(),
    }
}

/// Returns the arguments, or everything in the file that they cannot express.
fn arguments(config: &Config) -> Result<Vec<String>, Vec<String>> {
    let (mut arguments, mut unsupported) = (vec!["serve".to_owned()], Vec::new());
    add_server(config, &mut arguments, &mut unsupported);
    unsupported.extend(config.referrals.keys().map(|name| format!("referral {name}; remove it")));
    if config.subsystems.is_empty() {
        unsupported.push("a file without a subsystem; add a table [[subsystem]]".to_owned());
    }
    add_ports(config, &mut arguments, &mut unsupported);
    config.subsystems.values().for_each(|one| check_subsystem(one, &mut unsupported));
    unsupported.extend(limits::unsupported(config));
    if unsupported.is_empty() { Ok(arguments) } else { Err(unsupported) }
}

/// Most keys have the name of an option, and the same text.
fn add_server(config: &Config, arguments: &mut Vec<String>, unsupported: &mut Vec<String>) {
    for (key, item) in config.server.entries() {
        let option = format!("--{}", key.name);
        let text = item.to_string().trim().to_owned();
        match key.name {
            "state" | "stall-after" | "answer-within" => {
                unsupported.push(format!("server: {}; remove it", key.name))
            }
            // Read by `read` and `auth::load`.
            "limits" | "skip-missing" | "discovery-require" | "auth-hashes" | "auth-groups" => {}
            "advertise" => {
                let addresses = config.server.advertise.iter().flat_map(|addresses| &addresses.0);
                addresses.for_each(|address| arguments.extend([option.clone(), address.to_string()]));
            }
            _ => {
                let value = match (item.as_str(), item.as_bool()) {
                    (Some(text), _) => text.to_owned(),
                    (None, Some(is_on)) => (if is_on { "on" } else { "off" }).to_owned(),
                    (None, None) => text,
                };
                arguments.push(format!("{option}={value}"));
            }
        }
    }
}

/// All subsystems are at all ports that one of them lists.
fn add_ports(config: &Config, arguments: &mut Vec<String>, unsupported: &mut Vec<String>) {
    let is_used = |port: &&Port| config.subsystems.values().any(|one| one.ports.0.contains(&port.name));
    let (finders, ports): (Vec<&Port>, Vec<&Port>) =
        config.ports.values().partition(|port| port.discovery_only == Some(true));
    let finders =
        finders.iter().map(|port| format!("port {}: discovery-only = true; remove the port", port.name));
    unsupported.extend(finders);
    for port in ports.iter().filter(|port| is_used(port)) {
        arguments.push(format!("--listen={}", port.listen.0));
        let without = config.subsystems.values().filter(|one| !one.ports.0.contains(&port.name));
        unsupported.extend(without.map(|one| {
            format!("subsystem {}: not on port {}, which others use; add it to ports", one.nqn.0, port.name)
        }));
    }
}

fn check_subsystem(subsystem: &Subsystem, unsupported: &mut Vec<String>) {
    let place = format!("subsystem {}", subsystem.nqn.0);
    for (key, item) in subsystem.entries() {
        if ["model", "cntlid-min", "cntlid-max"].contains(&key.name) {
            unsupported.push(format!("{place}: {} = {}; remove it", key.name, item.to_string().trim()));
        }
    }
    let namespaces: Vec<_> = subsystem.namespaces.iter().flat_map(|all| all.values()).collect();
    if namespaces.is_empty() {
        unsupported.push(format!("{place}: no namespace; add a table [[subsystem.namespace]]"));
    }
    for namespace in namespaces {
        let nsid = namespace.nsid.get();
        if namespace.hosts.as_ref().is_some_and(|hosts| *hosts != subsystem.hosts) {
            unsupported
                .push(format!("{place} namespace {nsid}: fewer hosts than the subsystem; remove hosts"));
        }
    }
}
