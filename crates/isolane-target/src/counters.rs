//! Counters of a running target: written by one core each, readable from any thread at any time.
//!
//! Every reactor owns one [`CoreCounters`]; only its own thread writes it (a relaxed load and store, no
//! locked instruction, no cache line shared with another writer). Each value is consistent, but a set of
//! values is not a snapshot: use it for monitoring, not for accounting.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use isolane_observe::cells::Counter;
use isolane_observe::histogram::{Histogram, Resolution};
use isolane_observe::snapshot::Series;
use isolane_observe::stage::Operation;

use crate::limits::{LIMIT_COUNT, LimitKind, LimitScope, all_limits, limit_index};

/// Counters of a target since its start.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Connections that are open now.
    pub connections_open: u64,
    /// Closed connections with zero-copy sends in flight. They also count against the limit.
    pub connections_lingering: u64,
    /// Connections accepted since the start.
    pub connections_total: u64,
    /// Connections that are open now and have not sent a Connect that was accepted.
    pub connections_before_connect: u64,
    /// Connections closed before Connect to make room for others, and Connects refused.
    pub connections_refused: u64,
    /// Connected queues whose host must authenticate and has not, among those that are open now.
    pub connections_unauthenticated: u64,
    /// Hosts refused because they did not authenticate, or because too many did at the same time.
    pub authentication_refused: u64,
    /// Connects refused because of each limit, and waits for limits of memory; limits without any are left out.
    pub limits_reached: BTreeMap<(LimitScope, LimitKind), u64>,
    /// Bytes read from sockets.
    pub received_bytes: u64,
    /// Bytes written to sockets.
    pub sent_bytes: u64,
    /// Zero-copy part of `sent_bytes`.
    pub zerocopy_bytes: u64,
    /// Admin and fabrics commands received.
    pub admin_commands: u64,
    /// Connections closed after a protocol violation or a deadline.
    pub fatal_errors: u64,
    /// Data digests that did not match.
    pub digest_errors: u64,
    /// Commands that waited for memory or for an overlapping range at least once.
    pub deferred_commands: u64,
    /// One entry per namespace, in the order of their ids.
    pub namespaces: Vec<NamespaceCounters>,
    /// Open connections of every core, in the order the cores were given.
    pub connections_per_core: Vec<u64>,
}

/// Counters of one namespace since the start.
#[derive(Clone, Debug, Default)]
pub struct NamespaceCounters {
    /// The namespace id.
    pub nsid: u32,
    /// One entry per [`Operation::ALL`].
    pub operations: [OperationCounters; 5],
    /// Age of the oldest command that its volume has not completed; checked four times per second.
    pub oldest_command: Option<Duration>,
}

impl NamespaceCounters {
    /// Returns the counters of one kind.
    pub fn get(&self, operation: Operation) -> &OperationCounters {
        &self.operations[operation as usize]
    }
}

/// Counters of one kind of command of one namespace. A command counts when the kernel has accepted its response.
#[derive(Clone, Debug)]
pub struct OperationCounters {
    /// Commands completed, failed ones included.
    pub commands: u64,
    /// Bytes moved by the successful ones.
    pub bytes: u64,
    /// Commands completed with an error status.
    pub errors: u64,
    /// Time from the receive of a command until the kernel has accepted the last byte of its response.
    pub latency: Histogram,
    /// The longest of them.
    pub max: Duration,
}

impl Default for OperationCounters {
    fn default() -> OperationCounters {
        let latency = Histogram::new(Resolution::Eight);
        OperationCounters { commands: 0, bytes: 0, errors: 0, latency, max: Duration::ZERO }
    }
}

impl Counters {
    /// Adds numbers of the namespace at an index of the list.
    pub(crate) fn add(&mut self, index: usize, series: &Series) {
        let Some(namespace) = self.namespaces.get_mut(index) else { return };
        let sum = &mut namespace.operations[series.operation as usize];
        sum.commands += series.total.count();
        sum.bytes += series.bytes;
        sum.errors += series.errors;
        sum.latency.merge(&series.total);
        sum.max = sum.max.max(Duration::from_nanos(series.max_ns));
    }
}

/// Number of commands of one lane at volumes. Written by the owning core only.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    commands: AtomicU32,
    /// Commands of them that can leave data in a volatile cache.
    volatile: AtomicU32,
}

impl InFlight {
    pub(crate) fn set(&self, commands: u32, volatile: u32) {
        self.volatile.store(volatile, Ordering::Release);
        self.commands.store(commands, Ordering::Release);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.commands.load(Ordering::Acquire) == 0
    }

    /// Returns `true` if no command at a volume can leave data in a volatile cache.
    pub(crate) fn is_durable(&self) -> bool {
        self.volatile.load(Ordering::Acquire) == 0
    }
}

/// The counters that one core writes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CoreCounters {
    pub connections_open: Counter,
    pub connections_lingering: Counter,
    pub connections_total: Counter,
    pub connections_refused: Counter,
    pub authentication_refused: Counter,
    /// By [`limit_index`].
    pub limits_reached: [Counter; LIMIT_COUNT],
    pub received_bytes: Counter,
    pub sent_bytes: Counter,
    pub zerocopy_bytes: Counter,
    pub admin_commands: Counter,
    pub fatal_errors: Counter,
    pub digest_errors: Counter,
    pub deferred_commands: Counter,
    pub memory_waits: Counter,
    pub range_waits: Counter,
    pub flush_waits: Counter,
    pub limit_waits: Counter,
    pub qos_waits: Counter,
    pub file_thread_waits: Counter,
    /// By position.
    pub oldest_commands: Vec<OldestCommand>,
}

/// Age of the oldest command at one volume in the last tick, in microseconds; 0 without a command.
#[derive(Debug, Default)]
pub(crate) struct OldestCommand(Counter);

impl OldestCommand {
    pub(crate) fn set(&self, age: Option<Duration>) {
        self.0.set(age.map_or(0, |age| u64::try_from(age.as_micros()).unwrap_or(u64::MAX).max(1)));
    }

    pub(crate) fn age(&self) -> Option<Duration> {
        Some(self.0.value()).filter(|us| *us > 0).map(Duration::from_micros)
    }
}

impl CoreCounters {
    pub(crate) fn new(positions: usize) -> CoreCounters {
        let oldest_commands = (0..positions).map(|_| OldestCommand::default()).collect();
        CoreCounters { oldest_commands, ..CoreCounters::default() }
    }

    /// Adds the counters of this core to `sum`, except those of namespaces.
    pub(crate) fn add_to(&self, sum: &mut Counters) {
        sum.connections_open += self.connections_open.value();
        sum.connections_lingering += self.connections_lingering.value();
        sum.connections_total += self.connections_total.value();
        sum.connections_refused += self.connections_refused.value();
        sum.authentication_refused += self.authentication_refused.value();
        for (scope, kind) in all_limits() {
            let refused = self.limits_reached[limit_index(scope, kind)].value();
            if refused > 0 {
                *sum.limits_reached.entry((scope, kind)).or_default() += refused;
            }
        }
        sum.received_bytes += self.received_bytes.value();
        sum.sent_bytes += self.sent_bytes.value();
        sum.zerocopy_bytes += self.zerocopy_bytes.value();
        sum.admin_commands += self.admin_commands.value();
        sum.fatal_errors += self.fatal_errors.value();
        sum.digest_errors += self.digest_errors.value();
        sum.deferred_commands += self.deferred_commands.value();
        sum.connections_per_core.push(self.connections_open.value());
    }
}
