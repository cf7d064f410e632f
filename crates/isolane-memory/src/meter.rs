//! What others tell a pool: of its pages and guards that ended somewhere else, whenever that was.
//!
//! Meters live for ever, because pages and guards may outlive their pool; one that nothing refers to any more
//! is used again.

use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::grace::Looker;
use crate::guard::{self, LOOKERS};

/// The part of a pool that others see.
pub(crate) struct Meter {
    /// Pages that it lent and that ended elsewhere.
    pub(crate) returned: AtomicUsize,
    /// Guards that ended elsewhere; once the pool has gone, less those that have not ended.
    guards_ended: AtomicIsize,
    /// Looks while guards are out.
    pub(crate) looker: Looker,
}

impl Meter {
    /// One that nobody else has.
    pub(crate) fn take() -> &'static Meter {
        spare().pop().unwrap_or_else(|| {
            let meter = Meter {
                returned: AtomicUsize::new(0),
                guards_ended: AtomicIsize::new(0),
                looker: Looker::new(),
            };
            let meter: &'static Meter = Box::leak(Box::new(meter));
            LOOKERS.enter(&meter.looker);
            meter
        })
    }

    /// Takes back one that no page and no guard refers to.
    pub(crate) fn give(&'static self) {
        spare().push(self);
    }

    /// A guard has ended elsewhere.
    #[cold]
    pub(crate) fn end_guard(&self) {
        if self.guards_ended.fetch_add(1, Ordering::AcqRel) == -1 {
            // The last one of a pool that has gone. Perhaps no pool is left to let go of what it looked at.
            self.looker.end();
            guard::release_orphans();
        }
    }

    /// How many guards have ended elsewhere since this was asked last.
    #[inline]
    pub(crate) fn take_guards_ended(&self) -> usize {
        // Asked each turn: a locked instruction only if there is something to take.
        if self.guards_ended.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.guards_ended.swap(0, Ordering::Acquire).unsigned_abs()
    }

    /// The pool, which looks, goes and leaves so many guards behind: the last of them ends the looking. Says
    /// whether there was none left.
    pub(crate) fn leave_guards(&self, out: usize) -> bool {
        let are_none_left = self.guards_ended.fetch_sub(out as isize, Ordering::AcqRel) == out as isize;
        if are_none_left {
            self.looker.end();
        }
        are_none_left
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Meter({} pages returned)", self.returned.load(Ordering::Relaxed))
    }
}

fn spare() -> MutexGuard<'static, Vec<&'static Meter>> {
    static SPARE: Mutex<Vec<&'static Meter>> = Mutex::new(Vec::new());
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}
