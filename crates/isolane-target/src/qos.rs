//! Maximum speed of a namespace, which all cores share without a lock.
//!
//! Each limit is a token bucket in the form of GCRA: one number, the time at which the commands so far are paid for. A
//! command starts unless that time is more than the burst ahead, and moves it by its own cost. So a command larger
//! than the burst starts as well, and later ones wait for it.
//!
//! Invariant: in any time `t`, the commands that start cost at most `t`, the burst, and one more command.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum speed of a namespace. A command needs a share of every limit that applies to it. Flushes have no limit; Write
/// Zeroes and Deallocate are writes without bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QosConfig {
    /// Reads and writes per second.
    pub iops: Option<NonZeroU64>,
    /// Reads per second.
    pub read_iops: Option<NonZeroU64>,
    /// Writes per second.
    pub write_iops: Option<NonZeroU64>,
    /// Bytes read and written per second.
    pub bytes: Option<NonZeroU64>,
    /// Bytes read per second.
    pub read_bytes: Option<NonZeroU64>,
    /// Bytes written per second.
    pub write_bytes: Option<NonZeroU64>,
    /// Unused speed of this time can be used later. At least 10 ms count, so that a late timer costs no speed.
    pub burst: Duration,
}

/// Direction of a command, for limits that apply to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// The limits of one namespace.
#[derive(Debug)]
pub(crate) struct Limiter {
    config: QosConfig,
    start: Instant,
    /// Time by which commands can be ahead of the limits, in nanoseconds.
    burst_ns: u64,
    all: Limits,
    reads: Limits,
    writes: Limits,
}

/// Limits of the same commands.
#[derive(Debug)]
struct Limits {
    commands: Option<Bucket>,
    bytes: Option<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    per_second: NonZeroU64,
    /// Time at which the commands so far are paid for, in nanoseconds since the start of the limiter.
    paid_at: AtomicU64,
}

impl Limiter {
    pub(crate) fn new(config: QosConfig) -> Limiter {
        let limits = |commands: Option<NonZeroU64>, bytes: Option<NonZeroU64>| Limits {
            commands: commands.map(Bucket::new),
            bytes: bytes.map(Bucket::new),
        };
        Limiter {
            config,
            start: Instant::now(),
            burst_ns: nanos(config.burst.max(MIN_BURST)),
            all: limits(config.iops, config.bytes),
            reads: limits(config.read_iops, config.read_bytes),
            writes: limits(config.write_iops, config.write_bytes),
        }
    }

    pub(crate) fn config(&self) -> QosConfig {
        self.config
    }

    /// Takes the shares of a command.
    ///
    /// # Errors
    /// If a limit is reached: the earliest time for the next try.
    pub(crate) fn take(&self, direction: Direction, bytes: u64, now: Instant) -> Result<(), Instant> {
        let now_ns = nanos(now.saturating_duration_since(self.start));
        for (at, (bucket, units)) in self.buckets(direction, bytes).enumerate() {
            if let Err(paid_at) = bucket.take(units, now_ns, self.burst_ns) {
                let taken = self.buckets(direction, bytes).take(at);
                taken.for_each(|(bucket, units)| bucket.put_back(units));
                return Err(self.start + Duration::from_nanos(paid_at.saturating_sub(self.burst_ns)));
            }
        }
        Ok(())
    }

    /// Returns the buckets of a command, and its units in each.
    fn buckets(&self, direction: Direction, bytes: u64) -> impl Iterator<Item = (&Bucket, u64)> {
        let own = match direction {
            Direction::Read => &self.reads,
            Direction::Write => &self.writes,
        };
        [&self.all, own].into_iter().flat_map(move |limits| {
            let bytes = limits.bytes.as_ref().filter(|_| bytes > 0).map(|bucket| (bucket, bytes));
            limits.commands.as_ref().map(|bucket| (bucket, 1)).into_iter().chain(bytes)
        })
    }
}

impl Bucket {
    fn new(per_second: NonZeroU64) -> Bucket {
        Bucket { per_second, paid_at: AtomicU64::new(0) }
    }

    /// Returns the time that units cost, in nanoseconds.
    fn cost(&self, units: u64) -> u64 {
        units.saturating_mul(NANOS_PER_SECOND).div_ceil(self.per_second.get())
    }

    /// # Errors
    /// The time at which the commands so far are paid for, if it is too late.
    fn take(&self, units: u64, now: u64, burst: u64) -> Result<u64, u64> {
        let cost = self.cost(units);
        let next = |paid_at: u64| (paid_at <= now + burst).then(|| paid_at.max(now).saturating_add(cost));
        self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
    }

