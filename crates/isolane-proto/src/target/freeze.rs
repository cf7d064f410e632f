//! State of a connection that another process continues.
//!
//! A frozen connection is not read. Its driver holds permits only of commands that it has not started. The state has
//! these commands, and PDUs that have arrived in part, as bytes to read again; so only requested data, held Async Event
//! Requests, and the parameters of the queue need a form of their own.
//!
//! Invariant: a connection that is resumed from a state sends and expects the bytes that follow those of the frozen
//! one. A state that cannot be is refused.

use std::time::{Duration, Instant};

use isolane_memory::{Buffer, Payload};
use isolane_wire::digest::crc32c;
use isolane_wire::pdu::{CapsuleCmd, H2cData};
use isolane_wire::{Framing, Sgl, SubmissionEntry};
use serde::{Deserialize, Serialize};

use super::receive::Receiving;
use super::slots::{Grant, MAX_GRANTS, MAX_SLOTS, Slot};
use super::{Connection, ConnectionConfig, MAX_ASYNC_EVENTS, Permit, SubmissionQueue};
use crate::connection::Phase;

/// State of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionState {
    /// Digests and padding of both directions; `None` before ICReq.
    framing: Option<[FramingState; 2]>,
    /// Remaining time until Connect must have succeeded, in milliseconds.
    handshake_ms: u32,
    max_grants: u8,
    /// Maximum data of one H2CData PDU that the host knows, in bytes.
    max_h2c_data_bytes: u32,
    queue: Option<QueueState>,
    held: Vec<u16>,
    commands: Vec<CommandState>,
    /// Bytes of a PDU that have not been read and are discarded.
    skip: u32,
    unread: Vec<u8>,
    unsent: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FramingState {
    header_digest: bool,
    data_digest: bool,
    pda: u8,
}

/// Parameters of a connected queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueState {
    /// Queue identifier.
    pub qid: u16,
    /// Number of entries.
    pub entries: u32,
    /// Submission queue head pointer of the last completion.
    pub head: u16,
    /// Whether the host has disabled flow control.
    pub flow_control_disabled: bool,
}

/// A command whose data was requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandState {
    slot: u16,
    /// The submission queue entry.
    entry: Vec<u8>,
    /// Length of the data in bytes.
    len: u32,
    received: u32,
    digest_ok: bool,
    grants: Vec<GrantState>,
    /// The requested part of the data; bytes that have not arrived are undefined.
    data: Vec<u8>,
}

/// An outstanding R2T.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantState {
    ttag: u16,
    start: u32,
    next: u32,
    end: u32,
    unscheduled: bool,
}

/// A command that the driver has not started.
#[derive(Clone, Copy, Debug)]
pub struct Unstarted<'a> {
    /// Its permit.
    pub permit: &'a Permit,
    /// Its data that the driver has already received.
    pub data: &'a [u8],
}

/// A command of a resumed connection whose data is arriving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumedData {
    /// Its slot.
    pub slot: u16,
    /// The command.
    pub entry: SubmissionEntry,
    /// Length of its data, in bytes.
    pub len: usize,
}

