//! Test helper: the bytes of a structure from a list of offsets and bytes.

/// Returns `LEN` zeroes with `parts` written into them; parts must not overlap.
pub(crate) fn bytes<const LEN: usize>(parts: &[(usize, &[u8])]) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let mut is_set = [false; LEN];
    for &(at, part) in parts {
        assert!(is_set[at..at + part.len()].iter().all(|&is_set| !is_set), "byte {at} is listed twice");
        is_set[at..at + part.len()].fill(true);
        bytes[at..at + part.len()].copy_from_slice(part);
    }
    bytes
}

/// Asserts equality; reports the first difference instead of a whole dump.
pub(crate) fn assert_same(actual: &[u8], expected: &[u8]) {
    let difference = actual.iter().zip(expected).position(|(actual, expected)| actual != expected);
    assert_eq!(difference, None, "first difference at this byte");
    assert_eq!(actual.len(), expected.len());
}
