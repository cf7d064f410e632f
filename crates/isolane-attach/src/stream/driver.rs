//! Wakes the tasks that wait for the streams and listeners of a session.
//!
//! One thread per session, started with its first stream. It sleeps until an engine notifies it, which happens only
//! while a task waits, because only then a stream's `notify` flag is armed. It polls the sockets of plain streams and
//! listeners itself. It exits after the last handle is dropped, unless another one is requested in the meantime.
//!
//! Invariant: a task is woken without any lock, and no thread waits for the driver: a waker can do anything, including
//! dropping the last stream.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use isolane_shm::process_id;
use parking_lot::Mutex;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::wait::ZERO;
use crate::AttachError;
use crate::session::{NotificationQueue, Session};
use isolane_engine_api::layout::notification;

/// Tasks that wait for events of a stream or a listener.
pub(super) trait WakeTasks: Send + Sync {
    /// Wakes the tasks without any lock: an executor may poll a task in this call.
    fn wake_tasks(&self);
}

/// Handle to a session's driver thread, which exits when the last handle is dropped.
#[derive(Debug)]
pub(super) struct DriverHandle(Arc<Driver>);

/// State shared with the thread.
#[derive(Debug)]
struct Driver {
    /// ID of the queue that the streams use.
    queue: u32,
    registrations: Mutex<Registrations>,
    /// Readable when the last handle may have been dropped.
    empty: OwnedFd,
    /// Polls the sockets of plain streams and listeners.
    plain: OwnedFd,
    /// Process that has the thread.
    process: u64,
}

#[derive(Debug, Default)]
struct Registrations {
    /// By the ID of the stream or the listener.
    tasks: HashMap<u32, Weak<dyn WakeTasks>>,
    handles: usize,
    /// The thread has exited, or is about to.
    closed: bool,
}

impl DriverHandle {
    /// Returns a handle to the session's driver, which is started if necessary.
    pub fn for_session(session: &Session) -> Result<DriverHandle, AttachError> {
        session.check_process()?;
        let mut slot = session.driver();
        let driver = slot.upgrade().and_then(|driver| driver.downcast().ok());
        if let Some(handle) = driver.and_then(DriverHandle::acquire) {
            return Ok(handle);
        }
        let handle = Driver::start(session)?;
        let driver: Weak<Driver> = Arc::downgrade(&handle.0);
        *slot = driver;
        Ok(handle)
    }

    fn acquire(driver: Arc<Driver>) -> Option<DriverHandle> {
        let mut registrations = driver.registrations.lock();
        if registrations.closed {
            return None;
        }
        registrations.handles += 1;
        drop(registrations);
        Some(DriverHandle(driver))
    }

    /// Returns the ID of the queue for the streams.
    pub fn queue(&self) -> u32 {
        self.0.queue
    }

    /// Registers the tasks of a stream or a listener; `plain` is its socket, unless an engine has the stream. After an
    /// error, they will not be woken.
    pub fn register(
        &self,
        id: u32,
        tasks: Weak<dyn WakeTasks>,
        plain: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        self.0.registrations.lock().tasks.insert(id, tasks);
        let Some(socket) = plain else { return Ok(()) };
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.0.plain, socket, EventData::new_u64(id.into()), flags).map_err(|error| {
            self.deregister(id, None);
            error.into()
        })
    }

    pub fn deregister(&self, id: u32, plain: Option<BorrowedFd<'_>>) {
        if self.0.process != process_id() {
            return;
        }
        self.0.registrations.lock().tasks.remove(&id);
        if let Some(socket) = plain {
            // Fails only if the socket is not polled.
            let _ = epoll::delete(&self.0.plain, socket);
        }
    }
}

impl Drop for DriverHandle {
    fn drop(&mut self) {
        // A forked child has no driver thread, and the lock may have been held at the fork.
        if self.0.process != process_id() {
            return;
        }
        let mut registrations = self.0.registrations.lock();
        registrations.handles -= 1;
        if registrations.handles == 0 {
            // Fails only if the counter is full, which is readable as well.
            let _ = rustix::io::write(&self.0.empty, &1u64.to_ne_bytes());
        }
    }
}

impl Driver {
    /// Starts a driver and returns its first handle.
    fn start(session: &Session) -> Result<DriverHandle, AttachError> {
        let queue = session.open_queue(ENTRIES)?;
        let driver = Arc::new(Driver::new(queue.id()).map_err(AttachError::system(FAILED))?);
        let clone = Arc::clone(&driver);
        let thread = std::thread::Builder::new().name("isolane-driver".into());
        thread.spawn(move || clone.run(queue)).map_err(AttachError::system(FAILED))?;
        Ok(DriverHandle(driver))
    }

