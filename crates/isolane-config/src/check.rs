//! Checks of relations between keys: names that exist, and values that exclude each other.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::choice::Require;
use crate::model::{Config, Limits, Namespace, Port, Qos, Server, Subsystem};
use crate::names::{AuthKeys, Hosts, Name};
use crate::problem::{Invalid, nearest};
use crate::reader::Reader;
use crate::value::Time;

/// Reports all relations that are not valid. Objects that could not be read are not part of `config`, but are declared.
pub(crate) fn check(config: &Config, reader: &mut Reader<'_>) {
    check_server(&config.server, reader);
    check_addresses(config, reader);
    check_host_names(config, reader);
    for subsystem in config.subsystems.values() {
        check_subsystem(config, subsystem, reader);
    }
    check_volumes(config, reader);
}

fn check_server(server: &Server, reader: &mut Reader<'_>) {
    let stall_after = server.stall_after.map_or(STALL_AFTER, Time::get);
    if stall_after > server.answer_within.map_or(ANSWER_WITHIN, Time::get) {
        let (key, invalid) = if server.stall_after.is_some() {
            let remedy = "write a shorter time, or a longer answer-within (default: 20s)";
            ("stall-after", Invalid::new("longer than answer-within", remedy))
        } else {
            let remedy = "write a longer time, or add a shorter stall-after";
            ("answer-within", Invalid::new("shorter than stall-after, which is 10s by default", remedy))
        };
        reader.invalid_key("server", key, invalid);
    }
    if server.acks.is_some() && server.observe == Some(false) {
        let invalid = Invalid::new("observe = false records nothing", "remove acks, or observe = false");
        reader.invalid_key("server", "acks", invalid);
    }
}

/// Two listeners of one family and port exclude each other if they have the same address, or one has all.
fn check_addresses(config: &Config, reader: &mut Reader<'_>) {
    let mut ports: Vec<&Port> = config.ports.values().collect();
    // The earlier one in the file keeps its address.
    ports.sort_by_key(|port| reader.line_of(&place_of(port), "listen"));
    let mut taken: HashMap<(bool, u16), Vec<&Port>> = HashMap::new();
    for port in ports {
        let address = port.listen.0.address;
        if address.port() == 0 {
            continue;
        }
        let family = taken.entry((address.is_ipv4(), address.port())).or_default();
        if let Some(other) = family.iter().find(|other| excludes(other.listen.0.address, address)) {
            let reason = format!("port {} listens on {}", other.name, other.listen.0.address);
            reader.invalid_key(&place_of(port), "listen", Invalid::new(reason, "listen on another address"));
        } else if family.len() < MAX_COMPARED {
            family.push(port);
        }
    }
}

fn excludes(one: SocketAddr, other: SocketAddr) -> bool {
    let is_all = |ip: IpAddr| ip.is_unspecified();
    one == other || is_all(one.ip()) || is_all(other.ip())
}

fn place_of(port: &Port) -> String {
    format!("port {}", port.name)
}

fn check_host_names(config: &Config, reader: &mut Reader<'_>) {
    let mut known = HashMap::new();
    for host in config.hosts.values() {
        let place = format!("host {}", host.name);
        if let Some(other) = known.insert(host.nqn, &host.name) {
            let reason = format!("host {other} has the same NQN");
            reader.invalid_key(&place, "nqn", Invalid::new(reason, "keep one of the two hosts"));
        }
        let keys = |keys: &Option<AuthKeys>| keys.as_ref().map_or(0, |keys| keys.0.len());
        if keys(&host.auth_target_key) > keys(&host.auth_key) {
            let invalid = Invalid::new(
                "more keys than auth-key has",
                "name one for each auth-key, in the same order, or one for all of them",
            );
            reader.invalid_key(&place, "auth-target-key", invalid);
        }
        if let Some(required) = host.require.filter(|required| *required != Require::None) {
            check_keys(config, &host.name, required, &place, reader);
        }
    }
}

