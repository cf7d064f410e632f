//! What a table of pages promises to those who look at it at the same time.

use std::sync::Arc;

use super::*;
use crate::{PAGE_SIZE, Payload};

fn page_of(byte: u8) -> Page {
    let mut page = Page::zeroed();
    page.bytes_mut().unwrap().fill(byte);
    page
}

#[test]
#[cfg_attr(miri, ignore = "Miri ends where there is no memory")]
fn a_table_that_no_machine_can_hold_is_refused() {
    assert!(PageTable::new(usize::MAX / 4).is_none());
    assert!(PageTable::new(1 << 59).is_none());
}

/// Ends turns until `is_so`: what other tests look at meanwhile delays what nobody here looks at.
fn turn_until(pool: &mut Pool, mut is_so: impl FnMut(&mut Pool) -> bool) {
    while !is_so(pool) {
        pool.end_turn();
        std::thread::yield_now();
    }
}

/// First byte of what is at `index`.
fn byte_at(table: &PageTable, index: usize, pool: &mut Pool) -> Option<u8> {
    let byte = table.look(index, pool).map(|page| page.bytes()[0]);
    pool.end_turn();
    byte
}

#[test]
fn a_page_that_is_looked_at_stays_as_it_is_when_it_is_replaced() {
    let table = PageTable::new(8).unwrap();
    let (mut pool, mut other) = (Pool::new(4), Pool::new(4));
    assert!(table.look(3, &mut pool).is_none());
    table.put(3, page_of(1), &mut pool);
    let reader = table.look(3, &mut other).unwrap();
    table.put(3, page_of(2), &mut pool);
    pool.end_turn();
    assert!(other.is_awaited());
    // Nothing that the writer takes now is what the reader looks at.
    let fresh: Vec<Page> = (0..8).map(|_| pool.page()).collect();
    assert!(fresh.iter().all(|page| page.as_ptr() != reader.as_ptr()));
    assert_eq!((reader.bytes()[0], byte_at(&table, 3, &mut pool)), (1, Some(2)));
    let place = reader.as_ptr();
    drop(reader);
    other.end_turn();
    turn_until(&mut pool, |pool| pool.page().as_ptr() == place);
    table.take(3, &mut pool);
    assert!(table.is_vacant(3) && byte_at(&table, 3, &mut pool).is_none());
}

#[test]
fn a_page_is_not_taken_back_while_its_own_core_looks_at_it() {
    let (table, mut pool) = (PageTable::new(1).unwrap(), Pool::new(4));
    table.put(0, page_of(1), &mut pool);
    let reader = table.look(0, &mut pool).unwrap();
    table.put(0, page_of(2), &mut pool);
    pool.end_turn();
    assert!(pool.page().as_ptr() != reader.as_ptr() && pool.is_awaited());
    assert_eq!(reader.bytes()[0], 1);
    drop(reader);
    assert!(!pool.is_awaited());
}

#[test]
fn a_page_that_was_counted_after_all_is_kept_beyond_the_turn() {
    let (table, mut pool) = (PageTable::new(1).unwrap(), Pool::new(4));
    table.put(0, page_of(1), &mut pool);
    let mut payload = Payload::from_guard(table.look(0, &mut pool).unwrap(), 0, PAGE_SIZE);
    let (part, clone) = (payload.slice(8, 8), payload.clone());
    table.put(0, page_of(2), &mut pool);
    payload.count_pages(&mut pool);
    assert_eq!(pool.guards_out(), 0);
    pool.end_turn();
    assert!((0..8).all(|_| pool.page().bytes()[0] != 1));
    assert!([payload, part, clone].iter().all(|kept| kept.to_vec().iter().all(|&byte| byte == 1)));
}

#[test]
fn guards_that_end_in_another_thread_or_after_their_pool_are_missed_by_nobody() {
    let (table, mut writer) = (PageTable::new(1).unwrap(), Pool::new(4));
    table.put(0, page_of(1), &mut writer);
    let mut pool = Pool::new(4);
    let [first, second] = [0, 0].map(|index| table.look(index, &mut pool).unwrap());
    std::thread::spawn(move || drop(first)).join().unwrap();
    assert_eq!(pool.guards_out(), 1);
    drop(pool);
    table.put(0, page_of(2), &mut writer);
    writer.end_turn();
    assert_eq!((writer.page().bytes()[0], second.bytes()[0]), (0, 1));
    let place = second.as_ptr();
    drop(second);
    turn_until(&mut writer, |writer| writer.page().as_ptr() == place);
}

