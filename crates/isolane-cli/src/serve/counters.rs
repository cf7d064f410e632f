//! Counters of a running target, as text and JSON.

use std::fmt::Write;

use isolane_target::{ConnectionStatus, Counters, IoKind};
use serde_json::json;

use crate::failure::Failure;
use crate::output;
use crate::units::show_bytes;

/// Returns text, or JSON with the same numbers.
pub fn show(counters: &Counters, connections: &[ConnectionStatus], as_json: bool) -> Result<String, Failure> {
    if !as_json {
        return Ok(to_text(counters) + &connections.iter().map(connection_text).collect::<String>());
    }
    let mut json = to_json(counters);
    json["connections"] = connections.iter().map(connection_json).collect();
    Ok(String::from_utf8_lossy(&output::to_json(&json)?).into_owned())
}

fn connection_text(status: &ConnectionStatus) -> String {
    let queue = match (&status.host_nqn, status.qid) {
        (Some(host), Some(qid)) => format!("queue {qid} of {host}"),
        _ => String::from("no queue yet"),
    };
    let core = status.core.map_or(String::new(), |core| format!(" on core {core}"));
    let incoming = status.incoming_cpu.map_or(String::new(), |core| format!(", packets on core {core}"));
    format!(
        "connection {} {queue}: reactor {}{core}{incoming}; {} moved, {} unsent\n",
        status.peer,
        status.reactor,
        show_bytes(status.moved_bytes as f64),
        show_bytes(status.unsent_bytes as f64),
    )
}

fn connection_json(status: &ConnectionStatus) -> serde_json::Value {
    json!({
        "peer": status.peer.to_string(),
        "host_nqn": status.host_nqn.as_ref().map(|nqn| nqn.as_str()),
        "qid": status.qid,
        "reactor": status.reactor,
        "core": status.core,
        "incoming_cpu": status.incoming_cpu,
        "moved_bytes": status.moved_bytes,
        "unsent_bytes": status.unsent_bytes,
    })
}

fn to_text(counters: &Counters) -> String {
    let mut text = format!(
        "connections {} open (by core {:?}; {} before Connect), {} in total, {} refused; {} received, {} sent; {} admin commands; \
         {} fatal errors, {} digest errors, {} commands delayed\n",
        counters.connections_open,
        counters.connections_per_core,
        counters.connections_before_connect,
        counters.connections_total,
        counters.connections_refused,
        show_bytes(counters.received_bytes as f64),
        show_bytes(counters.sent_bytes as f64),
        counters.admin_commands,
        counters.fatal_errors,
        counters.digest_errors,
        counters.deferred_commands,
    );
    for namespace in &counters.namespaces {
        for operation in IoKind::ALL {
            let count = namespace.get(operation);
            if count.commands == 0 {
                continue;
            }
            let _ = writeln!(
                text,
                "namespace {} {:<13} {:>12} commands  {:>10}  {} errors  p50 {} us  p99 {} us",
                namespace.nsid,
                operation.name(),
                count.commands,
                show_bytes(count.bytes as f64),
                count.errors,
                count.latency.quantile(0.5).as_micros(),
                count.latency.quantile(0.99).as_micros(),
            );
        }
    }
    text
}

fn to_json(counters: &Counters) -> serde_json::Value {
    let namespaces: Vec<_> = counters
        .namespaces
        .iter()
        .map(|namespace| {
            let operations: serde_json::Map<_, _> = IoKind::ALL
                .into_iter()
                .map(|operation| {
                    let count = namespace.get(operation);
                    let value = json!({
                        "commands": count.commands,
                        "bytes": count.bytes,
                        "errors": count.errors,
                        "p50_us": count.latency.quantile(0.5).as_micros() as u64,
                        "p99_us": count.latency.quantile(0.99).as_micros() as u64,
                    });
                    (operation.name().replace(' ', "_"), value)
                })
                .collect();
            json!({ "nsid": namespace.nsid, "operations": operations })
        })
        .collect();
    json!({
        "connections_open": counters.connections_open,
        "connections_lingering": counters.connections_lingering,
        "connections_before_connect": counters.connections_before_connect,
        "connections_total": counters.connections_total,
        "connections_refused": counters.connections_refused,
        "connections_per_core": counters.connections_per_core,
        "received_bytes": counters.received_bytes,
        "sent_bytes": counters.sent_bytes,
        "zerocopy_bytes": counters.zerocopy_bytes,
        "admin_commands": counters.admin_commands,
        "fatal_errors": counters.fatal_errors,
        "digest_errors": counters.digest_errors,
        "deferred_commands": counters.deferred_commands,
        "namespaces": namespaces,
    })
}
