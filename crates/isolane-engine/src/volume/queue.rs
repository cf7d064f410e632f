//! One session's way to a volume: its rings, and what it has under way.
//!
//! Nothing that the session writes is believed. An entry that is none, and an index that cannot be, are the
//! end of the session; a command that makes no sense is answered with an error, as in process. What a session
//! does not take, and what it submits beyond its share, waits in its own rings.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::Instant;

use isolane_host::attached::wire::{Operation, Outcome, RANGE_BYTES, Submission, VolumePlace, decode_range};
use isolane_host::{BlockRange, Completion, Era, Request, RequestError};
use isolane_ring::entries::{Receiver, Sender};
use isolane_ring::{Flag, Shared};

use super::lanes::{Done, Lanes, Waker};
use super::payloads::Payloads;
use crate::service::{Ending, Hostile, Looked, Place, Ready, Service, Turn};

/// A volume as one session has it.
pub(super) struct Queue {
    lanes: Rc<RefCell<Lanes>>,
    member: u32,
    waker: Rc<Waker>,
    submissions: Receiver,
    outcomes: Sender,
    told: Shared<Flag>,
    /// The application sleeps on it.
    flag: Shared<Flag>,
    payloads: Payloads,
    flights: Vec<Flight>,
    free: Vec<u32>,
    limits: Limits,
    done: Vec<Done>,
    is_open: bool,
    is_ending: bool,
    /// Nobody hears what becomes of its commands.
    is_orphaned: bool,
}

/// A command under way.
#[derive(Clone, Copy, Default)]
struct Flight {
    tag: u64,
    /// Bytes that were lent for it.
    lent: u64,
    /// Where a read's data belongs.
    place: Option<u64>,
}

/// What one command may be about.
#[derive(Clone, Copy, Default)]
struct Limits {
    block_bytes: u64,
    transfer_bytes: u64,
}

impl Queue {
    /// A queue whose volume may still have to be connected to.
    pub fn new(
        at: Place,
        place: VolumePlace,
        lanes: impl FnOnce(&Rc<Waker>) -> Result<Rc<RefCell<Lanes>>, String>,
    ) -> Result<Queue, String> {
        let refused = |error: isolane_ring::MemoryError| error.to_string();
        let nowhere = || "the place of a volume can be nowhere".to_owned();
        let (memory, count) = (at.memory, place.outcomes as usize);
        let submissions =
            Receiver::new(&memory, place.submissions().ok_or_else(nowhere)?).map_err(refused)?;
        let outcomes = Sender::new(&memory, place.outcomes().ok_or_else(nowhere)?).map_err(refused)?;
        let told = memory.flag(place.told().ok_or_else(nowhere)?).map_err(refused)?;
        let flag = memory.flag(place.flag).map_err(refused)?;
        let waker = Waker::new().map_err(|error| format!("the engine has no descriptors: {error}"))?;
        let lanes = lanes(&waker)?;
        let member = lanes.borrow_mut().join(&waker);
        Ok(Queue {
            lanes,
            member,
            waker,
            submissions,
            outcomes,
            told,
            flag,
            payloads: Payloads::new(at.session, memory),
            flights: vec![Flight::default(); count],
            free: (0..count as u32).rev().collect(),
            limits: Limits::default(),
            done: Vec::new(),
            is_open: false,
            is_ending: false,
            is_orphaned: false,
        })
    }

    /// Whether it waits for none of its commands. Those of an orphan stay with the client that has them, and the
    /// memory with them; while that is not connected nobody waits for them, and without others it ends as well.
    fn may_end(&self) -> bool {
        !self.is_open || self.in_flight() == 0 || self.is_orphaned && !self.lanes.borrow().is_up()
    }

    fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// The volume is not known to be there yet.
    fn look_for_lanes(&mut self) -> Looked {
        let Some(connected) = self.lanes.borrow_mut().poll_connected() else { return Looked::Nothing };
        let answer = match connected {
            Ok(answer) => answer,
            Err(why) => return Looked::Ended(Err(why)),
        };
        if let Err(error) = self.lanes.borrow().watch(&self.waker) {
            return Looked::Ended(Err(format!("the engine cannot watch the volume's lanes: {error}")));
        }
        let (info, block_bytes) = (&answer.0, answer.0.namespaces.first().map_or(0, |it| it.block_bytes));
        let transfer_bytes = info.negotiated.transfer_bytes_max as u64;
        self.limits = Limits { block_bytes: block_bytes.into(), transfer_bytes };
        if info.negotiated.data_digest {
            self.payloads.set_private();
        }
        self.is_open = true;
        Looked::Opened(answer.encode())
    }

    /// Takes what the session has submitted, as far as it has credit and it is its turn. Says whether it has
    /// taken anything.
    fn take(&mut self) -> Result<bool, Hostile> {
        if self.submissions.refresh()? == 0 {
            // It may have asked for another turn and then found that it had nothing left.
            self.lanes.borrow_mut().leave_line(self.member);
            return Ok(false);
        }
        // What is under way and what it has not taken have room in its ring together.
        let mut credit = (self.outcomes.room()? as usize).saturating_sub(self.in_flight());
        let lanes = Rc::clone(&self.lanes);
        let mut lanes = lanes.borrow_mut();
        if credit == 0 {
            lanes.leave_line(self.member);
            return Ok(false);
        }
        if !lanes.may_submit(self.member) {
            return Ok(false);
        }
        let (mut quantum, mut bytes) = (QUANTUM, 0);
        while credit > 0 {
            if lanes.is_contended() && (quantum == 0 || bytes >= QUANTUM_BYTES) || !lanes.has_room() {
                lanes.stand_in_line(self.member);
                break;
            }
            let Some(entry) = self.submissions.pop() else { break };
            let submission = Submission::decode(&entry);
            let submission =
                submission.ok_or_else(|| Hostile("an entry of a volume is no command".into()))?;
            // No number that a client has made up ends the engine.
            bytes = submission.len.saturating_add(bytes);
            self.start(&mut lanes, submission);
            (credit, quantum) = (credit - 1, quantum.saturating_sub(1));
        }
        self.submissions.publish();
        lanes.wake_first();
        Ok(true)
    }

    /// Starts a command, or ends it at once.
    fn start(&mut self, lanes: &mut Lanes, submission: Submission) {
        let Submission { tag, class, lane, .. } = submission;
        let Some(flight) = self.free.pop() else { unreachable!("credit is for as many as there are") };
        let place = (submission.operation == Operation::Read).then_some(submission.offset);
        self.flights[flight as usize] = Flight { tag, lent: 0, place };
        match self.request(&submission, flight) {
            Ok(request) => lanes.submit(self.member, flight, class, lane.into(), request),
            Err(error) => {
                let completion = Completion { tag: flight.into(), result: Err(error), buffer: None };
                self.done.push((completion, Era::default()));
            }
        }
    }

    /// What a submission asks for. The volume's range is checked by the client.
    fn request(&mut self, submission: &Submission, flight: u32) -> Result<Request, RequestError> {
        let BlockRange { lba, blocks } = submission.range;
        match submission.operation {
            Operation::Read => Ok(Request::Read { lba, buffer: self.payload(submission, flight, false)? }),
            Operation::Write { fua } => {
                Ok(Request::Write { lba, buffer: self.payload(submission, flight, true)?, fua })
            }
            Operation::Flush => Ok(Request::Flush),
            Operation::WriteZeroes { fua, deallocate } => match self.is_one_command(blocks) {
                true => Ok(Request::WriteZeroes { range: submission.range, fua, deallocate }),
                false => Err(RequestError::Buffer(MISPLACED)),
            },
            Operation::Deallocate => Ok(Request::Deallocate { ranges: self.ranges(submission)? }),
        }
    }

