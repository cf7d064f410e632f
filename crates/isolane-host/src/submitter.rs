//! Access of one thread to a volume that several threads share: many requests at a time, without a future for each.
//!
//! [`Submitter::submit`] queues a request, and [`Submitter::send`] or a wait sends all of them together (H8). With
//! [`Options::cores`](crate::Options::cores) they go to the service of the core that the thread runs on. Completions
//! return to this submitter only. No request allocates memory.
//!
//! Invariant: at most `depth` requests are outstanding, and each gets exactly one completion.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use crate::caller_queue::{CallerQueue, ReplyGuard, Submission};
use crate::lane_class::LaneClass;
use crate::reply::Reply;
use crate::request::{Completion, Request};
use crate::service::{CallerCore, WaitLimit};
use crate::volume::Volume;

/// Access of one thread to a volume; see [`Volume::submitter`](crate::Volume::submitter).
///
/// ```no_run
/// use isolane_host::{Buffer, Options, Request, Volume};
///
/// # async fn example(volume: Volume) {
/// let mut submitter = volume.submitter(32);
/// for tag in 0..32 {
///     let request = Request::Read { lba: tag * 8, buffer: Buffer::contiguous(4096) };
///     submitter.submit(request, tag).expect("the depth is 32");
/// }
/// let mut completions = Vec::new();
/// while submitter.outstanding() > 0 {
///     submitter.wait(&mut completions);
/// }
/// # }
/// ```
pub struct Submitter {
    volume: Volume,
    /// One per service, and one for flushes through several services.
    queues: Vec<ServiceQueue>,
    /// The core that the thread was on when its current requests began.
    core: CallerCore,
    depth: usize,
    outstanding: usize,
}

/// Requests of the thread at one service.
struct ServiceQueue {
    caller: Arc<CallerQueue>,
    /// Requests whose completion has not been taken.
    outstanding: usize,
}

impl Volume {
    /// Returns a submitter for up to `depth` requests at a time, at least one, of one thread.
    pub fn submitter(&self, depth: usize) -> Submitter {
        let depth = depth.max(1);
        let first = CallerQueue::new(depth);
        // A completion at any of them wakes the thread.
        let siblings: Vec<_> = self.services().map(|_| first.sibling(depth)).collect();
        let callers = siblings.into_iter().chain([first]);
        let queues = callers.map(|caller| ServiceQueue { caller, outstanding: 0 }).collect();
        Submitter { volume: self.clone(), queues, core: self.caller_core(), depth, outstanding: 0 }
    }
}

impl Submitter {
    /// Requests without a completion.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Queues a request; `tag` is returned in its completion. The next [`Submitter::send`],
    /// [`Submitter::poll`], or [`Submitter::wait`] sends it.
    ///
    /// # Errors
    /// The request itself, if `depth` requests are outstanding.
    pub fn submit(&mut self, request: Request, tag: u64) -> Result<(), Request> {
        if self.outstanding == self.depth {
            return Err(request);
        }
        let class = self.volume.class.unwrap_or_else(|| request.lane_class());
        if self.volume.is_broadcast(&request) {
            let caller = self.queue(self.queues.len() - 1);
            let reply = Reply::Caller(ReplyGuard::new(caller, tag));
            self.volume.flush_all(class, reply);
            return Ok(());
        }
        if self.outstanding == 0 {
            self.core = self.volume.caller_core();
        }
        let caller = self.queue(self.volume.route(self.core, class, request.is_read()));
        let submitted = caller.submit(Submission { class, request, tag });
        debug_assert!(submitted.is_ok(), "fewer than `depth` were outstanding");
        Ok(())
    }

    /// Returns the queue for one more request.
    fn queue(&mut self, index: usize) -> &Arc<CallerQueue> {
        let queue = &mut self.queues[index];
        queue.outstanding += 1;
        self.outstanding += 1;
        &queue.caller
    }

    /// Sends the queued requests.
    pub fn send(&mut self) {
        let core = self.volume.caller_core();
        for (index, (service, queue)) in self.volume.services().zip(&self.queues).enumerate() {
            service.send(&queue.caller, queue.outstanding, core.is_at(index));
        }
    }

    /// Leaves all requests to other threads.
    fn hand_over(&mut self) {
        for (service, queue) in self.volume.services().zip(&self.queues) {
            service.hand_over(&queue.caller);
        }
    }

