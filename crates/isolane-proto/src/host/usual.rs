//! The two answers that nearly all commands have, taken where they lie: all data of a read, with the SUCCESS
//! flag, in the place that was guessed or behind its header, and a response that says success.
//!
//! Nothing here refuses anything: what is not exactly as usual is left untouched for
//! [`receive`](super::receive), which does the same thing step by step.

use isolane_wire::CompletionEntry;
use isolane_wire::pdu::{C2hData, CapsuleResp, PduType};

use super::Queue;
use super::completion::is_transferred;
use super::event::Completed;
use super::receive::Receiving;
use crate::queue::{Header, Phase};

impl Queue {
    /// The end of a command, if that is next and nothing about it is unusual: what [`Queue::poll_event`]
    /// gives as well, by the shortest way. `None` does not say that nothing is left.
    #[inline(always)]
    pub fn poll_completed(&mut self, overflow: &[u8]) -> Option<Completed> {
        let is_usual = matches!(self.phase, Phase::Open)
            && matches!(self.receiving, Receiving::Header)
            && self.event.is_none()
            && self.lingering == 0;
        if is_usual { self.receive_usual(overflow) } else { None }
    }

    #[inline(always)]
    fn receive_usual(&mut self, overflow: &[u8]) -> Option<Completed> {
        let (header, bytes) = self.receiver.usual_header(overflow)?;
        match header.pdu_type {
            PduType::C2hData => self.receive_usual_data(&header, bytes, overflow),
            PduType::CapsuleResp => self.receive_usual_response(bytes),
            _ => None,
        }
    }

    #[inline(always)]
    fn receive_usual_data(
        &mut self,
        header: &Header,
        bytes: &[u8; C2hData::LEN],
        overflow: &[u8],
    ) -> Option<Completed> {
        let Some(guess) = self.receiver.usual_guess(header) else {
            return self.receive_whole_data(header, bytes, overflow);
        };
        let (cid, len) = (guess.cid, guess.len);
        let data = C2hData::decode_checked(bytes, len as u32).ok()?;
        let is_usual = data.cccid == cid
            && data.datao == 0
            && data.success
            && self.is_flow_control_disabled
            && self.commands.is_untouched_read(cid, len);
        if !is_usual {
            return None;
        }
        self.receiver.take_usual_guess(guess);
        Some(self.finish(CompletionEntry { cid, ..CompletionEntry::default() }))
    }

    /// Nothing was guessed, and all of the data has come.
    #[inline]
    fn receive_whole_data(
        &mut self,
        header: &Header,
        bytes: &[u8; C2hData::LEN],
        overflow: &[u8],
    ) -> Option<Completed> {
        let len = header.shape.data_len;
        let whole = self.receiver.usual_data(len, overflow)?;
        let data = C2hData::decode_checked(bytes, len as u32).ok()?;
        let cid = data.cccid;
        let is_usual = data.datao == 0
            && data.success
            && self.is_flow_control_disabled
            && self.commands.is_untouched_read(cid, len);
        if !is_usual {
            return None;
        }
        self.commands.destination(cid)?.place(0, whole);
        self.receiver.take_usual_data(len);
        Some(self.finish(CompletionEntry { cid, ..CompletionEntry::default() }))
    }

    #[inline(always)]
    fn receive_usual_response(&mut self, bytes: &[u8; CapsuleResp::LEN]) -> Option<Completed> {
        let entry = CapsuleResp::decode_checked(bytes).entry;
        let sent_bytes = self.output.sent_bytes();
        let is_usual = entry.status.is_success()
            && !self.receiver.is_guessed(entry.cid)
            && self.commands.find(entry.cid).is_some_and(|command| is_transferred(command, sent_bytes));
        if !is_usual {
            return None;
        }
        self.receiver.take_usual();
        Some(self.finish(entry))
    }
}
