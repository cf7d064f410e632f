//! The commands in flight, found by CID.
//!
//! Invariant: a CID names one command from its submission until its completion was reported and the
//! send queue holds none of its data.

use arrayvec::ArrayVec;
use isolane_memory::Buffer;
use isolane_wire::CompletionEntry;

use super::event::{Abandoned, Data};

/// Maximum number of outstanding R2Ts of one command.
pub(super) const MAX_R2TS: usize = 4;
/// Maximum number of commands in flight: the slots that a CID can address, without the one of the
/// reserved CID FFFFh (Base 1.4 §5.14.1.1).
pub(super) const MAX_COMMANDS: usize = (1 << SLOT_BITS) - 1;
const SLOT_BITS: u32 = 12;
const SLOT_MASK: u16 = (1 << SLOT_BITS) - 1;

/// A ring of slots: commands that complete in order are stored in submission order.
#[derive(Default)]
pub(super) struct Commands {
    slots: Vec<Command>,
    in_flight: usize,
    /// Slot after the last submitted command.
    head: usize,
    /// Slot after the last completed read: the read that probably completes next.
    next: usize,
}

/// One command.
#[derive(Default)]
pub(super) struct Command {
    /// Slot and, above it, a counter of uses, so that a late response does not match the next
    /// command.
    pub(super) cid: u16,
    state: State,
    pub(super) tag: u64,
    pub(super) data: Data,
    /// Whether R2Ts request the data.
    pub(super) by_r2t: bool,
    /// Whether a read can succeed with less data than its buffer holds.
    pub(super) accepts_less: bool,
    /// Bytes received, or requested by R2Ts.
    pub(super) transferred: usize,
    /// LAST was set, so no data can follow.
    pub(super) last_seen: bool,
    pub(super) digest_ok: bool,
    /// Range of the command and its data in the output.
    pub(super) output_start: u64,
    pub(super) output_end: u64,
    /// End in the output of the data of each outstanding R2T.
    pub(super) r2t_ends: ArrayVec<u64, MAX_R2TS>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    InFlight,
    /// Completed, but the output holds some of its data.
    AwaitingSend(CompletionEntry),
}

impl Commands {
    /// Number of CIDs in use.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Adds a command with a new CID. The caller has checked the capacity.
    #[inline(always)]
    pub(super) fn open(&mut self, tag: u64, data: Data, output_start: u64) -> &mut Command {
        let at = self.vacant_slot();
        self.head = at + 1;
        self.in_flight += 1;
        let command = &mut self.slots[at];
        command.cid = command.cid.wrapping_add(1 << SLOT_BITS);
        command.state = State::InFlight;
        command.tag = tag;
        command.data = data;
        command.by_r2t = false;
        command.accepts_less = false;
        command.transferred = 0;
        command.last_seen = false;
        command.digest_ok = true;
        command.output_start = output_start;
        command.output_end = output_start;
        command.r2t_ends.clear();
        command
    }

    /// The next free slot of the ring.
    #[inline]
    fn vacant_slot(&mut self) -> usize {
        let at = if self.head < self.slots.len() { self.head } else { 0 };
        match self.slots.get(at) {
            Some(command) if command.state == State::Free => at,
            _ => self.skip_occupied(at),
        }
    }

    /// The first free slot from `at` on. The ring grows so that few occupied slots are skipped, unless nearly all
    /// of [`MAX_COMMANDS`] are in flight.
    #[cold]
    fn skip_occupied(&mut self, at: usize) -> usize {
        if self.in_flight + self.in_flight / 4 >= self.slots.len() && self.slots.len() < MAX_COMMANDS {
            self.slots.push(Command { cid: self.slots.len() as u16, ..Command::default() });
        }
        let mut ring = (at..self.slots.len()).chain(0..at);
        let free = ring.find(|&at| self.slots[at].state == State::Free);
        free.unwrap_or_else(|| unreachable!("more commands than the caller has capacity for"))
    }

