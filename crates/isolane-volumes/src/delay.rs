//! Filter that delays requests: `delay:5ms:A`, or `delay:200us-400us:A,on=read` for delays between two bounds, each
//! with the same probability.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use isolane_volume::{NestedIo, OpenError, Outcome, Request, Volume};

use crate::nested_volume::{NestedVolume, Runner};
use crate::parts::Parts;
use crate::scope::Scope;

struct Delay {
    inner: Arc<dyn Volume>,
    /// In nanoseconds.
    range: RangeInclusive<u64>,
    scope: Scope,
}

pub(crate) fn open(parts: Parts) -> Result<Arc<dyn Volume>, OpenError> {
    let (shortest, longest) = parts.argument.split_once('-').unwrap_or((&parts.argument, &parts.argument));
    let (shortest, longest) = (parts.duration(shortest)?, parts.duration(longest)?);
    if shortest > longest {
        let reason = format!("invalid range {:?}", parts.argument);
        return Err(parts.error(reason, "write the shorter delay first, as in delay:200us-400us:A"));
    }
    let range = shortest.as_nanos() as u64..=longest.as_nanos() as u64;
    let (inner, scope) = (Arc::clone(parts.first()), Scope::parse(&parts)?);
    Ok(NestedVolume::filter(parts, Delay { inner, range, scope }))
}

impl Runner for Delay {
    async fn run(self: Arc<Self>, io: NestedIo, request: Request) -> Outcome {
        if self.scope.includes(&request) {
            io.sleep(Duration::from_nanos(fastrand::u64(self.range.clone()))).await;
        }
        io.start(&self.inner, request).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

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
    fn rejects_invalid_ranges() {
        for (text, reason) in
            [("400us-200us", "write the shorter delay first"), ("1ms-", "invalid duration \"\"")]
        {
            let error = crate::open(&crate::parse(&format!("delay:{text}:mem:1M")).unwrap()).err().unwrap();
            assert!(error.to_string().contains(reason), "{text}: {error}");
        }
    }
}
