//! Tests of buffers.

use super::*;

/// A buffer in pages that are not adjacent.
fn paged(len: usize) -> Buffer {
    let mut pages: Vec<Page> = (0..pages_for(len)).map(|_| Page::zeroed()).collect();
    pages.sort_by_key(|page| std::cmp::Reverse(page.as_ptr()));
    Buffer::from_pages(pages.into(), len)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + index / 251) as u8).collect()
}

#[test]
fn copies_bytes_in_and_out() {
    for mut buffer in [paged(10_000), Buffer::contiguous(10_000)] {
        let bytes = pattern(10_000);
        for range in [4000..9000, 0..4000, 9000..10_000] {
            buffer.copy_in(range.start, &bytes[range]);
        }
        assert_eq!(buffer.to_vec(), bytes);
        assert_eq!(buffer.share(4090, 4200).to_vec(), bytes[4090..8290]);
        let mut copied = vec![0; 5000];
        buffer.copy_to(3000, &mut copied);
        assert_eq!(copied, bytes[3000..8000]);
        assert_eq!(buffer.into_payload().to_vec(), bytes);
    }
}

#[test]
fn slices_cover_exactly_a_range() {
    let mut buffer = paged(9000);
    let mut lens = |offset, len| buffer.slices_mut(offset, len).map(|slice| slice.len()).collect::<Vec<_>>();
    assert_eq!(lens(100, 8000), [3996, 4004]);
    assert_eq!(lens(4096, 4096), [4096]);
    assert_eq!(lens(9000, 0), [0; 0]);
    assert_eq!(buffer.raw_parts(100, 8000).map(|(_, len)| len).collect::<Vec<_>>(), [3996, 4004]);
    assert_eq!(Buffer::contiguous(5).slices_mut(2, 0).count(), 0);
}

#[test]
fn shared_buffer_is_not_writable() {
    for mut buffer in [paged(4096), Buffer::contiguous(4096)] {
        let share = buffer.share(10, 20);
        assert!(!buffer.is_exclusive());
        assert!(buffer.as_mut_slice().is_none());
        assert_eq!(buffer.slices_mut(100, 0).count(), 0, "an empty range");
        drop(share);
        assert!(buffer.is_exclusive());
        assert!(buffer.as_mut_slice().is_some());
    }
}

#[test]
#[should_panic(expected = "outside of a buffer of 4096 bytes")]
fn range_outside_panics() {
    paged(4096).copy_in(4095, &[1, 2]);
}

#[test]
fn addresses_survive_a_move() {
    let buffer = paged(4096);
    let before: Vec<_> = buffer.raw_parts(0, 4096).collect();
    let moved = Box::new(buffer);
    assert_eq!(moved.raw_parts(0, 4096).collect::<Vec<_>>(), before);
}

#[test]
fn splits_and_joins_without_a_copy() {
    for mut buffer in [paged(12_288), Buffer::contiguous(12_288)] {
        let address = buffer.raw_parts(8192, 1).next();
        let mut tail = buffer.split_off(8192);
        tail.copy_in(0, &[9; 4096]);
        assert_eq!((buffer.len(), tail.raw_parts(0, 1).next()), (8192, address));
        assert!(buffer.is_exclusive() && tail.is_exclusive());
        buffer.join(tail).unwrap();
        assert_eq!(buffer.to_vec()[8191..8193], [0, 9]);
        assert!(buffer.join(Buffer::contiguous(512)).is_err());
    }
}

#[test]
fn drops_extra_pages() {
    let pages = (0..3).map(|_| Page::zeroed()).collect();
    assert_eq!(Buffer::from_pages(pages, 4097).into_pages().unwrap().len(), 2);
}

#[test]
fn writes_borrowed_memory_in_place() {
    let mut memory = vec![0u8; 100];
    // SAFETY: `memory` outlives the buffer and is not accessed until then.
    let mut buffer = unsafe { Buffer::from_raw_parts(NonNull::new(memory.as_mut_ptr()).unwrap(), 100) };
    buffer.copy_in(50, &[5; 50]);
    drop(buffer);
    assert_eq!(memory[49..51], [0, 5]);
}

#[test]
fn takes_the_memory_of_a_vector() {
    let bytes: Vec<u8> = (0..100).collect();
    let start = bytes.as_ptr();
    let mut buffer = Buffer::from(bytes);
    assert_eq!((buffer.len(), buffer.as_slice().unwrap().as_ptr()), (100, start));
    buffer.as_mut_slice().unwrap()[0] = 7;
    assert_eq!(buffer.to_vec()[..3], [7, 1, 2]);
    assert!(Buffer::from(Vec::new()).is_empty());
}