    /// Sends the queued requests and appends the available completions. Returns their number.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        self.send();
        self.take_completions(completions)
    }

    /// Sends the queued requests, waits for a completion, and appends all available ones. Returns their number,
    /// which is 0 only if no request is outstanding.
    pub fn wait(&mut self, completions: &mut Vec<Completion>) -> usize {
        self.wait_for(completions, None)
    }

    /// Like [`Submitter::wait`], but returns at the deadline, possibly with 0 completions.
    pub fn wait_until(&mut self, completions: &mut Vec<Completion>, deadline: Instant) -> usize {
        self.wait_for(completions, Some(deadline))
    }

    fn wait_for(&mut self, completions: &mut Vec<Completion>, deadline: Option<Instant>) -> usize {
        if self.outstanding > 0 {
            self.core = self.volume.caller_core();
            let limit = WaitLimit { polls: self.volume.class == Some(LaneClass::Poll), deadline };
            let mut waiting = self.queues.iter().enumerate().filter(|(_, queue)| queue.outstanding > 0);
            // The thread drives a client only if it has all requests: while it sleeps for one client, a
            // completion of another would not wake it.
            let only = waiting.next().filter(|_| waiting.next().is_none());
            let only =
                only.and_then(|(index, queue)| Some((index, queue, self.volume.services().nth(index)?)));
            match only {
                Some((index, queue, service)) => {
                    service.wait(&queue.caller, queue.outstanding, limit, self.core.is_at(index))
                }
                None => self.wait_for_any(limit),
            }
        }
        self.take_completions(completions)
    }

    /// Returns the descriptor that becomes readable when a completion arrives after [`Submitter::arm`], or earlier.
    ///
    /// # Errors
    /// The system's, if there is no descriptor yet.
    pub fn wait_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.queues[0].caller.parker().wait_fd()
    }

    /// Sends the queued requests, and requests one notification at [`Submitter::wait_fd`] for the next completion.
    /// Returns `false` if there is a completion already: take it instead of waiting.
    ///
    /// # Errors
    /// The system's, if there is no descriptor yet.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.hand_over();
        let has_any = || self.queues.iter().any(|queue| queue.caller.has_completions());
        self.queues[0].caller.parker().arm(has_any)
    }

    /// Ends a wait at [`Submitter::wait_fd`], and clears the descriptor.
    pub fn disarm(&mut self) {
        self.queues[0].caller.parker().disarm();
    }

    /// Waits while other threads drive the clients.
    fn wait_for_any(&mut self, limit: WaitLimit) {
        self.hand_over();
        let has_any = || self.queues.iter().any(|queue| queue.caller.has_completions());
        let (Some(service), Some(queue)) = (self.volume.services().next(), self.queues.first()) else {
            return;
        };
        let mut spin = service.spin_wait();
        while !has_any() {
            match spin.should_spin() {
                true => std::hint::spin_loop(),
                false if limit.is_over() => return,
                false => queue.caller.sleep(limit.deadline, has_any),
            }
        }
    }

    fn take_completions(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        for queue in self.queues.iter_mut().filter(|queue| queue.outstanding > 0) {
            let taken = completions.len();
            queue.caller.on_running();
            completions.extend(std::iter::from_fn(|| queue.caller.take_completion()));
            queue.outstanding -= completions.len() - taken;
        }
        let taken = completions.len() - before;
        self.outstanding -= taken;
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use isolane_memory::Buffer;
    use pollster::block_on;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use crate::mock::{Script, Target};
    use crate::options::Options;
    use crate::request::Request;
    use crate::volume::Volume;

    #[test]
    fn armed_submitter_has_a_readable_descriptor() {
        let target = Target::start(Script::default());
        let volume = block_on(Volume::connect(&target.uri(), Options::default())).unwrap();
        let (mut submitter, mut completions) = (volume.submitter(4), Vec::new());
        for tag in 0..200 {
            submitter.submit(Request::Read { lba: 0, buffer: Buffer::contiguous(512) }, tag).unwrap();
            // A notification of the round before can be late.
            while completions.is_empty() {
                if submitter.arm().unwrap() {
                    let fd = submitter.wait_fd().unwrap();
                    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
                    assert_eq!(
                        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)),
                        Ok(1),
                        "request {tag}"
                    );
                }
                submitter.disarm();
                submitter.poll(&mut completions);
            }
            assert_eq!(completions.pop().map(|completion| completion.tag), Some(tag));
        }
        assert!(submitter.arm().unwrap(), "nothing is outstanding");
        submitter.disarm();
    }

    /// The service's thread completes the requests of a caller that led and stays away, and of one that sleeps.
    #[test]
    fn requests_complete_without_their_caller() {
        for arms in [false, true] {
            let target = Target::start(Script::default());
            let volume = block_on(Volume::connect(&target.uri(), Options::default())).unwrap();
            let (mut submitter, mut completions) = (volume.submitter(4), Vec::new());
            for round in 0..20 {
                let disk = target.shared.disk.lock();
                for tag in 0..4 {
                    submitter
                        .submit(Request::Read { lba: tag, buffer: Buffer::contiguous(512) }, tag)
                        .unwrap();
                }
                assert_eq!(submitter.wait_until(&mut completions, Instant::now()), 0, "round {round}");
                drop(disk);
                let completed =
                    || submitter.queues.iter().map(|queue| queue.caller.completions()).sum::<usize>();
                let deadline = Instant::now() + Duration::from_secs(60);
                while !arms && completed() < 4 {
                    assert!(Instant::now() < deadline, "round {round}: {} of 4", completed());
                    std::thread::yield_now();
                }
                while submitter.outstanding() > 0 {
                    if arms && submitter.arm().unwrap() {
                        let fd = submitter.wait_fd().unwrap();
                        let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
                        assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)), Ok(1));
                    }
                    submitter.disarm();
                    submitter.poll(&mut completions);
                }
            }
            assert_eq!(completions.len(), 80);
        }
    }
}