    /// The buffer of the read whose data is `arriving`, and the buffers of the reads that probably
    /// follow, which have received no data yet.
    pub(super) fn reads(
        &mut self,
        arriving: Option<u16>,
    ) -> (Option<&mut Buffer>, impl Iterator<Item = (u16, &mut Buffer)>) {
        let start = arriving.map_or(self.next, |cid| usize::from(cid & SLOT_MASK)).min(self.slots.len());
        let (before, mut after) = self.slots.split_at_mut(start);
        let mut is_followed = true;
        let mut destination = None;
        if let Some(cid) = arriving
            && let Some(command) = after.split_off_first_mut()
            && command.is_in_flight(cid)
        {
            // The remainder of this data comes before other data.
            is_followed = command.transferred == command.data.len();
            destination = command.buffer_mut();
        }
        let others = after.iter_mut().chain(before).filter(|command| command.state == State::InFlight);
        let untouched = others.take(if is_followed { self.in_flight } else { 0 });
        let untouched = untouched.filter(|command| command.transferred == 0);
        (destination, untouched.filter_map(|command| Some((command.cid, command.buffer_mut()?))))
    }

    /// The command in flight with this CID.
    #[inline]
    pub(super) fn find(&mut self, cid: u16) -> Option<&mut Command> {
        let command = self.slots.get_mut(usize::from(cid & SLOT_MASK))?;
        command.is_in_flight(cid).then_some(command)
    }

    /// The first deferred command whose data has left the output.
    pub(super) fn next_deferred(&self, sent_bytes: u64) -> Option<CompletionEntry> {
        self.slots.iter().find_map(|command| command.result(sent_bytes))
    }

    /// The buffer of a read in flight.
    pub(super) fn destination(&mut self, cid: u16) -> Option<&mut Buffer> {
        self.find(cid)?.buffer_mut()
    }

    /// Removes a command, and returns its tag, its data, and whether its digests were correct.
    #[inline(always)]
    pub(super) fn close(&mut self, cid: u16) -> (u64, Data, bool) {
        let at = usize::from(cid & SLOT_MASK);
        let command = &mut self.slots[at];
        debug_assert!(command.cid == cid && command.state != State::Free, "a command completed twice");
        command.state = State::Free;
        if matches!(command.data, Data::Read(_)) {
            self.next = at + 1;
        }
        self.in_flight -= 1;
        if self.in_flight == 0 {
            // Few slots in use are few cache lines.
            (self.head, self.next) = (0, 0);
        }
        (command.tag, std::mem::take(&mut command.data), command.digest_ok)
    }

    /// Removes all commands, because the connection has ended at `sent_bytes` of the output.
    pub(super) fn abandon(&mut self, sent_bytes: u64) -> Vec<Abandoned> {
        self.in_flight = 0;
        let used = self.slots.drain(..).filter(|command| command.state != State::Free);
        let abandoned = used.map(|command| Abandoned {
            tag: command.tag,
            buffer: command.data.into_buffer(),
            sent: command.output_start < sent_bytes,
        });
        abandoned.collect()
    }
}

impl Command {
    fn is_in_flight(&self, cid: u16) -> bool {
        self.cid == cid && self.state == State::InFlight
    }

    /// The buffer of a read.
    pub(super) fn buffer_mut(&mut self) -> Option<&mut Buffer> {
        match &mut self.data {
            Data::Read(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The deferred completion, if the output no longer holds the data of the command.
    fn result(&self, sent_bytes: u64) -> Option<CompletionEntry> {
        match self.state {
            State::AwaitingSend(entry) if self.output_end <= sent_bytes => Some(entry),
            _ => None,
        }
    }

    /// Defers the completion until the data of the command has been sent.
    pub(super) fn defer_completion(&mut self, entry: CompletionEntry) {
        self.state = State::AwaitingSend(entry);
    }
}
