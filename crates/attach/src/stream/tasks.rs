//! Wakes the tasks that wait for the streams of a session.
//!
//! One thread a session, started with its first stream. It sleeps unless a task waits: only then a stream's
//! `notify` flag is armed. It ends after the last stream, unless another has come meanwhile.
//!
//! Invariant: a task is woken under no lock, and nobody waits for the thread: a waker may do as it likes, even drop
//! the last stream.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::shared::Waiters;
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

    pub fn know(&self, id: u32, stream: &Arc<Waiters>) {
        self.0.guests.lock().waiters.insert(id, Arc::downgrade(stream));
        // What was noticed before it was known.
        stream.wake_tasks();
    }

    pub fn forget(&self, id: u32) {
        self.0.guests.lock().waiters.remove(&id);
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
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
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let empty = eventfd(0, flags).map_err(|error| failed(error.into()))?;
        let guests = Mutex::new(Guests { count: 1, ..Guests::default() });
        let lounge = Arc::new(Lounge { queue: queue.id(), guests, empty });
        let theirs = Arc::clone(&lounge);
        let thread = std::thread::Builder::new().name("isolane-tasks".into());
        thread.spawn(move || theirs.serve(queue)).map_err(failed)?;
        Ok((Arc::clone(&lounge), Tasks(lounge)))
    }

    /// Wakes until nobody is there, or the session is over: then everybody is woken by that.
    fn serve(&self, queue: Queue) {
        let mut queue = Some(queue);
        while let Some(open) = &mut queue {
            match self.turn(open) {
                Ok(false) => {}
                Ok(true) => self.close(&mut queue, false),
                Err(_) => self.close(&mut queue, true),
            }
        }
    }

    /// Closes the queue if nobody is there. Under the lock: who comes opens another behind that, and who comes and
    /// goes often does not have many.
    fn close(&self, queue: &mut Option<Queue>, is_over: bool) {
        // Nobody else reads it.
        let _ = rustix::io::read(&self.empty, &mut [0u8; 8]);
        let mut guests = self.guests.lock();
        if guests.count == 0 || is_over {
            guests.is_closed = true;
            *queue = None;
        }
    }

    fn turn(&self, queue: &mut Queue) -> Result<bool, AttachError> {
        while let Some(entry) = queue.take()? {
            let stream = notice::object(&entry).and_then(|id| self.find(id));
            stream.into_iter().for_each(|stream| stream.wake_tasks());
        }
        if queue.arm()? {
            queue.disarm()?;
            return Ok(false);
        }
        let mut watched =
            [PollFd::from_borrowed_fd(queue.end(), PollFlags::IN), PollFd::new(&self.empty, PollFlags::IN)];
        // An interruption only has it look too early.
        let _ = poll(&mut watched, None);
        let may_be_empty = watched[1].revents().contains(PollFlags::IN);
        queue.disarm()?;
        Ok(may_be_empty)
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
