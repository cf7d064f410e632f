//! Limits of connections in a file.

use isolane_config::{Config, Limits, Number};
use isolane_target::{ConnectionLimits, TargetLimits};

/// Returns the limits of the target, its subsystems, and its hosts.
pub fn plan(config: &Config) -> TargetLimits {
    let subsystems = config.subsystems.values();
    let hosts = config.hosts.values();
    TargetLimits {
        target: config.server.limits.as_ref().map_or_else(ConnectionLimits::default, to_target),
        subsystems: subsystems.filter_map(|one| Some((one.nqn.0, to_target(one.limits.as_ref()?)))).collect(),
        hosts: hosts.filter_map(|one| Some((one.nqn.0, to_target(one.limits.as_ref()?)))).collect(),
    }
}

/// Returns the objects with a limit of memory, which this version does not enforce.
pub fn unsupported(config: &Config) -> impl Iterator<Item = String> {
    let server = [("server".to_owned(), &config.server.limits)].into_iter();
    let subsystems = config.subsystems.values().map(|one| (format!("subsystem {}", one.nqn.0), &one.limits));
    let hosts = config.hosts.values().map(|one| (format!("host {}", one.name), &one.limits));
    let limits = server.chain(subsystems).chain(hosts);
    let has_memory = |limits: &Option<Limits>| limits.as_ref().is_some_and(|limits| limits.memory.is_some());
    limits
        .filter(move |(_, limits)| has_memory(limits))
        .map(|(place, _)| format!("{place}: limits.memory; remove it, and set server.pool"))
}

fn to_target(limits: &Limits) -> ConnectionLimits {
    ConnectionLimits {
        connections: number(limits.connections),
        associations: number(limits.associations),
        commands: number(limits.commands),
    }
}

fn number<const MIN: u32, const MAX: u32>(number: Option<Number<MIN, MAX>>) -> Option<usize> {
    Some(number?.get() as usize)
}
