//! Clock of timestamps that are taken for every batch of I/O: nanoseconds, comparable between threads.
//!
//! Reads the time-stamp counter (TSC) of the CPU if the kernel trusts it. Its scale comes from two readings a
//! second apart; until then, and elsewhere, the monotonic clock of the kernel is read.
//!
//! Invariant: the clock continues at the value of the monotonic clock when it changes to the TSC. Timestamps
//! of two CPUs can differ slightly, so intervals need a saturating subtraction.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds per tick in units of 2⁻³²; 0 while the scale is not known.
static SCALE: AtomicU64 = AtomicU64::new(0);
/// Time of tick 0, modulo 2⁶⁴; published by `SCALE`.
static OFFSET: AtomicU64 = AtomicU64::new(0);
/// The second reading, from which the time continues.
static BASE: OnceLock<Reading> = OnceLock::new();
/// The first reading; `None` if the kernel does not trust the TSC.
static FIRST: OnceLock<Option<Reading>> = OnceLock::new();

/// Both clocks at one instant.
#[derive(Clone, Copy)]
struct Reading {
    ticks: u64,
    ns: u64,
}

/// Returns the time in nanoseconds since an unspecified start.
#[inline]
pub fn now() -> u64 {
    match SCALE.load(Ordering::Acquire) {
        0 => monotonic_or_calibrate(),
        scale => to_ns(ticks(), scale).wrapping_add(OFFSET.load(Ordering::Relaxed)),
    }
}

/// Returns the clock in use: `tsc`, or `vdso` for the monotonic clock.
pub fn source() -> &'static str {
    if SCALE.load(Ordering::Acquire) > 0 { "tsc" } else { "vdso" }
}

#[cold]
fn monotonic_or_calibrate() -> u64 {
    let Some(first) = FIRST.get_or_init(|| is_tsc_trusted().then(read_both)) else { return monotonic() };
    let ns = monotonic();
    if ns.saturating_sub(first.ns) >= CALIBRATION_NS {
        let base = BASE.get_or_init(read_both);
        let ticks = base.ticks.saturating_sub(first.ticks).max(1);
        let scale = (u128::from(base.ns - first.ns) << 32) / u128::from(ticks);
        let scale = u64::try_from(scale).unwrap_or(0);
        OFFSET.store(base.ns.wrapping_sub(to_ns(base.ticks, scale)), Ordering::Relaxed);
        SCALE.store(scale, Ordering::Release);
    }
    ns
}

/// Reads both clocks several times and returns the reading with the shortest delay between them.
fn read_both() -> Reading {
    let reading = |_| {
        let (before, ns, after) = (ticks(), monotonic(), ticks());
        let delay = after.saturating_sub(before);
        (delay, Reading { ticks: before + delay / 2, ns })
    };
    let best = (0..READINGS).map(reading).min_by_key(|(delay, _)| *delay);
    best.map_or(Reading { ticks: 0, ns: 0 }, |(_, reading)| reading)
}

fn to_ns(ticks: u64, scale: u64) -> u64 {
    ((u128::from(ticks) * u128::from(scale)) >> 32) as u64
}

/// Returns the monotonic clock of the kernel in nanoseconds, which all processes of a machine share.
pub fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn is_tsc_trusted() -> bool {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64") && std::fs::read_to_string(path).is_ok_and(|name| name.trim() == "tsc")
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, which accesses no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// Interval of the two readings that give the scale.
const CALIBRATION_NS: u64 = 1_000_000_000;
/// Number of tries for each reading; one without an interrupt suffices.
const READINGS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_goes_back_while_calibrating() {
        let end = monotonic() + CALIBRATION_NS + CALIBRATION_NS / 10;
        let mut last = now();
        while monotonic() < end {
            let next = now();
            assert!(next + TOLERANCE_NS >= last, "{next} ns follows {last} ns");
            last = next;
        }
        assert_eq!(SCALE.load(Ordering::Acquire) > 0, is_tsc_trusted());
    }

    #[test]
    fn converts_ticks_by_scale() {
        assert_eq!(to_ns(3_000_000_000, 1 << 31), 1_500_000_000);
        assert_eq!(to_ns(u64::MAX >> 1, 1 << 32), u64::MAX >> 1);
    }

    /// Delay between two readings of the clocks, and difference between two CPUs.
    const TOLERANCE_NS: u64 = 1_000_000;
}
