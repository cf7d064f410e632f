//! Notifications for one thread of the application.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use isolane_shm::entries::{Entry, Receiver};
use isolane_shm::{Bell, ShmRef, WakeFlag};
use rustix::net::{Shutdown, shutdown};

use super::descriptors::{DUPLICATE, renumber};
use super::{Allocation, Session, Watcher};
use crate::AttachError;
use isolane_engine_api::layout::NotificationLayout;
use isolane_engine_api::{OpenNotificationQueue, Request};

/// Notification queue: one thread waits on it for events of all cores of the engine.
#[derive(Debug)]
pub struct NotificationQueue {
    id: u32,
    bell: Arc<SessionBell>,
    rings: Vec<Receiver>,
    /// Ring to check first.
    next: usize,
    session: Session,
    /// Present until closed.
    allocation: Option<Allocation>,
}

/// The queue's bell, which is shut down when the session closes. This wakes its sleeper even if an engine that still
/// sends data keeps the other end.
#[derive(Debug)]
struct SessionBell(Bell<ShmRef<WakeFlag>>);

impl Watcher for SessionBell {
    fn on_close(&self) {
        // Fails only if the peer has closed its end.
        let _ = shutdown(self.0.as_fd(), Shutdown::Both);
    }
}

impl NotificationQueue {
    pub(super) fn open(session: &Session, entries: u32) -> Result<NotificationQueue, AttachError> {
        let cores = session.cores().len() as u32;
        let bytes = NotificationLayout::bytes(cores, entries);
        let allocation = session.alloc(bytes)?;
        allocation.clear(bytes)?;
        let layout = NotificationLayout { offset: allocation.offset(), cores, entries };
        let memory = session.memory();
        let rings = (0..cores).map(|core| {
            let refused = || AttachError::Refused {
                what: "the queue",
                reason: format!("{entries} entries are not a power of two, or too many"),
            };
            Ok(Receiver::open(memory, layout.ring(core).ok_or_else(refused)?)?)
        });
        let rings = rings.collect::<Result<_, AttachError>>()?;
        let (bell, engine_end) =
            Bell::new(memory.flag(layout.flag())?).map_err(AttachError::system("cannot create a bell"))?;
        let bell = bell.try_map_end(|end| renumber(end, session.0.first_descriptor));
        let bell = bell.map_err(AttachError::system(DUPLICATE))?;
        let id = session.next_id();
        let open = Request::OpenNotificationQueue(OpenNotificationQueue { queue: id, layout });
        session.request("a queue", &open, &[engine_end.as_fd()])?;
        let bell = Arc::new(SessionBell(bell));
        let watcher: Arc<dyn Watcher> = Arc::clone(&bell) as _;
        session.watch(Arc::downgrade(&watcher));
        Ok(NotificationQueue {
            id,
            bell,
            rings,
            next: 0,
            session: session.clone(),
            allocation: Some(allocation),
        })
    }

    /// Returns the ID by which objects refer to the queue.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the next entry of any core, without waiting.
    ///
    /// # Errors
    /// [`AttachError::InvalidIndex`].
    pub fn try_pop(&mut self) -> Result<Option<Entry>, AttachError> {
        self.session.check_process()?;
        for _ in 0..self.rings.len() {
            let ring = &mut self.rings[self.next];
            if let Some(entry) = ring.pop() {
                return Ok(Some(entry));
            }
            ring.publish();
            if ring.refresh()? > 0 {
                return Ok(ring.pop());
            }
            self.next = (self.next + 1) % self.rings.len();
        }
        Ok(None)
    }

    /// Sleeps until an entry is available. Returns `false` on timeout or a spurious wakeup.
    ///
    /// # Errors
    /// [`AttachError::SessionClosed`], [`AttachError::InvalidIndex`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, AttachError> {
        self.session.check()?;
        let ready = self.arm();
        let slept = if matches!(ready, Ok(false)) { self.bell.0.sleep(timeout) } else { Ok(true) };
        self.bell.0.flag().disarm();
        ready?;
        slept.map_err(|error| self.bell_error(error))?;
        has_entries(&mut self.rings)
    }

    /// Arms the bell, so that [`NotificationQueue::as_fd`] becomes readable when an entry arrives. Returns `true` if one
    /// is available already. For threads that also wait for other descriptors; call [`NotificationQueue::disarm`] after
    /// waking up.
    ///
    /// # Errors
    /// [`AttachError::InvalidIndex`].
    pub fn arm(&mut self) -> Result<bool, AttachError> {
        self.session.check_process()?;
        self.bell.0.flag().arm();
        has_entries(&mut self.rings)
    }

    /// Disarms the bell and discards pending rings.
    ///
    /// # Errors
    /// [`AttachError::SessionClosed`].
    pub fn disarm(&mut self) -> Result<(), AttachError> {
        self.session.check_process()?;
        self.bell.0.flag().disarm();
        self.bell.0.clear().map_err(|error| self.bell_error(error))
    }

    /// Returns the reason why the session is closed, or `error` if it is open.
    fn bell_error(&self, error: std::io::Error) -> AttachError {
        self.session.check().err().unwrap_or_else(|| AttachError::from_bell_error(error))
    }

    /// Returns the descriptor to poll; it also becomes readable when the session closes.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.0.as_fd()
    }
}

fn has_entries(rings: &mut [Receiver]) -> Result<bool, AttachError> {
    for ring in rings {
        if ring.refresh()? > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Drop for NotificationQueue {
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation.take() {
            // Fails only if the session is closed, which closes the queue as well.
            let _ = self.session.close(self.id, allocation);
        }
    }
}
