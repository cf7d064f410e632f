//! The counters of a running target, for people and for programs.

use std::fmt::Write;

use isolane_target::{Counters, Operation};
use serde_json::json;

use crate::failure::Failure;
use crate::output;
use crate::units::show_bytes;

/// Text, or JSON with the same numbers.
pub fn show(counters: &Counters, as_json: bool) -> Result<String, Failure> {
    if !as_json {
        return Ok(to_text(counters));
    }
    Ok(String::from_utf8_lossy(&output::to_json(&to_json(counters))?).into_owned())
}

fn to_text(counters: &Counters) -> String {
    let mut text = format!(
        "connections {} open (by core {:?}), {} in all; {} received, {} sent; {} admin commands; \
         {} fatal errors, {} digest errors, {} commands waited\n",
        counters.connections_open,
        counters.connections_per_core,
        counters.connections_total,
        show_bytes(counters.received_bytes as f64),
        show_bytes(counters.sent_bytes as f64),
        counters.admin_commands,
        counters.fatal_errors,
        counters.digest_errors,
        counters.deferred_commands,
    );
    for namespace in &counters.namespaces {
        for operation in Operation::ALL {
            let count = namespace.of(operation);
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
            let operations: serde_json::Map<_, _> = Operation::ALL
                .into_iter()
                .map(|operation| {
                    let count = namespace.of(operation);
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
        "connections_total": counters.connections_total,
        "connections_per_core": counters.connections_per_core,
        "received_bytes": counters.received_bytes,
        "sent_bytes": counters.sent_bytes,
        "admin_commands": counters.admin_commands,
        "fatal_errors": counters.fatal_errors,
        "digest_errors": counters.digest_errors,
        "deferred_commands": counters.deferred_commands,
        "namespaces": namespaces,
    })
}
