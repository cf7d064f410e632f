//! A configuration file as options of `serve`, and the subsystems that it describes.

use std::net::SocketAddr;
use std::path::Path;

use clap::{Args as _, FromArgMatches};
use isolane_config::{Config, Hosts, Namespace, Number, Port, Subsystem, Table, gaps};
use isolane_target::{AuthConfig, TargetPort};
use isolane_wire::Nqn;

use super::subsystem::Planned;
use super::{Args, auth};
use crate::config_file;
use crate::failure::Failure;

/// What a file describes.
pub struct Loaded {
    /// Options of the target.
    pub options: Args,
    /// Its ports.
    pub ports: Vec<TargetPort>,
    /// Addresses of other discovery services.
    pub referrals: Vec<SocketAddr>,
    /// Its subsystems.
    pub subsystems: Vec<Planned>,
    /// Keys of hosts.
    pub auth: Option<AuthConfig>,
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
        ports: config.ports.values().map(port).collect(),
        referrals: config.referrals.values().flat_map(|one| one.addresses.0.iter().copied()).collect(),
        subsystems: config.subsystems.values().map(|one| plan(&config, one)).collect(),
        auth: auth::load(&config)?,
    })
}

fn port(port: &Port) -> TargetPort {
    let discovery_only = port.discovery_only == Some(true);
    TargetPort { discovery_only, ..TargetPort::named(port.name.as_str(), port.listen.0.clone()) }
}

fn plan(config: &Config, subsystem: &Subsystem) -> Planned {
    let namespaces = subsystem.namespaces.iter().flat_map(|all| all.values());
    let masked = namespaces.clone().filter(|one| one.hosts.as_ref().is_some_and(|it| *it != subsystem.hosts));
    let mask = |one: &Namespace| Some((one.nsid.get(), nqns(config, one.hosts.as_ref()?)?));
    Planned {
        nqn: Some(subsystem.nqn.0),
        serial: subsystem.serial.as_ref().map(|serial| serial.as_str().to_owned()),
        model: subsystem.model.as_ref().map(|model| model.as_str().to_owned()),
        allowed_hosts: nqns(config, &subsystem.hosts),
        masks: masked.filter_map(mask).collect(),
        ports: Some(subsystem.ports.0.iter().map(|name| name.as_str().to_owned()).collect()),
        cntlids: (cntlid(subsystem.cntlid_min), cntlid(subsystem.cntlid_max)),
        volumes: namespaces.map(|one| (one.nsid.get(), one.volume.spec().clone())).collect(),
    }
}

/// Returns the names of hosts; `None` for all.
fn nqns(config: &Config, hosts: &Hosts) -> Option<Vec<Nqn>> {
    let Hosts::Listed(names) = hosts else { return None };
    Some(names.iter().filter_map(|name| config.hosts.get(name)).map(|host| host.nqn.0).collect())
}

fn cntlid(number: Option<Number<1, 0xffef>>) -> Option<u16> {
    number.and_then(|number| u16::try_from(number.get()).ok())
}

/// Returns the arguments, or everything in the file that they cannot express.
fn arguments(config: &Config) -> Result<Vec<String>, Vec<String>> {
    let (mut arguments, mut unsupported) = (vec!["serve".to_owned()], Vec::new());
    add_server(config, &mut arguments, &mut unsupported);
    if config.subsystems.is_empty() {
        unsupported.push("a file without a subsystem; add a table [[subsystem]]".to_owned());
    }
    if config.ports.is_empty() {
        unsupported.push("a file without a port; add a table [[port]]".to_owned());
    }
    config.subsystems.values().for_each(|one| check_subsystem(one, &mut unsupported));
    let limited = config.hosts.values().filter(|host| host.limits.is_some());
    unsupported.extend(limited.map(|host| format!("host {}: limits; remove it", host.name)));
    if unsupported.is_empty() { Ok(arguments) } else { Err(unsupported) }
}

/// Most keys have the name of an option, and the same text.
fn add_server(config: &Config, arguments: &mut Vec<String>, unsupported: &mut Vec<String>) {
    for (key, item) in config.server.entries() {
        let option = format!("--{}", key.name);
        let text = item.to_string().trim().to_owned();
        match key.name {
            "state" | "stall-after" | "answer-within" | "limits" => {
                unsupported.push(format!("server: {}; remove it", key.name))
            }
            // Read by `read` and `auth::load`.
            "skip-missing" | "discovery-require" | "auth-hashes" | "auth-groups" => {}
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

fn check_subsystem(subsystem: &Subsystem, unsupported: &mut Vec<String>) {
    let place = format!("subsystem {}", subsystem.nqn.0);
    for (key, item) in subsystem.entries() {
        if key.name == "limits" {
            unsupported.push(format!("{place}: {} = {}; remove it", key.name, item.to_string().trim()));
        }
    }
    let namespaces: Vec<_> = subsystem.namespaces.iter().flat_map(|all| all.values()).collect();
    if namespaces.is_empty() {
        unsupported.push(format!("{place}: no namespace; add a table [[subsystem.namespace]]"));
    }
    for namespace in namespaces {
        let nsid = namespace.nsid.get();
        if namespace.qos.is_some() {
            unsupported.push(format!("{place} namespace {nsid}: qos; remove it"));
        }
    }
}
