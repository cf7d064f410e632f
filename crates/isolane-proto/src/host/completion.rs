//! Completions of commands, and the rules for a success.

use isolane_wire::CompletionEntry;
use isolane_wire::pdu::{CapsuleResp, HeaderFault};

use super::Connection;
use super::commands::Command;
use super::event::{Completed, Data, Event};
use super::receive::Step;
use crate::connection::{FatalError, Header, Violation};

impl Connection {
    /// CapsuleResp: a command ended.
    #[inline(always)]
    pub(super) fn handle_response(&mut self, header: &Header, overflow: &[u8]) -> Result<Step, FatalError> {
        let entry = CapsuleResp::decode_checked(self.receiver.checked(overflow)?).entry;
        let cid = entry.cid;
        if self.receiver.has_unverified() && self.receiver.is_predicted(cid) {
            self.rollback_predictions(overflow);
        }
        let sent_bytes = self.output.sent_bytes();
        let unknown = FatalError::new(Violation::UnknownCommand { cid }, HeaderFault::invalid(CID));
        let command = self.commands.find(cid).ok_or(unknown)?;
        if entry.status.is_success() && !is_transferred(command, sent_bytes) {
            return Err(FatalError::sequence(Violation::ShortTransfer { cid }));
        }
        self.receiver.consume_header(header);
        if command.output_end > sent_bytes {
            command.defer_completion(entry);
            self.deferred += 1;
            return Ok(Step::Continue);
        }
        Ok(Step::Event(Event::Completed(self.finish(entry))))
    }

    /// The next command that was completed early and whose data has left the output now.
    #[cold]
    pub(super) fn finish_deferred(&mut self) -> Option<Event> {
        let entry = self.commands.next_deferred(self.output.sent_bytes())?;
        self.deferred -= 1;
        Some(Event::Completed(self.finish(entry)))
    }

    /// Gives everything back to the submitter.
    #[inline(always)]
    pub(super) fn finish(&mut self, entry: CompletionEntry) -> Completed {
        let (tag, data, digest_ok) = self.commands.close(entry.cid);
        Completed { tag, entry, buffer: data.into_buffer(), digest_ok }
    }
}

/// Whether the target can have all data of the command, or has sent it.
pub(super) fn is_transferred(command: &Command, sent_bytes: u64) -> bool {
    let is_all_moved = match command.data {
        Data::Read(_) => command.transferred == command.data.len(),
        Data::Write(_) if command.by_r2t => command.transferred == command.data.len(),
        _ => true,
    };
    is_all_moved && command.output_end <= sent_bytes
}

/// Offset of the CID in a response capsule.
const CID: usize = CapsuleResp::ENTRY + 12;
