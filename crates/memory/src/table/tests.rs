//! What a table of pages promises to those who look at it at the same time.

use std::sync::Arc;

use super::*;

fn page_of(byte: u8) -> Page {
    let mut page = Page::zeroed();
    page.bytes_mut().unwrap().fill(byte);
    page
}

#[test]
fn a_table_that_no_machine_can_hold_is_refused() {
    assert!(PageTable::new(usize::MAX / 4).is_none());
    assert!(PageTable::new(1 << 59).is_none());
}

#[test]
fn a_swap_returns_what_was_there_and_readers_keep_theirs() {
    let table = PageTable::new(8).unwrap();
    assert!(table.page(3).is_none());
    assert!(table.swap(3, Some(page_of(1))).is_none());
    let reader = table.page(3).unwrap();
    let old = table.swap(3, Some(page_of(2))).unwrap();
    assert_eq!((reader.bytes()[0], old.bytes()[0], table.page(3).unwrap().bytes()[0]), (1, 1, 2));
    assert!(table.swap(3, None).is_some());
    assert!(table.page(3).is_none());
}

#[test]
fn runs_of_pages_are_put_and_taken_across_groups_and_in_order() {
    let table = PageTable::new(3 * GROUP_ENTRIES).unwrap();
    let (first, count) = (GROUP_ENTRIES - 3, GROUP_ENTRIES + 5);
    table.swap(first + 1, Some(page_of(99)));
    let mut old = Vec::new();
    let pages: Vec<Page> = (0..count as u8).map(page_of).collect();
    table.swap_all(first, pages.into_iter(), |page| old.push(page.bytes()[0]));
    assert_eq!(old, [99]);
    let mut seen = Vec::new();
    table.pages(first - 1, count + 2, |page| seen.push(page.map(|page| page.bytes()[0])));
    let expected: Vec<Option<u8>> = (0..count as u8).map(Some).collect();
    assert_eq!(seen, [vec![None], expected, vec![None]].concat());
    assert!(
        (0..table.len()).all(|index| table.page(index).is_some() == (first..first + count).contains(&index))
    );
}

#[test]
fn entries_that_share_a_lock_do_not_lose_each_others_pages() {
    let table = Arc::new(PageTable::new(GROUP_ENTRIES).unwrap());
    let threads: Vec<_> = (0..4)
        .map(|id| {
            let table = Arc::clone(&table);
            std::thread::spawn(move || {
                for round in 0..2000u32 {
                    let mine = page_of((round % 250) as u8);
                    let old = table.swap(2 * id, Some(mine));
                    assert_eq!(old.is_some(), round > 0);
                    assert_eq!(table.page(2 * id).unwrap().bytes()[7], (round % 250) as u8);
                    assert!(table.page(2 * id + 1).is_none());
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_page_that_is_being_replaced_is_not_missing() {
    let table = Arc::new(PageTable::new(GROUP_ENTRIES).unwrap());
    for index in [0, 3] {
        table.swap(index, Some(page_of(1)));
    }
    let reader = {
        let table = Arc::clone(&table);
        std::thread::spawn(move || {
            for _ in 0..20_000 {
                assert!([0, 3].into_iter().all(|index| table.page(index).is_some()));
            }
        })
    };
    while !reader.is_finished() {
        table.swap_all(0, [page_of(2)].into_iter(), drop);
        table.with(3, |page| {
            let old = page.take();
            std::thread::yield_now();
            *page = old;
        });
    }
    reader.join().unwrap();
}

#[test]
fn readers_never_see_half_of_a_page_while_writers_swap() {
    let table = Arc::new(PageTable::new(1).unwrap());
    let threads: Vec<_> = (0..4u8)
        .map(|id| {
            let table = Arc::clone(&table);
            std::thread::spawn(move || {
                for round in 0..2000u32 {
                    if id % 2 == 0 {
                        table.swap(0, Some(page_of((round % 250) as u8)));
                    } else if let Some(page) = table.page(0) {
                        assert!(page.bytes().iter().all(|&byte| byte == page.bytes()[0]));
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(table.page(0).is_some());
}

#[test]
fn changes_in_place_are_alone_with_their_page() {
    let table = Arc::new(PageTable::new(1).unwrap());
    table.swap(0, Some(Page::zeroed()));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let table = Arc::clone(&table);
            std::thread::spawn(move || {
                for _ in 0..1000 {
                    table.with(0, |page| {
                        let bytes = page.as_mut().unwrap().bytes_mut().unwrap();
                        let count = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) + 1;
                        bytes[..4].copy_from_slice(&count.to_le_bytes());
                    });
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(table.page(0).unwrap().bytes()[..4], 4000u32.to_le_bytes());
}
