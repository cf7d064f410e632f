//! Mutates corpus inputs from a seed, runs a target on them, and shrinks an input that makes it panic.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;

use crate::Target;

/// Runs the whole corpus, then `iterations` mutated inputs. The same seed gives the same inputs.
///
/// # Errors
/// The first finding: the panic's message, and the shrunk input with the command that replays it.
pub fn run(target: &Target, iterations: u64, seed: u64) -> Result<(), String> {
    let corpus = (target.corpus)();
    let mut random = Rng::with_seed(seed);
    corpus.iter().try_for_each(|input| replay(target, input))?;
    (0..iterations).try_for_each(|_| {
        let mut input = random.choice(&corpus).cloned().unwrap_or_default();
        for _ in 0..1 << random.u32(0..4) {
            mutate(&mut input, &corpus, &mut random);
        }
        input.truncate(MAX_INPUT_BYTES);
        replay(target, &input)
    })
}

/// Runs one input.
///
/// # Errors
/// As [`run`].
pub fn replay(target: &Target, input: &[u8]) -> Result<(), String> {
    let Err(message) = check(target, input) else { return Ok(()) };
    let input: String = shrink(target, input).iter().map(|byte| format!("{byte:02x}")).collect();
    Err(format!("{}: {message}\nreplay it: fuzz --target {0} --input {input}", target.name))
}

/// Truncates the input as long as it still makes the target panic.
fn shrink<'a>(target: &Target, mut input: &'a [u8]) -> &'a [u8] {
    let mut step = input.len() / 2;
    while step > 0 {
        let shorter = &input[..input.len() - step.min(input.len())];
        match check(target, shorter) {
            Err(_) => input = shorter,
            Ok(()) => step /= 2,
        }
    }
    input
}

fn check(target: &Target, input: &[u8]) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| (target.check)(input))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("panic without a message").to_owned()
    })
}

fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Rng) {
    let at = random.usize(0..=input.len());
    match random.u8(0..10) {
        0 => random.choice(&mut *input).into_iter().for_each(|byte| *byte ^= 1 << random.u8(0..8)),
        1 => random.choice(&mut *input).into_iter().for_each(|byte| *byte = random.u8(..)),
        2 | 3 => {
            let len = random.choice([1, 2, 4]).unwrap_or(1).min(input.len());
            let at = at.min(input.len() - len);
            input[at..at + len].copy_from_slice(&edge(random).to_le_bytes()[..len]);
        }
        4 => input.truncate(at),
        5 => {
            let bytes: Vec<u8> = (0..random.usize(1..9)).map(|_| random.u8(..)).collect();
            input.splice(at..at, bytes).for_each(drop);
        }
        6 => input.drain(part(input, random)).for_each(drop),
        7 => {
            let part = input[part(input, random)].to_vec();
            input.splice(at..at, part).for_each(drop);
        }
        8 => {
            let other = random.choice(corpus).map_or(&[][..], Vec::as_slice);
            input.splice(at..at, other[part(other, random)].iter().copied()).for_each(drop);
        }
        _ if input.is_empty() => {}
        _ => {
            let last = input.len() - 1;
            input.swap(at.min(last), random.usize(0..=last));
        }
    }
}

/// A number at which arithmetic tends to fail: next to a power of two or to the length of a header.
fn edge(random: &mut Rng) -> u32 {
    let base = match random.u8(0..4) {
        0 => random.choice([0, 24, 72, 0xfff0, 0xffff_fffc]).unwrap_or_default(),
        _ => 1 << random.u32(0..32),
    };
    u32::wrapping_add(base, random.u32(0..3)).wrapping_sub(1)
}

/// A random range, more often a short one.
fn part(bytes: &[u8], random: &mut Rng) -> Range<usize> {
    let start = random.usize(0..=bytes.len());
    let max_len = (bytes.len() - start).min(1 << random.u32(0..11));
    start..start + random.usize(0..=max_len)
}

const MAX_INPUT_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const FRAGILE: Target = Target {
        name: "fragile",
        check: |input| assert!(input.len() < 5, "too long"),
        corpus: || vec![vec![0; 4]],
    };

    #[test]
    fn shrinks_and_replays_a_finding() {
        let finding = run(&FRAGILE, 1_000, 3).unwrap_err();
        let (text, input) = finding.split_once(" --input ").unwrap();
        assert!(text.starts_with("fragile: too long\n") && text.ends_with("--target fragile"));
        assert_eq!(input.len(), 2 * 5);
        assert!(replay(&FRAGILE, &[0; 5]).is_err());
    }

    #[test]
    fn repeats_the_findings_of_a_seed() {
        assert_eq!(run(&FRAGILE, 1_000, 9), run(&FRAGILE, 1_000, 9));
    }

    #[test]
    fn mutates_inputs_of_every_length() {
        let mut random = Rng::with_seed(7);
        for len in [0, 1, 2, 3, 100, MAX_INPUT_BYTES] {
            for _ in 0..200 {
                mutate(&mut vec![0; len], &[vec![], vec![1; 10_000]], &mut random);
            }
        }
    }

    #[test]
    fn inputs_stay_bounded() {
        let target = Target {
            name: "bounded",
            check: |input| assert!(input.len() <= MAX_INPUT_BYTES),
            corpus: || vec![vec![0; MAX_INPUT_BYTES]],
        };
        run(&target, 200, 1).unwrap();
    }
}
