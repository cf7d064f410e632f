//! The commands in flight, found by CID.
//!
//! Invariant: a CID names one command from its submission until its result is out and nothing of its data is
//! left in the output.

use arrayvec::ArrayVec;
use isolane_memory::Buffer;
use isolane_wire::CompletionEntry;

use super::event::{Abandoned, Data};

/// The most R2Ts of one command that we keep track of.
pub(super) const MAX_R2TS: usize = 4;
/// The most commands in flight: what the CID leaves for the slot, less the one that would make CID FFFFh,
/// which is nobody's (Base 1.4 §5.14.1.1).
pub(super) const MAX_COMMANDS: usize = (1 << SLOT_BITS) - 1;
const SLOT_BITS: u32 = 12;
const SLOT_MASK: u16 = (1 << SLOT_BITS) - 1;

/// The table: a ring of slots, so that commands lie in the order they were submitted in, as far as they end
/// in that order.
pub(super) struct Commands {
    slots: Vec<Command>,
    in_flight: usize,
    /// Behind the slot of the last command that was submitted.
    head: usize,
    /// Behind the slot of the last read that ended: where the next one is that probably ends.
    next: usize,
}

/// One command.
pub(super) struct Command {
    /// Slot and, above it, a number that changes with each use: a late answer does not hit the next command.
    cid: u16,
    state: State,
    pub(super) tag: u64,
    pub(super) data: Data,
    /// Whether the data travels by R2T.
    pub(super) by_r2t: bool,
    /// Bytes received, or asked for by R2Ts.
    pub(super) transferred: usize,
    /// No data may follow: LAST was set.
    pub(super) last_seen: bool,
    pub(super) digest_ok: bool,
    /// Where in the output the command starts, and where the last that belongs to it ends.
    pub(super) output_start: u64,
    pub(super) output_end: u64,
    /// Where in the output the data of each outstanding R2T ends.
    pub(super) r2t_ends: ArrayVec<u64, MAX_R2TS>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    InFlight,
    /// Completed, but the output still holds some of its data.
    AwaitingSend(CompletionEntry),
}

impl Commands {
    pub(super) fn new() -> Commands {
        Commands { slots: Vec::new(), in_flight: 0, head: 0, next: 0 }
    }

    /// Commands whose CID is in use.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes a command in and gives it a CID. The caller has checked that there is room.
    #[inline(always)]
    pub(super) fn open(&mut self, tag: u64, data: Data, output_start: u64) -> &mut Command {
        let at = self.vacant_slot();
        self.in_flight += 1;
        let command = &mut self.slots[at];
        command.cid = command.cid.wrapping_add(1 << SLOT_BITS);
        command.state = State::InFlight;
        command.tag = tag;
        command.data = data;
        command.by_r2t = false;
        command.transferred = 0;
        command.last_seen = false;
        command.digest_ok = true;
        command.output_start = output_start;
        command.output_end = output_start;
        command.r2t_ends.clear();
        command
    }

    /// The next free slot of the ring. It grows so that few that are taken lie in between.
    #[inline]
    fn vacant_slot(&mut self) -> usize {
        if self.in_flight == 0 {
            // Few slots in use are few lines of the cache.
            (self.head, self.next) = (0, 0);
        }
        if self.in_flight + self.in_flight / 4 >= self.slots.len() && self.slots.len() < MAX_COMMANDS {
            self.grow();
        }
        loop {
            let at = if self.head < self.slots.len() { self.head } else { 0 };
            self.head = at + 1;
            if self.slots[at].state == State::Free {
                return at;
            }
        }
    }

    #[cold]
    fn grow(&mut self) {
        self.slots.push(Command::vacant(self.slots.len() as u16));
    }

    /// The memory of the read whose data is `arriving`, and of those that probably follow it: nothing of
    /// these has come yet.
    pub(super) fn reads(
        &mut self,
        arriving: Option<u16>,
    ) -> (Option<&mut Buffer>, impl Iterator<Item = (u16, &mut Buffer)>) {
        let start = arriving.map_or(self.next, |cid| usize::from(cid & SLOT_MASK)).min(self.slots.len());
        let (before, mut behind) = self.slots.split_at_mut(start);
        let mut is_followed = true;
        let mut destination = None;
        if let Some(cid) = arriving
            && let Some(command) = behind.split_off_first_mut()
            && command.is_in_flight(cid)
        {
            // Before other data comes the rest of this.
            is_followed = command.transferred == command.data.len();
            destination = command.buffer_mut();
        }
        let others = behind.iter_mut().chain(before).filter(|command| command.state == State::InFlight);
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

    /// The buffer that a command in flight reads into.
    pub(super) fn destination(&mut self, cid: u16) -> Option<&mut Buffer> {
        self.find(cid)?.buffer_mut()
    }

    /// Ends a command. Its data is returned, with its tag and whether it is digest_ok.
    #[inline(always)]
    pub(super) fn close(&mut self, cid: u16) -> (u64, Data, bool) {
        let at = usize::from(cid & SLOT_MASK);
        let command = &mut self.slots[at];
        debug_assert!(command.cid == cid && command.state != State::Free, "a command was ended twice");
        command.state = State::Free;
        self.in_flight -= 1;
        if matches!(command.data, Data::Read(_)) {
            self.next = at + 1;
        }
        (command.tag, std::mem::take(&mut command.data), command.digest_ok)
    }

    /// Takes every command out: the connection has ended, and everything sent ended at `sent_bytes`.
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

    /// The buffer that it reads into.
    pub(super) fn buffer_mut(&mut self) -> Option<&mut Buffer> {
        match &mut self.data {
            Data::Read(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// Its CID.
    pub(super) fn cid(&self) -> u16 {
        self.cid
    }

    /// The result, if it arrived before the output let go of the data and the output now has.
    fn result(&self, sent_bytes: u64) -> Option<CompletionEntry> {
        match self.state {
            State::AwaitingSend(entry) if self.output_end <= sent_bytes => Some(entry),
            _ => None,
        }
    }

    /// The result arrived before the output let go of the data.
    pub(super) fn defer_completion(&mut self, entry: CompletionEntry) {
        self.state = State::AwaitingSend(entry);
    }

    fn vacant(at: u16) -> Command {
        Command {
            cid: at,
            state: State::Free,
            tag: 0,
            data: Data::None,
            by_r2t: false,
            transferred: 0,
            last_seen: false,
            digest_ok: true,
            output_start: 0,
            output_end: 0,
            r2t_ends: ArrayVec::new(),
        }
    }
}
