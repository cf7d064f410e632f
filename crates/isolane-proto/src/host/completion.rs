//! Results of commands, and the rules by which a target may not call them a success.

use isolane_wire::CompletionEntry;
use isolane_wire::pdu::{CapsuleResp, HeaderFault};

use super::Queue;
use super::commands::Command;
use super::event::{Completed, Data, Event};
use super::receive::Step;
use crate::queue::{FatalError, Fault};

impl Queue {
    /// CapsuleResp: a command ended.
    pub(super) fn handle_response(&mut self) -> Result<Step, FatalError> {
        let entry = CapsuleResp::decode_checked(self.receiver.checked()?).entry;
        let cid = entry.cid;
        let sent_bytes = self.output.sent_bytes();
        let unknown = FatalError::new(Fault::UnknownCommand { cid }, HeaderFault::invalid(CID));
        let command = self.commands.find(cid).ok_or(unknown)?;
        if entry.status.is_success() && !is_transferred(command, sent_bytes) {
            return Err(FatalError::sequence(Fault::ShortTransfer { cid }));
        }
        if command.output_end > sent_bytes {
            command.linger(entry);
            self.lingering += 1;
            return Ok(Step::Again);
        }
        Ok(Step::Event(Event::Completed(self.finish(entry))))
    }

    /// The next command that was completed early and whose data has left the output now.
    #[cold]
    pub(super) fn finish_lingering(&mut self) -> Option<Event> {
        let entry = self.commands.lingered(self.output.sent_bytes())?;
        self.lingering -= 1;
        Some(Event::Completed(self.finish(entry)))
    }

    /// Gives everything back to the submitter.
    #[inline(always)]
    pub(super) fn finish(&mut self, entry: CompletionEntry) -> Completed {
        let (tag, data, intact) = self.commands.close(entry.cid);
        Completed { tag, entry, buffer: data.into_buffer(), intact }
    }
}

/// Whether the target can have all data of the command, or has sent it.
pub(super) fn is_transferred(command: &Command, sent_bytes: u64) -> bool {
    let is_all_moved = match command.data {
        Data::Read(_) => command.transferred == command.data.len(),
        Data::Write(_) if command.is_by_r2t => command.transferred == command.data.len(),
        _ => true,
    };
    is_all_moved && command.output_end <= sent_bytes
}

/// Offset of the CID in a response capsule.
const CID: usize = CapsuleResp::ENTRY + 12;
