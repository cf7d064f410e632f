//! Receiving half of a host's connection: from bytes to events.
//!
//! Invariant: [`Receiving`] names the owner of the current body, and was set from a completely
//! checked header.

use std::time::Instant;

use isolane_memory::Buffer;
use isolane_wire::CompletionEntry;
use isolane_wire::pdu::{C2hData, CapsuleResp, HeaderFault, PduType};

use super::Connection;
use super::commands::{Command, Commands};
use super::event::{Completed, Data, Event};
use crate::connection::{self, FatalError, Header, Phase, Prediction, Violation, exact};
use isolane_connection::ReceivePlan;

/// Owner of the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    /// A header.
    Header,
    /// Data of a command.
    C2hData {
        cid: u16,
        /// Whether the data also completes the command.
        success: bool,
    },
}

/// Result of one receive step: a completed command. Other events are left in [`Connection::event`].
pub(super) type Step = connection::Step<CompletionEntry>;

impl Connection {
    /// Returns the destinations of the next bytes: the buffer of the arriving read, then
    /// `overflow`.
    ///
    /// Pass the same overflow to the following calls of [`Connection::poll_event`]. Connections can
    /// share it: its content is unused after `poll_event` has returned `None`.
    ///
    /// The plan predicts that data arrives in the order of the commands, and continues with the
    /// buffers of other reads in flight. Until such a read completes, its buffer can hold any
    /// received bytes.
    pub fn receive_plan<'a>(&'a mut self, overflow: &'a mut [u8]) -> ReceivePlan<'a> {
        let mut plan = ReceivePlan::new();
        self.fill_receive_plan(overflow, &mut plan);
        plan
    }