#[test]
fn pages_outlive_a_table_that_ends_while_they_are_looked_at() {
    let (table, mut pool) = (PageTable::new(64).unwrap(), Pool::new(64));
    (0..64).for_each(|index| table.put(index, page_of(7), &mut pool));
    let readers: Vec<PageGuard> = (0..64).filter_map(|index| table.look(index, &mut pool)).collect();
    drop(table);
    let others: Vec<Page> = (0..64).map(|_| page_of(9)).collect();
    assert!(readers.iter().all(|page| page.bytes().iter().all(|&byte| byte == 7)));
    drop((readers, others));
    pool.end_turn();
}

#[test]
fn what_waits_to_be_looked_at_no_more_is_bounded() {
    let (table, mut pool, mut reader) = (PageTable::new(1).unwrap(), Pool::new(4), Pool::new(4));
    table.put(0, page_of(1), &mut pool);
    let page = table.look(0, &mut reader);
    let mut written = 0;
    while pool.may_retire(1) {
        let page = pool.page();
        table.put(0, page, &mut pool);
        written += 1;
    }
    assert_eq!(written, 1 << 14);
    drop(page);
    reader.end_turn();
    turn_until(&mut pool, |pool| pool.may_retire(1));
}

#[test]
fn runs_of_pages_are_put_across_groups_and_in_order() {
    let (table, mut pool) = (PageTable::new(3 * GROUP_ENTRIES).unwrap(), Pool::new(64));
    let (first, count) = (GROUP_ENTRIES - 3, GROUP_ENTRIES + 5);
    table.put(first + 1, page_of(99), &mut pool);
    table.put_all(first, (0..count as u8).map(page_of).collect::<Vec<_>>().into_iter(), &mut pool);
    let seen: Vec<Option<u8>> = (0..table.len()).map(|index| byte_at(&table, index, &mut pool)).collect();
    let expected = |index: usize| index.checked_sub(first).filter(|at| *at < count).map(|at| at as u8);
    assert_eq!(seen, (0..table.len()).map(expected).collect::<Vec<_>>());
    turn_until(&mut pool, |pool| pool.page().bytes()[0] == 99);
}

/// Looks at a page, has `put_all` replace it and then break off, and has others take all pages that were let
/// go of.
fn look_while_putting_breaks_off(len: usize, pages: impl ExactSizeIterator<Item = Page>) {
    let (table, mut pool) = (PageTable::new(len).unwrap(), Pool::new(64));
    table.put(0, page_of(1), &mut pool);
    let reader = table.look(0, &mut pool).unwrap();
    let attempt = std::panic::AssertUnwindSafe(|| table.put_all(0, pages, &mut pool));
    assert!(std::panic::catch_unwind(attempt).is_err());
    let others: Vec<Page> = (0..64).map(|_| page_of(9)).collect();
    assert!(reader.bytes().iter().all(|&byte| byte == 1));
    drop((reader, others));
    // Nothing is locked for ever.
    assert!(byte_at(&table, 0, &mut pool).is_some());
}

#[test]
fn a_page_that_is_looked_at_outlives_a_run_that_leaves_the_table() {
    look_while_putting_breaks_off(2, [2, 3, 4].map(page_of).into_iter());
}

#[test]
fn a_page_that_is_looked_at_outlives_a_run_whose_pages_break_off() {
    let page = |at| if at < 2 { page_of(at) } else { panic!("no more pages") };
    look_while_putting_breaks_off(8, (0..3).map(page));
}

