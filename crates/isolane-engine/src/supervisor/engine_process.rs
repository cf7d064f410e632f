//! Engine's process, as a child of its supervisor.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, Command, Stdio};
use std::time::{Duration, Instant};

use isolane_engine_api::{Packet, PacketError, PacketSocket, decode, encode};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, waitid};

use super::Binary;
use super::quarantine::Quarantine;
use super::record_store::RecordStore;
use super::socket_lock::SocketLock;
use crate::store::{LINK_VERSION, ToEngine, ToSupervisor};
use crate::{EngineError, close_threads};

/// Engine's process, with its link.
pub(super) struct EngineProcess {
    pub binary: Binary,
    /// File of the program.
    pub file: String,
    pub stage: Stage,
    /// Reason for killing the process, if that is its own fault.
    fault: Option<String>,
    process: process::Child,
    /// Becomes readable when the process has exited.
    pub pidfd: OwnedFd,
    pub link: PacketSocket,
    /// Messages that were not sent yet.
    outbox: VecDeque<OutboxItem>,
    /// The kernel accepts no descriptors at present, and will not report when it does again.
    pub out_of_fds: bool,
    /// Time when the link was closed.
    closed_at: Option<Instant>,
    /// Time of the next check whether the process is stopped.
    check_at: Instant,
    /// It was stopped at the last check.
    was_stopped: bool,
}

/// Stage of an engine's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The hello message is due by this time.
    Starting(Instant),
    /// It has the right version, and waits for the records.
    Connected,
    /// The records were sent.
    Restoring,
    /// It serves clients.
    Ready,
}

/// End of a process.
pub(super) struct ExitReport {
    pub status: String,
    /// Killed by a user; its program may work.
    pub killed: bool,
}

/// Message to send.
enum OutboxItem {
    /// The record with this key, if it still exists.
    Record(u64),
    Message(ToEngine),
}

impl EngineProcess {
    /// Starts the process, with the link as its standard input.
    pub fn start(binary: Binary, command: &mut Command) -> Result<EngineProcess, EngineError> {
        let file = command.get_program().to_string_lossy().into_owned();
        let (link, child_end) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(EngineError::system("cannot make a pair of sockets"))?;
        // In a separate process group, which gets no signals of the terminal.
        let process = command.stdin(Stdio::from(child_end)).process_group(0).spawn();
        let process = process.map_err(|source| EngineError::Program { file: file.clone(), source })?;
        // Drops the command's copy of the child's end, which would keep the link open.
        command.stdin(Stdio::null());
        let pid = Pid::from_child(&process);
        let pidfd = pidfd_open(pid, PidfdFlags::empty())
            .map_err(EngineError::system("cannot watch the engine's process"))?;
        Ok(EngineProcess {
            binary,
            file,
            stage: Stage::Starting(Instant::now() + STARTUP_TIMEOUT),
            fault: None,
            process,
            pidfd,
            link: PacketSocket::new(link),
            outbox: VecDeque::new(),
            out_of_fds: false,
            closed_at: None,
            check_at: Instant::now() + STOP_CHECK_INTERVAL,
            was_stopped: false,
        })
    }

    /// Sends the records with these keys, then the order to serve.
    pub fn hand_off(&mut self, keys: impl Iterator<Item = u64>, epoch: u64) {
        self.stage = Stage::Restoring;
        self.outbox.extend(keys.map(OutboxItem::Record));
        self.send(ToEngine::Start { version: LINK_VERSION, epoch });
    }

    /// Called for the hello message. Kills a process of another version.
    pub fn on_hello(&mut self, version: u32) {
        if version == LINK_VERSION {
            self.stage = Stage::Connected;
            return;
        }
        self.kill_with_reason(format!(
            "it speaks version {version} with its supervisor, and the one that runs speaks {LINK_VERSION}: end the \
             engine (SIGTERM) and start the other program"
        ));
    }

    pub fn on_timer(&mut self, now: Instant) {
        self.kill_if_stopped(now);
        if self.exit_deadline().is_some_and(|deadline| now >= deadline) {
            match self.closed_at {
                Some(_) => self.kill_with_reason("it has closed its link without exiting".into()),
                None => self.on_startup_timeout(),
            }
        }
    }