    /// Fills an empty plan, as [`Connection::receive_plan`] does.
    pub fn fill_receive_plan<'a>(&'a mut self, overflow: &'a mut [u8], plan: &mut ReceivePlan<'a>) {
        if !self.receiver.should_predict() {
            let destination = destination(&mut self.commands, self.receiving);
            return self.receiver.plan(plan, destination, overflow);
        }
        let arriving = match self.receiving {
            Receiving::C2hData { cid, .. } => Some(cid),
            Receiving::Header => None,
        };
        let (destination, reads) = self.commands.reads(arriving);
        let predicted = reads.map_while(|(cid, buffer)| {
            let len = buffer.len();
            buffer.as_mut_slice().map(|data| (Prediction { cid, len }, std::iter::once(data)))
        });
        self.receiver.plan_ahead(plan, destination, predicted, overflow);
    }

    /// Records that the first `n` bytes of the last plan have been filled.
    pub fn handle_received(&mut self, n: usize) {
        let destination = destination(&mut self.commands, self.receiving);
        self.receiver.handle_received(n, destination.as_deref());
        if !self.phase.is_alive() {
            self.receiver.discard();
        }
    }

    /// Returns the next event; `None` if more bytes must be received.
    pub fn poll_event(&mut self, overflow: &[u8], now: Instant) -> Option<Event> {
        match self.poll_completion(overflow, now) {
            Some(entry) => Some(Event::Completed(self.finish(entry))),
            None => self.take_event(),
        }
    }

    /// Returns the completion of the next command, for [`Connection::finish`]. `None`: call
    /// [`Connection::take_event`].
    #[inline(always)]
    pub fn poll_completion(&mut self, overflow: &[u8], now: Instant) -> Option<CompletionEntry> {
        loop {
            if let Some(entry) = self.poll_whole(overflow) {
                return Some(entry);
            }
            match self.poll_other(overflow, now) {
                Step::Event(entry) => return Some(entry),
                Step::Continue => {}
                Step::NeedMoreData => return None,
            }
        }
    }

    /// Returns the tag of the read of which a part has arrived that more data must follow.
    pub fn arriving(&mut self) -> Option<u64> {
        let Receiving::C2hData { cid, .. } = self.receiving else { return None };
        self.commands.find(cid).map(|command| command.tag)
    }

    /// Returns an event that is not a completed command.
    pub fn take_event(&mut self) -> Option<Event> {
        self.event.take()
    }

    /// Takes a PDU that completes a command, if all of it has arrived. `None`: [`Connection::poll_other`] handles
    /// the input.
    #[inline(always)]
    fn poll_whole(&mut self, overflow: &[u8]) -> Option<CompletionEntry> {
        if self.phase != Phase::Open || self.receiving != Receiving::Header || self.deferred > 0 {
            return None;
        }
        let (header, bytes) = self.receiver.header(overflow)?;
        header.verify(bytes).ok()?;
        let header = *header;
        match header.pdu_type {
            PduType::C2hData => {
                // All data of a read, in its predicted buffer.
                let data = C2hData::decode(bytes.first_chunk()?, header.layout.data_len).ok()?;
                let (cid, len) = (data.cccid, data.datal as usize);
                if !data.success
                    || !self.receiver.has_unverified()
                    || !self.receiver.matches_prediction(&header, cid, len)
                {
                    return None;
                }
                check_data(self.commands.find(cid)?, &data, self.flow_control_disabled).ok()?;
                let has_landed = self.receiver.take_landed(&header);
                has_landed.then(|| CompletionEntry { cid, ..CompletionEntry::default() })
            }
            PduType::CapsuleResp => {
                let entry = CapsuleResp::decode(bytes.first_chunk()?).entry;
                self.take_response(&header, entry)
            }
            _ => None,
        }
    }

    /// Handles input that [`Connection::poll_whole`] has not taken.
    #[inline(never)]
    fn poll_other(&mut self, overflow: &[u8], now: Instant) -> Step {
        if self.event.is_some() {
            return Step::NeedMoreData;
        }
        if self.deferred > 0
            && let Some(entry) = self.next_deferred()
        {
            return Step::Event(entry);
        }
        if !self.phase.is_alive() {
            return Step::NeedMoreData;
        }
        if let Receiving::C2hData { cid, success } = self.receiving {
            return self.receive_data(overflow, cid, success);
        }
        self.receive_header(overflow).unwrap_or_else(|error| {
            self.receiver.save_header(overflow);
            self.fail(error, now);
            Step::Continue
        })
    }

    fn receive_header(&mut self, overflow: &[u8]) -> Result<Step, FatalError> {
        let Some((header, bytes)) = self.receiver.header(overflow) else {
            return if self.receiver.parse_header(overflow)? {
                Ok(Step::Continue)
            } else {
                Ok(self.on_input_exhausted(overflow))
            };
        };
        let header = *header;
        header.verify(bytes)?;
        header.check_sequence(self.phase, PduType::IcResp, PduType::C2hTermReq)?;
        match header.pdu_type {
            PduType::C2hData => {
                let data = C2hData::decode(exact(bytes)?, header.layout.data_len)
                    .map_err(|fault| FatalError::header(header.pdu_type.code(), fault))?;
                self.handle_c2h_data(&header, data, overflow)
            }
            PduType::CapsuleResp => {
                let entry = CapsuleResp::decode(exact(bytes)?).entry;
                self.refuse_response(&header, entry, overflow)
            }
            _ => self.handle_other(&header, overflow),
        }
    }

    /// Waits for more bytes, unless predicted bytes remain, which are read again.
    #[inline]
    fn on_input_exhausted(&mut self, overflow: &[u8]) -> Step {
        if !self.receiver.has_unverified() {
            return Step::NeedMoreData;
        }
        self.rollback_predictions(overflow);
        Step::Continue
    }

    /// Rolls back wrong predictions: the received bytes are read again.
    #[cold]
    pub(super) fn rollback_predictions(&mut self, overflow: &[u8]) {
        let commands = &mut self.commands;
        self.receiver.rollback_predictions(overflow, |cid, len, bytes| {
            let start = bytes.len();
            bytes.resize(start + len, 0);
            if let Some(buffer) = commands.destination(cid) {
                buffer.copy_to(0, &mut bytes[start..]);
            }
        });
    }

    #[cold]
    fn handle_other(&mut self, header: &Header, overflow: &[u8]) -> Result<Step, FatalError> {
        if self.receiver.has_unverified() {
            self.rollback_predictions(overflow);
        }
        match header.pdu_type {
            PduType::IcResp => self.event = Some(self.handle_ic_resp(header, overflow)?),
            PduType::R2t => self.handle_r2t(header, overflow)?,
            _ => {
                let request = self.receiver.take_term_req(overflow, header)?;
                self.phase = Phase::Closed;
                self.event = Some(Event::Terminated(Box::new(request)));
            }
        }
        Ok(Step::Continue)
    }

    #[inline(never)]
    pub(super) fn receive_data(&mut self, overflow: &[u8], cid: u16, success: bool) -> Step {
        let destination = destination(&mut self.commands, self.receiving);
        if !self.receiver.receive_body(overflow, destination) {
            return self.on_input_exhausted(overflow);
        }
        self.receiving = Receiving::Header;
        let digest_ok = self.receiver.is_digest_ok();
        if let Some(command) = self.commands.find(cid) {
            command.digest_ok &= digest_ok;
        }
        if success {
            Step::Event(CompletionEntry { cid, ..CompletionEntry::default() })
        } else {
            Step::Continue
        }
    }

    /// CapsuleResp: takes the completion of a command.
    #[inline(always)]
    fn take_response(&mut self, header: &Header, entry: CompletionEntry) -> Option<CompletionEntry> {
        let sent_bytes = self.output.sent_bytes();
        let command = self.commands.find(entry.cid)?;
        let is_short = entry.status.is_success() && !is_transferred(command, sent_bytes);
        if is_short || command.output_end > sent_bytes || self.receiver.is_predicted(entry.cid) {
            return None;
        }
        self.receiver.consume_header(header);
        Some(entry)
    }

    /// Handles a response that [`Connection::take_response`] has not taken.
    fn refuse_response(
        &mut self,
        header: &Header,
        entry: CompletionEntry,
        overflow: &[u8],
    ) -> Result<Step, FatalError> {
        let cid = entry.cid;
        if self.receiver.is_predicted(cid) {
            self.rollback_predictions(overflow);
            return Ok(Step::Continue);
        }
        let sent_bytes = self.output.sent_bytes();
        let unknown = FatalError::new(Violation::UnknownCommand(cid), HeaderFault::invalid(CID));
        let command = self.commands.find(cid).ok_or(unknown)?;
        if entry.status.is_success() && !is_transferred(command, sent_bytes) && !command.accepts_less {
            return Err(FatalError::sequence(Violation::ShortTransfer(cid)));
        }
        self.receiver.consume_header(header);
        command.defer_completion(entry);
        self.deferred += 1;
        Ok(Step::Continue)
    }

    /// The next deferred completion whose data has been sent.
    #[cold]
    fn next_deferred(&mut self) -> Option<CompletionEntry> {
        let entry = self.commands.next_deferred(self.output.sent_bytes())?;
        self.deferred -= 1;
        Some(entry)
    }

    /// Removes the command that `entry` completes, before the next poll, and returns its data to the submitter.
    #[inline(always)]
    pub fn finish(&mut self, entry: CompletionEntry) -> Completed {
        let (tag, data, digest_ok) = self.commands.close(entry.cid);
        Completed { tag, entry, buffer: data.into_buffer(), digest_ok }
    }
}

