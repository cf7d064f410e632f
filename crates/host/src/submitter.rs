//! One thread's own way into a volume that several threads share: many requests at a time, without a future
//! for each.
//!
//! Requests go to the lanes together: [`Submitter::submit`] says that more follow, [`Submitter::push`] or a
//! wait that these are all (H8). Answers come back to this place alone. Nothing is allocated for a request.
//! Invariant: as many requests as the depth says may be outstanding, and each is answered with exactly one
//! completion.

use std::sync::Arc;

use crate::classes::Class;
use crate::request::{Completion, Request};
use crate::service::{Caller, Handle, Submission};

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
    caller: Arc<Caller>,
    class: Option<Class>,
    depth: usize,
    outstanding: usize,
}

impl Submitter {
    pub(crate) fn new(handle: &Arc<Handle>, class: Option<Class>, depth: usize) -> Submitter {
        let depth = depth.max(1);
        Submitter { handle: Arc::clone(handle), caller: Caller::new(depth), class, depth, outstanding: 0 }
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
        self.caller.submit(Submission { class, request, tag }).map_err(|submission| submission.request)?;
        self.outstanding += 1;
        if !self.handle.is_batching {
            self.push();
        }
        Ok(())
    }

    /// Sends what has been taken in.
    pub fn push(&mut self) {
        self.handle.shared.push(&self.caller);
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
            self.handle.shared.wait(&self.caller, self.class == Some(Class::Poll));
        }
        self.take(completions)
    }

    fn take(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        completions.extend(std::iter::from_fn(|| self.caller.take_completion()));
        let taken = completions.len() - before;
        self.outstanding -= taken;
        taken
    }
}
