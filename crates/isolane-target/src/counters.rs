//! Counters of a running target: written by one core each, readable from any thread at any time.
//!
//! Every reactor owns one [`CoreCounters`]; only its own thread writes it (a relaxed load and store, no
//! locked instruction, no line shared with another writer). Readers see each number whole, but no
//! consistent cut across numbers: this is for people and graphs, not for accounting.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use isolane_wire::Nqn;

/// The I/O operations that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Write Zeroes.
    WriteZeroes,
    /// Dataset Management with the deallocate attribute.
    Deallocate,
}

impl IoKind {
    /// Every operation, in the order of [`NamespaceCounters::operations`].
    pub const ALL: [IoKind; 5] =
        [IoKind::Read, IoKind::Write, IoKind::Flush, IoKind::WriteZeroes, IoKind::Deallocate];

    /// The name as the specification writes it, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            IoKind::Read => "read",
            IoKind::Write => "write",
            IoKind::Flush => "flush",
            IoKind::WriteZeroes => "write zeroes",
            IoKind::Deallocate => "deallocate",
        }
    }
}

/// What a whole target has done so far.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Connections that are open now.
    pub connections_open: u64,
    /// Closed connections whose last bytes the kernel still sends out of our memory. They count against the
    /// limit, too.
    pub connections_lingering: u64,
    /// Connections accepted since the start.
    pub connections_total: u64,
    /// Connections that are open now and have not sent a Connect that was accepted.
    pub connections_before_connect: u64,
    /// Connections closed before Connect to make room for others, and Connects refused.
    pub connections_refused: u64,
    /// Bytes read from sockets.
    pub received_bytes: u64,
    /// Bytes written to sockets.
    pub sent_bytes: u64,
    /// Those among them that the kernel was asked not to copy.
    pub zerocopy_bytes: u64,
    /// Admin and fabrics commands taken.
    pub admin_commands: u64,
    /// Connections ended because the peer broke the protocol, or a deadline.
    pub fatal_errors: u64,
    /// Data digests that did not match.
    pub digest_errors: u64,
    /// Commands that had to wait for memory or for an overlapping range at least once.
    pub deferred_commands: u64,
    /// One entry per namespace, in the order of their ids.
    pub namespaces: Vec<NamespaceCounters>,
    /// Open connections of every core, in the order the cores were given.
    pub connections_per_core: Vec<u64>,
}

/// What one namespace has done so far.
#[derive(Clone, Debug, Default)]
pub struct NamespaceCounters {
    /// The namespace id.
    pub nsid: u32,
    /// One entry per [`IoKind::ALL`].
    pub operations: [OperationCounters; 5],
}

impl NamespaceCounters {
    /// The counters of one operation.
    pub fn get(&self, operation: IoKind) -> &OperationCounters {
        &self.operations[operation as usize]
    }
}

/// One operation of one namespace.
#[derive(Clone, Debug, Default)]
pub struct OperationCounters {
    /// Commands completed, failed ones included.
    pub commands: u64,
    /// Bytes moved by the successful ones.
    pub bytes: u64,
    /// Commands completed with an error status.
    pub errors: u64,
    /// From the command's arrival to its completion, as the reactor's turns saw it.
    pub latency: Latency,
}

/// How many buckets a latency histogram has: four to every doubling, from 1 µs to over an hour.
const LATENCY_BUCKETS: usize = 128;

/// A histogram of durations with four buckets to every doubling.
#[derive(Clone, Debug)]
pub struct Latency {
    buckets: [u64; LATENCY_BUCKETS],
}

impl Default for Latency {
    fn default() -> Self {
        Latency { buckets: [0; LATENCY_BUCKETS] }
    }
}

impl Latency {
    /// How many durations were recorded.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The upper bound of the bucket that holds the given share (0.0 to 1.0) of all durations; zero when
    /// empty.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_micros(bucket_end_us(index));
            }
        }
        Duration::ZERO
    }

    fn add(&mut self, other: &[Counter; LATENCY_BUCKETS]) {
        for (sum, bucket) in self.buckets.iter_mut().zip(other) {
            *sum += bucket.value();
        }
    }
}

/// The bucket of a duration: the two bits below the highest set one choose the quarter of a doubling.
fn bucket_of(latency: Duration) -> usize {
    let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1);
    let doubling = us.ilog2() as usize;
    let quarter = if doubling >= 2 { (us >> (doubling - 2)) & 3 } else { (us << (2 - doubling)) & 3 };
    (doubling * 4 + quarter as usize).min(LATENCY_BUCKETS - 1)
}

/// The first microsecond above a bucket.
fn bucket_end_us(index: usize) -> u64 {
    let (doubling, quarter) = (index / 4, (index % 4) as u64);
    ((5 + quarter) << doubling).div_ceil(4)
}

/// One connection, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// The host's end.
    pub peer: SocketAddr,
    /// The host's name, once it has connected its queue.
    pub host_nqn: Option<Nqn>,
    /// The queue, likewise; 0 is the admin queue.
    pub qid: Option<u16>,
    /// The reactor that owns it, counted from 0.
    pub reactor: usize,
    /// The core that this reactor is pinned to.
    pub core: Option<usize>,
    /// The core that its packets were last processed on.
    pub incoming_cpu: Option<usize>,
    /// Bytes received and sent.
    pub moved_bytes: u64,
    /// Bytes that the kernel has taken and never sent: what is queued now waits behind them.
    pub unsent_bytes: usize,
}