#[test]
fn entries_that_share_a_lock_do_not_lose_each_others_pages() {
    let table = Arc::new(PageTable::new(GROUP_ENTRIES).unwrap());
    let threads: Vec<_> = (0..4)
        .map(|id| {
            let table = Arc::clone(&table);
            std::thread::spawn(move || {
                let mut pool = Pool::new(64);
                for round in 0..rounds(2000) {
                    assert_eq!(table.is_vacant(2 * id), round == 0);
                    table.put(2 * id, page_of((round % 250) as u8), &mut pool);
                    assert_eq!(byte_at(&table, 2 * id, &mut pool), Some((round % 250) as u8));
                    assert!(table.is_vacant(2 * id + 1));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_page_that_is_being_replaced_is_not_missing() {
    let (table, mut pool) = (Arc::new(PageTable::new(GROUP_ENTRIES).unwrap()), Pool::new(64));
    [0, 3].into_iter().for_each(|index| table.put(index, page_of(1), &mut pool));
    let reader = {
        let table = Arc::clone(&table);
        std::thread::spawn(move || {
            let mut pool = Pool::new(64);
            for _ in 0..rounds(20_000) {
                assert!([0, 3].into_iter().all(|index| byte_at(&table, index, &mut pool).is_some()));
            }
        })
    };
    while !reader.is_finished() {
        table.put_all(0, [page_of(2)].into_iter(), &mut pool);
        table.change(3, 0..8, &mut pool, |_| std::thread::yield_now());
        pool.end_turn();
    }
    reader.join().unwrap();
}

#[test]
fn readers_never_see_half_of_a_page_while_writers_replace_and_change_it() {
    let table = Arc::new(PageTable::new(2).unwrap());
    let threads: Vec<_> = (0..4u8)
        .map(|id| {
            let table = Arc::clone(&table);
            std::thread::spawn(move || {
                let mut pool = Pool::new(16);
                let mut kept = Vec::new();
                for round in 0..rounds(4000) {
                    let byte = (round % 250) as u8;
                    match id {
                        0 => {
                            let mut page = pool.page();
                            page.bytes_mut().unwrap().fill(byte);
                            table.put(0, page, &mut pool);
                        }
                        1 => table.change(0, 0..PAGE_SIZE, &mut pool, |bytes| bytes.fill(byte)),
                        _ => {
                            let page = table.look(0, &mut pool);
                            kept.extend(page.map(|page| Payload::from_guard(page, 0, PAGE_SIZE)));
                            if round % 7 == 0 {
                                kept.iter_mut().for_each(|payload| payload.count_pages(&mut pool));
                            }
                            let whole = |bytes: Vec<u8>| bytes == [bytes[0]; PAGE_SIZE];
                            assert!(kept.iter().all(|payload| whole(payload.to_vec())));
                            if round % 16 == 0 {
                                kept.drain(..).for_each(|payload| pool.recycle_payload(payload));
                            }
                        }
                    }
                    if round % 3 == 0 {
                        pool.end_turn();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(!table.is_vacant(0));
}

#[test]
fn a_page_that_was_changed_is_not_taken_for_what_it_was() {
    let (table, mut pool) = (PageTable::new(1).unwrap(), Pool::new(4));
    table.put(0, page_of(1), &mut pool);
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum();
    for round in 1..100 {
        let payload = Payload::from_guard(table.look(0, &mut pool).unwrap(), 0, PAGE_SIZE);
        assert_eq!(payload.page_checksum(sum), Some(4096 - 8 + 8 * round));
        pool.recycle_payload(payload);
        // In place, or in a copy while another test looks.
        pool.end_turn();
        table.change(0, 8..16, &mut pool, |bytes| bytes.fill(round as u8 + 1));
    }
}

#[test]
fn changes_are_alone_with_their_page() {
    let table = Arc::new(PageTable::new(1).unwrap());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let table = Arc::clone(&table);
            std::thread::spawn(move || {
                let mut pool = Pool::new(4);
                for round in 0..rounds(1000) {
                    table.change(0, 8..12, &mut pool, |bytes| {
                        let count = u32::from_le_bytes(bytes.try_into().unwrap()) + 1;
                        bytes.copy_from_slice(&count.to_le_bytes());
                    });
                    let reader = (round % 3 == 0).then(|| table.look(0, &mut pool));
                    drop(reader);
                    pool.end_turn();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut pool = Pool::new(1);
    assert_eq!(table.look(0, &mut pool).unwrap().bytes()[8..12], (4 * rounds(1000)).to_le_bytes());
}

/// Miri is slow, and finds what it finds in a few.
fn rounds(count: u32) -> u32 {
    if cfg!(miri) { count / 100 } else { count }
}
