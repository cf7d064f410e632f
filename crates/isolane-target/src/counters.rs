//! Counters of a running target: written by one core each, readable from any thread at any time.
//!
//! Every reactor owns one [`CoreCounters`]; only its own thread writes it (a relaxed load and store, no
//! locked instruction, no cache line shared with another writer). Each value is consistent, but a set of
//! values is not a snapshot: use it for monitoring, not for accounting.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use isolane_wire::Nqn;

/// Kind of an I/O command; each is counted separately.
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

    /// Returns the name as in the specification, in lower case.
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
    /// One entry per [`IoKind::ALL`].
    pub operations: [OperationCounters; 5],
    /// Age of the oldest command that its volume has not completed; checked four times per second.
    pub oldest_command: Option<Duration>,
}

impl NamespaceCounters {
    /// Returns the counters of one kind.
    pub fn get(&self, operation: IoKind) -> &OperationCounters {
        &self.operations[operation as usize]
    }
}

/// Counters of one kind of command of one namespace.
#[derive(Clone, Debug, Default)]
pub struct OperationCounters {
    /// Commands completed, failed ones included.
    pub commands: u64,
    /// Bytes moved by the successful ones.
    pub bytes: u64,
    /// Commands completed with an error status.
    pub errors: u64,
    /// Time from arrival to completion, at the resolution of the reactor's turns.
    pub latency: Latency,
}

/// Buckets of a latency histogram: four for each doubling, from 1 µs to over an hour.
type Buckets<T> = [[T; 4]; 32];
const LAST_BUCKET: usize = 127;

/// Histogram of durations with four buckets for each doubling.
#[derive(Clone, Debug, Default)]
pub struct Latency {
    buckets: Buckets<u64>,
    max: Duration,
}

impl Latency {
    /// Returns the number of recorded durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().flatten().sum()
    }

    /// Returns the upper bound of the bucket that contains the given quantile (0.0 to 1.0); zero if the
    /// histogram is empty.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().flatten().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_micros(bucket_end_us(index));
            }
        }
        Duration::ZERO
    }

    /// Returns the longest recorded duration, in whole microseconds.
    pub fn max(&self) -> Duration {
        self.max
    }

    fn add(&mut self, other: &LatencyCells) {
        for (sum, bucket) in self.buckets.iter_mut().flatten().zip(other.buckets.iter().flatten()) {
            *sum += bucket.value();
        }
        self.max = self.max.max(Duration::from_micros(other.max_us.value()));
    }
}

/// The bucket of a duration: the two bits below the highest set one choose the quarter of a doubling.
fn bucket_of(latency: Duration) -> usize {
    let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1);
    let doubling = us.ilog2() as usize;
    let quarter = if doubling >= 2 { (us >> (doubling - 2)) & 3 } else { (us << (2 - doubling)) & 3 };
    (doubling * 4 + quarter as usize).min(LAST_BUCKET)
}

/// The first microsecond above a bucket.
fn bucket_end_us(index: usize) -> u64 {
    let (doubling, quarter) = (index / 4, (index % 4) as u64);
    ((5 + quarter) << doubling).div_ceil(4)
}

/// State of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Address of the host.
    pub peer: SocketAddr,
    /// NQN of the host, once it has connected its queue.
    pub host_nqn: Option<Nqn>,
    /// Queue ID, once it is connected; 0 is the admin queue.
    pub qid: Option<u16>,
    /// Index of the reactor that owns it, from 0.
    pub reactor: usize,
    /// Core that this reactor is pinned to.
    pub core: Option<usize>,
    /// Core that last processed its packets.
    pub incoming_cpu: Option<usize>,
    /// Bytes received and sent.
    pub moved_bytes: u64,
    /// Size of the data in the send buffer of the kernel that was never sent.
    pub unsent_bytes: usize,
}

