//! Wakes the tasks that wait for the streams of a session.
//!
//! One thread a session, started with its first stream. It sleeps unless a task waits: only then a stream's
//! `notify` flag is armed. Sockets of streams that no engine has it watches itself. It ends after the last stream, unless another has come meanwhile.
//!
//! Invariant: a task is woken under no lock, and nobody waits for the thread: a waker may do as it likes, even drop
//! the last stream.

use std::collections::HashMap;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use isolane_ring::process_id;
use parking_lot::Mutex;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::shared::{Shared, Waiters};
use super::waiting::AT_ONCE;
use crate::AttachError;
use crate::layout::notice;
use crate::session::{Queue, Session};

/// A stream's part in it. The thread ends once nobody has any.
pub(super) struct Tasks(Arc<Lounge>);

/// What the thread shares with the streams.
pub(crate) struct Lounge {
    /// The queue that the streams name.
    queue: u32,
    guests: Mutex<Guests>,
    /// Readable when there may be nobody any more.
    empty: OwnedFd,
    /// Watches the sockets of streams that no engine has.
    plain: OwnedFd,
    /// The process that has the thread.
    process: u64,
}

#[derive(Default)]
struct Guests {
    /// Who waits, by the stream's id.
    waiters: HashMap<u32, Weak<Waiters>>,
    /// Parts.
    count: usize,
    /// The thread serves nobody any more.
    is_closed: bool,
}

impl Tasks {
    /// A part in that of a session.
    pub fn of(session: &Session) -> Result<Tasks, AttachError> {
        session.check_process()?;
        let mut lounge = session.lounge();
        if let Some(tasks) = lounge.upgrade().and_then(Tasks::enter) {
            return Ok(tasks);
        }
        let (started, tasks) = Lounge::start(session)?;
        *lounge = Arc::downgrade(&started);
        Ok(tasks)
    }

    fn enter(lounge: Arc<Lounge>) -> Option<Tasks> {
        let mut guests = lounge.guests.lock();
        if guests.is_closed {
            return None;
        }
        guests.count += 1;
        drop(guests);
        Some(Tasks(lounge))
    }

    /// The queue that its stream names.
    pub fn queue(&self) -> u32 {
        self.0.queue
    }

    pub fn know(&self, stream: &Shared) {
        self.0.guests.lock().waiters.insert(stream.id, Arc::downgrade(&stream.waiters));
        if stream.is_plain {
            let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            let outcome = epoll::add(&self.0.plain, stream, EventData::new_u64(stream.id.into()), flags);
            stream.waiters.is_watched.store(outcome.is_ok(), Ordering::Release);
        }
        // What was noticed before it was known.
        stream.waiters.wake_tasks();
    }

    pub fn forget(&self, stream: &Shared) {
        self.0.guests.lock().waiters.remove(&stream.id);
        if stream.is_plain {
            // It fails only if it was not watched.
            let _ = epoll::delete(&self.0.plain, stream);
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // A child has no such thread, and another one may have held the lock when it was forked.
        if self.0.process != process_id() {
            return;
        }
        let mut guests = self.0.guests.lock();
        guests.count -= 1;
        if guests.count == 0 {
            // A counter that is full is readable, too.
            let _ = rustix::io::write(&self.0.empty, &1u64.to_ne_bytes());
        }
    }
}

impl Lounge {
    /// With the first part in it.
    fn start(session: &Session) -> Result<(Arc<Lounge>, Tasks), AttachError> {
        let failed = |source: std::io::Error| AttachError::system("cannot start a thread for tasks", source);
        let queue = session.open_queue(ENTRIES)?;
        let lounge = Arc::new(Lounge::new(queue.id()).map_err(failed)?);
        let theirs = Arc::clone(&lounge);
        let thread = std::thread::Builder::new().name("isolane-tasks".into());
        thread.spawn(move || theirs.serve(queue)).map_err(failed)?;
        Ok((Arc::clone(&lounge), Tasks(lounge)))
    }

