//! Concurrent readers and writers of a table.

use std::sync::Arc;

use super::*;
use crate::entry::PREPAID;
use crate::{PAGE_SIZE, Payload};

fn page_of(byte: u8) -> Page {
    let mut page = Page::zeroed();
    page.bytes_mut().unwrap().fill(byte);
    page
}

#[test]
#[cfg_attr(miri, ignore = "Miri aborts when memory is exhausted")]
fn rejects_a_table_beyond_the_address_space() {
    assert!(PageTable::new(usize::MAX / 4).is_none());
    assert!(PageTable::new(1 << 59).is_none());
}

/// First byte of the page at `index`.
fn byte_at(table: &PageTable, index: usize) -> Option<u8> {
    table.get(index).map(|page| page.bytes()[0])
}

#[test]
fn replaced_page_stays_intact_for_its_reader() {
    let table = PageTable::new(8).unwrap();
    let (mut pool, mut other) = (Pool::new(4), Pool::new(4));
    assert!(table.get(3).is_none());
    table.put(3, page_of(1), &mut pool);
    let reader = table.get(3).unwrap();
    table.put(3, page_of(2), &mut pool);
    // Later pages of the writer are in other memory.
    let others: Vec<Page> = (0..8).map(|_| pool.unbudgeted_page()).collect();
    assert!(others.iter().all(|page| page.as_ptr() != reader.as_ptr()));
    assert_eq!((reader.bytes()[0], byte_at(&table, 3)), (1, Some(2)));
    let address = reader.as_ptr();
    other.recycle_page(reader);
    assert_eq!(other.unbudgeted_page().as_ptr(), address);
    table.take(3, &mut pool);
    assert!(table.is_empty_at(3) && byte_at(&table, 3).is_none());
}

#[test]
fn replaced_page_without_readers_returns_to_the_pool() {
    let (table, mut pool) = (PageTable::new(1).unwrap(), Pool::new(4));
    table.put(0, page_of(1), &mut pool);
    let readers: Vec<_> = (0..3 * PREPAID).map(|_| table.get(0).unwrap()).collect();
    let address = readers[0].as_ptr();
    drop(readers);
    table.put(0, page_of(2), &mut pool);
    assert_eq!(pool.unbudgeted_page().as_ptr(), address);
}

#[test]
fn payload_keeps_its_pages() {
    let (table, mut pool) = (PageTable::new(1).unwrap(), Pool::new(4));
    table.put(0, page_of(1), &mut pool);
    let payload = Payload::from(table.get(0).unwrap());
    let (part, clone) = (payload.slice(8, 8), payload.clone());
    table.put(0, page_of(2), &mut pool);
    assert!((0..8).all(|_| pool.unbudgeted_page().bytes()[0] != 1));
    assert!([payload, part, clone].iter().all(|kept| kept.to_vec().iter().all(|&byte| byte == 1)));
}

#[test]
fn pages_outlive_their_table() {
    let (table, mut pool) = (PageTable::new(64).unwrap(), Pool::new(64));
    (0..64).for_each(|index| table.put(index, page_of(7), &mut pool));
    let readers: Vec<Page> = (0..64).filter_map(|index| table.get(index)).collect();
    drop(table);
    let others: Vec<Page> = (0..64).map(|_| page_of(9)).collect();
    assert!(readers.iter().all(|page| page.bytes().iter().all(|&byte| byte == 7)));
    assert!(readers.iter().all(Page::is_unique));
    drop(others);
}

#[test]
fn puts_runs_of_pages_in_order() {
    let (table, mut pool) = (PageTable::new(3 * LINE_ENTRIES).unwrap(), Pool::new(64));
    let (first, count) = (LINE_ENTRIES - 3, LINE_ENTRIES + 5);
    table.put(first + 1, page_of(99), &mut pool);
    table.put_all(first, (0..count as u8).map(page_of).collect::<Vec<_>>().into_iter(), &mut pool);
    let seen: Vec<Option<u8>> = (0..table.len()).map(|index| byte_at(&table, index)).collect();
    let expected = |index: usize| index.checked_sub(first).filter(|at| *at < count).map(|at| at as u8);
    assert_eq!(seen, (0..table.len()).map(expected).collect::<Vec<_>>());
    assert_eq!(pool.unbudgeted_page().bytes()[0], 99);
}

/// Reads a page while `put_all` replaces it and panics, and allocates all released pages.
fn read_while_putting_panics(len: usize, pages: impl ExactSizeIterator<Item = Page>) {
    let (table, mut pool) = (PageTable::new(len).unwrap(), Pool::new(64));
    table.put(0, page_of(1), &mut pool);
    let reader = table.get(0).unwrap();
    let attempt = std::panic::AssertUnwindSafe(|| table.put_all(0, pages, &mut pool));
    assert!(std::panic::catch_unwind(attempt).is_err());
    let others: Vec<Page> = (0..64).map(|_| page_of(9)).collect();
    assert!(reader.bytes().iter().all(|&byte| byte == 1));
    drop((reader, others));
    // No lock is left.
    assert!(byte_at(&table, 0).is_some());
}

#[test]
fn pages_survive_a_run_beyond_the_table() {
    read_while_putting_panics(2, [2, 3, 4].map(page_of).into_iter());
}

#[test]
fn pages_survive_a_run_that_panics() {
    let page = |at| if at < 2 { page_of(at) } else { panic!("no more pages") };
    read_while_putting_panics(8, (0..3).map(page));
}

