//! Every order of events between one that looks and one that takes out what is looked at:
//! `RUSTFLAGS="--cfg loom" cargo test -p isolane-memory --release --test loom`.
#![cfg(loom)]

use loom::cell::Cell;
use loom::sync::Arc;
use loom::thread;

/// What `grace` stands on, here loom's.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
}

#[allow(dead_code)]
#[path = "../src/grace.rs"]
mod grace;

use grace::{Grace, Looker, Lookers};
use sync::{AtomicPtr, AtomicU64, Ordering, fence};

/// A table of one place, which names one of two pages.
struct Table {
    lookers: Lookers,
    place: AtomicU64,
    pages: [Cell<u32>; 2],
}

/// The bit of `place` that locks it.
const LOCKED: u64 = 2;

fn table() -> (Arc<Table>, &'static Looker) {
    let lookers = Lookers::new(AtomicPtr::new(std::ptr::null_mut()));
    let looker: &'static Looker = Box::leak(Box::new(Looker::new()));
    lookers.enter(looker);
    let pages = [Cell::new(1), Cell::new(1)];
    (Arc::new(Table { lookers, place: AtomicU64::new(0), pages }), looker)
}

/// Looks once and says what was there.
fn look(table: &Table, looker: &Looker) -> u32 {
    looker.begin();
    let place = loop {
        let place = table.place.load(Ordering::Acquire);
        if place & LOCKED == 0 {
            break place;
        }
        thread::yield_now();
    };
    // Loom reports this as a race if somebody may write meanwhile.
    let seen = table.pages[place as usize].get();
    looker.end();
    seen
}

#[test]
fn a_page_that_was_taken_out_is_written_only_when_nobody_looks_at_it() {
    loom::model(|| {
        let (table, looker) = table();
        let theirs = Arc::clone(&table);
        let reader = thread::spawn(move || [look(&theirs, looker), look(&theirs, looker)]);
        table.place.store(1, Ordering::Release);
        let mut grace = Grace::new();
        grace.begin(&table.lookers);
        while !grace.is_over() {
            thread::yield_now();
        }
        table.pages[0].set(2);
        assert_eq!(reader.join().unwrap(), [1, 1]);
    });
}

#[test]
fn a_page_is_changed_where_it_is_only_while_nobody_looks() {
    loom::model(|| {
        let (table, looker) = table();
        let theirs = Arc::clone(&table);
        let reader = thread::spawn(move || look(&theirs, looker));
        table.place.swap(LOCKED, Ordering::Acquire);
        let is_changed = table.lookers.are_away();
        if is_changed {
            table.pages[0].set(2);
        }
        table.place.store(0, Ordering::Release);
        let seen = reader.join().unwrap();
        assert!(seen == 1 || is_changed);
    });
}

#[test]
fn who_comes_after_the_grace_began_is_not_waited_for() {
    loom::model(|| {
        let (table, looker) = table();
        let mut grace = Grace::new();
        grace.begin(&table.lookers);
        assert!(grace.is_over());
        looker.begin();
        fence(Ordering::SeqCst);
        assert!(grace.is_over() && !looker.is_awaited());
        grace.begin(&table.lookers);
        assert!(!grace.is_over() && looker.is_awaited());
        looker.end();
        assert!(grace.is_over() && !looker.is_awaited());
    });
}