    /// Kills a process that a user stops (SIGSTOP), and that two checks in a row find stopped: its clients would wait
    /// for it, and so would programs that know nothing of it. A process that a debugger stops does not count.
    fn kill_if_stopped(&mut self, now: Instant) {
        if now < self.check_at {
            return;
        }
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), options);
        let is_stopped = matches!(status, Ok(Some(status)) if status.stopped());
        if is_stopped && self.was_stopped {
            log::warn!("engine is stopped, killing it");
            self.kill();
        }
        self.was_stopped = is_stopped;
        self.check_at = now + STOP_CHECK_INTERVAL;
    }

    /// Time of the next [`EngineProcess::on_timer`].
    pub fn deadline(&self) -> Instant {
        self.exit_deadline().map_or(self.check_at, |deadline| deadline.min(self.check_at))
    }

    /// Time by which the process must send a message, or exit.
    fn exit_deadline(&self) -> Option<Instant> {
        let deadline = match (self.closed_at, self.stage) {
            (Some(since), _) => Some(since + EXIT_TIMEOUT),
            (None, Stage::Starting(deadline)) => Some(deadline),
            (None, _) => None,
        };
        // A process with a fault was killed.
        deadline.filter(|_| self.fault.is_none())
    }

    /// Called when the hello message is missing.
    pub fn on_startup_timeout(&mut self) {
        self.kill_with_reason(format!(
            "no hello message within {} s; the program must be an `isolane`",
            STARTUP_TIMEOUT.as_secs()
        ));
    }

    fn kill_with_reason(&mut self, fault: String) {
        self.fault.get_or_insert(fault);
        self.kill();
    }

    /// Whether the process takes messages other than the records.
    pub fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Restoring | Stage::Ready)
    }

    /// Queues a message.
    pub fn send(&mut self, message: ToEngine) {
        self.outbox.push_back(OutboxItem::Message(message));
    }

    /// Sends queued messages as far as the link accepts them.
    pub fn flush(&mut self, records: &RecordStore, socket: &SocketLock, quarantine: &Quarantine) {
        self.out_of_fds = false;
        while let Some(item) = self.outbox.front() {
            let sent = match item {
                OutboxItem::Record(key) => match records.at(*key) {
                    Some(entry) => {
                        let descriptors: Vec<_> = entry.descriptors.iter().map(AsFd::as_fd).collect();
                        let message = ToEngine::Restore { key: *key, record: entry.record.clone() };
                        self.link.send(&encode(&message), &descriptors, false)
                    }
                    None => Ok(()),
                },
                OutboxItem::Message(message) => {
                    let all = [socket.as_fd(), quarantine.memory()];
                    let descriptors = if matches!(message, ToEngine::Start { .. }) { &all[..] } else { &[] };
                    self.link.send(&encode(&message), descriptors, false)
                }
            };
            match sent {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(PacketError::WouldBlock) => return,
                Err(PacketError::TooManyFdsInFlight) => {
                    self.out_of_fds = true;
                    return;
                }
                Err(error) => return self.close(&error),
            }
        }
    }

    /// Whether messages wait for space on the link.
    pub fn wants_write(&self) -> bool {
        !self.outbox.is_empty() && !self.out_of_fds
    }

    /// Receives the next message, if there is one.
    pub fn receive(&mut self) -> Option<(ToSupervisor, Vec<OwnedFd>)> {
        let packet = loop {
            match self.link.receive(false) {
                Ok(packet) => break packet?,
                Err(PacketError::NoDescriptors(packet)) => self.on_truncated_packet(packet),
                Err(error) => {
                    self.close(&error);
                    return None;
                }
            }
        };
        match decode(&packet.bytes) {
            Ok(message) => Some((message, packet.descriptors)),
            Err(error) => {
                self.close(&PacketError::Malformed(error));
                None
            }
        }
    }

    /// Called when the supervisor has too few descriptors to receive a packet completely.
    fn on_truncated_packet(&mut self, packet: Packet) {
        packet.descriptors.into_iter().for_each(close_threads::close);
        match decode(&packet.bytes) {
            Ok(ToSupervisor::Put { key, .. }) => self.send(ToEngine::StoreFailed { key }),
            // Other messages have no descriptors.
            Ok(_) => {}
            Err(error) => self.close(&PacketError::Malformed(error)),
        }
    }

    /// Called when the link has failed or is closed; the process must exit soon.
    fn close(&mut self, error: &PacketError) {
        if !matches!(error, PacketError::Closed) {
            self.kill_with_reason(format!("its supervisor does not understand it: {error}"));
        }
        self.closed_at.get_or_insert_with(Instant::now);
        self.outbox.clear();
    }

    pub fn is_link_closed(&self) -> bool {
        self.closed_at.is_some()
    }

    pub fn kill(&mut self) {
        // Fails only if the process has exited.
        let _ = self.process.kill();
    }

    /// Waits until all threads of the process have ended.
    pub fn wait(&mut self) -> Result<ExitReport, EngineError> {
        let status = self.process.wait();
        let status = status.map_err(EngineError::system("cannot wait for the engine"))?;
        let killed = self.fault.is_none() && status.signal() == Some(Signal::KILL.as_raw());
        Ok(ExitReport { status: self.fault.take().unwrap_or_else(|| status.to_string()), killed })
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        self.kill();
        let _ = self.process.wait();
    }
}

/// Interval of the checks whether the process is stopped.
const STOP_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between the close of the link and the exit, for the last log lines.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time until the hello message, which is the first action of an engine.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);
