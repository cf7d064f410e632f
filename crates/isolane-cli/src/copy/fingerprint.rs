//! Fingerprint of a byte stream: one hash per granule.
//!
//! Detects damage, not forgery: the hash is not cryptographic. A granule of zeros is hashed once.
//!
//! Invariant: the fingerprint does not depend on the sizes of the chunks.

use std::hash::{DefaultHasher, Hasher};
use std::sync::LazyLock;

use super::source::Chunk;

/// Size of a granule in bytes.
pub const GRANULE_BYTES: u64 = 1 << 20;

static ZEROS: [u8; 4096] = [0; 4096];

/// Hash of a granule of zeros.
static ZERO_GRANULE: LazyLock<u64> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    (0..GRANULE_BYTES / ZEROS.len() as u64).for_each(|_| hasher.write(&ZEROS));
    hasher.finish()
});

/// Hashes of a stream.
#[derive(Default)]
pub struct Fingerprint {
    granules: Vec<u64>,
    running: DefaultHasher,
    length: u64,
}

impl Fingerprint {
    /// Adds the next chunk of the stream.
    pub fn add(&mut self, chunk: &Chunk) {
        match chunk {
            Chunk::Data(buffer) => self.add_bytes(buffer.as_slice().unwrap_or_default()),
            Chunk::Zeros(length) => self.add_zeros(*length),
        }
    }

    /// Ends the stream.
    pub fn close(&mut self) {
        if !self.length.is_multiple_of(GRANULE_BYTES) {
            self.end_granule();
        }
    }

    /// Length of the stream in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the offset of the first granule that differs.
    pub fn first_difference(&self, other: &Fingerprint) -> Option<u64> {
        let pairs = self.granules.iter().zip(&other.granules);
        let differing = pairs.take_while(|(mine, theirs)| mine == theirs).count();
        let same = differing == self.granules.len() && self.length == other.length;
        (!same).then_some(differing as u64 * GRANULE_BYTES)
    }

    fn add_bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = self.space().min(bytes.len() as u64);
            let (now, later) = bytes.split_at(space as usize);
            self.running.write(now);
            self.length += space;
            if self.space() == GRANULE_BYTES {
                self.end_granule();
            }
            bytes = later;
        }
    }

    fn add_zeros(&mut self, mut length: u64) {
        while length > 0 {
            let mut part = self.space().min(length);
            if part == GRANULE_BYTES {
                self.granules.push(*ZERO_GRANULE);
                self.length += part;
            } else {
                part = part.min(ZEROS.len() as u64);
                self.add_bytes(&ZEROS[..part as usize]);
            }
            length -= part;
        }
    }

    /// Returns the missing bytes of the running granule.
    fn space(&self) -> u64 {
        GRANULE_BYTES - self.length % GRANULE_BYTES
    }

    fn end_granule(&mut self) {
        self.granules.push(std::mem::take(&mut self.running).finish());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isolane_memory::Buffer;

    fn data(bytes: &[u8]) -> Chunk {
        let mut buffer = Buffer::contiguous(bytes.len());
        buffer.copy_in(0, bytes);
        Chunk::Data(buffer)
    }

    fn fingerprint(chunks: &[Chunk]) -> Fingerprint {
        let mut fingerprint = Fingerprint::default();
        chunks.iter().for_each(|chunk| fingerprint.add(chunk));
        fingerprint.close();
        fingerprint
    }

    #[test]
    fn ignores_chunk_sizes() {
        let whole = fingerprint(&[data(&[7; 3000]), Chunk::Zeros(3 << 20), data(&[1; 100])]);
        let split = fingerprint(&[
            data(&[7; 1000]),
            data(&[7; 2000]),
            data(&[0; 500]),
            Chunk::Zeros((3 << 20) - 500),
            data(&[1; 100]),
        ]);
        assert_eq!(whole.first_difference(&split), None);
        assert_eq!(whole.length(), (3 << 20) + 3100);
    }

    #[test]
    fn finds_changed_bytes() {
        let mut bytes = vec![5; 3 << 20];
        let before = fingerprint(&[data(&bytes)]);
        bytes[(2 << 20) + 17] = 6;
        assert_eq!(before.first_difference(&fingerprint(&[data(&bytes)])), Some(2 << 20));
    }

    #[test]
    fn missing_tail_is_a_difference() {
        assert_eq!(
            fingerprint(&[Chunk::Zeros(2 << 20)]).first_difference(&fingerprint(&[Chunk::Zeros(1 << 20)])),
            Some(1 << 20)
        );
    }
}
