//! Gaps of a configuration: valid, but unsafe or without effect.

use std::fmt;

use crate::choice::Require;
use crate::model::{Config, Subsystem};
use crate::names::Hosts;

/// A gap: the object, and the consequence with its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Whether hosts on other machines have access without authentication.
    pub is_open: bool,
    /// Object and consequence.
    pub text: String,
    /// Remedy, as an imperative.
    pub remedy: String,
    /// Arguments of the program that close an open subsystem, one after the other.
    pub commands: Option<[String; 2]>,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.text, self.remedy)
    }
}

/// Returns all gaps: first access without authentication, then objects without effect.
pub fn gaps(config: &Config) -> Vec<Gap> {
    let mut gaps: Vec<Gap> = config.subsystems.values().filter_map(|one| open_access(config, one)).collect();
    gaps.extend(open_discovery(config));
    gaps.extend(relative_paths(config));
    gaps.extend(unused(config));
    gaps
}

fn open_access(config: &Config, subsystem: &Subsystem) -> Option<Gap> {
    let ports = subsystem.ports.0.iter().filter_map(|name| config.ports.get(name));
    let reachable = ports.filter(|port| !port.listen.0.address.ip().is_loopback());
    let reachable: Vec<String> = reachable.map(|port| format!("{} ({})", port.name, port.listen.0)).collect();
    if reachable.is_empty() {
        return None;
    }
    let nqn = subsystem.nqn.0;
    let (hosts, commands) = match &subsystem.hosts {
        Hosts::Any if config.required(None, subsystem) == Require::None => (
            "any host".to_owned(),
            [
                "ctl host add NAME nqn=NQN auth-key=file:KEY".to_owned(),
                format!("ctl subsystem set {nqn} require=auth"),
            ],
        ),
        Hosts::Any => return None,
        Hosts::Listed(names) => {
            let open = names
                .iter()
                .filter(|name| config.required(config.hosts.get(*name), subsystem) == Require::None);
            let open: Vec<&str> = open.map(|name| name.as_str()).collect();
            let first = *open.first()?;
            let key = format!("/etc/isolane/{first}.key");
            let commands = [format!("key gen {key}"), format!("ctl host set {first} auth-key=file:{key}")];
            (format!("a host that uses the name of {}", open.join(", ")), commands)
        }
    };
    Some(Gap {
        is_open: true,
        text: format!(
            "subsystem {nqn}: {hosts} reads and writes it without authentication on {}",
            reachable.join(", ")
        ),
        remedy: "write require = \"auth\" and an auth-key for each host, or listen on 127.0.0.1".to_owned(),
        commands: Some(commands),
    })
}

fn open_discovery(config: &Config) -> Option<Gap> {
    if config.server.discovery_require.is_some_and(|require| require != Require::None) {
        return None;
    }
    let port = config.ports.values().find(|port| !port.listen.0.address.ip().is_loopback())?;
    Some(Gap {
        is_open: true,
        text: format!(
            "server: any host reads names and addresses from the discovery log of port {} without authentication",
            port.name
        ),
        remedy: "write discovery-require = \"auth\"".to_owned(),
        commands: None,
    })
}

fn relative_paths(config: &Config) -> impl Iterator<Item = Gap> {
    config.subsystems.values().flat_map(|subsystem| {
        let namespaces = subsystem.namespaces.iter().flatten().map(|(_, namespace)| namespace);
        namespaces.filter(|namespace| namespace.volume.has_relative_path()).map(|namespace| Gap {
            is_open: false,
            text: format!(
                "subsystem {} namespace {}: {} depends on the working directory",
                subsystem.nqn.0,
                namespace.nsid.get(),
                namespace.volume.as_str()
            ),
            remedy: "write the path from the root".to_owned(),
            commands: None,
        })
    })
}

fn unused(config: &Config) -> impl Iterator<Item = Gap> {
    let gap = |text: String| Gap {
        is_open: false,
        text,
        remedy: "name it in a subsystem, or remove it".to_owned(),
        commands: None,
    };
    let has_port = |name| config.subsystems.values().any(|subsystem| subsystem.ports.0.contains(name));
    let ports =
        config.ports.values().filter(move |port| port.discovery_only != Some(true) && !has_port(&port.name));
    let has_host = |name| {
        config.subsystems.values().any(|subsystem| match &subsystem.hosts {
            Hosts::Any => true,
            Hosts::Listed(names) => names.contains(name),
        })
    };
    let hosts = config.hosts.keys().filter(move |name| !has_host(name));
    let ports = ports.map(move |port| gap(format!("port {}: no subsystem has it", port.name)));
    ports.chain(hosts.map(move |name| gap(format!("host {name}: no subsystem admits it"))))
}