/// Counter that one thread writes and any thread reads.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds; called only by the core that owns the counter.
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Subtracts; called only by the core that owns the counter.
    pub(crate) fn subtract(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(amount), Ordering::Relaxed);
    }

    /// Replaces the value; called only by the core that owns the counter.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
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
    pub received_bytes: Counter,
    pub sent_bytes: Counter,
    pub zerocopy_bytes: Counter,
    pub admin_commands: Counter,
    pub fatal_errors: Counter,
    pub digest_errors: Counter,
    pub deferred_commands: Counter,
    /// By position.
    pub oldest_commands: Vec<OldestCommand>,
    namespaces: Vec<[OperationCells; 5]>,
}

#[derive(Debug, Default)]
struct OperationCells {
    commands: Counter,
    bytes: Counter,
    errors: Counter,
    latency: LatencyCells,
}

#[derive(Debug, Default)]
struct LatencyCells {
    buckets: Buckets<Counter>,
    max_us: Counter,
}

impl LatencyCells {
    fn record(&self, latency: Duration) {
        // Most commands complete in the turn in which they arrive.
        if latency.is_zero() {
            return self.buckets.as_flattened()[0].add(1);
        }
        self.buckets.as_flattened()[bucket_of(latency)].add(1);
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        if us > self.max_us.value() {
            self.max_us.set(us);
        }
    }
}

/// Age of the oldest command at one volume in the last tick, in microseconds; 0 without a command.
#[derive(Debug, Default)]
pub(crate) struct OldestCommand(Counter);

impl OldestCommand {
    pub(crate) fn set(&self, age: Option<Duration>) {
        self.0.set(age.map_or(0, |age| u64::try_from(age.as_micros()).unwrap_or(u64::MAX).max(1)));
    }

    fn age(&self) -> Option<Duration> {
        Some(self.0.value()).filter(|us| *us > 0).map(Duration::from_micros)
    }
}

impl CoreCounters {
    pub(crate) fn new(namespaces: usize) -> CoreCounters {
        let oldest_commands = (0..namespaces).map(|_| OldestCommand::default()).collect();
        let namespaces = (0..namespaces).map(|_| Default::default()).collect();
        CoreCounters { namespaces, oldest_commands, ..CoreCounters::default() }
    }

    /// Records a finished command of the namespace at `index` of the target's list.
    pub(crate) fn record(&self, index: usize, operation: IoKind, result: Result<u64, ()>, latency: Duration) {
        let cells = &self.namespaces[index][operation as usize];
        cells.commands.add(1);
        match result {
            Ok(bytes) => cells.bytes.add(bytes),
            Err(()) => cells.errors.add(1),
        }
        cells.latency.record(latency);
    }

    /// Adds the counters of this core to `sum`, whose namespaces are in the same order.
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
        for (sum, oldest) in sum.namespaces.iter_mut().zip(&self.oldest_commands) {
            sum.oldest_command = sum.oldest_command.max(oldest.age());
        }
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
    fn sums_cores_by_namespace_and_kind() {
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
    fn quantile_is_within_a_quarter() {
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
    fn keeps_longest_duration_of_all_cores() {
        let cores = [CoreCounters::new(1), CoreCounters::new(1)];
        (0..1000).for_each(|us| cores[0].record(0, IoKind::Write, Ok(0), Duration::from_micros(us % 20)));
        cores[1].record(0, IoKind::Write, Ok(0), Duration::from_secs(3));
        let mut sum = Counters { namespaces: vec![NamespaceCounters::default()], ..Counters::default() };
        cores.iter().for_each(|core| core.add_to(&mut sum));
        let latency = &sum.namespaces[0].get(IoKind::Write).latency;
        assert!(latency.quantile(0.99) <= Duration::from_micros(20), "the histogram hides it");
        assert_eq!(latency.max(), Duration::from_secs(3));
    }

    #[test]
    fn empty_histogram_has_zero_quantiles() {
        assert_eq!(Latency::default().quantile(0.99), Duration::ZERO);
    }

    #[test]
    fn clamps_to_the_last_bucket() {
        assert_eq!(bucket_of(Duration::MAX), LAST_BUCKET);
    }
}
