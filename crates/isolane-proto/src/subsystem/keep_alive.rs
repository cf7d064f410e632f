//! The keep-alive timer of one association (Base 1.4 §7.12, TCP §3.4).
//!
//! Traffic on any queue counts (TBKAS), and the timer is checked once per timeout instead of once
//! per command, so a silent host is detected within two timeouts.
//!
//! Invariant: every association has a timer, except a ready I/O controller whose host disabled it
//! (KATO 0).

use std::time::{Duration, Instant};

/// Granularity of KATO in units of 100 ms (KAS): 1 s.
pub(super) const KAS: u16 = 10;
/// Timeout of a controller that is not ready, and of a discovery controller without KATO: the
/// default KATO of transports that require keep alive (Base 1.4 §5.21.1.15).
const DEFAULT: Duration = Duration::from_millis(120_000);

/// Keep-alive timer.
#[derive(Debug)]
pub(super) struct KeepAlive {
    kato: Duration,
    since: Instant,
    discovery: bool,
}

impl KeepAlive {
    /// A timer that starts now; `kato_ms` is the value that the host requested.
    pub(super) fn new(kato_ms: u32, discovery: bool, now: Instant) -> KeepAlive {
        KeepAlive { kato: round_up_kato(kato_ms), since: now, discovery }
    }

    /// KATO in milliseconds, rounded up to the granularity.
    pub(super) fn kato_ms(&self) -> u32 {
        u32::try_from(self.kato.as_millis()).unwrap_or(u32::MAX)
    }

    /// Time since the timer was restarted.
    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// A timer that was restarted `elapsed` ago.
    pub(super) fn resumed(kato_ms: u32, discovery: bool, elapsed: Duration, now: Instant) -> KeepAlive {
        KeepAlive::new(kato_ms, discovery, now.checked_sub(elapsed).unwrap_or(now))
    }

    /// Sets feature 0Fh.
    pub(super) fn set_kato(&mut self, kato_ms: u32, now: Instant) {
        self.kato = round_up_kato(kato_ms);
        self.since = now;
    }

    /// Restarts the timer after a command of the host.
    pub(super) fn restart(&mut self, now: Instant) {
        self.since = now;
    }

    /// When the timer must be checked; `is_ready`: CSTS.RDY is 1 and no shutdown was requested.
    pub(super) fn deadline(&self, is_ready: bool) -> Option<Instant> {
        self.window(is_ready).map(|window| self.since + window)
    }

    /// Whether the host has been silent until the deadline. Traffic restarts the timer.
    pub(super) fn is_expired(
        &mut self,
        is_ready: bool,
        now: Instant,
        had_traffic: impl FnOnce() -> bool,
    ) -> bool {
        if self.deadline(is_ready).is_none_or(|deadline| now < deadline) {
            return false;
        }
        if had_traffic() {
            self.since = now;
            return false;
        }
        true
    }

    /// KATO, which is stopped while the controller is not ready: then the default applies.
    fn window(&self, is_ready: bool) -> Option<Duration> {
        if !is_ready {
            return Some(self.kato.max(DEFAULT));
        }
        if self.kato.is_zero() { self.discovery.then_some(DEFAULT) } else { Some(self.kato) }
    }
}

/// KATO is rounded up to the granularity (Base 1.4 §5.21.1.15).
fn round_up_kato(kato_ms: u32) -> Duration {
    let granularity_ms = u64::from(KAS) * 100;
    Duration::from_millis(u64::from(kato_ms).div_ceil(granularity_ms) * granularity_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn rounds_kato_up_to_granularity() {
        let now = Instant::now();
        assert_eq!(KeepAlive::new(1, false, now).kato_ms(), 1000);
        assert_eq!(KeepAlive::new(5000, false, now).kato_ms(), 5000);
        assert_eq!(KeepAlive::new(5001, false, now).kato_ms(), 6000);
        assert_eq!(KeepAlive::new(u32::MAX, false, now).kato_ms(), u32::MAX);
    }

    #[test]
    fn detects_silent_host_after_timeout() {
        let now = Instant::now();
        let mut timer = KeepAlive::new(5000, false, now);
        assert!(!timer.is_expired(true, now + 4 * S, || false));
        assert!(timer.is_expired(true, now + 5 * S, || false));
    }

    #[test]
    fn traffic_restarts_timer() {
        let now = Instant::now();
        let mut timer = KeepAlive::new(5000, false, now);
        assert!(!timer.is_expired(true, now + 5 * S, || true));
        assert_eq!(timer.deadline(true), Some(now + 10 * S));
        timer.restart(now + 7 * S);
        assert_eq!(timer.deadline(true), Some(now + 12 * S));
    }

    #[test]
    fn kato_zero_disables_io_timer() {
        let now = Instant::now();
        assert_eq!(KeepAlive::new(0, false, now).deadline(true), None);
        assert_eq!(KeepAlive::new(0, true, now).deadline(true), Some(now + 120 * S));
    }

    #[test]
    fn expires_controller_never_enabled() {
        let now = Instant::now();
        assert_eq!(KeepAlive::new(0, false, now).deadline(false), Some(now + 120 * S));
        assert_eq!(KeepAlive::new(5000, false, now).deadline(false), Some(now + 120 * S));
        assert_eq!(KeepAlive::new(600_000, false, now).deadline(false), Some(now + 600 * S));
    }
}
