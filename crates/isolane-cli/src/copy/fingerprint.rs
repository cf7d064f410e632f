//! A fingerprint of a stream of bytes, one number to every granule, so that two streams can be compared
//! without keeping either.
//!
//! Not cryptographic: it finds damage, not forgery. Long runs of zeroes cost nothing.

use std::hash::{DefaultHasher, Hasher};

use super::source::Chunk;

/// Size of one granule.
pub const GRANULE_BYTES: u64 = 1 << 20;

/// Zeroes to hash from.
static ZEROES: [u8; 4096] = [0; 4096];

/// Hashes of a stream.
#[derive(Default)]
pub struct Fingerprint {
    granules: Vec<u64>,
    running: DefaultHasher,
    running_bytes: u64,
    length: u64,
    zero_granule: Option<u64>,
}

impl Fingerprint {
    /// Adds the next chunk of the stream.
    pub fn add(&mut self, chunk: &Chunk) {
        match chunk {
            Chunk::Data(buffer) => self.add_bytes(buffer.as_slice().unwrap_or_default()),
            Chunk::Zeroes(length) => self.add_zeroes(*length),
        }
    }

    /// The stream is over.
    pub fn close(&mut self) {
        if self.running_bytes > 0 {
            self.end_granule();
        }
    }

    /// Bytes so far.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Where the first granule that differs begins.
    pub fn first_difference(&self, other: &Fingerprint) -> Option<u64> {
        let pairs = self.granules.iter().zip(&other.granules);
        let differing = pairs.take_while(|(mine, theirs)| mine == theirs).count();
        let same = differing == self.granules.len() && self.length == other.length;
        (!same).then_some(differing as u64 * GRANULE_BYTES)
    }

    fn add_bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = (GRANULE_BYTES - self.running_bytes).min(bytes.len() as u64);
            let (now, later) = bytes.split_at(space as usize);
            self.running.write(now);
            self.advance(space);
            bytes = later;
        }
    }

    fn add_zeroes(&mut self, mut length: u64) {
        while length > 0 {
            if self.running_bytes == 0 && length >= GRANULE_BYTES {
                let granule = *self.zero_granule.get_or_insert_with(hash_of_zero_granule);
                self.granules.push(granule);
                self.length += GRANULE_BYTES;
                length -= GRANULE_BYTES;
                continue;
            }
            let space = (GRANULE_BYTES - self.running_bytes).min(length).min(ZEROES.len() as u64);
            self.running.write(&ZEROES[..space as usize]);
            self.advance(space);
            length -= space;
        }
    }

    fn advance(&mut self, bytes: u64) {
        self.running_bytes += bytes;
        self.length += bytes;
        if self.running_bytes == GRANULE_BYTES {
            self.end_granule();
        }
    }

    fn end_granule(&mut self) {
        self.granules.push(std::mem::take(&mut self.running).finish());
        self.running_bytes = 0;
    }
}

fn hash_of_zero_granule() -> u64 {
    let mut hasher = DefaultHasher::new();
    for _ in 0..GRANULE_BYTES / ZEROES.len() as u64 {
        hasher.write(&ZEROES);
    }
    hasher.finish()
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

    fn of(chunks: &[Chunk]) -> Fingerprint {
        let mut fingerprint = Fingerprint::default();
        chunks.iter().for_each(|chunk| fingerprint.add(chunk));
        fingerprint.close();
        fingerprint
    }

    #[test]
    fn how_the_stream_is_cut_does_not_matter() {
        let whole = of(&[data(&[7; 3000]), Chunk::Zeroes(3 << 20), data(&[1; 100])]);
        let cut = of(&[
            data(&[7; 1000]),
            data(&[7; 2000]),
            data(&[0; 500]),
            Chunk::Zeroes((3 << 20) - 500),
            data(&[1; 100]),
        ]);
        assert_eq!(whole.first_difference(&cut), None);
        assert_eq!(whole.length(), (3 << 20) + 3100);
    }

    #[test]
    fn finds_changed_bytes() {
        let mut bytes = vec![5; 3 << 20];
        let before = of(&[data(&bytes)]);
        bytes[(2 << 20) + 17] = 6;
        assert_eq!(before.first_difference(&of(&[data(&bytes)])), Some(2 << 20));
    }

    #[test]
    fn missing_tail_is_a_difference() {
        assert_eq!(
            of(&[Chunk::Zeroes(2 << 20)]).first_difference(&of(&[Chunk::Zeroes(1 << 20)])),
            Some(1 << 20)
        );
    }
}
