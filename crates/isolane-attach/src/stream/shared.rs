//! What the two halves of a stream share, and what becomes of it when both are gone.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use isolane_ring::adopted;
use parking_lot::Mutex;
use rustix::net::sockopt;

use super::block::Block;
use super::last_close::LastClose;
use super::recovery::Origin;
use super::tasks::Tasks;
use super::waiting::register;
use crate::AttachError;
use crate::control::{End, Request};
use crate::session::{Room, Session, Watcher};

/// Whoever waits for a stream. Apart from it, so that those who wake keep no stream open.
pub(super) struct Waiters {
    pub block: Arc<Block>,
    pub last_close: LastClose,
    pub reader: Mutex<Option<Waker>>,
    pub writer: Mutex<Option<Waker>>,
    /// Somebody wakes the tasks of a stream that no engine has.
    pub is_watched: AtomicBool,
}

/// A stream that the engine has.
pub(super) struct Shared {
    pub session: Session,
    /// No engine has it: all goes over the socket itself.
    pub is_plain: bool,
    pub id: u32,
    pub core: u32,
    pub socket: Arc<TcpStream>,
    pub waiters: Arc<Waiters>,
    /// Its pages, until they go back.
    pub room: Mutex<Option<Room>>,
    /// Who wakes its tasks, if that is not a poller's business.
    pub tasks: Option<Tasks>,
    pub origin: Origin,
    pub is_released: AtomicBool,
}

impl Shared {
    /// Whether there still is an engine, or none is needed.
    #[inline]
    pub fn check(&self) -> io::Result<()> {
        Ok(if self.is_plain { self.session.check_process() } else { self.session.check() }?)
    }

    /// Has the engine look.
    #[cold]
    pub fn ring(&self) -> io::Result<()> {
        Ok(self.session.port(self.core).tell(self.id)?)
    }

    /// Has the engine let go of the socket.
    pub fn release(&self) -> Result<(), AttachError> {
        self.session.check_process()?;
        if self.is_plain {
            return Ok(());
        }
        self.session.ask("to take a stream back", &Request::End { id: self.id, how: End::Release }, &[])?;
        self.is_released.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits until all that was written has arrived, as a close of a socket that lingers does: here the engine's
    /// is the one that is closed last.
    #[cold]
    fn linger(&self, time: Duration) {
        let Some(until) = Instant::now().checked_add(time) else { return };
        self.session.wait_closed(self.id, until);
        // The kernel tells nobody when that is so.
        while Instant::now() < until && self.awaits_peer().unwrap_or(false) {
            std::thread::sleep(LOOK);
        }
    }

    /// Whether a close waits for the peer: not if it resets.
    fn awaits_peer(&self) -> io::Result<bool> {
        Ok(adopted::unread(self.as_fd())? == 0 && !adopted::is_acknowledged(self.as_fd())?)
    }

    /// Whether nobody but this process works on the socket, and nobody will. Waits for a while.
    pub fn is_alone(&self) -> bool {
        let is_alone = self.session.is_left(ENGINE_END_MAX);
        self.is_released.fetch_or(is_alone, Ordering::AcqRel);
        is_alone
    }
}

impl Waiters {
    /// Has the task of `context` woken. Look once more behind that.
    pub fn register(&self, waiting: &Mutex<Option<Waker>>, context: &Context<'_>) {
        register(waiting, context);
        if !self.is_watched.load(Ordering::Acquire) {
            // Nobody would wake it: it looks again and again.
            context.waker().wake_by_ref();
        }
    }

    /// Something has changed: whoever waits looks.
    pub fn wake_tasks(&self) {
        for waiting in [&self.reader, &self.writer] {
            // Not under the lock: an executor may poll right here.
            let waker = waiting.lock().take();
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

impl Watcher for Waiters {
    fn on_restarted(&self, _epoch: u64) {}

    fn on_over(&self) {
        self.last_close.forbid_end(&self.block);
        self.block.rx_flag.rouse_anyway();
        self.block.tx_flag.rouse_anyway();
        self.wake_tasks();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.session.check_process().is_err() {
            return;
        }
        if let Some(tasks) = &self.tasks {
            tasks.forget(self);
        }
        let lingers = sockopt::socket_linger(&*self.socket).ok().flatten().filter(|time| !time.is_zero());
        // An engine that hears of the close lets it end in order once all is sent; it may be dead by now.
        self.waiters.last_close.forbid_end(&self.waiters.block);
        // Otherwise the engine is done with the pages already.
        if !self.is_released.load(Ordering::Acquire)
            && let Some(room) = self.room.get_mut().take()
        {
            let outcome = self.session.close(self.id, room);
            // If the session is over, so is the stream.
            if let (Ok(()), Some(time)) = (outcome, lingers) {
                self.linger(time);
            }
        }
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// How often it is looked whether all was acknowledged.
const LOOK: Duration = Duration::from_millis(1);
/// How long an engine and its supervisor may take to end: one that ends in order has 8 s.
const ENGINE_END_MAX: Duration = Duration::from_secs(10);
