//! Mutates inputs from a seed, runs a target on them and keeps the panic of a finding.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;

use crate::{Target, mutate::mutate};

/// An input that made a target panic.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The target.
    pub target: &'static str,
    /// Which iteration of the run; the inputs of the corpus come first.
    pub iteration: u64,
    /// What to play again; as short as cutting off its end could make it.
    pub input: Vec<u8>,
    /// What the panic said.
    pub message: String,
}

/// Runs the whole corpus and then `iterations` changed inputs. The same seed gives the same inputs.
pub fn run(target: &Target, iterations: u64, seed: u64) -> Result<(), Box<Finding>> {
    let corpus = (target.corpus)();
    let mut random = Rng::with_seed(seed);
    for (iteration, input) in corpus.iter().enumerate() {
        attempt(target, input, iteration as u64)?;
    }
    for iteration in 0..iterations {
        let mut input = random.choice(&corpus).cloned().unwrap_or_default();
        mutate(&mut input, &corpus, &mut random);
        attempt(target, &input, corpus.len() as u64 + iteration)?;
    }
    Ok(())
}

/// Runs one input.
pub fn replay(target: &Target, input: &[u8]) -> Result<(), Box<Finding>> {
    attempt(target, input, 0)
}

fn attempt(target: &Target, input: &[u8], iteration: u64) -> Result<(), Box<Finding>> {
    let Err(message) = check(target, input) else { return Ok(()) };
    let input = shorten(target, input.to_vec());
    Err(Box::new(Finding { target: target.name, iteration, input, message }))
}

/// Cuts off the end as long as the input still finds something.
fn shorten(target: &Target, mut input: Vec<u8>) -> Vec<u8> {
    let mut step = input.len() / 2;
    while step > 0 {
        let shorter = &input[..input.len() - step.min(input.len())];
        if check(target, shorter).is_err() {
            input.truncate(shorter.len());
        } else {
            step /= 2;
        }
    }
    input
}

fn check(target: &Target, input: &[u8]) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| (target.check)(input))).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (iteration {}): {}", self.target, self.iteration, self.message)?;
        write!(f, "play it again: fuzz --target {} --input ", self.target)?;
        self.input.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::error::Error for Finding {}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAGILE: Target = Target {
        name: "fragile",
        check: |input| assert!(input.len() < 5, "too long"),
        corpus: || vec![vec![0; 4]],
    };

    #[test]
    fn a_finding_is_shortened_and_can_be_played_again() {
        let finding = run(&FRAGILE, 1_000, 3).unwrap_err();
        assert_eq!((finding.input.len(), finding.message.as_str()), (5, "too long"));
        assert!(replay(&FRAGILE, &finding.input).is_err());
        assert!(finding.to_string().contains("--target fragile --input "));
    }

    #[test]
    fn the_same_seed_finds_the_same() {
        let findings =
            [run(&FRAGILE, 1_000, 9), run(&FRAGILE, 1_000, 9)].map(|run| run.unwrap_err().iteration);
        assert_eq!(findings[0], findings[1]);
    }
}
