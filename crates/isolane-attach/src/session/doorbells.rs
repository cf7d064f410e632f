//! Doorbells of one core of the engine.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use isolane_shm::entries::Sender;
use isolane_shm::{Arena, Bell, SharedMemory, ShmRef, WakeFlag};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use super::control_channel::ControlChannel;
use super::descriptors::{DUPLICATE, renumber};
use crate::AttachError;
use isolane_engine_api::layout::{DoorbellLayout, doorbell};
use isolane_engine_api::{OpenDoorbells, Request};

/// Doorbells of one core of the engine. Their memory is allocated for the lifetime of the session.
#[derive(Debug)]
pub struct Doorbells {
    sender: Mutex<Sender>,
    bell: Bell<ShmRef<WakeFlag>>,
    channel: Arc<ControlChannel>,
}

impl Doorbells {
    pub(super) fn open(
        channel: &Arc<ControlChannel>,
        memory: &SharedMemory,
        arena: &mut Arena,
        core: u32,
        first_descriptor: u32,
    ) -> Result<Doorbells, AttachError> {
        let bytes = DoorbellLayout::bytes(ENTRIES);
        let span = arena.alloc(bytes).ok_or(AttachError::OutOfMemory { bytes, of: memory.bytes() })?;
        let layout = DoorbellLayout { offset: span.offset as u64, entries: ENTRIES };
        let ring = layout.ring().expect("a valid layout");
        let (sender, flag) = (Sender::open(memory, ring)?, memory.flag(layout.flag())?);
        let (bell, engine_end) = Bell::new(flag).map_err(AttachError::system("cannot create a bell"))?;
        let bell = bell.try_map_end(|end| renumber(end, first_descriptor));
        let bell = bell.map_err(AttachError::system(DUPLICATE))?;
        let open = Request::OpenDoorbells(OpenDoorbells { core, layout });
        channel.request("doorbells", &open, &[engine_end.as_fd()])?;
        Ok(Doorbells { sender: Mutex::new(sender), bell, channel: Arc::clone(channel) })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Requests a poll of an object. Call it only after taking the object's `need_wakeup` flag: then the ring has space,
    /// unless thousands of objects wait to be polled.
    ///
    /// # Errors
    /// [`AttachError::InvalidIndex`], [`AttachError::SessionClosed`].
    pub fn ring(&self, id: u32) -> Result<(), AttachError> {
        self.channel.check_process()?;
        let at = monotonic_ns();
        let mut sender = self.sender.lock();
        while !sender.push(&doorbell::entry_at(id, at))? {
            self.bell.ring();
            self.channel.check()?;
            std::thread::yield_now();
        }
        sender.publish();
        self.bell.ring();
        Ok(())
    }
}

/// Returns the clock that the engine can read too.
fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

const ENTRIES: u32 = 4096;