/// A number that one thread writes and any thread reads.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds; only ever called by the core that owns this counter.
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Takes away; only ever called by the core that owns this counter.
    pub(crate) fn subtract(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(amount), Ordering::Relaxed);
    }

    /// Replaces; only ever called by the core that owns this counter.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many commands of one lane are at volumes. Written by the owning core alone.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    commands: AtomicU32,
    /// Those among them that may leave something in a volatile cache.
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

    /// No command is at a volume that may leave something in a volatile cache.
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
    pub received_bytes: Counter,
    pub sent_bytes: Counter,
    pub zerocopy_bytes: Counter,
    pub admin_commands: Counter,
    pub fatal_errors: Counter,
    pub digest_errors: Counter,
    pub deferred_commands: Counter,
    namespaces: Vec<[OperationCells; 5]>,
}

#[derive(Debug)]
struct OperationCells {
    commands: Counter,
    bytes: Counter,
    errors: Counter,
    latency: [Counter; LATENCY_BUCKETS],
}

impl Default for OperationCells {
    fn default() -> Self {
        OperationCells {
            commands: Counter::default(),
            bytes: Counter::default(),
            errors: Counter::default(),
            latency: std::array::from_fn(|_| Counter::default()),
        }
    }
}

impl CoreCounters {
    pub(crate) fn new(namespaces: usize) -> CoreCounters {
        let namespaces = (0..namespaces).map(|_| Default::default()).collect();
        CoreCounters { namespaces, ..CoreCounters::default() }
    }

    /// Records a finished command of the namespace at `index` of the target's list.
    pub(crate) fn record(
        &self,
        index: usize,
        operation: IoKind,
        outcome: Result<u64, ()>,
        latency: Duration,
    ) {
        let cells = &self.namespaces[index][operation as usize];
        cells.commands.add(1);
        match outcome {
            Ok(bytes) => cells.bytes.add(bytes),
            Err(()) => cells.errors.add(1),
        }
        // Most commands end in the turn they came in.
        let bucket = if latency.is_zero() { 0 } else { bucket_of(latency) };
        cells.latency[bucket].add(1);
    }

    /// Adds this core's numbers to `sum`, whose namespaces are in the same order.
    pub(crate) fn add_to(&self, sum: &mut Counters) {
        sum.connections_open += self.connections_open.value();
        sum.connections_lingering += self.connections_lingering.value();
        sum.connections_total += self.connections_total.value();
        sum.connections_refused += self.connections_refused.value();
        sum.received_bytes += self.received_bytes.value();
        sum.sent_bytes += self.sent_bytes.value();
        sum.zerocopy_bytes += self.zerocopy_bytes.value();
        sum.admin_commands += self.admin_commands.value();
        sum.fatal_errors += self.fatal_errors.value();
        sum.digest_errors += self.digest_errors.value();
        sum.deferred_commands += self.deferred_commands.value();
        sum.connections_per_core.push(self.connections_open.value());
        for (sum, cells) in sum.namespaces.iter_mut().zip(&self.namespaces) {
            for (sum, cells) in sum.operations.iter_mut().zip(cells) {
                sum.commands += cells.commands.value();
                sum.bytes += cells.bytes.value();
                sum.errors += cells.errors.value();
                sum.latency.add(&cells.latency);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cores_record_is_summed_by_namespace_and_operation() {
        let cores = [CoreCounters::new(2), CoreCounters::new(2)];
        cores[0].record(1, IoKind::Write, Ok(4096), Duration::from_micros(10));
        cores[1].record(1, IoKind::Write, Ok(512), Duration::from_micros(10));
        cores[1].record(1, IoKind::Write, Err(()), Duration::from_micros(10));
        let mut sum = Counters { namespaces: vec![NamespaceCounters::default(); 2], ..Counters::default() };
        cores.iter().for_each(|core| core.add_to(&mut sum));
        let writes = sum.namespaces[1].get(IoKind::Write);
        assert_eq!((writes.commands, writes.bytes, writes.errors), (3, 4608, 1));
        assert_eq!(sum.namespaces[0].get(IoKind::Write).commands, 0);
    }

    #[test]
    fn a_quantile_is_at_most_a_quarter_above_the_duration() {
        for us in [1u64, 2, 3, 4, 7, 10, 100, 999, 5_000, 1_000_000, 60_000_000] {
            let core = CoreCounters::new(1);
            core.record(0, IoKind::Read, Ok(0), Duration::from_micros(us));
            let mut sum = Counters { namespaces: vec![NamespaceCounters::default()], ..Counters::default() };
            core.add_to(&mut sum);
            let median = sum.namespaces[0].get(IoKind::Read).latency.quantile(0.5).as_micros() as u64;
            assert!(
                median > us && median <= us + us.div_ceil(4).max(1),
                "{us} µs was reported as {median} µs"
            );
        }
    }

    #[test]
    fn an_empty_histogram_has_no_quantile_to_show() {
        assert_eq!(Latency::default().quantile(0.99), Duration::ZERO);
    }

    #[test]
    fn a_duration_beyond_all_buckets_lands_in_the_last() {
        assert_eq!(bucket_of(Duration::MAX), LATENCY_BUCKETS - 1);
    }
}