/// Checks that a host has the keys for this proof.
fn check_keys(config: &Config, name: &Name, required: Require, place: &str, reader: &mut Reader<'_>) {
    let Some(host) = config.hosts.get(name) else { return };
    let missing = match required {
        Require::None => return,
        _ if host.auth_key.is_none() => "auth-key",
        Require::AuthBoth if host.auth_target_key.is_none() => "auth-target-key",
        _ => return,
    };
    let reason = format!("host {name} has no {missing}");
    let remedy = format!("write {missing} = \"file:/etc/isolane/{name}.key\" for this host");
    reader.invalid_key(place, "require", Invalid::new(reason, remedy));
}

fn check_subsystem(config: &Config, subsystem: &Subsystem, reader: &mut Reader<'_>) {
    let place = format!("subsystem {}", subsystem.nqn.0);
    let known: Vec<&str> = config.ports.keys().map(Name::as_str).collect();
    for port in &subsystem.ports.0 {
        check_name("port", port, &known, &place, "ports", reader);
        if config.ports.get(port).is_some_and(|port| port.discovery_only == Some(true)) {
            let reason = format!("port {port} has only the discovery service");
            reader.invalid_key(
                &place,
                "ports",
                Invalid::new(reason, "name another port, or remove discovery-only"),
            );
        }
    }
    check_hosts(config, &subsystem.hosts, &place, reader);
    if let (Some(min), Some(max)) = (subsystem.cntlid_min, subsystem.cntlid_max)
        && min.get() > max.get()
    {
        let invalid = Invalid::new("more than cntlid-max", "write the lower number as cntlid-min");
        reader.invalid_key(&place, "cntlid-min", invalid);
    }
    if let (Some(required), Hosts::Listed(names)) = (subsystem.require, &subsystem.hosts) {
        for name in names {
            check_keys(config, name, required, &place, reader);
        }
    }
    check_limits(config.server.limits.as_ref(), subsystem.limits.as_ref(), &place, reader);
    for namespace in subsystem.namespaces.iter().flatten().map(|(_, namespace)| namespace) {
        check_namespace(config, subsystem, namespace, &place, reader);
    }
}

fn check_hosts(config: &Config, hosts: &Hosts, place: &str, reader: &mut Reader<'_>) {
    let Hosts::Listed(names) = hosts else { return };
    let known: Vec<&str> = config.hosts.keys().map(Name::as_str).collect();
    for name in names {
        check_name("host", name, &known, place, "hosts", reader);
    }
}

fn check_name(
    kind: &'static str,
    name: &Name,
    known: &[&str],
    place: &str,
    key: &'static str,
    reader: &mut Reader<'_>,
) {
    if reader.is_declared(&format!("{kind} {name}")) {
        return;
    }
    let remedy = nearest(name.as_str(), known.iter().copied()).map_or_else(
        || format!("add a table [[{kind}]] with name = \"{name}\""),
        |nearest| format!("write \"{nearest}\", or add a table [[{kind}]]"),
    );
    reader.invalid_key(place, key, Invalid::new(format!("no {kind} is named \"{name}\""), remedy));
}

/// A subsystem that may use more than the target has a limit without effect.
fn check_limits(server: Option<&Limits>, own: Option<&Limits>, place: &str, reader: &mut Reader<'_>) {
    let (Some(server), Some(own)) = (server, own) else { return };
    let numbers = |limits: &Limits| {
        let number = |number: Option<u32>| number.map(u64::from);
        [
            ("connections", number(limits.connections.map(|it| it.get()))),
            ("associations", number(limits.associations.map(|it| it.get()))),
            ("commands", number(limits.commands.map(|it| it.get()))),
            ("memory", limits.memory.map(|it| it.bytes())),
        ]
    };
    for ((key, own), (_, server)) in numbers(own).into_iter().zip(numbers(server)) {
        if own.zip(server).is_some_and(|(own, server)| own > server) {
            let remedy = "write at most the limit of the server";
            let invalid = Invalid::new("more than the limit of the server", remedy);
            reader.invalid_key(&format!("{place} limits"), key, invalid);
        }
    }
}

