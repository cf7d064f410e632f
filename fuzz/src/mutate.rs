//! Changes to an input.

use fastrand::Rng;

/// Inputs never grow beyond this many bytes.
const LEN_MAX: usize = 16 * 1024;

/// Numbers at which arithmetic breaks.
const EDGES: &[u32] = &[
    0,
    1,
    3,
    4,
    7,
    8,
    23,
    24,
    25,
    63,
    64,
    71,
    72,
    73,
    127,
    128,
    129,
    255,
    256,
    511,
    512,
    4095,
    4096,
    4097,
    8192,
    8193,
    0x7fff,
    0x8000,
    0xffef,
    0xfff0,
    0xffff,
    0x1_0000,
    0x10_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fffc,
    0xffff_ffff,
];

/// Some changes of `input`; `others` lend their parts.
pub(crate) fn mutate(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Rng) {
    for _ in 0..1 << random.u32(0..4) {
        change(input, others, random);
    }
    input.truncate(LEN_MAX);
}

fn change(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Rng) {
    match random.u8(0..10) {
        0 => flip_bit(input, random),
        1 => set_byte(input, random),
        2 | 3 => set_edge(input, random),
        4 => input.truncate(random.usize(0..=input.len())),
        5 => insert(input, random),
        6 => remove(input, random),
        7 => repeat(input, random),
        8 => splice(input, others, random),
        _ => swap(input, random),
    }
}

fn flip_bit(input: &mut [u8], random: &mut Rng) {
    if let Some(byte) = random.choice(input) {
        *byte ^= 1 << random.u8(0..8);
    }
}

fn set_byte(input: &mut [u8], random: &mut Rng) {
    let value = random.u8(..);
    if let Some(byte) = random.choice(input) {
        *byte = value;
    }
}

/// A number at an edge, of 1, 2 or 4 bytes.
fn set_edge(input: &mut [u8], random: &mut Rng) {
    let edge = EDGES[random.usize(0..EDGES.len())].to_le_bytes();
    let len = [1, 2, 4][random.usize(0..3)].min(input.len());
    let at = random.usize(0..=input.len() - len);
    input[at..at + len].copy_from_slice(&edge[..len]);
}

fn insert(input: &mut Vec<u8>, random: &mut Rng) {
    let at = random.usize(0..=input.len());
    let bytes: Vec<u8> = (0..random.usize(1..9)).map(|_| random.u8(..)).collect();
    input.splice(at..at, bytes);
}

fn remove(input: &mut Vec<u8>, random: &mut Rng) {
    input.drain(part(input, random));
}

fn repeat(input: &mut Vec<u8>, random: &mut Rng) {
    let part = input[part(input, random)].to_vec();
    let at = random.usize(0..=input.len());
    input.splice(at..at, part);
}

fn splice(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Rng) {
    let Some(other) = random.choice(others) else { return };
    let part = other[part(other, random)].to_vec();
    let at = random.usize(0..=input.len());
    input.splice(at..at, part);
}

fn swap(input: &mut [u8], random: &mut Rng) {
    if !input.is_empty() {
        input.swap(random.usize(0..input.len()), random.usize(0..input.len()));
    }
}

/// A random part, rather a short one.
fn part(bytes: &[u8], random: &mut Rng) -> core::ops::Range<usize> {
    let start = random.usize(0..=bytes.len());
    let len_max = (bytes.len() - start).min(1 << random.u32(0..11));
    start..start + random.usize(0..=len_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_input_can_be_changed_and_stays_bounded() {
        let mut random = Rng::with_seed(7);
        let others = [vec![], vec![1; 10_000]];
        for len in [0, 1, 2, 3, 100, LEN_MAX] {
            for _ in 0..200 {
                let mut input = vec![0; len];
                mutate(&mut input, &others, &mut random);
                assert!(input.len() <= LEN_MAX);
            }
        }
    }
}
