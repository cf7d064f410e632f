//! Wakes the tasks that wait for the streams of a session.
//!
//! One thread a session, started with its first stream. It sleeps unless a task waits: only then a stream's
//! `notify` flag is armed.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::shared::Waiters;
use crate::AttachError;
use crate::layout::notice;
use crate::session::{Queue, Session};

/// Who waits, by the stream's id. The thread ends with the last stream that has this.
pub(crate) struct Tasks {
    queue: u32,
    streams: Arc<Streams>,
    /// Readable when the thread is to end.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

type Streams = Mutex<HashMap<u32, Weak<Waiters>>>;

impl Tasks {
    /// Those of a session.
    pub fn of(session: &Session) -> Result<Arc<Tasks>, AttachError> {
        session.tasks(|| Tasks::start(session))
    }

    fn start(session: &Session) -> Result<Arc<Tasks>, AttachError> {
        let failed = |source: std::io::Error| AttachError::system("cannot start a thread for tasks", source);
        let queue = session.open_queue(ENTRIES)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?);
        let (id, streams) = (queue.id(), Arc::<Streams>::default());
        let (theirs, their_stop) = (Arc::clone(&streams), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("isolane-tasks".into());
        let thread = thread.spawn(move || serve(queue, &theirs, &their_stop)).map_err(failed)?;
        Ok(Arc::new(Tasks { queue: id, streams, stop, thread: Some(thread) }))
    }

    /// The queue that its streams name.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    pub(super) fn know(&self, id: u32, stream: &Arc<Waiters>) {
        self.streams.lock().insert(id, Arc::downgrade(stream));
        // What was noticed before it was known.
        stream.wake_tasks();
    }

    pub(super) fn forget(&self, id: u32) {
        self.streams.lock().remove(&id);
    }
}

/// Wakes until it is to end, or the session is over: then everybody is woken by that.
fn serve(mut queue: Queue, streams: &Streams, stop: &OwnedFd) {
    while let Ok(is_stopped) = turn(&mut queue, streams, stop) {
        if is_stopped {
            return;
        }
    }
}

fn turn(queue: &mut Queue, streams: &Streams, stop: &OwnedFd) -> Result<bool, AttachError> {
    while let Some(entry) = queue.take()? {
        let stream = notice::object(&entry).and_then(|id| streams.lock().get(&id).and_then(Weak::upgrade));
        stream.into_iter().for_each(|stream| stream.wake_tasks());
    }
    if queue.arm()? {
        queue.disarm()?;
        return Ok(false);
    }
    let mut watched =
        [PollFd::from_borrowed_fd(queue.end(), PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
    // An interruption only has it look too early.
    let _ = poll(&mut watched, None);
    let is_stopped = watched[1].revents().contains(PollFlags::IN);
    queue.disarm()?;
    Ok(is_stopped)
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // A fresh counter always has room.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        // Its queue is closed by then: who comes and goes often does not have many.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// Entries of the queue. Streams that find it full are told a little later.
const ENTRIES: u32 = 1024;
