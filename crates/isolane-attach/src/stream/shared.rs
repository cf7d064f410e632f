//! State shared by the two halves of a stream, which closes it when both are dropped.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::net::sockopt;

use super::driver::DriverHandle;
use super::wait::register;
use super::wakers::StreamWakers;
use crate::AttachError;
use crate::session::{Allocation, Session};
use isolane_engine_api::stream::Origin;
use isolane_engine_api::{CloseMode, Request};

pub(super) struct Shared {
    pub session: Session,
    /// No engine has the stream: it works on the socket directly.
    pub plain: bool,
    pub id: u32,
    pub core: u32,
    pub socket: Arc<TcpStream>,
    pub wakers: Arc<StreamWakers>,
    /// Memory of the control block and the rings, until closed.
    pub allocation: Option<Allocation>,
    /// Wakes the tasks, unless the stream belongs to a poller.
    pub driver: Option<DriverHandle>,
    /// The tasks are woken: by the engine, or by a driver that polls the socket of a plain stream.
    pub watched: bool,
    pub origin: Origin,
    /// Serial number of the request to release the socket that is in flight, or 0.
    pub releasing: AtomicU32,
    pub released: AtomicBool,
}

impl Shared {
    /// Checks that the session is open, which a plain stream does not need.
    #[inline]
    pub fn check(&self) -> io::Result<()> {
        Ok(if self.plain { self.session.check_process() } else { self.session.check() }?)
    }

    /// Registers the task of `context`, and requests a notification. Check for readiness again afterwards.
    pub fn register(&self, slot: &Mutex<Option<Waker>>, context: &Context<'_>) {
        register(slot, context);
        if !self.watched {
            // Nothing else would wake the task: poll again.
            context.waker().wake_by_ref();
        }
        self.wakers.block.notify.arm();
    }

    #[cold]
    pub fn ring_doorbell(&self) -> io::Result<()> {
        Ok(self.session.doorbells(self.core).ring(self.id)?)
    }

    /// Requests that the engine release the socket. [`Shared::release`] must follow.
    pub fn start_release(&self) -> Result<(), AttachError> {
        if !self.plain && self.releasing.load(Ordering::Relaxed) == 0 {
            let release = Request::CloseObject { id: self.id, how: CloseMode::Release };
            self.releasing.store(self.session.start_request(&release)?, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes the engine release the socket.
    pub fn release(&self) -> Result<(), AttachError> {
        self.session.check_process()?;
        if self.plain {
            return Ok(());
        }
        self.start_release()?;
        let request = self.releasing.swap(0, Ordering::Relaxed);
        self.session.finish_request("to take a stream back", request)?;
        self.released.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits until the peer has acknowledged all data, as the close of a lingering socket does: the engine's duplicate
    /// of the socket is closed last.
    #[cold]
    fn wait_until_acked(&self, time: Duration) {
        let Some(deadline) = Instant::now().checked_add(time) else { return };
        self.session.wait_closed(self.id, deadline);
        // The kernel gives no notification of this.
        while Instant::now() < deadline && self.close_lingers().unwrap_or(false) {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns `true` if a close would wait for the peer; one that resets does not.
    fn close_lingers(&self) -> io::Result<bool> {
        Ok(isolane_tcp::unread_bytes(self.as_fd())? == 0 && !isolane_tcp::all_acked(self.as_fd())?)
    }

    /// Returns `true` if only this process uses the socket, now and later. Waits for engine and supervisor to exit.
    pub fn engine_gone(&self) -> bool {
        let engine_gone = self.session.is_abandoned(ENGINE_EXIT_TIMEOUT);
        self.released.fetch_or(engine_gone, Ordering::AcqRel);
        engine_gone
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.session.check_process().is_err() {
            return;
        }
        if let Some(driver) = &self.driver {
            driver.deregister(self.id, self.plain.then(|| self.as_fd()));
        }
        let lingers = sockopt::socket_linger(&*self.socket).ok().flatten().filter(|time| !time.is_zero());
        if self.releasing.load(Ordering::Relaxed) != 0 {
            // Fails only if the session is closed.
            let _ = self.release();
        }
        // An engine that receives the close restores a clean close once all data is sent, but it may be dead by now.
        self.wakers.reset_if_unsent();
        // A released stream's memory is no longer used by the engine.
        if !self.released.load(Ordering::Acquire)
            && let Some(allocation) = self.allocation.take()
        {
            let result = self.session.close(self.id, allocation);
            // If the session is closed, so is the stream.
            if let (Ok(()), Some(time)) = (result, lingers) {
                self.wait_until_acked(time);
            }
        }
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Limit for engine and supervisor to exit; a clean shutdown takes at most 8 s.
const ENGINE_EXIT_TIMEOUT: Duration = Duration::from_secs(10);
