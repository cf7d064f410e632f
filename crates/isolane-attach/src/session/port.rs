//! The doorbells of one of the engine's cores.

use std::os::fd::AsFd;
use std::sync::Arc;

use isolane_ring::entries::Sender;
use isolane_ring::{Arena, Bell, Flag, Memory, Shared};
use parking_lot::Mutex;

use super::line::Line;
use crate::AttachError;
use crate::control::{OpenPort, Request};
use crate::layout::{PortPlace, doorbell};

/// The doorbells of one of the engine's cores. Its place is the session's for as long as that lives.
#[derive(Debug)]
pub struct Port {
    sender: Mutex<Sender>,
    bell: Bell<Shared<Flag>>,
    line: Arc<Line>,
}

impl Port {
    pub(super) fn open(
        line: &Arc<Line>,
        memory: &Memory,
        arena: &mut Arena,
        core: u32,
    ) -> Result<Port, AttachError> {
        let bytes = PortPlace::bytes(ENTRIES);
        let span = arena.take(bytes).ok_or(AttachError::NoRoom { bytes, of: memory.bytes() })?;
        let place = PortPlace { offset: span.offset as u64, entries: ENTRIES };
        let ring = place.ring().expect("a place of our own choice");
        let (sender, flag) = (Sender::new(memory, ring)?, memory.flag(place.flag())?);
        let (bell, theirs) =
            Bell::new(flag).map_err(|error| AttachError::system("cannot make a bell", error))?;
        line.ask("a port", &Request::OpenPort(OpenPort { core, place }), &[theirs.as_fd()])?;
        Ok(Port { sender: Mutex::new(sender), bell, line: Arc::clone(line) })
    }

    /// Has the engine look at an object. Call it only if the object's `told` flag was taken: then there is
    /// room, unless thousands of objects have not been looked at yet.
    ///
    /// # Errors
    /// [`AttachError::Impossible`], [`AttachError::Over`].
    pub fn tell(&self, id: u32) -> Result<(), AttachError> {
        self.line.check_process()?;
        let mut sender = self.sender.lock();
        while !sender.push(&doorbell::entry(id))? {
            self.bell.ring();
            self.line.check()?;
            std::thread::yield_now();
        }
        sender.publish();
        self.bell.ring();
        Ok(())
    }
}

/// Entries of a port.
const ENTRIES: u32 = 4096;
