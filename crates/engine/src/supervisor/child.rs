//! The engine's process, as its supervisor sees it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{self, Command, Stdio};

use isolane_attach::control::{Packet, Wire, WireError};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::seat::Seat;
use super::shelf::Shelf;
use crate::store::{ToEngine, ToSupervisor};
use crate::{EngineError, closer};

/// An engine's process.
pub(super) struct Child {
    process: process::Child,
    pidfd: OwnedFd,
    wire: Wire,
    /// What it has not taken yet.
    outbox: VecDeque<Due>,
    /// The kernel does not take descriptors for now, and does not tell when it does again.
    is_crowded: bool,
    has_hung_up: bool,
}

/// What is to be said.
enum Due {
    /// What is kept by this key, if it still is.
    Kept(u64),
    Message(ToEngine),
}

impl Child {
    /// Starts it, with the link to us as its standard input.
    pub fn start(program: &mut Command) -> Result<Child, EngineError> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| EngineError::system("cannot make a pair of sockets", error))?;
        // A group of its own: what a terminal says to us is not meant for it.
        let process = program.stdin(Stdio::from(theirs)).process_group(0).spawn()?;
        // The command keeps the other end, which would keep us from hearing of its.
        program.stdin(Stdio::null());
        let pid = Pid::from_child(&process);
        let pidfd = pidfd_open(pid, PidfdFlags::empty())
            .map_err(|error| EngineError::system("cannot watch the engine's process", error))?;
        Ok(Child {
            process,
            pidfd,
            wire: Wire::new(ours),
            outbox: VecDeque::new(),
            is_crowded: false,
            has_hung_up: false,
        })
    }

    /// Says what is kept by these keys.
    pub fn hand_over(&mut self, keys: impl Iterator<Item = u64>) {
        self.outbox.extend(keys.map(Due::Kept));
    }

    /// Says something, as soon as it listens.
    pub fn say(&mut self, message: ToEngine) {
        self.outbox.push_back(Due::Message(message));
    }

    /// Says as much as it takes now.
    pub fn flush(&mut self, shelf: &Shelf, seat: &Seat) {
        self.is_crowded = false;
        while let Some(due) = self.outbox.front() {
            let sent = match due {
                Due::Kept(key) => match shelf.at(*key) {
                    Some(item) => {
                        let descriptors: Vec<_> = item.descriptors.iter().map(AsFd::as_fd).collect();
                        let message = ToEngine::Kept { key: *key, record: item.record.clone() };
                        self.wire.send(&message.encode(), &descriptors, false)
                    }
                    None => Ok(()),
                },
                Due::Message(message) => {
                    let listener = matches!(message, ToEngine::Go { .. }).then(|| seat.as_fd());
                    self.wire.send(&message.encode(), listener.as_slice(), false)
                }
            };
            match sent {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(WireError::Full) => return,
                Err(WireError::Crowded) => {
                    self.is_crowded = true;
                    return;
                }
                Err(error) => {
                    self.hang_up(&error);
                    return;
                }
            }
        }
    }

    /// Whether it is to be told more as soon as its link has room.
    pub fn has_more_to_say(&self) -> bool {
        !self.outbox.is_empty() && !self.is_crowded
    }

    /// Whether it is to be told more in a moment, though its link has room.
    pub fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// What it says next, if there is something.
    pub fn receive(&mut self) -> Option<(ToSupervisor, Vec<OwnedFd>)> {
        let packet = loop {
            match self.wire.receive(false) {
                Ok(packet) => break packet?,
                Err(WireError::NoDescriptors(packet)) => self.on_packet_cut(packet),
                Err(error) => {
                    self.hang_up(&error);
                    return None;
                }
            }
        };
        match ToSupervisor::decode(&packet.bytes) {
            Ok(message) => Some((message, packet.descriptors)),
            Err(error) => {
                self.hang_up(&WireError::Malformed(error));
                None
            }
        }
    }

    /// It has sent more than there are descriptors for.
    fn on_packet_cut(&mut self, packet: Packet) {
        packet.descriptors.into_iter().for_each(closer::close);
        match ToSupervisor::decode(&packet.bytes) {
            Ok(ToSupervisor::Deposit { key, .. }) => self.say(ToEngine::Unkept { key }),
            // Descriptors come with nothing else.
            Ok(_) => {}
            Err(error) => self.hang_up(&WireError::Malformed(error)),
        }
    }

    /// Nothing more is heard of it or said to it: its end must follow.
    fn hang_up(&mut self, why: &WireError) {
        if !matches!(why, WireError::Closed) {
            log::error!("the engine is not understood and is killed: {why}");
            self.kill();
        }
        self.has_hung_up = true;
        self.outbox.clear();
    }

    pub fn has_hung_up(&self) -> bool {
        self.has_hung_up
    }

    /// Becomes readable when it has ended.
    pub fn process(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Becomes readable when it says something.
    pub fn link(&self) -> BorrowedFd<'_> {
        self.wire.as_fd()
    }

    pub fn kill(&mut self) {
        // It fails only if it has ended already.
        let _ = self.process.kill();
    }

    /// How it has ended: none of its threads is left.
    pub fn wait(&mut self) -> Result<String, EngineError> {
        let status = self.process.wait();
        status
            .map(|status| status.to_string())
            .map_err(|error| EngineError::system("cannot hear of its end", error))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        let _ = self.process.wait();
    }
}
