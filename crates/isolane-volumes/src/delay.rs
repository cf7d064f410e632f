//! Filter that delays every request: `delay:5ms:A`.

use std::sync::Arc;
use std::time::Duration;

use isolane_volume::{NestedIo, OpenError, Outcome, Request, Volume};

use crate::nested_volume::{NestedVolume, Runner};
use crate::parts::Parts;

struct Delay {
    inner: Arc<dyn Volume>,
    duration: Duration,
}

pub(crate) fn open(parts: Parts) -> Result<Arc<dyn Volume>, OpenError> {
    let duration = parts.duration(&parts.argument)?;
    let inner = Arc::clone(parts.first());
    Ok(NestedVolume::filter(parts, Delay { inner, duration }))
}

impl Runner for Delay {
    async fn run(self: Arc<Self>, io: NestedIo, request: Request) -> Outcome {
        io.sleep(self.duration).await;
        io.start(&self.inner, request).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::testing::Driver;

    #[test]
    fn delays_requests() {
        let mut driver = Driver::open("delay:30ms:mem:1M");
        let start = Instant::now();
        driver.write(1, &[3; 512], false).unwrap();
        assert_eq!(driver.read(1, 1).unwrap(), [3; 512]);
        assert!(start.elapsed() >= Duration::from_millis(60));
    }
}
