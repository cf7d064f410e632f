//! Rings in shared memory that a hostile process writes to at any time.
//!
//! Invariant: no side panics, blocks, or accepts more than a ring can hold.

use isolane_shm::testing::{self, Corruptor};

use crate::input::Input;

/// Decisions of both sides of both kinds of rings, and of a corruptor.
pub(crate) fn rings(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (mut writer, mut reader, bytes_corruptor) = testing::bytes(BYTES).expect("there is memory");
    let (mut sender, mut receiver, entries_corruptor) = testing::entries(ENTRIES).expect("there is memory");
    let mut buffer = [0; 2 * BYTES];
    while !input.is_empty() {
        let len = usize::from(input.u16()) % buffer.len();
        match input.u8() % 12 {
            0 => corrupt(&bytes_corruptor, &mut input),
            1 => corrupt(&entries_corruptor, &mut input),
            2 => assert!(writer.write(&buffer[..len]).unwrap_or(0) <= len.min(BYTES)),
            3 => assert!(reader.read(&mut buffer[..len]).unwrap_or(0) <= len.min(BYTES)),
            4 => {
                if let Ok(pieces) = writer.spare_slices() {
                    let free = pieces.iter().map(|piece| piece.len()).sum::<usize>();
                    assert!(free <= BYTES);
                    writer.advance(free.min(len));
                    writer.publish();
                }
            }
            5 => {
                if let Ok(pieces) = reader.pending() {
                    let count = pieces.iter().map(|piece| piece.len()).sum::<usize>();
                    assert!(count <= BYTES);
                    reader.consume(count.min(len));
                    reader.publish();
                }
            }
            6 | 7 => drop(sender.push(&[len as u64; 8])),
            8 => sender.publish(),
            9 => assert!(receiver.refresh().unwrap_or(0) <= ENTRIES as u64),
            10 => receiver.publish(),
            _ => assert!(std::iter::from_fn(|| receiver.pop()).count() <= ENTRIES),
        }
    }
}

/// Writes anywhere, mostly to indices; any value, mostly one close to the present one.
fn corrupt(corruptor: &Corruptor, input: &mut Input<'_>) {
    let place = match input.u8() {
        choice @ 0..128 => usize::from(choice % 2) * INDEX_WORDS,
        choice => usize::from(choice) * 3,
    };
    match input.u8() % 3 {
        0 => corruptor.scribble(place, input.u64()),
        1 => corruptor.nudge(place, u64::from(input.u8() % 16)),
        _ => corruptor.nudge(place, u64::from(input.u8() % 16).wrapping_neg()),
    }
}

const BYTES: usize = 4096;
const ENTRIES: usize = 8;
/// Words between the two indices of a ring.
const INDEX_WORDS: usize = 16;