    /// With the first part in it, without a thread.
    fn new(queue: u32) -> std::io::Result<Lounge> {
        let empty = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let plain = epoll::create(CreateFlags::CLOEXEC)?;
        let guests = Mutex::new(Guests { count: 1, ..Guests::default() });
        Ok(Lounge { queue, guests, empty, plain, process: process_id() })
    }

    /// Wakes until nobody is there. If the session is over, that wakes those whose streams an engine had.
    fn serve(&self, queue: Queue) {
        let mut queue = Some(queue);
        loop {
            let turn = queue.as_mut().map_or_else(|| Ok(self.sleep(None)), |queue| self.turn(queue));
            match turn {
                Ok(false) => {}
                Ok(true) if self.close(&mut queue) => return,
                Ok(true) => {}
                Err(_) => queue = None,
            }
        }
    }

    /// Closes the queue if nobody is there. Under the lock: who comes opens another behind that, and who comes and
    /// goes often does not have many.
    fn close(&self, queue: &mut Option<Queue>) -> bool {
        // Nobody else reads it.
        let _ = rustix::io::read(&self.empty, &mut [0u8; 8]);
        let mut guests = self.guests.lock();
        guests.is_closed = guests.count == 0;
        if guests.is_closed {
            *queue = None;
        }
        guests.is_closed
    }

    fn turn(&self, queue: &mut Queue) -> Result<bool, AttachError> {
        while let Some(entry) = queue.take()? {
            let stream = notice::object(&entry).and_then(|id| self.find(id));
            stream.into_iter().for_each(|stream| stream.wake_tasks());
        }
        let may_be_empty = !queue.arm()? && self.sleep(Some(queue.end()));
        queue.disarm()?;
        Ok(may_be_empty)
    }

    /// Until something comes; tells whether nobody may be there any more.
    fn sleep(&self, queue: Option<BorrowedFd<'_>>) -> bool {
        let empty = self.empty.as_fd();
        let watched = [empty, self.plain.as_fd(), queue.unwrap_or(empty)];
        let mut watched = watched.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        // An interruption only has it look too early.
        let _ = poll(&mut watched, None);
        let mut events = [const { MaybeUninit::uninit() }; 64];
        if watched[1].revents().contains(PollFlags::IN)
            && let Ok((events, _)) = epoll::wait(&self.plain, &mut events, Some(&AT_ONCE))
        {
            let streams = events.iter().filter_map(|event| self.find(event.data.u64() as u32));
            streams.for_each(|stream| stream.wake_tasks());
        }
        watched[0].revents().contains(PollFlags::IN)
    }

    fn find(&self, id: u32) -> Option<Arc<Waiters>> {
        self.guests.lock().waiters.get(&id).and_then(Weak::upgrade)
    }
}

impl fmt::Debug for Lounge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lounge").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// Entries of the queue. Streams that find it full are told a little later.
const ENTRIES: u32 = 1024;

#[cfg(test)]
mod tests {
    use isolane_ring::mock;

    use super::*;
    use crate::session::tests::session;
    use crate::stream::StreamOptions;

    #[test]
    fn forked_child_drops_its_part_under_lock_of_its_parent() {
        let lounge = Arc::new(Lounge::new(1).unwrap());
        let mut tasks = Some(Tasks(Arc::clone(&lounge)));
        let held = lounge.guests.lock();
        assert!(mock::ends_in_child(|| drop(tasks.take())), "the child waits for the lock");
        drop(held);
    }

    #[test]
    fn forked_child_adopts_nothing_under_lock_of_its_parent() {
        let (session, _engine) = session();
        let (near, _far) = mock::connection().unwrap();
        let held = session.lounge();
        let is_refused = mock::ends_in_child(|| {
            let options = StreamOptions::default();
            let error = options.adopt(&session, near.try_clone().unwrap()).unwrap_err().error;
            assert!(matches!(error, AttachError::Forked { .. }), "{error}");
            let error = options.adopt_if_possible(&session, near.try_clone().unwrap()).unwrap_err();
            assert!(matches!(error, AttachError::Forked { .. }), "{error}");
        });
        assert!(is_refused, "the child waits for the lock, or has no error");
        drop(held);
    }
}
