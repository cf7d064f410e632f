//! The recorded steps, as JSON, so that a reader costs no conversion.

use std::collections::VecDeque;

use hyper::body::Bytes;
use isolane_observe::snapshot::Step;

/// Age of the oldest step, in milliseconds.
const MAX_AGE_MS: u64 = 300_000;
/// Memory of all steps, in bytes.
const MAX_BYTES: usize = 16 << 20;
/// Steps that are merged into one when the memory is used up.
const MERGED: usize = 10;

/// The steps of the last minutes, the oldest first.
#[derive(Debug)]
pub struct Steps {
    steps: VecDeque<Recorded>,
    bytes: usize,
    max_bytes: usize,
}

#[derive(Debug)]
struct Recorded {
    at_unix_ms: u64,
    is_merged: bool,
    text: Bytes,
}

impl Default for Steps {
    fn default() -> Steps {
        Steps::with_memory(MAX_BYTES)
    }
}

impl Steps {
    fn with_memory(max_bytes: usize) -> Steps {
        Steps { steps: VecDeque::new(), bytes: 0, max_bytes }
    }

    /// Adds a step, and removes or merges old ones.
    pub fn push(&mut self, step: &Step) {
        let Some(recorded) = encode(step, false) else { return };
        self.insert(self.steps.len(), recorded);
        let oldest_ms = step.at_unix_ms.saturating_sub(MAX_AGE_MS);
        while self.steps.front().is_some_and(|first| first.at_unix_ms < oldest_ms) {
            self.remove(0);
        }
        while self.bytes > self.max_bytes && self.steps.len() > 1 {
            self.shrink();
        }
    }

    /// Returns the steps.
    pub fn texts(&self) -> impl Iterator<Item = Bytes> {
        self.steps.iter().map(|step| step.text.clone())
    }

    /// Returns the memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Merges the oldest steps that are not merged yet, else removes the oldest one. Keeps the newest step.
    fn shrink(&mut self) {
        let single = self.steps.iter().position(|step| !step.is_merged).unwrap_or(self.steps.len());
        if single + MERGED >= self.steps.len() {
            self.remove(0);
            return;
        }
        let parts: Vec<Bytes> = (0..MERGED).filter_map(|_| self.remove(single)).collect();
        let mut steps = parts.iter().filter_map(|text| serde_json::from_slice::<Step>(text).ok());
        let Some(mut sum) = steps.next() else { return };
        steps.for_each(|step| sum.merge(step));
        if let Some(merged) = encode(&sum, true) {
            self.insert(single, merged);
        }
    }

    fn insert(&mut self, place: usize, step: Recorded) {
        self.bytes += step.text.len();
        self.steps.insert(place, step);
    }

    fn remove(&mut self, place: usize) -> Option<Bytes> {
        let removed = self.steps.remove(place)?;
        self.bytes -= removed.text.len();
        Some(removed.text)
    }
}

fn encode(step: &Step, is_merged: bool) -> Option<Recorded> {
    // Numbers and texts always have a representation.
    let text = serde_json::to_vec(step).ok()?;
    Some(Recorded { at_unix_ms: step.at_unix_ms, is_merged, text: text.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(second: u64) -> Step {
        let mut step = Step { at_unix_ms: second * 1000, length_ms: 1000, ..Step::default() };
        step.numbers.counters.insert("errors".into(), 1);
        step
    }

    fn decoded(steps: &Steps) -> Vec<Step> {
        steps.texts().map(|text| serde_json::from_slice(&text).unwrap()).collect()
    }

    #[test]
    fn keeps_five_minutes() {
        let mut steps = Steps::default();
        (1000..2000).for_each(|second| steps.push(&step(second)));
        let decoded = decoded(&steps);
        assert_eq!((decoded.len(), &decoded[0], &decoded[300]), (301, &step(1699), &step(1999)));
        assert_eq!(steps.bytes(), steps.texts().map(|text| text.len()).sum::<usize>());
    }

    #[test]
    fn merges_old_steps_when_full() {
        let each = encode(&step(1000), false).unwrap().text.len();
        let mut steps = Steps::with_memory(40 * each);
        (1000..1100).for_each(|second| {
            steps.push(&step(second));
            assert!(steps.bytes() <= 40 * each);
        });
        let decoded = decoded(&steps);
        assert_eq!(decoded.iter().map(|step| step.length_ms).sum::<u64>(), 100_000, "nothing is lost");
        assert_eq!(decoded.iter().map(|step| step.numbers.counters["errors"]).sum::<u64>(), 100);
        assert_eq!((decoded[0].length_ms, decoded[0].at_unix_ms), (10_000, 1_009_000));
        assert_eq!(decoded.last(), Some(&step(1099)));
        assert!(decoded.is_sorted_by_key(|step| step.at_unix_ms));
    }

    #[test]
    fn removes_oldest_if_merging_is_not_enough() {
        let mut steps = Steps::with_memory(100);
        (1000..1100).for_each(|second| steps.push(&step(second)));
        assert_eq!(decoded(&steps), [step(1099)]);
    }
}
