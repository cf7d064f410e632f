//! One thread's places at all services of a volume, of which it mostly uses that of its own core.
//!
//! Only where all its requests are at that one service, the thread may turn the client itself: while it
//! sleeps for one client, another's answer would not wake it. Invariant: a request is counted where it is
//! until its completion is taken.

use std::sync::Arc;
use std::time::Instant;

use super::caller::Caller;
use super::handle::Handle;
use super::map::Home;
use super::shared::{Shared, is_past};
use crate::classes::Class;
use crate::request::Completion;

pub(crate) struct Spread {
    /// One at each service, and one for what goes through all of them.
    places: Vec<Place>,
    /// Where the thread is; looked up for each batch.
    home: Home,
    outstanding: usize,
}

struct Place {
    caller: Arc<Caller>,
    outstanding: usize,
}

impl Spread {
    pub(crate) fn new(handle: &Handle, depth: usize) -> Spread {
        let first = Caller::new(depth);
        let others: Vec<_> = handle.services().iter().map(|_| first.beside(depth)).collect();
        let callers = std::iter::once(first).chain(others);
        let places = callers.map(|caller| Place { caller, outstanding: 0 }).collect();
        Spread { places, home: handle.home(), outstanding: 0 }
    }

    /// Where the next request is to be left.
    pub(crate) fn place(&mut self, handle: &Handle, class: Class, is_read: bool) -> &Arc<Caller> {
        if self.outstanding == 0 {
            self.home = handle.home();
        }
        let place = &mut self.places[handle.way(self.home, class, is_read)];
        place.outstanding += 1;
        self.outstanding += 1;
        &place.caller
    }

    /// Flushes through every association, what is on its way to them apart.
    pub(crate) fn flush(&mut self, handle: &Handle, class: Class, tag: u64) {
        let Some(place) = self.places.last_mut() else { return };
        place.outstanding += 1;
        self.outstanding += 1;
        handle.flush_for(&place.caller, class, tag);
    }

    /// Lets all services know what has been left.
    pub(crate) fn push(&self, handle: &Handle) {
        for (service, place) in handle.services().iter().zip(&self.places) {
            service.shared.push(&place.caller);
        }
    }

    /// The service where all requests are, there being some, and whether this thread may lead there. Else
    /// waits for an answer of any, no longer than `until`.
    pub(crate) fn only<'a>(
        &'a mut self,
        handle: &'a Handle,
        until: Option<Instant>,
    ) -> Option<(&'a Shared, &'a Arc<Caller>, bool)> {
        self.home = handle.home();
        let mut waiting = self.places.iter().enumerate().filter(|(_, place)| place.outstanding > 0);
        let only = waiting.next().filter(|_| waiting.next().is_none());
        let found = only.and_then(|(at, place)| Some((at, handle.services().get(at)?, place)));
        if found.is_none() {
            self.wait_for_any(handle, until);
        }
        found.map(|(at, service, place)| (&*service.shared, &place.caller, self.home.is_at(at)))
    }

    /// Waits while others turn the clients.
    fn wait_for_any(&self, handle: &Handle, until: Option<Instant>) {
        self.push(handle);
        let has_some = || self.places.iter().any(|place| place.caller.has_completions());
        let (Some(service), Some(place)) = (handle.services().first(), self.places.first()) else { return };
        let mut spinning = service.shared.spinning();
        while !has_some() {
            match spinning.goes_on() {
                true => std::hint::spin_loop(),
                false if is_past(until) => return,
                false => place.caller.sleep(until, has_some),
            }
        }
    }

    pub(crate) fn take(&mut self, completions: &mut Vec<Completion>) {
        for place in &mut self.places {
            let before = completions.len();
            completions.extend(std::iter::from_fn(|| place.caller.take_completion()));
            place.outstanding -= completions.len() - before;
            self.outstanding -= completions.len() - before;
        }
    }
}