fn check_namespace(
    config: &Config,
    subsystem: &Subsystem,
    namespace: &Namespace,
    place: &str,
    reader: &mut Reader<'_>,
) {
    let place = format!("{place} namespace {}", namespace.nsid.get());
    if let Some(hosts) = &namespace.hosts {
        check_hosts(config, hosts, &place, reader);
        let outside = match (hosts, &subsystem.hosts) {
            (Hosts::Any, Hosts::Listed(_)) => {
                Some("\"any\" is more than the hosts of the subsystem".to_owned())
            }
            (Hosts::Listed(names), Hosts::Listed(all)) => {
                let outside = names.iter().find(|name| !all.contains(name));
                outside.map(|name| format!("host {name} has no access to the subsystem"))
            }
            (_, Hosts::Any) => None,
        };
        if let Some(reason) = outside {
            let invalid = Invalid::new(reason, "name only hosts of the subsystem");
            reader.invalid_key(&place, "hosts", invalid);
        }
    }
    if let Some(qos) = &namespace.qos {
        check_qos(qos, &place, reader);
    }
}

fn check_qos(qos: &Qos, place: &str, reader: &mut Reader<'_>) {
    let iops = |number: Option<u32>| number.map(u64::from);
    let both_iops = iops(qos.iops.map(|it| it.get()));
    let both_bytes = qos.bytes.map(|it| it.bytes());
    let parts = [
        ("read-iops", "iops", iops(qos.read_iops.map(|it| it.get())), both_iops),
        ("write-iops", "iops", iops(qos.write_iops.map(|it| it.get())), both_iops),
        ("read-bytes", "bytes", qos.read_bytes.map(|it| it.bytes()), both_bytes),
        ("write-bytes", "bytes", qos.write_bytes.map(|it| it.bytes()), both_bytes),
    ];
    if parts.iter().all(|(_, _, part, both)| part.or(*both).is_none()) {
        reader.invalid_key(place, "qos", Invalid::new("limits nothing", "add iops or bytes, or remove qos"));
    }
    for (key, whole, part, both) in parts {
        if part.zip(both).is_some_and(|(part, both)| part > both) {
            let remedy = format!("write at most {whole}, or remove {key}");
            reader.invalid_key(
                &format!("{place} qos"),
                key,
                Invalid::new(format!("more than {whole}"), remedy),
            );
        }
    }
}

/// A volume in two namespaces would be changed behind the cache of each host.
fn check_volumes(config: &Config, reader: &mut Reader<'_>) {
    let mut all: Vec<(String, &Namespace)> = Vec::new();
    for subsystem in config.subsystems.values() {
        for namespace in subsystem.namespaces.iter().flatten().map(|(_, namespace)| namespace) {
            let nsid = namespace.nsid.get();
            all.push((format!("subsystem {} namespace {nsid}", subsystem.nqn.0), namespace));
        }
    }
    all.sort_by_key(|(place, _)| reader.line_of(place, "volume"));
    let mut users: HashMap<&str, &str> = HashMap::new();
    for (place, namespace) in &all {
        for store in namespace.volume.stores() {
            match users.get(store.as_str()) {
                Some(other) if *other != place => {
                    let reason = format!("{other} has the same volume");
                    let invalid = Invalid::new(reason, "give each namespace its own volume");
                    reader.invalid_key(place, "volume", invalid);
                    break;
                }
                _ => drop(users.insert(store, place)),
            }
        }
    }
}

/// Ports of one family and number that are compared with each other: more do not fit into one machine.
const MAX_COMPARED: usize = 4096;
/// Defaults of `stall-after` and `answer-within`.
const STALL_AFTER: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
