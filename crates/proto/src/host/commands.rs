//! The commands in flight, found by CID.
//!
//! Invariant: a CID names one command from its submission until its result is out and nothing of its data is
//! left in the output.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use isolane_memory::Buffer;
use isolane_wire::CompletionEntry;

use super::event::{Abandoned, Data};

/// The most R2Ts of one command that we keep track of.
pub(super) const R2TS_MAX: usize = 4;
/// The most commands in flight: what the CID leaves for the slot, less the one that would make CID FFFFh, which
/// is nobody's (Base 1.4 §5.14.1.1).
pub(super) const COMMANDS_MAX: usize = (1 << SLOT_BITS) - 1;
const SLOT_BITS: u32 = 12;
/// Only commands in the first so many slots are received into on a guess.
const SLOTS_GUESSED_MAX: usize = 128;
/// Ended reads are dropped from the list of reads when there are so many more than slots.
const READS_MIN: usize = 64;
const SLOT_MASK: u16 = (1 << SLOT_BITS) - 1;

/// The table.
pub(super) struct Commands {
    slots: Vec<Command>,
    free: Vec<u16>,
    in_flight: usize,
    /// Reads by CID, in the order they were submitted in, and among them some that have ended.
    reads: VecDeque<u16>,
}

/// One command.
pub(super) struct Command {
    /// Slot and, above it, a number that changes with each use: a late answer does not hit the next command.
    cid: u16,
    state: State,
    pub(super) tag: u64,
    pub(super) data: Data,
    /// Whether the data travels by R2T.
    pub(super) is_by_r2t: bool,
    /// Bytes received, or asked for by R2Ts.
    pub(super) transferred: usize,
    /// No data may follow: LAST was set.
    pub(super) is_last_seen: bool,
    pub(super) is_intact: bool,
    /// Where in the output the command starts, and where the last that belongs to it ends.
    pub(super) output_start: u64,
    pub(super) output_end: u64,
    /// Where in the output the data of each outstanding R2T ends.
    pub(super) r2t_ends: ArrayVec<u64, R2TS_MAX>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    InFlight,
    /// Completed, but the output still holds some of its data.
    Lingering(CompletionEntry),
}

impl Commands {
    pub(super) fn new() -> Commands {
        Commands { slots: Vec::new(), free: Vec::new(), in_flight: 0, reads: VecDeque::new() }
    }

    /// Commands whose CID is in use.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes a command in and gives it a CID. The caller has checked that there is room.
    pub(super) fn open(&mut self, tag: u64, data: Data, output_start: u64) -> &mut Command {
        let at = match self.free.pop() {
            Some(at) => usize::from(at),
            None => {
                self.slots.push(Command::unused(self.slots.len() as u16));
                self.slots.len() - 1
            }
        };
        self.in_flight += 1;
        let command = &mut self.slots[at];
        command.cid = command.cid.wrapping_add(1 << SLOT_BITS);
        command.state = State::InFlight;
        command.tag = tag;
        command.data = data;
        command.is_by_r2t = false;
        command.transferred = 0;
        command.is_last_seen = false;
        command.is_intact = true;
        command.output_start = output_start;
        command.output_end = output_start;
        command.r2t_ends.clear();
        if matches!(command.data, Data::Read(_)) {
            self.reads.push_back(command.cid);
        }
        if self.reads.len() > 2 * self.slots.len() + READS_MIN {
            let is_in_flight = |cid: &u16| self.slots[usize::from(cid & SLOT_MASK)].is_in_flight(*cid);
            self.reads.retain(is_in_flight);
        }
        &mut self.slots[at]
    }

    /// Whether a command is among those that [`Commands::reads`] offers.
    pub(super) fn is_guessable(cid: u16) -> bool {
        usize::from(cid & SLOT_MASK) < SLOTS_GUESSED_MAX
    }

    /// The reads in flight, to be received into all at once.
    pub(super) fn reads<'a>(&'a mut self, reads: &mut Reads<'a>) {
        while let Some(cid) = self.reads.front()
            && !self.slots[usize::from(cid & SLOT_MASK)].is_in_flight(*cid)
        {
            self.reads.pop_front();
        }
        reads.order = Some(&self.reads);
        reads.slots.extend(self.slots.iter_mut().take(SLOTS_GUESSED_MAX).map(Some));
    }

    /// The command in flight with this CID.
    pub(super) fn find(&mut self, cid: u16) -> Option<&mut Command> {
        let command = self.slots.get_mut(usize::from(cid & SLOT_MASK))?;
        command.is_in_flight(cid).then_some(command)
    }

    /// The first lingering command whose data has left the output.
    pub(super) fn lingered(&self, sent_bytes: u64) -> Option<CompletionEntry> {
        self.slots.iter().find_map(|command| command.result(sent_bytes))
    }

    /// The buffer that a command in flight reads into.
    pub(super) fn destination(&mut self, cid: u16) -> Option<&mut Buffer> {
        self.find(cid)?.buffer_mut()
    }

    /// Ends a command. Its data is returned, with its tag and whether it is intact.
    pub(super) fn close(&mut self, cid: u16) -> (u64, Data, bool) {
        let at = cid & SLOT_MASK;
        let command = &mut self.slots[usize::from(at)];
        debug_assert!(command.cid == cid && command.state != State::Free, "a command was ended twice");
        command.state = State::Free;
        self.in_flight -= 1;
        self.free.push(at);
        (command.tag, std::mem::take(&mut command.data), command.is_intact)
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
        let abandoned = abandoned.collect();
        self.free.clear();
        self.reads.clear();
        abandoned
    }
}

/// The reads in flight, each to be taken once.
pub(super) struct Reads<'a> {
    order: Option<&'a VecDeque<u16>>,
    slots: ArrayVec<Option<&'a mut Command>, SLOTS_GUESSED_MAX>,
}

impl<'a> Reads<'a> {
    #[inline]
    pub(super) fn new() -> Self {
        Reads { order: None, slots: ArrayVec::new() }
    }

    /// The buffer of the read whose data is arriving. If more of it is to come, nothing else is guessed.
    pub(super) fn take(&mut self, cid: u16) -> Option<&'a mut Buffer> {
        let slot = self.slots.get_mut(usize::from(cid & SLOT_MASK))?;
        let command = slot.take_if(|command| command.is_in_flight(cid))?;
        if command.transferred < command.data.len() {
            self.slots.clear();
        }
        command.buffer_mut()
    }

    /// The buffers of those of which nothing has come yet, in the order of their submission.
    pub(super) fn untouched(&mut self) -> impl Iterator<Item = (u16, &'a mut Buffer)> {
        let Reads { order, slots } = self;
        order.iter().copied().flatten().filter_map(|cid| {
            let slot = slots.get_mut(usize::from(cid & SLOT_MASK))?;
            let command = slot.take_if(|command| command.is_in_flight(*cid) && command.transferred == 0)?;
            Some((*cid, command.buffer_mut()?))
        })
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
            State::Lingering(entry) if self.output_end <= sent_bytes => Some(entry),
            _ => None,
        }
    }

    /// The result arrived before the output let go of the data.
    pub(super) fn linger(&mut self, entry: CompletionEntry) {
        self.state = State::Lingering(entry);
    }

    fn unused(at: u16) -> Command {
        Command {
            cid: at,
            state: State::Free,
            tag: 0,
            data: Data::None,
            is_by_r2t: false,
            transferred: 0,
            is_last_seen: false,
            is_intact: true,
            output_start: 0,
            output_end: 0,
            r2t_ends: ArrayVec::new(),
        }
    }
}
