//! One thread's own way into a volume that several threads share: many requests at a time, without a future
//! for each.
//!
//! Requests go to the lanes together: [`Submitter::submit`] says that more follow, [`Submitter::push`] or a
//! wait that these are all (H8). Of a volume with cores they go to the service of the core that the thread is
//! on, for as long as it stays. Answers come back to this place alone. Nothing is allocated for a request.
//! Invariant: as many requests as the depth says may be outstanding, and each is answered with exactly one
//! completion.

use std::sync::Arc;
use std::time::Instant;

use crate::classes::Class;
use crate::request::{Completion, Request};
use crate::service::{Caller, Handle, Patience, Shared, Spread, Submission};

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
    way: Way,
    class: Option<Class>,
    depth: usize,
    outstanding: usize,
}

/// Where requests go.
enum Way {
    /// To the only service.
    One { shared: Arc<Shared>, caller: Arc<Caller> },
    /// To that of the core that the thread is on.
    Several(Spread),
}

impl Submitter {
    pub(crate) fn new(handle: &Arc<Handle>, class: Option<Class>, depth: usize) -> Submitter {
        let depth = depth.max(1);
        let way = match handle.only_service() {
            Some(shared) => Way::One { shared: Arc::clone(shared), caller: Caller::new(depth) },
            None => Way::Several(Spread::new(handle, depth)),
        };
        Submitter { handle: Arc::clone(handle), way, class, depth, outstanding: 0 }
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
        let class = self.class.unwrap_or_else(|| Class::of(&request));
        self.outstanding += 1;
        let caller = match &mut self.way {
            Way::One { caller, .. } => caller,
            Way::Several(spread) if self.handle.is_for_all(&request) => {
                spread.flush(&self.handle, class, tag);
                return Ok(());
            }
            Way::Several(spread) => spread.place(&self.handle, class, request.is_read()),
        };
        let left = caller.submit(Submission { class, request, tag });
        debug_assert!(left.is_ok(), "fewer than the depth were outstanding");
        if !self.handle.is_batching {
            self.push();
        }
        Ok(())
    }

    /// Sends what has been taken in.
    pub fn push(&mut self) {
        match &self.way {
            Way::One { shared, caller } => shared.push(caller),
            Way::Several(spread) => spread.push(&self.handle),
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
        self.wait_for(completions, None)
    }

    /// Like [`Submitter::wait`], but no longer than `until`: then it appends what is there, and may return 0.
    pub fn wait_until(&mut self, completions: &mut Vec<Completion>, until: Instant) -> usize {
        self.wait_for(completions, Some(until))
    }

    fn wait_for(&mut self, completions: &mut Vec<Completion>, until: Option<Instant>) -> usize {
        if self.outstanding > 0 {
            let only = match &mut self.way {
                Way::One { shared, caller } => Some((&**shared, &*caller, self.handle.may_lead())),
                Way::Several(spread) => spread.only(&self.handle, until),
            };
            if let Some((shared, caller, may_lead)) = only {
                let polls = self.class == Some(Class::Poll);
                shared.wait(caller, Patience { polls, until }, may_lead);
            }
        }
        self.take(completions)
    }

    fn take(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        match &mut self.way {
            Way::One { caller, .. } => completions.extend(std::iter::from_fn(|| caller.take_completion())),
            Way::Several(spread) => spread.take(completions),
        }
        let taken = completions.len() - before;
        self.outstanding -= taken;
        taken
    }
}