#[test]
fn neighboring_entries_keep_their_pages() {
    let table = Arc::new(PageTable::new(LINE_ENTRIES).unwrap());
    let threads: Vec<_> = (0..4)
        .map(|id| {
            let table = Arc::clone(&table);
            std::thread::spawn(move || {
                let mut pool = Pool::new(64);
                for round in 0..rounds(2000) {
                    assert_eq!(table.is_empty_at(2 * id), round == 0);
                    table.put(2 * id, page_of((round % 250) as u8), &mut pool);
                    assert_eq!(byte_at(&table, 2 * id), Some((round % 250) as u8));
                    assert!(table.is_empty_at(2 * id + 1));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn page_is_never_missing_while_replaced() {
    let (table, mut pool) = (Arc::new(PageTable::new(LINE_ENTRIES).unwrap()), Pool::new(64));
    [0, 3].into_iter().for_each(|index| table.put(index, page_of(1), &mut pool));
    let reader = {
        let table = Arc::clone(&table);
        std::thread::spawn(move || {
            for _ in 0..rounds(20_000) {
                assert!([0, 3].into_iter().all(|index| byte_at(&table, index).is_some()));
            }
        })
    };
    while !reader.is_finished() {
        table.put_all(0, [page_of(2)].into_iter(), &mut pool);
        table.modify(3, 0..8, &mut pool, |_| std::thread::yield_now());
    }
    reader.join().unwrap();
}

#[test]
fn readers_never_see_a_torn_page() {
    let table = Arc::new(PageTable::new(2).unwrap());
    let threads: Vec<_> = (0..4u8)
        .map(|id| {
            let table = Arc::clone(&table);
            std::thread::spawn(move || {
                let mut pool = Pool::new(16);
                let mut payloads = Vec::new();
                for round in 0..rounds(4000) {
                    let byte = (round % 250) as u8;
                    match id {
                        0 => {
                            let mut page = pool.unbudgeted_page();
                            page.bytes_mut().unwrap().fill(byte);
                            table.put(0, page, &mut pool);
                        }
                        1 => table.modify(0, 0..PAGE_SIZE, &mut pool, |bytes| bytes.fill(byte)),
                        _ => {
                            payloads.extend(table.get(0).map(Payload::from));
                            let whole = |bytes: Vec<u8>| bytes == [bytes[0]; PAGE_SIZE];
                            assert!(payloads.iter().all(|payload| whole(payload.to_vec())));
                            if round % 16 == 0 {
                                payloads.drain(..).for_each(|payload| pool.recycle_payload(payload));
                            }
                        }
                    }
                    if round % 3 == 0 {}
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(!table.is_empty_at(0));
}

#[test]
fn modified_page_has_a_new_checksum() {
    let (table, mut pool) = (PageTable::new(1).unwrap(), Pool::new(4));
    table.put(0, page_of(1), &mut pool);
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum();
    for round in 1..100 {
        let payload = Payload::from(table.get(0).unwrap());
        assert_eq!(payload.page_checksum(sum), Some(4096 - 8 + 8 * round));
        pool.recycle_payload(payload);
        table.modify(0, 8..16, &mut pool, |bytes| bytes.fill(round as u8 + 1));
    }
}

#[test]
fn modifications_of_a_page_are_exclusive() {
    let table = Arc::new(PageTable::new(1).unwrap());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let table = Arc::clone(&table);
            std::thread::spawn(move || {
                let mut pool = Pool::new(4);
                for round in 0..rounds(1000) {
                    table.modify(0, 8..12, &mut pool, |bytes| {
                        let count = u32::from_le_bytes(bytes.try_into().unwrap()) + 1;
                        bytes.copy_from_slice(&count.to_le_bytes());
                    });
                    let reader = (round % 3 == 0).then(|| table.get(0));
                    drop(reader);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(table.get(0).unwrap().bytes()[8..12], (4 * rounds(1000)).to_le_bytes());
}

/// Miri is slow, and needs only a few.
fn rounds(count: u32) -> u32 {
    if cfg!(miri) { count / 100 } else { count }
}

#[test]
fn copy_follows_all_changes() {
    let (table, copy, mut pool) = (PageTable::new(8).unwrap(), PageTable::new(8).unwrap(), Pool::new(4));
    let update = || {
        let mut changes = Vec::new();
        let note = |index, page: Option<&Page>| {
            changes.push((index, page.map(|page| page.bytes()[0])));
            Ok::<(), ()>(())
        };
        table.update_copy(&copy, note).unwrap();
        changes
    };
    table.put(1, page_of(1), &mut pool);
    table.set(7, page_of(7));
    assert_eq!(update(), [(1, Some(1)), (7, Some(7))]);
    assert_eq!((update(), table.count_pages()), (vec![], 2));
    table.modify(1, 0..1, &mut pool, |bytes| bytes[0] = 2);
    table.put(0, page_of(3), &mut pool);
    table.take(7, &mut pool);
    assert_eq!(byte_at(&copy, 1), Some(1), "a copied page stays");
    assert_eq!(update(), [(0, Some(3)), (1, Some(2)), (7, None)]);
    assert_eq!((update(), byte_at(&copy, 7)), (vec![], None));
    let failed = table.update_copy(&PageTable::new(8).unwrap(), |index, _| Err(index));
    assert_eq!(failed, Err(0));
}
