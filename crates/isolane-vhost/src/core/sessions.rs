//! Connections of monitors, and the messages of their control threads.
//!
//! Invariant: a queue takes no request, and does not stop, while the volume has a change of a connection that ended before
//! the queue started. A late write cannot follow the same write of its successor, and a newer one, and no write is read from
//! memory that the guest has reused.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use isolane_reactor::mailbox::Sender;
use isolane_shm::PeerCred;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Core;
use super::rings::{ActiveRing, notify};
use crate::control::{Control, Message, MessageKind, StartedRing};
use crate::descriptors::Memories;
use crate::device::Device;

/// A connection.
pub(super) struct Session {
    pub number: u64,
    /// For log lines.
    peer: Arc<str>,
    socket: UnixStream,
    memories: Memories,
}

impl Session {
    /// Whether the monitor has closed the connection.
    fn has_ended(&self) -> bool {
        let mut sources = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut sources, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
    }
}

impl Core {
    /// Accepts a bounded number of connections.
    pub(super) fn accept(&mut self) {
        for _ in 0..MAX_ACCEPTS {
            let Some((listener, token)) = &self.listener else { return };
            match listener.accept() {
                Ok(Some(socket)) => {
                    self.reactor.on_read(*token, true);
                    self.add(socket.into());
                }
                Ok(None) => return self.reactor.on_read(*token, false),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    log::limited!(Warn, "cannot accept connections; raise the limit of open files");
                    self.reactor.pause(*token);
                    self.accept_after = Some(self.now + TICK);
                    return;
                }
                // The connection broke before it was accepted.
                Err(error) => log::debug!("connection lost before accept: {error}"),
            }
        }
    }

    fn add(&mut self, socket: UnixStream) {
        // The thread of an earlier connection of this monitor may not have seen its end yet.
        let ended: Vec<u64> = self
            .sessions
            .iter()
            .filter(|session| session.has_ended())
            .map(|session| session.number)
            .collect();
        ended.into_iter().for_each(|number| self.close(number));
        let peer = peer_name(&socket);
        self.former.retain(|memories| memories.count() > 0);
        let max_sessions = self.shares.sessions;
        if self.sessions.len() + self.former.len() >= max_sessions {
            log::limited!(
                Warn,
                "{peer}: refused, because {max_sessions} connections are open, or have requests at the volume; close some"
            );
            return;
        }
        if let Err(error) = self.start_session(socket, &peer) {
            log::limited!(Warn, "{peer}: cannot be served: {error}");
        }
    }

    fn start_session(&mut self, socket: UnixStream, peer: &Arc<str>) -> std::io::Result<()> {
        socket.set_nonblocking(false)?;
        let (number, peer) = (self.next_session, Arc::clone(peer));
        let memories = Memories::default();
        let control = (self.sender.clone(), Arc::clone(&self.device), memories.clone());
        let session = Session { number, peer: Arc::clone(&peer), socket: socket.try_clone()?, memories };
        let run = control_main(number, control, socket, peer);
        thread::Builder::new().name(format!("vhost-{number}")).spawn(run)?;
        log::debug!("{}: connected", session.peer);
        self.next_session += 1;
        self.sessions.push(session);
        Ok(())
    }

    /// Ends a connection. Its requests at the volume complete without results, and its others end: its successor repeats
    /// all of them.
    pub(super) fn close(&mut self, number: u64) {
        let Some(at) = self.sessions.iter().position(|session| session.number == number) else { return };
        let session = self.sessions.remove(at);
        // Ends the control thread, which may wait for a message.
        let _ = session.socket.shutdown(std::net::Shutdown::Both);
        for key in self.rings.keys_of(number) {
            if let Some(ring) = self.rings.remove(key) {
                drop(self.reactor.remove(ring.token));
            }
        }
        self.abandon_jobs();
        self.former.push(session.memories);
    }

    pub(super) fn handle_messages(&mut self) {
        for _ in 0..MAX_MESSAGES {
            let Some(Message { session, kind }) = self.messages.poll() else { return };
            if self.sessions.iter().any(|known| known.number == session) {
                self.handle_message(session, kind);
            }
        }
        self.reactor.waker().wake();
    }

    fn handle_message(&mut self, session: u64, kind: MessageKind) {
        match kind {
            MessageKind::Start { ring, kick, reply } => {
                // The thread waits for the reply, unless its connection has ended.
                let _ = reply.send(self.start_ring(session, *ring, kick));
            }
            MessageKind::Stop { index, reply } => {
                if let Some(key) = self.rings.find(session, index)
                    && let Some(ring) = self.rings.get_mut(key)
                {
                    ring.stop = Some(reply);
                    self.finish_stop(key);
                }
            }
            MessageKind::Enable { index, is_enabled, reply } => {
                if let Some(key) = self.rings.find(session, index)
                    && let Some(ring) = self.rings.get_mut(key)
                {
                    ring.is_enabled = is_enabled;
                    self.rings.list(key);
                }
                let _ = reply.send(());
            }
            MessageKind::Call { index, call, reply } => {
                if let Some(key) = self.rings.find(session, index)
                    && let Some(ring) = self.rings.get_mut(key)
                {
                    ring.call = call;
                    // Results may have been published without a descriptor, or by a server that was killed.
                    notify(&self.signals, ring.call.as_ref());
                }
                let _ = reply.send(());
            }
            MessageKind::Memory { memory, reply } => {
                let mut replaced = Ok(());
                for key in self.rings.keys_of(session) {
                    if let Some(ring) = self.rings.get_mut(key) {
                        replaced = replaced.and(ring.ring.set_memory(Arc::clone(&memory)));
                    }
                }
                let _ = reply.send(replaced);
            }
            MessageKind::Close(closed) => {
                self.close(session);
                drop(closed);
            }
        }
    }

    fn start_ring(&mut self, session: u64, started: StartedRing, kick: OwnedFd) -> std::io::Result<()> {
        let Some(known) = self.sessions.iter().find(|known| known.number == session) else { return Ok(()) };
        let token = self.reactor.add(kick)?;
        let (unfinished, peer) = (started.ring.unfinished(), Arc::clone(&known.peer));
        if unfinished > 0 {
            log::info!("{peer}: queue {}: repeating {unfinished} unfinished requests", started.index);
        }
        // A server that was killed may have published results without a notification.
        notify(&self.signals, started.call.as_ref());
        let key = self.rings.insert(ActiveRing::new(started, session, peer, token, self.orphans > 0));
        // The notification of requests may have been lost with a killed server.
        self.rings.list(key);
        Ok(())
    }
}