/// The destination of the current data.
fn destination(commands: &mut Commands, receiving: Receiving) -> Option<&mut Buffer> {
    match receiving {
        Receiving::C2hData { cid, .. } => commands.destination(cid),
        Receiving::Header => None,
    }
}

/// Returns the end of the data in the command's data if the data continues the command's.
#[inline(always)]
pub(super) fn check_data(
    command: &Command,
    data: &C2hData,
    flow_control_disabled: bool,
) -> Result<usize, FatalError> {
    let cid = data.cccid;
    let Data::Read(buffer) = &command.data else {
        return Err(FatalError::new(Violation::UnknownTransfer(cid), HeaderFault::invalid(C2hData::CCCID)));
    };
    let end = u64::from(data.datao) + u64::from(data.datal);
    if end > buffer.len() as u64 {
        return Err(FatalError::new(Violation::DataRange(cid), HeaderFault::out_of_range()));
    }
    if data.datao as usize != command.transferred || command.last_seen {
        return Err(FatalError::sequence(Violation::DataOrder(cid)));
    }
    if data.success && end < buffer.len() as u64 && !command.accepts_less {
        return Err(FatalError::sequence(Violation::ShortTransfer(cid)));
    }
    if data.success && !flow_control_disabled {
        return Err(FatalError::new(Violation::SuccessFlag(cid), HeaderFault::invalid(FLAGS)));
    }
    Ok(end as usize)
}

/// Whether all data of the command was sent or received.
fn is_transferred(command: &Command, sent_bytes: u64) -> bool {
    let is_all_moved = match command.data {
        Data::Read(_) => command.transferred == command.data.len(),
        Data::Write(_) if command.by_r2t => command.transferred == command.data.len(),
        _ => true,
    };
    is_all_moved && command.output_end <= sent_bytes
}

/// Offset of the CID in a response capsule.
const CID: usize = CapsuleResp::ENTRY + 12;

/// Offset of FLAGS in a header.
const FLAGS: usize = isolane_wire::pdu::CommonHeader::FLAGS;
