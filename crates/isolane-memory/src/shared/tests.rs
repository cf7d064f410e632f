use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use isolane_shm::testing::Corruptor;

use super::*;
use crate::{Buffer, Payload};

const BYTES: usize = 64 * 1024;

fn memory() -> SharedMemory {
    SharedMemory::create("isolane-test", BYTES).unwrap()
}

#[test]
fn writes_only_its_range() {
    let memory = memory();
    let mut buffer = Buffer::in_shared_memory(&memory, 100, 50).unwrap();
    buffer.copy_in(10, b"hello");
    let mut all = vec![0; BYTES];
    memory.copy_out(0, &mut all).unwrap();
    assert_eq!((&all[110..115], all.iter().filter(|byte| **byte != 0).count()), (&b"hello"[..], 5));
    let mut copy = [0; 5];
    buffer.copy_to(10, &mut copy);
    assert_eq!((&copy, buffer.to_vec().len(), buffer.is_in_shared_memory()), (b"hello", 50, true));
    assert!(buffer.as_slice().is_none() && buffer.as_mut_slice().is_none());
}

#[test]
fn rejects_ranges_outside_of_the_memory() {
    let memory = memory();
    assert!(Buffer::in_shared_memory(&memory, BYTES as u64, 1).is_err());
    assert!(Buffer::in_shared_memory(&memory, u64::MAX, 2).is_err());
    let mut buffer = Buffer::in_shared_memory(&memory, 0, BYTES).unwrap();
    assert!(buffer.rebind(1, BYTES).is_err());
    assert_eq!(buffer.len(), BYTES);
    buffer.rebind(4096, 8).unwrap();
    buffer.copy_in(0, b"moved it");
}

#[test]
#[should_panic(expected = "outside of a range")]
fn write_beyond_the_range_panics() {
    let memory = memory();
    Buffer::in_shared_memory(&memory, 0, 4).unwrap().copy_in(0, b"12345");
}

#[test]
#[should_panic(expected = "a buffer with other references")]
fn range_with_a_payload_is_not_moved() {
    let mut buffer = Buffer::in_shared_memory(&memory(), 0, 4).unwrap();
    let _payload = buffer.share(0, 4);
    let _ = buffer.rebind(4, 4);
}

#[test]
fn kernel_reads_and_writes_a_range() {
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let memory = memory();
    memory.copy_in(3, b"from here").unwrap();
    let mut payload = Payload::from(b"<".to_vec());
    payload.append(Buffer::in_shared_memory(&memory, 3, 9).unwrap().into_payload());
    payload.push_static(b">");
    let pieces: Vec<_> = payload.io_slices(0, 11).collect();
    assert_eq!(pieces.iter().map(|(_, len)| *len).collect::<Vec<_>>(), [1, 9, 1]);
    let slices: Vec<_> = pieces.into_iter().map(|(slice, _)| slice).collect();
    assert_eq!(near.write_vectored(&slices).unwrap(), 11);
    let mut there = Buffer::in_shared_memory(&memory, 1000, 11).unwrap();
    let mut slices: Vec<_> = there.io_slices_mut(0, 11).map(|(slice, _)| slice).collect();
    assert_eq!(far.read_vectored(&mut slices).unwrap(), 11);
    assert_eq!(there.to_vec(), b"<from here>");
    assert_eq!(payload.to_vec(), b"<from here>");
}

#[test]
fn slices_of_a_mixed_payload_keep_the_bytes() {
    let memory = memory();
    let bytes: Vec<u8> = (0..200).collect();
    memory.copy_in(0, &bytes).unwrap();
    let mut payload = Payload::from(bytes[..50].to_vec());
    payload.append(Buffer::in_shared_memory(&memory, 50, 100).unwrap().into_payload());
    payload.append(Payload::from(bytes[150..].to_vec()));
    for (start, len) in [(0, 200), (49, 2), (60, 20), (149, 51), (150, 50), (10, 185), (70, 0)] {
        assert_eq!(payload.slice(start, len).to_vec(), &bytes[start..start + len]);
        let lens: usize = payload.io_slices(start, len).map(|(_, len)| len).sum();
        assert_eq!(lens, len);
    }
    assert!(payload.is_in_shared_memory() && !payload.clone().into_private().is_in_shared_memory());
    assert!(payload.as_slice().is_none() && payload.slice(50, 7).as_slice().is_none());
    assert_eq!(payload.split_to(60).to_vec(), &bytes[..60]);
    assert_eq!(payload.into_private().as_slice(), Some(&bytes[60..]));
}

#[test]
fn splits_and_joins_a_range() {
    let memory = memory();
    let mut front = Buffer::in_shared_memory(&memory, 0, 300).unwrap();
    let mut back = front.split_off(100);
    let last = back.split_off(50);
    back.copy_in(0, &[7; 50]);
    assert_eq!((front.len(), back.len(), last.len()), (100, 50, 150));
    let last = front.join(last).unwrap_err();
    front.join(back).unwrap();
    front.join(last).unwrap();
    assert_eq!((front.len(), &front.to_vec()[99..102]), (300, &[0, 7, 7][..]));
}

#[test]
fn visited_slices_are_copies() {
    let memory = memory();
    let corruptor = Corruptor::new(&memory);
    let buffer = Buffer::in_shared_memory(&memory, 0, 3 * COPY_BYTES + 1).unwrap();
    let mut seen = 0;
    buffer.for_each_slice(0, buffer.len(), |copy| {
        let before = copy.to_vec();
        (0..BYTES / 8).for_each(|word| corruptor.scribble(word, seen as u64 + 1));
        assert_eq!(before, copy);
        seen += copy.len();
    });
    assert_eq!(seen, buffer.len());
}

#[test]
fn memory_stays_mapped_while_referenced() {
    let memory = memory();
    memory.copy_in(7, b"still").unwrap();
    let payload = Buffer::in_shared_memory(&memory, 7, 5).unwrap().into_payload();
    drop(memory);
    assert_eq!(payload.to_vec(), b"still");
}
