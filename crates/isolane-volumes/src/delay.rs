//! Filter that delays requests: `delay:5ms:A`, or `delay:200us-400us:A,on=read` for delays between two bounds, each
//! with the same probability. With `depth=4`, at most 4 requests are delayed at a time, as in a device, and others wait.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_volume::{NestedIo, OpenError, Outcome, Request, Volume};
use parking_lot::Mutex;

use crate::nested_volume::{NestedVolume, Runner};
use crate::parts::Parts;
use crate::scope::Scope;

struct Delay {
    inner: Arc<dyn Volume>,
    /// In nanoseconds.
    range: RangeInclusive<u64>,
    scope: Scope,
    /// When each of `depth` slots is free.
    slots: Option<Mutex<Vec<Instant>>>,
}

pub(crate) fn open(parts: Parts) -> Result<Arc<dyn Volume>, OpenError> {
    let (shortest, longest) = parts.argument.split_once('-').unwrap_or((&parts.argument, &parts.argument));
    let (shortest, longest) = (parts.duration(shortest)?, parts.duration(longest)?);
    if shortest > longest {
        let reason = format!("invalid range {:?}", parts.argument);
        return Err(parts.error(reason, "write the shorter delay first, as in delay:200us-400us:A"));
    }
    let range = shortest.as_nanos() as u64..=longest.as_nanos() as u64;
    let depth = parts.option("depth").map(|text| {
        text.parse().ok().filter(|depth| (1..=MAX_DEPTH).contains(depth)).ok_or_else(|| {
            let remedy = format!("use a number from 1 to {MAX_DEPTH}");
            parts.error(format!("invalid value {text:?} of depth="), remedy)
        })
    });
    let slots = depth.transpose()?.map(|depth| Mutex::new(vec![Instant::now(); depth]));
    let (inner, scope) = (Arc::clone(parts.first()), Scope::parse(&parts)?);
    Ok(NestedVolume::filter(parts, Delay { inner, range, scope, slots }))
}

impl Delay {
    /// Returns the delay of a request that arrives now, with its wait for a slot.
    fn delay(&self, now: Instant) -> Duration {
        let delay = Duration::from_nanos(fastrand::u64(self.range.clone()));
        let mut slots = self.slots.as_ref().map(|slots| slots.lock());
        let Some(slot) = slots.as_mut().and_then(|slots| slots.iter_mut().min()) else { return delay };
        *slot = now.max(*slot) + delay;
        *slot - now
    }
}

const MAX_DEPTH: usize = 4096;

impl Runner for Delay {
    async fn run(self: Arc<Self>, io: NestedIo, request: Request) -> Outcome {
        if self.scope.includes(&request) {
            io.sleep(self.delay(Instant::now())).await;
        }
        io.start(&self.inner, request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Driver;

    #[test]
    fn delays_requests() {
        for text in ["delay:30ms:mem:1M", "delay:30ms-31ms:mem:1M", "delay:10ms:(delay:20ms:mem:1M)"] {
            let mut driver = Driver::open(text);
            let start = Instant::now();
            driver.write(1, &[3; 512], false).unwrap();
            assert_eq!(driver.read(1, 1).unwrap(), [3; 512]);
            assert!(start.elapsed() >= Duration::from_millis(60), "{text}");
        }
    }

    #[test]
    fn delays_writes_only() {
        let mut driver = Driver::open("delay:30ms:mem:1M,on=write");
        let start = Instant::now();
        driver.write(1, &[3; 512], false).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(30));
        // A delayed read would never end.
        let mut driver = Driver::open("delay:3600s:mem:1M,on=write");
        assert_eq!(driver.read(1, 1).unwrap(), [0; 512]);
        let mut driver = Driver::open("delay:3600s:mem:1M,from=3600s");
        driver.write(1, &[3; 512], false).unwrap();
    }

    #[test]
    fn requests_beyond_depth_wait() {
        let (ms, now) = (Duration::from_millis, Instant::now());
        let inner = Arc::clone(&Driver::open("mem:1M").volume);
        let scope = Scope::parse(&Parts::default()).unwrap();
        let slots = Some(Mutex::new(vec![now; 2]));
        let delay = Delay { inner, range: 5_000_000..=5_000_000, scope, slots };
        assert_eq!([0; 5].map(|_| delay.delay(now)), [5, 5, 10, 10, 15].map(ms));
        assert_eq!([12, 12, 100].map(|at| delay.delay(now + ms(at))), [5, 3 + 5, 5].map(ms));
    }

    #[test]
    fn rejects_invalid_arguments() {
        for (text, reason) in [
            ("400us-200us:mem:1M", "write the shorter delay first"),
            ("1ms-:mem:1M", "invalid duration \"\""),
            ("1ms:mem:1M,depth=0", "use a number from 1 to"),
        ] {
            let error = crate::open(&crate::parse(&format!("delay:{text}")).unwrap()).err().unwrap();
            assert!(error.to_string().contains(reason), "{text}: {error}");
        }
    }
}