/// A state that no connection can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the state of a connection is not valid: {0}")]
pub struct StateError(pub &'static str);

impl Connection {
    /// Returns the state of the connection, which stays as it is. The driver has no permits but those of `unstarted`, in
    /// their order. `None` if it has others, or if the connection cannot be continued elsewhere.
    pub fn freeze(&mut self, unstarted: &[Unstarted<'_>], now: Instant) -> Option<ConnectionState> {
        let is_whole = self.phase.is_alive() && self.event.is_none() && self.receiver.is_self_contained();
        if !is_whole || self.submission_queue.is_connecting {
            return None;
        }
        let unread = self.unread(unstarted)?;
        let unsent = self.copy_unsent()?;
        let in_capsule = match self.receiving {
            Receiving::InCapsule { slot } => Some(slot),
            _ => None,
        };
        let arriving = self.slots.arriving();
        if arriving.len() + unstarted.len() != self.slots.occupied() {
            return None;
        }
        let commands = arriving.into_iter().filter(|(at, _)| Some(*at) != in_capsule);
        let commands = commands.map(|(at, slot)| CommandState::of(at, slot)).collect();
        let framing = [self.receiver.framing(), self.outbound].map(FramingState::from);
        let queue = &self.submission_queue;
        let queue = QueueState {
            qid: queue.id,
            entries: queue.entries,
            head: queue.head,
            flow_control_disabled: queue.flow_control_disabled,
        };
        let left = self.handshake_deadline.saturating_duration_since(now);
        let is_discarding = matches!(self.receiving, Receiving::Discard);
        Some(ConnectionState {
            framing: (self.phase == Phase::Open).then_some(framing),
            handshake_ms: u32::try_from(left.as_millis()).unwrap_or(u32::MAX),
            max_h2c_data_bytes: self.limits.max_h2c_data_bytes,
            max_grants: self.grants.max_per_command as u8,
            queue: self.is_connected.then_some(queue),
            held: self.held.to_vec(),
            commands,
            skip: if is_discarding { self.receiver.bytes_left() as u32 } else { 0 },
            unread,
            unsent,
        })
    }

    /// The bytes to read again. The capsule of a command whose data follows comes last.
    fn unread(&self, unstarted: &[Unstarted<'_>]) -> Option<Vec<u8>> {
        let framing = self.receiver.framing();
        let mut unread = Vec::new();
        let mut current = Vec::new();
        for Unstarted { permit, data } in unstarted {
            let entry = *self.slots.entry(permit);
            if self.receiving == (Receiving::Undecided { slot: permit.slot() }) {
                let data_len = self.receiver.data_left() as u32;
                self.push_header(&CapsuleCmd { entry, data_len }.encode(&framing), &mut current)?;
                continue;
            }
            push_capsule(entry, data, &framing, &mut unread);
        }
        match self.receiving {
            Receiving::Undecided { .. } if current.is_empty() => return None,
            Receiving::InCapsule { slot } => {
                let (entry, buffer) = self.arriving(slot)?;
                let header = CapsuleCmd { entry, data_len: buffer.len() as u32 };
                self.push_header(&header.encode(&framing), &mut current)?;
                self.receiver.copy_arrived(buffer, &mut current);
            }
            Receiving::H2cData { slot, ttag, len } => {
                let (entry, buffer) = self.arriving(slot)?;
                let arriving = self.slots.arriving();
                let (_, found) = arriving.into_iter().find(|(at, _)| *at == slot)?;
                let grant = found.grants.iter().find(|grant| grant.ttag == ttag)?;
                let (datao, last) = (grant.next, grant.next + len == grant.end);
                let header = H2cData { cccid: entry.cid, ttag, datao, datal: len, last };
                self.push_header(&header.encode(&framing), &mut current)?;
                self.receiver.copy_arrived(buffer, &mut current);
            }
            _ => {}
        }
        // Data that is discarded comes before everything else.
        let unparsed = self.receiver.unparsed();
        let skipped = if self.receiving == Receiving::Discard {
            self.receiver.bytes_left().min(unparsed.len())
        } else {
            0
        };
        Some([&unparsed[..skipped], &unread, &current, &unparsed[skipped..]].concat())
    }

    fn arriving(&self, slot: u16) -> Option<(SubmissionEntry, &Buffer)> {
        let arriving = self.slots.arriving();
        let (_, found) = arriving.into_iter().find(|(at, _)| *at == slot)?;
        Some((found.entry, found.buffer.as_ref()?))
    }

    /// Appends the header of the current PDU without its padding. `None` if the host has padded it differently.
    fn push_header(&self, encoded: &[u8], bytes: &mut Vec<u8>) -> Option<()> {
        let hlen = usize::from(*encoded.get(2)?) + self.receiver.framing().header_digest_len();
        bytes.extend_from_slice(encoded.get(..hlen)?);
        (encoded.len() - hlen == self.receiver.padding()).then_some(())
    }

    /// Continues a connection. `buffer` returns memory of a length in bytes. Poll events afterwards: bytes may be unread.
    ///
    /// # Errors
    /// If no connection with these limits can have the state.
    pub fn resume(
        limits: ConnectionConfig,
        state: ConnectionState,
        mut buffer: impl FnMut(usize) -> Buffer,
        now: Instant,
    ) -> Result<(Connection, Vec<ResumedData>), StateError> {
        state.check()?;
        let mut conn = Connection::new(limits, now);
        conn.handshake_deadline =
            now + Duration::from_millis(state.handshake_ms.into()).min(conn.limits.handshake);
        if let Some([inbound, outbound]) = state.framing {
            conn.phase = Phase::Open;
            conn.receiver.set_framing(inbound.into());
            conn.outbound = outbound.into();
            conn.outbound_plain = conn.outbound == Framing::PLAIN;
            conn.grants.max_per_command = state.max_grants.into();
            conn.limits.max_h2c_data_bytes = state.max_h2c_data_bytes;
        }
        if let Some(QueueState { qid: id, entries, head, flow_control_disabled }) = state.queue {
            conn.is_connected = true;
            conn.slots.set_limit(entries as usize);
            conn.submission_queue =
                SubmissionQueue { id, entries, head, flow_control_disabled, is_connecting: false };
        }
        conn.held.extend(state.held.iter().copied());
        let mut resumed = Vec::with_capacity(state.commands.len());
        for command in state.commands {
            resumed.push(conn.insert(command, &mut buffer)?);
        }
        if !state.unsent.is_empty() {
            conn.output.push::<24>(&[], Some(Payload::from(state.unsent)));
        }
        if state.skip > 0 {
            conn.receiving = Receiving::Discard;
        }
        conn.receiver.resume(state.unread, state.skip as usize);
        conn.issue_grants();
        Ok((conn, resumed))
    }

    fn insert(
        &mut self,
        command: CommandState,
        buffer: &mut impl FnMut(usize) -> Buffer,
    ) -> Result<ResumedData, StateError> {
        let invalid = StateError("a command");
        let entry = SubmissionEntry::decode_prefix(&command.entry).ok_or(invalid)?;
        let (at, len, granted) = (command.slot, command.len as usize, command.data.len());
        let mut memory = buffer(len);
        if memory.len() != len {
            return Err(invalid);
        }
        memory.copy_in(0, &command.data);
        let mut slot = Slot {
            cid: entry.cid,
            entry,
            buffer: Some(memory),
            digest_ok: command.digest_ok,
            granted: granted as u32,
            received: command.received,
            ..Slot::default()
        };
        for grant in &command.grants {
            let GrantState { ttag, start, next, end, unscheduled } = *grant;
            *self.grants.outstanding(unscheduled) += (end - next) as usize;
            slot.grants.push(Grant { ttag, start, next, end, unscheduled });
        }
        if !self.slots.insert(at, slot) {
            return Err(invalid);
        }
        if granted < len {
            self.grants.wait(at, len - granted);
        }
        Ok(ResumedData { slot: at, entry, len })
    }
}

impl ConnectionState {
    /// Whether its queue is connected, and its parameters.
    pub fn queue(&self) -> Option<QueueState> {
        self.queue
    }

    /// Total length of the data of its commands, in bytes.
    pub fn data_bytes(&self) -> u64 {
        self.commands.iter().map(|command| u64::from(command.len)).sum()
    }

    /// Number of commands whose data is arriving.
    pub fn commands(&self) -> usize {
        self.commands.len()
    }

    fn check(&self) -> Result<(), StateError> {
        let is_padded = |framing: &[FramingState; 2]| framing.iter().any(|it| it.pda > Framing::MAX_PDA);
        if self.framing.as_ref().is_some_and(is_padded) || !(1..=MAX_GRANTS).contains(&self.max_grants.into())
        {
            return Err(StateError("its framing"));
        }
        if self.framing.is_none() && (self.queue.is_some() || !self.commands.is_empty()) {
            return Err(StateError("a queue before initialization"));
        }
        if let Some(queue) = self.queue
            && (!(1..=MAX_SLOTS as u32).contains(&queue.entries) || u32::from(queue.head) >= queue.entries)
        {
            return Err(StateError("its queue"));
        }
        let is_twice = (1..self.held.len()).any(|at| self.held[..at].contains(&self.held[at]));
        if self.held.len() > MAX_ASYNC_EVENTS || is_twice {
            return Err(StateError("its Async Event Requests"));
        }
        self.commands.iter().try_for_each(CommandState::check)
    }
}

impl CommandState {
    fn of(at: u16, slot: &Slot) -> CommandState {
        let (buffer, mut data) = (slot.buffer.as_ref(), Vec::new());
        if let Some(buffer) = buffer {
            buffer.for_each_slice(0, slot.granted as usize, |slice| data.extend_from_slice(slice));
        }
        let grants = slot.grants.iter().map(|&Grant { ttag, start, next, end, unscheduled }| GrantState {
            ttag,
            start,
            next,
            end,
            unscheduled,
        });
        CommandState {
            slot: at,
            entry: slot.entry.encode().to_vec(),
            len: buffer.map_or(0, Buffer::len) as u32,
            received: slot.received,
            digest_ok: slot.digest_ok,
            grants: grants.collect(),
            data,
        }
    }

    /// Checks that each requested byte has arrived or belongs to one grant.
    fn check(&self) -> Result<(), StateError> {
        let invalid = Err(StateError("the data of a command"));
        let granted = self.data.len() as u64;
        if granted > self.len.into() || self.received >= self.len || self.grants.len() > MAX_GRANTS {
            return invalid;
        }
        let (mut outstanding, mut end) = (0, 0);
        for (at, grant) in self.grants.iter().enumerate() {
            let is_tag_used = self.grants[..at].iter().any(|other| other.ttag == grant.ttag);
            let is_ordered = end <= grant.start && grant.start <= grant.next && grant.next < grant.end;
            if is_tag_used || !is_ordered || !super::slots::is_tag_of(grant.ttag, self.slot) {
                return invalid;
            }
            outstanding += u64::from(grant.end - grant.next);
            end = grant.end;
        }
        let is_sum = u64::from(self.received) + outstanding == granted;
        if u64::from(end) <= granted && is_sum { Ok(()) } else { invalid }
    }
}

impl From<Framing> for FramingState {
    fn from(Framing { header_digest, data_digest, pda }: Framing) -> FramingState {
        FramingState { header_digest, data_digest, pda }
    }
}

impl From<FramingState> for Framing {
    fn from(FramingState { header_digest, data_digest, pda }: FramingState) -> Framing {
        Framing { header_digest, data_digest, pda }
    }
}

/// Appends the capsule of a command; its data is in it, even if the host has sent it separately.
fn push_capsule(mut entry: SubmissionEntry, data: &[u8], framing: &Framing, bytes: &mut Vec<u8>) {
    let len = data.len() as u32;
    if len > 0 {
        entry.sgl = Sgl::InCapsule { offset: 0, len };
    }
    bytes.extend_from_slice(&CapsuleCmd { entry, data_len: len }.encode(framing));
    bytes.extend_from_slice(data);
    if framing.data_digest && len > 0 {
        bytes.extend_from_slice(&crc32c(data).to_le_bytes());
    }
}
