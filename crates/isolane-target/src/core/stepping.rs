//! Single turns of a core, for the [simulation](crate::simulation).

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use isolane_proto::subsystem::ListenerId;
use isolane_reactor::mailbox;

use super::Driver;

impl Driver {
    /// Adds a connection that was accepted.
    pub(crate) fn adopt_accepted(&mut self, socket: TcpStream, peer: SocketAddr) {
        self.adopt(socket, peer, ListenerId::at(0));
    }

    /// Runs a turn that does not sleep, with a tick or without.
    pub(crate) fn step(&mut self, is_tick_due: bool) {
        self.core.reactor.waker().wake();
        let now = self.core.now;
        self.next_tick = if is_tick_due { now } else { now + NEVER };
        self.turn().expect("the reactor works");
    }

    /// Runs a turn that receives from sockets before the messages of other cores arrive.
    pub(crate) fn step_before_messages(&mut self) {
        let (_, none) = mailbox::unbounded(self.core.reactor.waker());
        let messages = std::mem::replace(&mut self.mailbox, none);
        self.step(false);
        self.mailbox = messages;
    }

    /// Ends the core after it has left its connections to another one.
    pub(crate) fn end(mut self) {
        assert!(self.is_finished(), "the core has left");
        let _ = self.finish();
    }

    /// Returns a description of the commands that this core has, or an empty text.
    pub(crate) fn unfinished_work(&self) -> String {
        let core = &self.core;
        let waiting: Vec<_> = core.waiting.iter().collect();
        let orphans: usize = core.volumes.iter().map(|volume| volume.orphans).sum();
        let is_idle = core.files.is_empty()
            && waiting.is_empty()
            && core.held.is_empty()
            && core.flushes.is_empty()
            && core.waiting.is_empty()
            && orphans == 0;
        if is_idle {
            return String::new();
        }
        let files: Vec<_> = core.files.values().collect();
        format!(
            "core {}: {files:?}, waiting: {waiting:?}, held: {:?}, {orphans} orphans",
            core.index, core.held
        )
    }

    /// Returns the memory that commands of all volumes hold or have reserved, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.core.volumes.iter().map(|volume| volume.held_bytes()).sum()
    }
}

const NEVER: Duration = Duration::from_secs(3600);
