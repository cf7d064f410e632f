//! Checks of a running target, by its own counters.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::check::{Check, Severity};
use super::context::Context;
use super::survey::Survey;
use crate::system::ReadError;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "own.pool",
        severity: Severity::Warning,
        reads: "counter memory-waits of the target, twice",
        good: "no command waits for memory",
        reason: "a command that finds no page waits until others complete",
        is_sampled: true,
        run: pool,
    },
    Check {
        id: "own.place",
        severity: Severity::Warning,
        reads: "cores of the target's connections and of their packets",
        good: "the packets of each connection are processed on the core of its reactor",
        reason: "packets that another core processes cost a wakeup and the transfer of a cache",
        is_sampled: false,
        run: place,
    },
    Check {
        id: "own.log",
        severity: Severity::Warning,
        reads: "counter log-lines-lost of the target, twice",
        good: "no lost line: the reader of stderr keeps up",
        reason: "lines that name a cause are missing from the log",
        is_sampled: true,
        run: log,
    },
];

fn pool(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let remedy = "# serve with a larger --pool";
    check_counter(context, survey, "memory-waits", "commands waited for memory", remedy)
}

fn place(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let Some(snapshot) = context.snapshot()? else {
        survey.absent("no target given");
        return Ok(());
    };
    let mut pairs: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for connection in &snapshot.numbers.connections {
        let core = snapshot.numbers.cores.iter().find(|core| core.index == connection.core);
        let reactor = core.and_then(|core| core.cpu);
        // The admin queue has little work, and packets of a peer on this machine are on the core of the peer.
        if connection.queue == 0 || is_local(&connection.local, &connection.peer) {
            continue;
        }
        if let Some(pair) = connection.incoming_cpu.zip(reactor) {
            *pairs.entry(pair).or_default() += 1;
        }
    }
    for ((packets, reactor), count) in pairs {
        survey.judge(
            packets == reactor,
            format!("{count} connections: packets on core {packets}, reactor on core {reactor}"),
            "# serve with --placement incoming-cpu on the cores of the card's interrupts, or move the interrupts",
        );
    }
    if survey.is_empty() {
        survey.absent("no connection of another machine, or no reactor is pinned");
    }
    Ok(())
}

/// Returns `true` if a connection stays within this machine.
fn is_local(local: &str, peer: &str) -> bool {
    let address = |text: &str| text.parse::<SocketAddr>().ok().map(|address| address.ip().to_canonical());
    let (local, peer) = (address(local), address(peer));
    peer == local || peer.is_some_and(|peer| peer.is_loopback())
}

fn log(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let remedy = "# drain stderr of the target, or lower --log-level";
    check_counter(context, survey, "log-lines-lost", "log lines lost", remedy)
}

fn check_counter(
    context: &Context,
    survey: &mut Survey,
    name: &str,
    meaning: &str,
    remedy: &str,
) -> Result<(), ReadError> {
    let Some(snapshot) = context.snapshot()? else {
        survey.absent("no target given");
        return Ok(());
    };
    let Some(count) = snapshot.numbers.counters.get(name) else {
        survey.unseen(format!("the target has no counter {name}"));
        return Ok(());
    };
    let count = context.rise(name, *count);
    survey.judge(count == 0, format!("{count} {meaning} {}", context.period()), remedy);
    Ok(())
}
