//! Limits of connections and of memory in a file.

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

fn to_target(limits: &Limits) -> ConnectionLimits {
    ConnectionLimits {
        connections: number(limits.connections),
        associations: number(limits.associations),
        commands: number(limits.commands),
        memory: limits.memory.map(|memory| memory.bytes() as usize),
    }
}

fn number<const MIN: u32, const MAX: u32>(number: Option<Number<MIN, MAX>>) -> Option<usize> {
    Some(number?.get() as usize)
}
