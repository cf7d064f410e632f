//! The engine's process, as its supervisor sees it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, Command, Stdio};
use std::time::{Duration, Instant};

use isolane_attach::control::{Packet, Wire, WireError};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use super::Program;
use super::blame::Blame;
use super::seat::Seat;
use super::shelf::Shelf;
use crate::store::{LINK_VERSION, ToEngine, ToSupervisor};
use crate::{EngineError, closer};

/// An engine's process.
pub(super) struct Child {
    program: Program,
    /// The program's file.
    file: String,
    stage: Stage,
    /// Why it is ended, if that is its own fault.
    fault: Option<String>,
    process: process::Child,
    pidfd: OwnedFd,
    wire: Wire,
    /// What it has not taken yet.
    outbox: VecDeque<Due>,
    /// The kernel does not take descriptors for now, and does not tell when it does again.
    is_crowded: bool,
    /// Since when nothing is heard of it any more.
    hung_up: Option<Instant>,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It has to say until then what it speaks.
    Silent(Instant),
    /// It speaks as we do, and waits to be handed what there is.
    Here,
    /// It was handed that.
    Entrusted,
    /// It serves, or has served.
    Ready,
}

/// How it has ended.
pub(super) struct End {
    pub how: String,
    /// Somebody has killed it: that says nothing about its program.
    pub is_killed: bool,
}

/// What is to be said.
enum Due {
    /// What is kept by this key, if it still is.
    Kept(u64),
    Message(ToEngine),
}

impl Child {
    /// Starts it, with the link to us as its standard input.
    pub fn start(which: Program, program: &mut Command) -> Result<Child, EngineError> {
        let file = program.get_program().to_string_lossy().into_owned();
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| EngineError::system("cannot make a pair of sockets", error))?;
        // A group of its own: what a terminal says to us is not meant for it.
        let process = program.stdin(Stdio::from(theirs)).process_group(0).spawn();
        let process = process.map_err(|source| EngineError::Program { file: file.clone(), source })?;
        // The command keeps the other end, which would keep us from hearing of its.
        program.stdin(Stdio::null());
        let pid = Pid::from_child(&process);
        let pidfd = pidfd_open(pid, PidfdFlags::empty())
            .map_err(|error| EngineError::system("cannot watch the engine's process", error))?;
        Ok(Child {
            program: which,
            file,
            stage: Stage::Silent(Instant::now() + SILENT_MAX),
            fault: None,
            process,
            pidfd,
            wire: Wire::new(ours),
            outbox: VecDeque::new(),
            is_crowded: false,
            hung_up: None,
        })
    }

    /// Says what is kept by these keys, and that it may begin.
    pub fn hand_over(&mut self, keys: impl Iterator<Item = u64>, epoch: u64) {
        self.stage = Stage::Entrusted;
        self.outbox.extend(keys.map(Due::Kept));
        self.say(ToEngine::Go { version: LINK_VERSION, epoch });
    }

    /// It says what it speaks. Of another version it is ended.
    pub fn on_here(&mut self, version: u32) {
        if version == LINK_VERSION {
            self.stage = Stage::Here;
            return;
        }
        self.end_for(format!(
            "it speaks version {version} with its supervisor, and the one that runs speaks {LINK_VERSION}: end the \
             engine (SIGTERM) and start the other program"
        ));
    }

    /// It serves.
    pub fn on_ready(&mut self) {
        self.stage = Stage::Ready;
    }

    /// It may be late with what it has to say, or with its end.
    pub fn on_time(&mut self, now: Instant) {
        match (self.deadline(), self.hung_up) {
            (Some(until), _) if now < until => {}
            (Some(_), Some(_)) => self.end_for("it has hung up and went on".into()),
            (Some(_), None) => self.on_silence(),
            (None, _) => {}
        }
    }

    /// Until when it must say something, or end.
    pub fn deadline(&self) -> Option<Instant> {
        let until = match (self.hung_up, self.stage) {
            (Some(since), _) => Some(since + END_MAX),
            (None, Stage::Silent(until)) => Some(until),
            (None, _) => None,
        };
        // It is ended already.
        until.filter(|_| self.fault.is_none())
    }

    /// It has not said what it must.
    pub fn on_silence(&mut self) {
        self.end_for(format!(
            "it has not said within {} s what it is; it must be an `isolane`",
            SILENT_MAX.as_secs()
        ));
    }

    fn end_for(&mut self, fault: String) {
        self.fault.get_or_insert(fault);
        self.kill();
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    pub fn program(&self) -> Program {
        self.program
    }

    pub fn file(&self) -> &str {
        &self.file
    }

    /// Says something, as soon as it listens.
    pub fn say(&mut self, message: ToEngine) {
        self.outbox.push_back(Due::Message(message));
    }

    /// Says as much as it takes now.
    pub fn flush(&mut self, shelf: &Shelf, seat: &Seat, blame: &Blame) {
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
                    let all = [seat.as_fd(), blame.memory()];
                    let descriptors = if matches!(message, ToEngine::Go { .. }) { &all[..] } else { &[] };
                    self.wire.send(&message.encode(), descriptors, false)
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
            self.end_for(format!("its supervisor does not understand it: {why}"));
        }
        self.hung_up.get_or_insert_with(Instant::now);
        self.outbox.clear();
    }

    pub fn has_hung_up(&self) -> bool {
        self.hung_up.is_some()
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

    /// Waits until none of its threads is left, and says why that is.
    pub fn wait(&mut self) -> Result<End, EngineError> {
        let status = self.process.wait();
        let status = status.map_err(|error| EngineError::system("cannot hear of its end", error))?;
        let is_killed = self.fault.is_none() && status.signal() == Some(Signal::KILL.as_raw());
        Ok(End { how: self.fault.take().unwrap_or_else(|| status.to_string()), is_killed })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        let _ = self.process.wait();
    }
}

/// How long it may take to end once it has hung up: to say why.
const END_MAX: Duration = Duration::from_secs(2);
/// How long it may take to say what it speaks, which is the first that it does.
const SILENT_MAX: Duration = Duration::from_secs(10);
