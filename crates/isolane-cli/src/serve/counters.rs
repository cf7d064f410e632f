//! Counters of a running target, as text and JSON.

use std::fmt::Write;
use std::time::Duration;

use isolane_observe::histogram::Histogram;
use isolane_target::{ConnectionStatus, Counters, LimitKind, Operation, OperationCounters};
use serde_json::json;

use super::conditions::Conditions;
use crate::failure::Failure;
use crate::output;
use crate::units::show_bytes;

/// Returns text, or JSON with the same numbers.
pub fn show(
    counters: &Counters,
    connections: &[ConnectionStatus],
    conditions: &Conditions,
    as_json: bool,
) -> Result<String, Failure> {
    if !as_json {
        let connections: String = connections.iter().map(connection_text).collect();
        return Ok(to_text(counters) + &conditions.to_text() + &connections);
    }
    let mut json = to_json(counters);
    json["connections"] = connections.iter().map(connection_json).collect();
    json["conditions"] = conditions.to_json();
    Ok(String::from_utf8_lossy(&output::to_json(&json)?).into_owned())
}

/// Returns the median, p99, p99.9, and the maximum, in microseconds.
fn quantiles_us(latency: &Histogram, max: Duration) -> [f64; 4] {
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| latency.quantile(quantile));
    [p50, p99, p999, max.as_nanos() as u64].map(|ns| ns as f64 / 1000.0)
}

fn connection_text(status: &ConnectionStatus) -> String {
    let ConnectionStatus { peer, host_nqn, qid, reactor, core, incoming_cpu, .. } = status;
    let queue = match (host_nqn, qid) {
        (Some(host), Some(qid)) => format!("queue {qid} of {host}"),
        _ => String::from("no queue yet"),
    };
    let core = core.map_or(String::new(), |core| format!(" on core {core}"));
    let incoming = incoming_cpu.map_or(String::new(), |core| format!(", packets on core {core}"));
    let (moved, unsent) = (show_bytes(status.moved_bytes as f64), show_bytes(status.unsent_bytes as f64));
    format!("connection {peer} {queue}: reactor {reactor}{core}{incoming}; {moved} moved, {unsent} unsent\n")
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
        "connections {} open (by core {:?}; {} before Connect, {} not authenticated), {} in total, {} refused; {} received, {} sent; {} admin commands; \
         {} fatal errors, {} digest errors, {} commands delayed\n",
        counters.connections_open,
        counters.connections_per_core,
        counters.connections_before_connect,
        counters.connections_unauthenticated,
        counters.connections_total,
        counters.connections_refused,
        show_bytes(counters.received_bytes as f64),
        show_bytes(counters.sent_bytes as f64),
        counters.admin_commands,
        counters.fatal_errors,
        counters.digest_errors,
        counters.deferred_commands,
    );
    for ((scope, kind), count) in &counters.limits_reached {
        let what = if *kind == LimitKind::Memory { "waits" } else { "refused" };
        let _ = writeln!(text, "limit of {} of a {}: {count} {what}", kind.name(), scope.name());
    }
    for namespace in &counters.namespaces {
        for operation in Operation::ALL {
            let OperationCounters { commands, bytes, errors, latency, max } = namespace.get(operation);
            if *commands > 0 {
                let (nsid, name, bytes) = (namespace.nsid, operation.name(), show_bytes(*bytes as f64));
                let [p50, p99, p999, max] = quantiles_us(latency, *max);
                let _ = writeln!(
                    text,
                    "namespace {nsid} {name:<13} {commands:>12} commands  {bytes:>10}  {errors} errors  p50 {p50:.1} us  p99 {p99:.1} us  p99.9 {p999:.1} us  max {max:.1} us",
                );
            }
        }
        if let Some(age) = namespace.oldest_command {
            let _ = writeln!(text, "namespace {} oldest command: {:.1} s", namespace.nsid, age.as_secs_f64());
        }
    }
    text
}

fn to_json(counters: &Counters) -> serde_json::Value {
    let namespaces: Vec<_> = counters
        .namespaces
        .iter()
        .map(|namespace| {
            let operations: serde_json::Map<_, _> = Operation::ALL
                .into_iter()
                .map(|operation| {
                    let count = namespace.get(operation);
                    let [p50, p99, p999, max] = quantiles_us(&count.latency, count.max);
                    let value = json!({
                        "commands": count.commands,
                        "bytes": count.bytes,
                        "errors": count.errors,
                        "p50_us": p50,
                        "p99_us": p99,
                        "p99_9_us": p999,
                        "max_us": max,
                    });
                    (operation.name().replace('-', "_"), value)
                })
                .collect();
            let oldest_ms = namespace.oldest_command.map(|age| age.as_millis() as u64);
            json!({ "nsid": namespace.nsid, "operations": operations, "oldest_command_ms": oldest_ms })
        })
        .collect();
    let limits_reached = counters.limits_reached.iter();
    let limits_reached = limits_reached
        .map(|((scope, kind), count)| (format!("{}_{}", scope.name(), kind.name()), json!(count)));
    json!({
        "connections_open": counters.connections_open,
        "connections_lingering": counters.connections_lingering,
        "connections_before_connect": counters.connections_before_connect,
        "connections_unauthenticated": counters.connections_unauthenticated,
        "connections_total": counters.connections_total,
        "connections_refused": counters.connections_refused,
        "authentication_refused": counters.authentication_refused,
        "limits_reached": limits_reached.collect::<serde_json::Map<_, _>>(),
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