    /// Creates a driver without a thread; the caller has the first handle.
    fn new(queue: u32) -> io::Result<Driver> {
        let empty = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let plain = epoll::create(CreateFlags::CLOEXEC)?;
        let registrations = Mutex::new(Registrations { handles: 1, ..Registrations::default() });
        Ok(Driver { queue, registrations, empty, plain, process: process_id() })
    }

    /// Runs until the last handle is dropped. After the session closes, it serves plain streams only; other watchers
    /// wake the tasks of the others.
    fn run(&self, queue: NotificationQueue) {
        let mut queue = Some(queue);
        loop {
            let turn = queue.as_mut().map_or_else(|| Ok(self.sleep(None)), |queue| self.turn(queue));
            match turn {
                Ok(false) => {}
                Ok(true) if self.close_if_empty(&mut queue) => return,
                Ok(true) => {}
                Err(_) => queue = None,
            }
        }
    }

    /// Closes the queue if there is no handle. Under the lock, so that a new stream opens its queue afterwards, and
    /// frequent opens and drops do not accumulate queues.
    fn close_if_empty(&self, queue: &mut Option<NotificationQueue>) -> bool {
        let _ = rustix::io::read(&self.empty, &mut [0u8; 8]);
        let mut registrations = self.registrations.lock();
        registrations.closed = registrations.handles == 0;
        if registrations.closed {
            *queue = None;
        }
        registrations.closed
    }

    fn turn(&self, queue: &mut NotificationQueue) -> Result<bool, AttachError> {
        while let Some(entry) = queue.try_pop()? {
            notification::object(&entry).into_iter().for_each(|id| self.wake_tasks(id));
        }
        let may_be_empty = !queue.arm()? && self.sleep(Some(queue.as_fd()));
        queue.disarm()?;
        Ok(may_be_empty)
    }

    /// Sleeps until an event. Returns `true` if the last handle may have been dropped.
    fn sleep(&self, queue: Option<BorrowedFd<'_>>) -> bool {
        let empty = self.empty.as_fd();
        let watched = [empty, self.plain.as_fd(), queue.unwrap_or(empty)];
        let mut watched = watched.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        // An interruption is a spurious wakeup.
        let _ = poll(&mut watched, None);
        let mut events = [const { MaybeUninit::uninit() }; 64];
        if watched[1].revents().contains(PollFlags::IN)
            && let Ok((events, _)) = epoll::wait(&self.plain, &mut events, Some(&ZERO))
        {
            events.iter().for_each(|event| self.wake_tasks(event.data.u64() as u32));
        }
        watched[0].revents().contains(PollFlags::IN)
    }

    fn wake_tasks(&self, id: u32) {
        let tasks = self.registrations.lock().tasks.get(&id).and_then(Weak::upgrade);
        tasks.into_iter().for_each(|tasks| tasks.wake_tasks());
    }
}

const FAILED: &str = "cannot start the driver thread";
/// Entries of the queue. Notifications that find it full arrive a little later.
const ENTRIES: u32 = 1024;

#[cfg(test)]
mod tests {
    use isolane_shm::testing;

    use super::*;
    use crate::session::tests::session;
    use crate::stream::StreamOptions;

    #[test]
    fn forked_child_drops_handle_under_parents_lock() {
        let driver = Arc::new(Driver::new(1).unwrap());
        let mut handle = Some(DriverHandle(Arc::clone(&driver)));
        let held = driver.registrations.lock();
        assert!(testing::finishes_in_child(|| drop(handle.take())), "the child waits for the lock");
        drop(held);
    }

    #[test]
    fn forked_child_fails_to_adopt_under_parents_lock() {
        let (session, _engine) = session();
        let (near, _far) = testing::connection().unwrap();
        let held = session.driver();
        let fails = testing::finishes_in_child(|| {
            let options = StreamOptions::default();
            let error = options.adopt(&session, near.try_clone().unwrap()).unwrap_err().error;
            assert!(matches!(error, AttachError::Forked { .. }), "{error}");
            let error = options.adopt_if_possible(&session, near.try_clone().unwrap()).unwrap_err();
            assert!(matches!(error, AttachError::Forked { .. }), "{error}");
        });
        assert!(fails, "the child waits for the lock, or adopts");
        drop(held);
    }
}
