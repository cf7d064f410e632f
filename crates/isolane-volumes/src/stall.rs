//! Filter that stalls. In `stall:2s:A,every=60s`, no request completes in the last 2 s of each minute. In
//! `stall:20ms:A,one-in=200,seed=7`, each request is stalled with a probability of 1 in 200, and the same seed selects
//! the same positions in the sequence of requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use isolane_volume::{NestedIo, OpenError, Outcome, Request, Volume};

use crate::nested_volume::{NestedVolume, Runner};
use crate::parts::Parts;
use crate::scope::Scope;

struct Stall {
    inner: Arc<dyn Volume>,
    duration: Duration,
    scope: Scope,
    selection: Selection,
}

/// Requests of the scope that are stalled.
enum Selection {
    /// All in the last part of each interval.
    Every(Duration),
    Random(RandomSelection),
}

/// One request in `one_in`, at random.
struct RandomSelection {
    one_in: u64,
    seed: u64,
    /// Number of requests in the scope.
    count: AtomicU64,
}

pub(crate) fn open(parts: Parts) -> Result<Arc<dyn Volume>, OpenError> {
    let duration = parts.duration(&parts.argument)?;
    if duration.is_zero() {
        return Err(parts.error("a stall of no time", "use a longer one, as in stall:20ms:A"));
    }
    let selection = match parts.option("one-in") {
        Some(one_in) => Selection::Random(random(&parts, one_in)?),
        None => Selection::Every(interval(&parts, duration)?),
    };
    let (inner, scope) = (Arc::clone(parts.first()), Scope::parse(&parts)?);
    Ok(NestedVolume::filter(parts, Stall { inner, duration, scope, selection }))
}

fn random(parts: &Parts, one_in: &str) -> Result<RandomSelection, OpenError> {
    if parts.option("every").is_some() {
        return Err(parts.error("every= and one-in= select different requests", "use one of them"));
    }
    let invalid = |name: &str, text: &str| {
        parts.error(
            format!("invalid value {text:?} of {name}="),
            "use a whole number, as in one-in=200,seed=7",
        )
    };
    let one_in = one_in.parse().ok().filter(|one_in| *one_in > 0).ok_or_else(|| invalid("one-in", one_in))?;
    let seed = parts.option("seed").map(|text| text.parse().map_err(|_| invalid("seed", text)));
    let seed = seed.transpose()?.unwrap_or_else(|| fastrand::u64(..));
    Ok(RandomSelection { one_in, seed, count: AtomicU64::new(0) })
}

fn interval(parts: &Parts, duration: Duration) -> Result<Duration, OpenError> {
    if parts.option("seed").is_some() {
        return Err(parts.error("seed= without one-in=", "add one-in=N, or remove seed="));
    }
    let every = parts.option("every").map_or(Ok(duration * 10), |text| parts.duration(text))?;
    if every <= duration {
        return Err(
            parts.error("the stalls leave no time", "use an interval longer than a stall, as in every=60s")
        );
    }
    Ok(every)
}

impl RandomSelection {
    /// Counts a request, and returns whether it is stalled.
    fn selects_next(&self) -> bool {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let seed = self.seed.wrapping_add(number.wrapping_mul(ODD));
        fastrand::Rng::with_seed(seed).u64(0..self.one_in) == 0
    }
}

/// Distributes consecutive numbers over all seeds.
const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns the remainder of the stall of `duration` that is in progress at the end of an interval, after `elapsed`.
fn remaining(duration: Duration, every: Duration, elapsed: Duration) -> Duration {
    let position = Duration::from_nanos((elapsed.as_nanos() % every.as_nanos()) as u64);
    if position < every - duration { Duration::ZERO } else { every - position }
}

impl Stall {
    async fn wait_for_end(&self, io: &NestedIo, every: Duration) {
        let remaining = remaining(self.duration, every, self.scope.elapsed());
        if !remaining.is_zero() {
            io.sleep(remaining).await;
        }
    }
}

impl Runner for Stall {
    async fn run(self: Arc<Self>, io: NestedIo, request: Request) -> Outcome {
        if !self.scope.includes(&request) {
            return io.start(&self.inner, request).await;
        }
        match &self.selection {
            Selection::Random(random) => {
                if random.selects_next() {
                    io.sleep(self.duration).await;
                }
                io.start(&self.inner, request).await
            }
            Selection::Every(every) => {
                self.wait_for_end(&io, *every).await;
                let outcome = io.start(&self.inner, request).await;
                self.wait_for_end(&io, *every).await;
                outcome
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::testing::Driver;

    #[test]
    fn stalls_at_end_of_interval() {
        let seconds = Duration::from_secs;
        let remaining = |elapsed| remaining(seconds(2), seconds(60), seconds(elapsed));
        assert_eq!([57, 59, 60, 118].map(remaining), [seconds(0), seconds(1), seconds(0), seconds(2)]);
    }

    #[test]
    fn rejects_stalls_without_time() {
        for (text, reason) in [
            ("stall:0s:mem:1M", "stall:0s:mem:1M: a stall of no time; use a longer one"),
            ("stall:0us:mem:1M,one-in=2", "a stall of no time; use a longer one"),
            ("stall:2s:mem:1M,every=2s", "the stalls leave no time; use an interval"),
        ] {
            let error = crate::open(&crate::parse(text).unwrap()).err().unwrap().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn completes_requests_after_stall() {
        let mut driver = Driver::open("stall:20ms:mem:1M,every=30ms");
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(70) {
            assert_eq!(driver.read(0, 1).unwrap(), [0; 512]);
        }
    }

    #[test]
    fn selects_same_requests_for_same_seed() {
        let select = |seed| {
            let random = RandomSelection { one_in: 200, seed, count: AtomicU64::new(0) };
            (0..100_000).filter(|_| random.selects_next()).collect::<Vec<u32>>()
        };
        for seed in [0, 1, 7, u64::MAX] {
            let selected = select(seed);
            assert!((400..600).contains(&selected.len()), "seed {seed}: {}", selected.len());
            assert_eq!(selected, select(seed));
            assert_ne!(selected, select(seed.wrapping_add(1)));
            // Independent, so some are close together and some far apart.
            let gaps: Vec<u32> = selected.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(gaps.iter().any(|gap| *gap < 20) && gaps.iter().any(|gap| *gap > 600), "seed {seed}");
        }
    }

    #[test]
    fn stalls_selected_requests_only() {
        let mut driver = Driver::open("stall:30ms:mem:1M,one-in=1,on=write");
        let start = Instant::now();
        driver.write(0, &[1; 512], false).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(30));
        let mut driver = Driver::open("stall:3600s:mem:1M,one-in=18446744073709551615,seed=7");
        assert_eq!(driver.read(0, 1).unwrap(), [0; 512]);
    }

    #[test]
    fn rejects_invalid_selections() {
        for (text, reason) in [
            ("every=1s", "leave no time"),
            ("one-in=0", "invalid value \"0\" of one-in="),
            ("one-in=9,seed=x", "invalid value \"x\" of seed="),
            ("one-in=9,every=60s", "use one of them"),
            ("seed=9", "seed= without one-in="),
        ] {
            let error =
                crate::open(&crate::parse(&format!("stall:2s:mem:1M,{text}")).unwrap()).err().unwrap();
            assert!(error.to_string().contains(reason), "{text}: {error}");
        }
    }
}