    /// Reverts [`Bucket::take`] of the same units. Other commands can only have increased the time since then.
    fn put_back(&self, units: u64) {
        self.paid_at.fetch_sub(self.cost(units), Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    // Enough for 584 years.
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// Minimum burst: later than that, no core handles a timer.
const MIN_BURST: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const S: Duration = Duration::from_secs(1);

    fn rate(per_second: u64) -> Option<NonZeroU64> {
        NonZeroU64::new(per_second)
    }

    /// Starts commands as early as possible until `end` after the start, each `late` after its time. Returns their
    /// number.
    fn run(limiter: &Limiter, direction: Direction, bytes: u64, end: Duration, late: Duration) -> u64 {
        let (mut now, mut commands) = (limiter.start, 0);
        while now < limiter.start + end {
            match limiter.take(direction, bytes, now) {
                Ok(()) => commands += 1,
                Err(at) => {
                    assert!(at > now, "the next try can succeed");
                    now = at + late;
                }
            }
        }
        commands
    }

    fn assert_about(found: u64, expected: u64) {
        assert!(found.abs_diff(expected) * 100 <= expected * 3, "{found}, not {expected}");
    }

    #[test]
    fn keeps_each_rate() {
        let none = QosConfig::default();
        for late in [Duration::ZERO, MS, 9 * MS] {
            for (config, direction, expected) in [
                (QosConfig { iops: rate(1000), ..none }, Direction::Read, 5000),
                (QosConfig { read_iops: rate(1000), write_iops: rate(1), ..none }, Direction::Read, 5000),
                (QosConfig { write_iops: rate(1000), ..none }, Direction::Write, 5000),
                (QosConfig { bytes: rate(4096 * 700), ..none }, Direction::Write, 3500),
                (QosConfig { read_bytes: rate(4096 * 700), ..none }, Direction::Read, 3500),
                (
                    QosConfig { write_bytes: rate(4096 * 700), read_bytes: rate(1), ..none },
                    Direction::Write,
                    3500,
                ),
                (QosConfig { iops: rate(1000), bytes: rate(4096 * 700), ..none }, Direction::Read, 3500),
                (QosConfig { iops: rate(1000), read_iops: rate(700), ..none }, Direction::Read, 3500),
                (QosConfig { iops: rate(30_000), ..none }, Direction::Read, 150_000),
            ] {
                assert_about(run(&Limiter::new(config), direction, 4096, 5 * S, late), expected);
            }
        }
    }

    #[test]
    fn takes_no_share_if_one_limit_is_reached() {
        let config = QosConfig { iops: rate(100), write_bytes: rate(1 << 20), ..QosConfig::default() };
        let limiter = Limiter::new(config);
        assert_eq!(limiter.take(Direction::Write, 1 << 20, limiter.start), Ok(()));
        for _ in 0..100 {
            let at = limiter.take(Direction::Write, 4096, limiter.start).unwrap_err();
            assert_eq!(at, limiter.start + S - MIN_BURST);
        }
        assert_eq!(limiter.take(Direction::Read, 4096, limiter.start), Ok(()), "the first one of its kind");
        assert_eq!(limiter.take(Direction::Write, 0, limiter.start + 20 * MS), Ok(()), "it has no bytes");
    }

    #[test]
    fn large_command_starts_and_delays_others() {
        let limiter = Limiter::new(QosConfig { bytes: rate(64 << 10), ..QosConfig::default() });
        assert_eq!(limiter.take(Direction::Read, 1 << 20, limiter.start), Ok(()));
        let next = limiter.start + 16 * S - MIN_BURST;
        assert_eq!(limiter.take(Direction::Write, 1, limiter.start), Err(next));
        assert_eq!(limiter.take(Direction::Write, 1, next), Ok(()));
    }

    #[test]
    fn unused_speed_lasts_for_the_burst() {
        let config = QosConfig { iops: rate(1000), burst: 3 * S, ..QosConfig::default() };
        let limiter = Limiter::new(config);
        let count =
            |now: Instant| (0..).take_while(|_| limiter.take(Direction::Read, 0, now).is_ok()).count();
        assert_eq!(count(limiter.start), 3001);
        assert_eq!(count(limiter.start + S), 1000, "of one second");
        assert_eq!(count(limiter.start + 100 * S), 3001, "not of 99 seconds");
    }

    #[test]
    fn threads_share_a_limit() {
        let limiter = Arc::new(Limiter::new(QosConfig {
            iops: rate(1000),
            bytes: rate(500 * 4096),
            ..QosConfig::default()
        }));
        let (clock, commands) = (AtomicU64::new(0), AtomicUsize::new(0));
        let work = || {
            while clock.load(Ordering::Relaxed) < 10 * NANOS_PER_SECOND {
                let now_ns = clock.load(Ordering::Relaxed);
                match limiter.take(Direction::Write, 4096, limiter.start + Duration::from_nanos(now_ns)) {
                    Ok(()) => _ = commands.fetch_add(1, Ordering::Relaxed),
                    Err(at) => {
                        let at = nanos(at.saturating_duration_since(limiter.start));
                        clock.fetch_max(at, Ordering::Relaxed);
                    }
                }
            }
        };
        thread::scope(|scope| (0..2).for_each(|_| _ = scope.spawn(work)));
        assert_about(commands.into_inner() as u64, 5000);
    }
}