/// Returns the main function of a control thread. The state is created on that thread: its drop waits for this one, which
/// drops the function if the system refuses the thread.
fn control_main(
    session: u64,
    (core, device, memories): (Sender<Message>, Arc<Device>, Memories),
    socket: UnixStream,
    peer: Arc<str>,
) -> impl FnOnce() + Send {
    move || Control::new(session, core, device, memories).run(socket, &peer)
}

fn peer_name(socket: &UnixStream) -> Arc<str> {
    match PeerCred::from_socket(socket.as_fd()) {
        Ok(PeerCred { pid, .. }) => format!("process {pid}").into(),
        Err(_) => "a local process".into(),
    }
}

/// Limit per turn.
const MAX_ACCEPTS: usize = 16;
/// Limit per turn.
const MAX_MESSAGES: usize = 64;
/// Interval of checks during the shutdown, and delay after the system ran out of descriptors.
pub(super) const TICK: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use isolane_reactor::{Reactor, ReactorConfig, mailbox};
    use isolane_volume::{open, spec};

    use super::*;

    #[test]
    fn refused_thread_has_no_state_to_close() {
        let reactor = Reactor::new(ReactorConfig::default()).unwrap();
        let (sender, messages) = mailbox::unbounded(reactor.waker());
        let volume = open(&spec::parse("mem:1M").unwrap()).unwrap();
        let device = Arc::new(Device::new(volume.info().clone(), volume.identity(), 256));
        let (socket, _peer) = UnixStream::pair().unwrap();
        let main = control_main(7, (sender, device, Memories::default()), socket, "a test".into());
        // On another thread, because the drop of a state waits for the reply to its message.
        let dropped = thread::spawn(move || drop(main));
        while !dropped.is_finished() {
            assert!(messages.poll().is_none(), "the thread of the server waits for itself");
            thread::yield_now();
        }
        assert!(messages.poll().is_none());
    }
}
