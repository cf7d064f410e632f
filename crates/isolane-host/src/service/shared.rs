//! Who drives: at most one thread at a time, be it the volume's own or that of a caller that waits.
//!
//! The engine is behind a lock that nobody waits for: whoever gets it *leads*, until it leaves. A caller that
//! finds it taken leaves its requests in the inbox and wakes the leader. Everybody who leaves looks back: if
//! there is work and nobody leads, the volume's own thread is called. Invariant: while a request is without
//! an answer, somebody leads, or is on its way to.
//!
//! Why none is missed: who leaves a request first leaves it, then looks whether somebody leads; who leads
//! first lets go, then looks whether there are requests; with a full fence between both steps on both sides
//! at least one of them sees the other.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use isolane_reactor::{Waker, core};
use parking_lot::{Mutex, MutexGuard};

use super::caller::Caller;
use super::engine::{Engine, Message};
use super::lead::Lead;
use super::spinning::Spinning;
use crate::error::RequestError;
use crate::options::Mode;
use crate::request::Completion;

/// What all threads of a volume share.
pub(crate) struct Shared {
    /// None once the volume is closed.
    engine: Mutex<Option<Engine>>,
    pub(super) inbox: Inbox,
    waker: Waker,
    /// The volume's own thread.
    thread: OnceLock<Thread>,
    /// Requests that the engine had when it was let go of.
    pub(super) outstanding: AtomicUsize,
    /// Callers that will lead when nobody does.
    pub(super) spinners: AtomicUsize,
    /// Where the leader took the lead.
    pub(super) core: AtomicUsize,
    pub(super) is_stopping: AtomicBool,
    pub(super) is_over: AtomicBool,
    is_inline: bool,
    /// How long a caller spins for its answer.
    pub(super) spin: Duration,
}

/// What has been left for whoever leads.
pub(crate) struct Inbox {
    /// Callers with submissions, each once.
    pub callers: ArrayQueue<Arc<Caller>>,
    pub futures: ArrayQueue<Message>,
}

impl Inbox {
    pub(super) fn is_empty(&self) -> bool {
        self.callers.is_empty() && self.futures.is_empty()
    }
}

/// How callers and the volume's own thread share the work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    pub is_inline: bool,
    pub mode: Mode,
    pub spin: Duration,
}

/// How a caller waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Whether its thread stays busy meanwhile.
    pub polls: bool,
    /// When it returns without an answer.
    pub until: Option<Instant>,
}

impl Shared {
    pub(super) fn new(engine: Engine, waker: Waker, manner: Manner) -> Shared {
        let inbox = Inbox { callers: ArrayQueue::new(CALLERS_MAX), futures: ArrayQueue::new(FUTURES_MAX) };
        Shared {
            engine: Mutex::new(Some(engine)),
            inbox,
            waker,
            thread: OnceLock::new(),
            outstanding: AtomicUsize::new(0),
            spinners: AtomicUsize::new(0),
            core: AtomicUsize::new(usize::MAX),
            is_stopping: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            is_inline: manner.is_inline,
            spin: if manner.mode == Mode::Sleep { Duration::ZERO } else { manner.spin },
        }
    }

    /// The calling thread is the volume's own.
    pub(super) fn adopt_thread(&self) {
        let _ = self.thread.set(std::thread::current());
    }

    /// Whether callers may lead.
    pub(super) fn is_inline(&self) -> bool {
        self.is_inline
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// From now on only the volume's own thread leads, to end everything.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.waker.wake();
        self.unpark();
    }