    fn payload(
        &mut self,
        submission: &Submission,
        flight: u32,
        is_write: bool,
    ) -> Result<isolane_host::Buffer, RequestError> {
        let bytes = submission.range.blocks.checked_mul(self.limits.block_bytes);
        if bytes != Some(submission.len) || !self.is_one_command(submission.range.blocks) {
            return Err(RequestError::Buffer(MISPLACED));
        }
        let buffer = self.payloads.lend(submission.offset, submission.len, is_write);
        let buffer = buffer.ok_or(RequestError::Buffer(MISPLACED))?;
        self.flights[flight as usize].lent = submission.len;
        Ok(buffer)
    }

    /// More than one command carries would be split, and bypass the bounds on what is under way.
    fn is_one_command(&self, blocks: u64) -> bool {
        let most = (self.limits.transfer_bytes / self.limits.block_bytes.max(1)).clamp(1, 65_536);
        (1..=most).contains(&blocks)
    }

    fn ranges(&self, submission: &Submission) -> Result<Vec<BlockRange>, RequestError> {
        let count =
            usize::try_from(submission.range.blocks).ok().filter(|count| (1..=RANGES_MAX).contains(count));
        let count = count.ok_or(RequestError::Ranges)?;
        if submission.len != (count * RANGE_BYTES) as u64 {
            return Err(RequestError::Buffer(MISPLACED));
        }
        let mut bytes = vec![0; count * RANGE_BYTES];
        self.payloads.copy(submission.offset, &mut bytes).ok_or(RequestError::Buffer(MISPLACED))?;
        Ok(bytes.as_chunks().0.iter().map(decode_range).collect())
    }

    /// Tells the session what has completed. Says whether there was something.
    fn deliver(&mut self) -> Result<bool, Hostile> {
        self.lanes.borrow_mut().take_done(self.member, &mut self.done);
        if self.done.is_empty() {
            return Ok(false);
        }
        for (Completion { tag, result, buffer }, era) in self.done.drain(..) {
            let number = tag as u32;
            let flight = self.flights[number as usize];
            self.free.push(number);
            let place = flight.place.filter(|_| result.is_ok());
            self.payloads.take_back(buffer, flight.lent, place);
            // The room was there when it was taken.
            if !self.outcomes.push(&Outcome { tag: flight.tag, result, era }.encode())? {
                return Err(Hostile("the ring of a volume's outcomes has lost its room".into()));
            }
        }
        self.outcomes.publish();
        self.flag.rouse();
        Ok(true)
    }
}

impl Service for Queue {
    fn look(&mut self, turn: &Turn) -> Result<Looked, Hostile> {
        self.waker.heat();
        if self.is_ending && self.may_end() {
            return Ok(Looked::Ended(Ok(())));
        }
        if !self.is_open {
            return Ok(self.look_for_lanes());
        }
        let has_taken = !self.is_ending && self.take()?;
        self.lanes.borrow_mut().turn(turn.now);
        let has_delivered = self.deliver()?;
        if has_taken || has_delivered {
            return Ok(Looked::Worked);
        }
        if !self.lanes.borrow_mut().try_rest() {
            return Ok(Looked::Awaiting);
        }
        // The core may look no more.
        self.waker.cool();
        Ok(Looked::Nothing)
    }

    fn on_ready(&mut self, _ready: Ready) {
        self.waker.quiet();
    }

    fn on_end(&mut self, ending: Ending) {
        self.is_ending = true;
        self.is_orphaned |= !matches!(ending, Ending::Asked(_));
        self.lanes.borrow_mut().leave_line(self.member);
    }

    fn told(&self) -> &Flag {
        &self.told
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.waker.source().as_fd())
    }

    fn deadline(&self) -> Option<Instant> {
        self.lanes.borrow().until()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.lanes.borrow_mut().leave(self.member);
    }
}

/// Commands of one session in a turn, if others wait.
const QUANTUM: usize = 16;
/// Bytes of them, about.
const QUANTUM_BYTES: u64 = 256 * 1024;
/// What one Dataset Management command takes.
const RANGES_MAX: usize = 256;
const MISPLACED: &str = "a command's payload is not where or not as long as it must be, or shares its place";
