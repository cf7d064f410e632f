//! All interleavings of readers and writers of an entry:
//! `RUSTFLAGS="--cfg loom" cargo test -p isolane-memory --release --test loom`.
#![cfg(loom)]

use std::ptr::NonNull;

use loom::cell::Cell;
use loom::sync::Arc;
use loom::thread;

/// Loom's atomics.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

    pub(crate) fn wait_until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(value) = attempt() {
                return value;
            }
            loom::thread::yield_now();
        }
    }
}

#[path = "../src/entry.rs"]
mod entry;

use entry::{Counter, Entry, PREPAID, Prepaid};
use sync::{AtomicU32, Ordering};

/// A page, aligned as the entry requires. Its value is 0 once it is free.
#[repr(align(4096))]
struct Page {
    count: AtomicU32,
    value: Cell<u32>,
}

struct Frames;

impl Counter for Frames {
    fn of<'a>(page: NonNull<u8>) -> &'a AtomicU32 {
        &page_at(page).count
    }
}

/// Pages live as long as one iteration of the model, whose state they use.
fn page_at<'a>(page: NonNull<u8>) -> &'a Page {
    // SAFETY: only addresses of `new_page` are stored in entries.
    unsafe { page.cast::<Page>().as_ref() }
}

/// A page with all references of an entry.
fn new_page(value: u32) -> NonNull<u8> {
    let page = Box::leak(Box::new(Page { count: AtomicU32::new(PREPAID), value: Cell::new(value) }));
    NonNull::from(page).cast()
}

fn release(page: NonNull<u8>, references: u32) {
    let Page { count, value } = page_at(page);
    if count.fetch_sub(references, Ordering::Release) == references {
        sync_acquire();
        // Loom reports a reader that still reads as a race.
        value.set(0);
    }
}

fn sync_acquire() {
    loom::sync::atomic::fence(Ordering::Acquire);
}

fn read(entry: &Entry) -> u32 {
    let page = entry.get::<Frames>().expect("the entry always has a page");
    let value = page_at(page).value.get();
    release(page, 1);
    value
}

fn replace(entry: &Entry, value: u32) {
    let Prepaid { page, references } = entry.swap(Some(new_page(value))).expect("a page");
    release(page, references);
}

fn entry_with_page() -> Arc<Entry> {
    let entry = Entry::new();
    assert!(entry.swap(Some(new_page(1))).is_none());
    Arc::new(entry)
}

#[test]
fn replaced_page_lives_until_its_last_reader() {
    loom::model(|| {
        let entry = entry_with_page();
        let reader = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || [read(&entry), read(&entry)])
        };
        replace(&entry, 2);
        let seen = reader.join().unwrap();
        assert!([[1, 1], [1, 2], [2, 2]].contains(&seen), "{seen:?}");
        assert_eq!(read(&entry), 2);
    });
}

#[test]
fn readers_refill_the_references_of_an_entry() {
    loom::model(|| {
        let entry = entry_with_page();
        let reader = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || read(&entry))
        };
        assert_eq!((read(&entry), read(&entry)), (1, 1));
        assert_eq!(reader.join().unwrap(), 1);
        let Prepaid { page, references } = entry.swap(None).expect("a page");
        assert_eq!(page_at(page).count.load(Ordering::Relaxed), references);
    });
}

#[test]
fn page_is_modified_in_place_only_without_readers() {
    loom::model(|| {
        let entry = entry_with_page();
        let reader = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || read(&entry))
        };
        let (prepaid, locked) = entry.lock_entry();
        let Prepaid { page, references } = prepaid.expect("a page");
        let unique = page_at(page).count.load(Ordering::Relaxed) == references;
        if unique {
            sync_acquire();
            page_at(page).value.set(2);
            page_at(page).count.fetch_add(PREPAID - references, Ordering::Relaxed);
            locked.store(Some(page));
        } else {
            locked.store(Some(new_page(2)));
            release(page, references);
        }
        let seen = reader.join().unwrap();
        assert!(seen == 1 || seen == 2, "{seen}");
        assert_eq!(read(&entry), 2);
    });
}
