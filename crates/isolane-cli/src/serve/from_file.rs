//! A configuration as options of `serve`, and the subsystems that it describes.

use std::net::SocketAddr;
use std::path::Path;

use isolane_config::{Config, Hosts, Namespace, Number, Port, Subsystem, Table, gaps};
use isolane_target::TargetPort;
use isolane_wire::Nqn;

use super::qos;
use super::state;
use super::subsystem::Planned;
use crate::failure::Failure;

/// Checks that this version can serve a configuration. Returns the arguments of the target.
pub fn check(path: &Path, config: &Config, strict: bool) -> Result<Vec<String>, Failure> {
    let arguments = arguments(config).map_err(|unsupported| {
        let lines: Vec<String> = unsupported.iter().map(|line| format!("\n  {line}")).collect();
        let reason = format!("this version has no support for:{}", lines.concat());
        Failure::new(format!("cannot serve {}", path.display()), reason)
    })?;
    state::check(config)?;
    let by = match (strict, config.server.strict) {
        (true, _) => "--strict",
        (false, Some(true)) => "server.strict",
        (false, _) => return Ok(arguments),
    };
    match gaps(config).into_iter().find(|gap| gap.is_open) {
        Some(gap) => Err(Failure::new(format!("cannot serve {} with {by}", path.display()), gap)),
        None => Ok(arguments),
    }
}

/// Returns the ports of a configuration.
pub fn ports(config: &Config) -> Vec<TargetPort> {
    config.ports.values().map(port).collect()
}

/// Returns the addresses of other discovery services.
pub fn referrals(config: &Config) -> Vec<SocketAddr> {
    config.referrals.values().flat_map(|one| one.addresses.0.iter().copied()).collect()
}

fn port(port: &Port) -> TargetPort {
    let discovery_only = port.discovery_only == Some(true);
    TargetPort { discovery_only, ..TargetPort::named(port.name.as_str(), port.listen.0.clone()) }
}

/// Returns a subsystem whose volumes are not open yet.
pub fn plan(config: &Config, subsystem: &Subsystem) -> Planned {
    let namespaces = subsystem.namespaces.iter().flat_map(|all| all.values());
    let masked = namespaces.clone().filter(|one| one.hosts.as_ref().is_some_and(|it| *it != subsystem.hosts));
    let mask = |one: &Namespace| Some((one.nsid.get(), nqns(config, one.hosts.as_ref()?)?));
    Planned {
        nqn: Some(subsystem.nqn.0),
        serial: subsystem.serial.as_ref().map(|serial| serial.as_str().to_owned()),
        allowed_hosts: nqns(config, &subsystem.hosts),
        model: subsystem.model.as_ref().map(|model| model.as_str().to_owned()),
        masks: masked.filter_map(mask).collect(),
        ports: Some(subsystem.ports.0.iter().map(|name| name.as_str().to_owned()).collect()),
        cntlids: (cntlid(subsystem.cntlid_min), cntlid(subsystem.cntlid_max)),
        qos: qos::plan(subsystem),
        volumes: namespaces.map(|one| (one.nsid.get(), one.volume.spec().clone())).collect(),
        before: None,
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

/// Returns what this version cannot serve of a valid configuration, each with its remedy.
pub fn unsupported(config: &Config) -> Vec<String> {
    arguments(config).err().unwrap_or_default()
}

/// Returns the arguments, or everything in the file that they cannot express.
fn arguments(config: &Config) -> Result<Vec<String>, Vec<String>> {
    let (mut arguments, mut unsupported) = (vec!["serve".to_owned()], Vec::new());
    add_server(config, &mut arguments);
    if config.subsystems.is_empty() {
        unsupported.push("a file without a subsystem; add a table [[subsystem]]".to_owned());
    }
    if config.ports.is_empty() {
        unsupported.push("a file without a port; add a table [[port]]".to_owned());
    }
    if unsupported.is_empty() { Ok(arguments) } else { Err(unsupported) }
}

/// Most keys have the name of an option, and the same text.
fn add_server(config: &Config, arguments: &mut Vec<String>) {
    for (key, item) in config.server.entries() {
        let option = format!("--{}", key.name);
        let text = item.to_string().trim().to_owned();
        match key.name {
            // Read by `check`, `load`, `auth`, and `state`.
            "state" | "limits" | "strict" | "skip-missing" | "discovery-require" | "auth-hashes"
            | "auth-groups" | "auth-within" => {}
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