    /// Takes the lead if nobody has it and there is something to lead.
    pub(super) fn try_lead(&self) -> Option<Lead<'_>> {
        if self.engine.is_locked() {
            return None;
        }
        self.lead(self.engine.try_lock()?)
    }

    /// Waits for the lead.
    pub(super) fn wait_to_lead(&self) -> Option<Lead<'_>> {
        self.lead(self.engine.lock())
    }

    fn lead<'a>(&'a self, guard: MutexGuard<'a, Option<Engine>>) -> Option<Lead<'a>> {
        if guard.is_none() {
            return None;
        }
        if !self.spin.is_zero() {
            self.core.store(core::current(), Ordering::Relaxed);
        }
        Some(Lead::new(self, guard))
    }

    /// Leaves what a future wants.
    pub(super) fn leave(&self, message: Message) {
        if let Err(message) = self.inbox.futures.push(message) {
            return message.refuse(RequestError::TooMany(FUTURES_MAX));
        }
        self.call();
        self.refuse_if_over(None);
    }

    /// Lets whoever leads know what a caller has left; more requests may follow until then.
    pub(crate) fn push(&self, caller: &Arc<Caller>) {
        if caller.has_submissions() {
            self.list(caller);
            self.call_if_idle();
            self.refuse_if_over(Some(caller));
        }
    }

    /// Waits until the caller, which has requests without an answer, has an answer, or its patience has ended. Turns the
    /// client itself if it `may_lead`.
    pub(crate) fn wait(&self, caller: &Arc<Caller>, patience: Patience, may_lead: bool) {
        if !may_lead || caller.has_completions() {
            // Who never leads leaves it to the thread, which has to be called.
            self.push(caller);
        }
        let mut spinning = Spinning::new(self, may_lead);
        let mut is_listed = false;
        while !caller.has_completions() {
            if may_lead && self.try_to_serve(caller, patience) {
                if is_past(patience.until) {
                    break;
                }
                continue;
            }
            if !std::mem::replace(&mut is_listed, true) && caller.has_submissions() {
                self.list(caller);
                self.refuse_if_over(Some(caller));
                continue;
            }
            if spinning.goes_on() {
                std::hint::spin_loop();
                continue;
            }
            if is_past(patience.until) {
                break;
            }
            caller.sleep(patience.until, || may_lead && self.may_lead());
        }
        if spinning.end() {
            self.look_back();
        }
    }

    /// Leads until the caller has an answer, or its patience has ended. False if it may not, or somebody else does.
    fn try_to_serve(&self, caller: &Arc<Caller>, patience: Patience) -> bool {
        if !self.is_inline || self.is_stopping() {
            return false;
        }
        let Some(mut lead) = self.try_lead() else { return false };
        lead.serve(caller, patience);
        true
    }

    fn may_lead(&self) -> bool {
        self.is_inline && !self.is_stopping() && !self.engine.is_locked()
    }

    /// How long a caller goes on spinning that waits for this service among others.
    pub(super) fn spinning(&self) -> Spinning<'_> {
        Spinning::new(self, false)
    }

    /// Puts a caller on the list and wakes the leader, if there is one.
    fn list(&self, caller: &Arc<Caller>) {
        let mut left = caller.list().then(|| Arc::clone(caller));
        while let Some(caller) = left {
            left = self.inbox.callers.push(caller).err();
            if left.is_some() {
                // Nobody has that many callers for long.
                self.call();
                self.refuse_if_over(None);
                std::thread::yield_now();
            }
        }
        self.waker.wake();
    }

    /// Wakes whoever leads, and the volume's own thread if nobody does.
    fn call(&self) {
        self.waker.wake();
        self.call_if_idle();
    }

    fn call_if_idle(&self) {
        fence(Ordering::SeqCst);
        if !self.engine.is_locked() {
            self.unpark();
        }
    }

    fn unpark(&self) {
        self.thread.get().into_iter().for_each(Thread::unpark);
    }

    /// To be done by everybody who led or might have led, and does not any more.
    pub(super) fn look_back(&self) {
        fence(Ordering::SeqCst);
        let is_work =
            self.outstanding.load(Ordering::Relaxed) > 0 || !self.inbox.is_empty() || self.is_stopping();
        let is_awaited = self.spinners.load(Ordering::Relaxed) > 0 && !self.is_stopping();
        if is_work && !self.engine.is_locked() && !is_awaited {
            self.unpark();
        }
    }

    /// Nobody will lead any more: what is left in the inbox, and by `caller`, is refused.
    pub(super) fn refuse_if_over(&self, caller: Option<&Arc<Caller>>) {
        fence(Ordering::SeqCst);
        if !self.is_over.load(Ordering::Relaxed) {
            return;
        }
        while let Some(message) = self.inbox.futures.pop() {
            message.refuse(RequestError::Closed);
        }
        while let Some(listed) = self.inbox.callers.pop() {
            listed.refuse_all();
        }
        caller.into_iter().for_each(|caller| caller.refuse_all());
    }
}

impl Message {
    fn refuse(self, error: RequestError) {
        // Who asks where the connections are hears that there are none.
        let Message::Request { request, reply, .. } = self else { return };
        let refused = Completion { tag: 0, result: Err(error), buffer: request.into_buffer() };
        reply.deliver(refused).into_iter().for_each(|caller| caller.ring());
    }
}

/// Whether a caller that waits until then is to return. Looks at the clock only if there is a limit.
pub(super) fn is_past(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}

/// Callers with something to take, at most.
const CALLERS_MAX: usize = 1024;

/// Requests of futures that wait at most.
const FUTURES_MAX: usize = 1024;
