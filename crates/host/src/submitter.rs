//! One thread's own way into a volume that several threads share: many requests at a time, without a future
//! for each.
//!
//! Requests go to the lanes together: [`Submitter::submit`] says that more follow, [`Submitter::push`] or a
//! wait that these are all (H8). Of a volume with cores they go to the service of the core that the thread is
//! on, for as long as it stays. Answers come back to this place alone. Nothing is allocated for a request.
//! Invariant: as many requests as the depth says may be outstanding, and each is answered with exactly one
//! completion.

use std::sync::Arc;

use crate::classes::Class;
use crate::request::{Completion, Request};
use crate::service::{Caller, Handle, Home, Submission};

/// One thread's place at a volume; see [`Volume::submitter`](crate::Volume::submitter).
///
/// ```no_run
/// use isolane_host::{Buffer, Options, Request, Volume};
///
/// # async fn example(volume: Volume) {
/// let mut submitter = volume.submitter(32);
/// for tag in 0..32 {
///     let request = Request::Read { lba: tag * 8, buffer: Buffer::contiguous(4096) };
///     submitter.submit(request, tag).expect("there is room for 32");
/// }
/// let mut completions = Vec::new();
/// while submitter.outstanding() > 0 {
///     submitter.wait(&mut completions);
/// }
/// # }
/// ```
pub struct Submitter {
    handle: Arc<Handle>,
    /// One at each service of the volume; where there are several, one more for what goes through all of
    /// them.
    places: Vec<Place>,
    class: Option<Class>,
    depth: usize,
    outstanding: usize,
    /// Where the thread is; looked up for each batch.
    home: Home,
}

struct Place {
    caller: Arc<Caller>,
    outstanding: usize,
}

impl Submitter {
    pub(crate) fn new(handle: &Arc<Handle>, class: Option<Class>, depth: usize) -> Submitter {
        let depth = depth.max(1);
        let (first, services) = (Caller::new(depth), handle.services().len());
        let further = if services > 1 { services } else { 0 };
        let callers = (0..further).map(|_| first.beside(depth)).collect::<Vec<_>>();
        let callers = std::iter::once(first).chain(callers);
        let places = callers.map(|caller| Place { caller, outstanding: 0 }).collect();
        Submitter { handle: Arc::clone(handle), places, class, depth, outstanding: 0, home: handle.home() }
    }

    /// Requests without a completion yet.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Takes a request in; `tag` comes back in its completion. More may follow: it goes out with the next
    /// [`Submitter::push`], [`Submitter::poll`] or [`Submitter::wait`].
    ///
    /// # Errors
    /// The request itself, if as many as the depth are outstanding.
    pub fn submit(&mut self, request: Request, tag: u64) -> Result<(), Request> {
        if self.outstanding == self.depth {
            return Err(request);
        }
        if self.outstanding == 0 {
            self.home = self.handle.home();
        }
        let class = self.class.unwrap_or_else(|| Class::of(&request));
        if self.handle.is_for_all(&request) {
            self.flush(class, tag);
            return Ok(());
        }
        let place = &mut self.places[self.handle.way(self.home, class, request.is_read())];
        place.caller.submit(Submission { class, request, tag }).map_err(|submission| submission.request)?;
        place.outstanding += 1;
        self.outstanding += 1;
        if !self.handle.is_batching {
            self.push();
        }
        Ok(())
    }

    /// Sends what has been taken in.
    pub fn push(&mut self) {
        for (service, place) in self.handle.services().iter().zip(&self.places) {
            service.shared.push(&place.caller);
        }
    }

    /// Sends what has been taken in and appends the completions that are there. Returns how many.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        self.push();
        self.take(completions)
    }

    /// Sends what has been taken in, waits for a completion, and appends all that are there. Returns how
    /// many; none only if nothing is outstanding.
    pub fn wait(&mut self, completions: &mut Vec<Completion>) -> usize {
        if self.outstanding > 0 {
            self.home = self.handle.home();
            self.wait_for_some();
        }
        self.take(completions)
    }

    /// Goes through every service, apart from what is on its way there; the answers of all are one.
    fn flush(&mut self, class: Class, tag: u64) {
        let Some(place) = self.places.last_mut() else { return };
        place.outstanding += 1;
        self.outstanding += 1;
        self.handle.flush_for(&place.caller, class, tag);
    }

    /// Waits where all requests are; only there this thread may lead.
    fn wait_for_some(&self) {
        let mut waiting = self.places.iter().enumerate().filter(|(_, place)| place.outstanding > 0);
        let services = self.handle.services();
        let (Some((at, place)), None) = (waiting.next(), waiting.next()) else { return self.wait_for_any() };
        match services.get(at) {
            Some(service) => {
                service.shared.wait(&place.caller, self.class == Some(Class::Poll), self.home.is_at(at))
            }
            None => self.wait_for_any(),
        }
    }

    /// Waits while others turn the clients.
    fn wait_for_any(&self) {
        let services = self.handle.services();
        services.iter().zip(&self.places).for_each(|(service, place)| service.shared.push(&place.caller));
        let has_some = || self.places.iter().any(|place| place.caller.has_completions());
        let (service, place) = (&services[0], &self.places[0]);
        let mut spinning = service.shared.spinning();
        while !has_some() {
            match spinning.goes_on() {
                true => std::hint::spin_loop(),
                false => place.caller.sleep(has_some),
            }
        }
    }

    fn take(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        for place in &mut self.places {
            let there = completions.len();
            completions.extend(std::iter::from_fn(|| place.caller.take_completion()));
            place.outstanding -= completions.len() - there;
        }
        let taken = completions.len() - before;
        self.outstanding -= taken;
        taken
    }
}
