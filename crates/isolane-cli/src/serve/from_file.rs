//! A configuration file as arguments of `serve`, for a target with one subsystem.

use std::path::Path;

use clap::{Args as _, FromArgMatches};
use isolane_config::{Config, Hosts, Subsystem, Table, gaps};

use super::{Args, auth};
use crate::config_file;
use crate::failure::Failure;

/// Reads a file, and returns arguments with its meaning. `strict` rejects access without authentication from other
/// machines; otherwise the log has it. Every failure has the exit status of a wrong file.
pub fn load(path: &Path, strict: bool) -> Result<Args, Failure> {
    read(path, strict).map_err(Failure::of_usage)
}

fn read(path: &Path, strict: bool) -> Result<Args, Failure> {
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
    let mut args = parsed.map_err(Failure::from_error)?;
    if let Some(subsystem) = config.subsystems.values().next() {
        args.serial = subsystem.serial.as_ref().map(|serial| serial.as_str().to_owned());
        args.auth = auth::load(&config, subsystem)?;
    }
    Ok(args)
}

/// Returns the arguments, or everything in the file that they cannot express.
fn arguments(config: &Config) -> Result<Vec<String>, Vec<String>> {
    let (mut arguments, mut unsupported) = (vec!["serve".to_owned()], Vec::new());
    add_server(config, &mut arguments, &mut unsupported);
    unsupported.extend(config.referrals.keys().map(|name| format!("referral {name}; remove it")));
    let mut subsystems = config.subsystems.values();
    match (subsystems.next(), subsystems.next()) {
        (Some(only), None) => add_subsystem(config, only, &mut arguments, &mut unsupported),
        (None, _) => unsupported.push("a file without a subsystem; add a table [[subsystem]]".to_owned()),
        (Some(_), Some(_)) => unsupported.push(format!(
            "{} subsystems; keep one, and run a target with a file for each of the others",
            config.subsystems.len()
        )),
    }
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
            // Read by `auth::load`.
            "discovery-require" | "auth-hashes" | "auth-groups" => {}
            "skip-missing" => arguments.extend((item.as_bool() == Some(true)).then_some(option)),
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

fn add_subsystem(
    config: &Config,
    subsystem: &Subsystem,
    arguments: &mut Vec<String>,
    unsupported: &mut Vec<String>,
) {
    let place = format!("subsystem {}", subsystem.nqn.0);
    for (key, item) in subsystem.entries() {
        if ["model", "cntlid-min", "cntlid-max", "limits"].contains(&key.name) {
            unsupported.push(format!("{place}: {} = {}; remove it", key.name, item.to_string().trim()));
        }
    }
    arguments.push(format!("--nqn={}", subsystem.nqn.0));
    for port in config.ports.values() {
        if port.discovery_only == Some(true) {
            unsupported.push(format!("port {}: discovery-only = true; remove the port", port.name));
        } else if subsystem.ports.0.contains(&port.name) {
            arguments.push(format!("--listen={}", port.listen.0));
        }
    }
    add_hosts(config, &subsystem.hosts, &place, arguments, unsupported);
    let namespaces: Vec<_> = subsystem.namespaces.iter().flat_map(|all| all.values()).collect();
    if namespaces.is_empty() {
        unsupported.push(format!("{place}: no namespace; add a table [[subsystem.namespace]]"));
    }
    arguments.push("--".to_owned());
    for namespace in namespaces {
        let nsid = namespace.nsid.get();
        if namespace.qos.is_some() {
            unsupported.push(format!("{place} namespace {nsid}: qos; remove it"));
        }
        if namespace.hosts.as_ref().is_some_and(|hosts| *hosts != subsystem.hosts) {
            unsupported
                .push(format!("{place} namespace {nsid}: fewer hosts than the subsystem; remove hosts"));
        }
        arguments.push(format!("{},nsid={nsid}", namespace.volume.as_str()));
    }
}

fn add_hosts(
    config: &Config,
    hosts: &Hosts,
    place: &str,
    arguments: &mut Vec<String>,
    unsupported: &mut Vec<String>,
) {
    let admitted: Vec<_> = match hosts {
        Hosts::Any => Vec::new(),
        Hosts::Listed(names) if names.is_empty() => {
            unsupported.push(format!("{place}: hosts = []; name a host"));
            return;
        }
        Hosts::Listed(names) => names.iter().filter_map(|name| config.hosts.get(name)).collect(),
    };
    for host in admitted {
        if host.limits.is_some() {
            unsupported.push(format!("host {}: limits; remove it", host.name));
        }
        arguments.push(format!("--allow-host={}", host.nqn.0));
    }
}
