//! Grace: how long a page that was taken out of a table is kept for those who look at it uncounted.
//!
//! A core that reads pages of a [`PageTable`](crate::PageTable) without counting them says so before ([`Looker::begin`])
//! and after ([`Looker::end`]): two stores of its own, for any number of pages. Who takes a page out notes who is
//! looking at that moment ([`Grace::begin`]) and keeps it until all of those have stopped
//! ([`Grace::is_over`]); who begins later no longer finds it. (Known as quiescence-based reclamation, or RCU.)
//!
//! It knows no page. Invariant: a looker that found something in a table is either noted by every grace that
//! begins after that was taken out, or has stopped looking.

use crate::sync::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};

/// One that looks, and for how long.
pub(crate) struct Looker {
    /// Odd while it looks. Written by itself alone.
    times: AtomicU64,
    /// Somebody's grace lasts until it stops.
    is_awaited: AtomicBool,
    /// The one that was entered before it.
    next: AtomicPtr<Looker>,
}

/// Lookers that know of each other; none ever leaves.
pub(crate) struct Lookers {
    last: AtomicPtr<Looker>,
}

/// The time until all who looked when it began have stopped.
#[derive(Default)]
pub(crate) struct Grace {
    awaited: Vec<(&'static Looker, u64)>,
}

impl Looker {
    /// One that does not look.
    pub(crate) fn new() -> Looker {
        let next = AtomicPtr::new(std::ptr::null_mut());
        Looker { times: AtomicU64::new(0), is_awaited: AtomicBool::new(false), next }
    }

    /// What is found in a table from now on stays until [`Looker::end`]. Only for who does not look already.
    #[inline]
    pub(crate) fn begin(&self) {
        // Release, like the end: who sees only this one knows that the time before has ended.
        self.times.store(self.times.load(Ordering::Relaxed) + 1, Ordering::Release);
        // Pairs with the fence in `Grace::begin`: either that sees us, or we do not see what it is about.
        fence(Ordering::SeqCst);
    }

    /// Nothing that was found is looked at any more.
    #[inline]
    pub(crate) fn end(&self) {
        if self.is_awaited() {
            self.is_awaited.store(false, Ordering::Relaxed);
        }
        self.times.store(self.times.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Whether somebody waits for the end. A hint: it may come late, or be about an earlier time.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }
}

impl Lookers {
    /// None yet, if `last` is null: made by the caller, because loom's cannot be made in a `const`.
    pub(crate) const fn new(last: AtomicPtr<Looker>) -> Lookers {
        Lookers { last }
    }

    /// Makes a looker known, once.
    pub(crate) fn enter(&self, looker: &'static Looker) {
        let entered = std::ptr::from_ref(looker).cast_mut();
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            looker.next.store(last, Ordering::Relaxed);
            match self.last.compare_exchange(last, entered, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => last = now,
            }
        }
    }

    /// Whether nobody looks. Who has the only way to something, or has locked it so that others see that,
    /// then knows that nobody is at it.
    #[inline]
    pub(crate) fn are_away(&self) -> bool {
        fence(Ordering::SeqCst);
        let are_away = self.iter().all(|looker| looker.times.load(Ordering::Relaxed).is_multiple_of(2));
        fence(Ordering::Acquire);
        are_away
    }

    fn iter(&self) -> impl Iterator<Item = &'static Looker> {
        let mut at = self.last.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: only lookers that live for ever are entered.
            let looker = unsafe { at.cast_const().as_ref() }?;
            at = looker.next.load(Ordering::Relaxed);
            Some(looker)
        })
    }
}

impl Grace {
    /// One that is over.
    pub(crate) const fn new() -> Grace {
        Grace { awaited: Vec::new() }
    }

    /// Begins anew: for what was taken out before.
    #[inline]
    pub(crate) fn begin(&mut self, lookers: &Lookers) {
        self.awaited.clear();
        // Pairs with the fence in `Looker::begin`.
        fence(Ordering::SeqCst);
        for looker in lookers.iter() {
            let times = looker.times.load(Ordering::Relaxed);
            if !times.is_multiple_of(2) {
                self.awaited.push((looker, times));
                looker.is_awaited.store(true, Ordering::Relaxed);
            }
        }
        fence(Ordering::Acquire);
    }

    /// Whether all of those have stopped.
    #[inline]
    pub(crate) fn is_over(&mut self) -> bool {
        self.awaited.retain(|(looker, times)| looker.times.load(Ordering::Acquire) == *times);
        self.awaited.is_empty()
    }
}
