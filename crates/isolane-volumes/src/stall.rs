//! Filter that stalls from time to time: in `stall:2s:A,every=60s`, no request completes in the last 2 s of each
//! minute.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_volume::{NestedIo, OpenError, Outcome, Request, Volume};

use crate::nested_volume::{NestedVolume, Runner};
use crate::parts::Parts;

struct Stall {
    inner: Arc<dyn Volume>,
    duration: Duration,
    every: Duration,
    start: Instant,
}

pub(crate) fn open(parts: Parts) -> Result<Arc<dyn Volume>, OpenError> {
    let duration = parts.duration(&parts.argument)?;
    let every = parts.option("every").map_or(Ok(duration * 10), |text| parts.duration(text))?;
    if duration.is_zero() || every <= duration {
        return Err(
            parts.error("the stalls leave no time", "use an interval longer than a stall, as in every=60s")
        );
    }
    let inner = Arc::clone(parts.first());
    Ok(NestedVolume::filter(parts, Stall { inner, duration, every, start: Instant::now() }))
}

impl Stall {
    /// Returns the remainder of the stall that is in progress after `elapsed`.
    fn remaining(&self, elapsed: Duration) -> Duration {
        let position = Duration::from_nanos((elapsed.as_nanos() % self.every.as_nanos()) as u64);
        if position < self.every - self.duration { Duration::ZERO } else { self.every - position }
    }

    async fn wait(&self, io: &NestedIo) {
        let remaining = self.remaining(self.start.elapsed());
        if !remaining.is_zero() {
            io.sleep(remaining).await;
        }
    }
}

impl Runner for Stall {
    async fn run(self: Arc<Self>, io: NestedIo, request: Request) -> Outcome {
        self.wait(&io).await;
        let outcome = io.start(&self.inner, request).await;
        self.wait(&io).await;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Driver;

    #[test]
    fn stalls_at_end_of_interval() {
        let seconds = Duration::from_secs;
        let inner = isolane_volume::open(&isolane_volume::spec::parse("mem:1M").unwrap()).unwrap();
        let stall = Stall { inner, duration: seconds(2), every: seconds(60), start: Instant::now() };
        assert_eq!(stall.remaining(seconds(57)), Duration::ZERO);
        assert_eq!(stall.remaining(seconds(59)), seconds(1));
        assert_eq!(stall.remaining(seconds(60)), Duration::ZERO);
        assert_eq!(stall.remaining(seconds(118)), seconds(2));
    }

    #[test]
    fn completes_requests_after_stall() {
        let mut driver = Driver::open("stall:20ms:mem:1M,every=30ms");
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(70) {
            assert_eq!(driver.read(0, 1).unwrap(), [0; 512]);
        }
        let error = crate::open(&crate::parse("stall:2s:mem:1M,every=1s").unwrap()).err().unwrap();
        assert!(error.to_string().contains("leave no time"), "{error}");
    }
}
