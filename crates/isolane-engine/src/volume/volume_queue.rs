//! Volume of one session: its rings, and its commands in flight.
//!
//! Nothing that the session writes is trusted. A malformed entry or an out-of-range index ends the session; an
//! invalid command completes with an error, as in process. Completions that the session does not take, and
//! submissions beyond its share, wait in its own rings.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use isolane_engine_api::encode;
use isolane_host::via_engine::wire::{
    Operation, Outcome, RANGE_BYTES, Submission, VolumeLayout, decode_range,
};
use isolane_host::{BlockRange, Buffer, Completion, Era, Request, RequestError};
use isolane_shm::entries::{Receiver, Sender};
use isolane_shm::{MemoryError, ShmRef, WakeFlag};

use super::command_times::{CommandTimes, Poll, Push};
use super::payload_buffers::PayloadBuffers;
use super::shared_client::{Completed, QueueWaker, SharedClient};
use crate::object::{CloseReason, ObjectContext, PollStatus, PolledObject, ProtocolViolation, Ready, Turn};

/// Volume of one session.
pub(super) struct VolumeQueue {
    client: Rc<RefCell<SharedClient>>,
    member: u32,
    waker: Rc<QueueWaker>,
    submissions: Receiver,
    outcomes: Sender,
    need_wakeup: ShmRef<WakeFlag>,
    /// The application sleeps on this flag.
    flag: ShmRef<WakeFlag>,
    payloads: PayloadBuffers,
    in_flight: Vec<InFlightCommand>,
    free: Vec<u32>,
    limits: CommandLimits,
    completed: Vec<Completed>,
    times: CommandTimes,
    open: bool,
    closing: bool,
    /// No application receives the completions.
    orphaned: bool,
}

/// Command in flight.
#[derive(Clone, Copy, Default)]
struct InFlightCommand {
    tag: u64,
    /// Payload memory, in bytes.
    acquired: u64,
    /// Destination of a read.
    read_offset: Option<u64>,
    push: Push,
}

/// Limits of one command.
#[derive(Clone, Copy, Default)]
struct CommandLimits {
    block_bytes: u64,
    max_transfer_bytes: u64,
}

impl VolumeQueue {
    /// Creates a queue, whose client may not be connected yet.
    pub fn new(
        context: ObjectContext,
        place: VolumeLayout,
        times: CommandTimes,
        client: impl FnOnce(&Rc<QueueWaker>) -> Result<Rc<RefCell<SharedClient>>, String>,
    ) -> Result<VolumeQueue, String> {
        let refused = |error: MemoryError| error.to_string();
        let invalid = || "the layout of the volume is invalid".to_owned();
        let (memory, count) = (context.memory, place.outcomes as usize);
        let submissions =
            Receiver::open(&memory, place.submissions().ok_or_else(invalid)?).map_err(refused)?;
        let outcomes = Sender::open(&memory, place.outcomes().ok_or_else(invalid)?).map_err(refused)?;
        let need_wakeup = memory.flag(place.need_wakeup().ok_or_else(invalid)?).map_err(refused)?;
        let flag = memory.flag(place.flag).map_err(refused)?;
        let waker = QueueWaker::new().map_err(|error| format!("the engine has no descriptors: {error}"))?;
        let client = client(&waker)?;
        let member = client.borrow_mut().join(&waker);
        Ok(VolumeQueue {
            client,
            member,
            waker,
            submissions,
            outcomes,
            need_wakeup,
            flag,
            payloads: PayloadBuffers::new(context.session, memory),
            in_flight: vec![InFlightCommand::default(); count],
            free: (0..count as u32).rev().collect(),
            limits: CommandLimits::default(),
            completed: Vec::new(),
            times,
            open: false,
            closing: false,
            orphaned: false,
        })
    }

    /// Whether a close need not wait. Commands of an orphaned queue, with their memory, stay with a connected client
    /// until they complete; without a connection nothing waits for them, and the client may end as well.
    fn can_close(&self) -> bool {
        !self.open || self.in_flight_count() == 0 || self.orphaned && !self.client.borrow().is_up()
    }

    fn in_flight_count(&self) -> usize {
        self.in_flight.len() - self.free.len()
    }

    /// Polls the connect of the client.
    fn poll_open(&mut self) -> PollStatus {
        let Some(connected) = self.client.borrow_mut().poll_connected() else { return PollStatus::Idle };
        let info = match connected {
            Ok(info) => info,
            Err(reason) => return PollStatus::Closed(Err(reason)),
        };
        if let Err(error) = self.client.borrow().watch(&self.waker) {
            return PollStatus::Closed(Err(format!("the engine cannot watch the volume's client: {error}")));
        }
        info.namespaces.first().into_iter().for_each(|namespace| self.times.on_opened(namespace));
        let block_bytes = info.namespaces.first().map_or(0, |namespace| namespace.block_bytes);
        let max_transfer_bytes = info.negotiated.max_transfer_bytes as u64;
        self.limits = CommandLimits { block_bytes: block_bytes.into(), max_transfer_bytes };
        if info.negotiated.data_digest {
            self.payloads.set_private();
        }
        self.open = true;
        PollStatus::Opened(encode(&info))
    }

    /// Submits pending commands, as far as there is space for their completions, and in turn with other queues.
    /// Returns whether the queue had its turn.
    fn submit_pending(&mut self) -> Result<bool, ProtocolViolation> {
        if self.submissions.refresh()? == 0 {
            self.times.on_empty();
            // The queue may wait for a turn that it no longer needs.
            self.client.borrow_mut().dequeue(self.member);
            return Ok(false);
        }
        // Commands in flight and completions that were not taken share the ring of outcomes.
        let mut credit = (self.outcomes.free_space()? as usize).saturating_sub(self.in_flight_count());
        let client = Rc::clone(&self.client);
        let mut client = client.borrow_mut();
        if credit == 0 {
            client.dequeue(self.member);
            return Ok(false);
        }
        if !client.start_submit(self.member) {
            return Ok(false);
        }
        let (mut quantum, mut bytes, poll) = (QUANTUM, 0, self.times.on_poll());
        while credit > 0 {
            if client.is_contended() && (quantum == 0 || bytes >= QUANTUM_BYTES) || !client.has_capacity() {
                client.enqueue(self.member);
                break;
            }
            let Some(entry) = self.submissions.pop() else {
                self.times.on_empty();
                break;
            };
            let submission = Submission::decode(&entry);
            let submission =
                submission.ok_or_else(|| ProtocolViolation("malformed entry of a volume".into()))?;
            // Saturating, because the length is not checked yet.
            bytes = submission.len.saturating_add(bytes);
            self.submit(&mut client, submission, &poll);
            (credit, quantum) = (credit - 1, quantum.saturating_sub(1));
        }
        self.submissions.publish();
        client.wake_next();
        Ok(true)
    }

    /// Submits a command, or completes it with an error.
    fn submit(&mut self, client: &mut SharedClient, submission: Submission, poll: &Poll) {
        let Submission { tag, class, lane, pushed, range: BlockRange { lba, .. }, .. } = submission;
        let Some(slot) = self.free.pop() else { unreachable!("credit is bounded by the free slots") };
        let read_offset = (submission.operation == Operation::Read).then_some(submission.offset);
        let (ring_ns, operation) = (poll.ring_ns(pushed), submission.operation.kind());
        let push = Push { ring_ns, lba, operation, bytes: submission.len };
        self.in_flight[slot as usize] = InFlightCommand { tag, acquired: 0, read_offset, push };
        match self.request(&submission, slot) {
            Ok(request) => client.submit((self.member, slot), (class, lane.into()), request, poll.at),
            Err(error) => {
                let completion = Completion { tag: slot.into(), result: Err(error), buffer: None };
                self.completed.push((completion, Era::default()));
            }
        }
    }

    /// Returns the request of a submission. The client checks its block range.
    fn request(&mut self, submission: &Submission, slot: u32) -> Result<Request, RequestError> {
        let BlockRange { lba, blocks } = submission.range;
        match submission.operation {
            Operation::Read => Ok(Request::Read { lba, buffer: self.payload(submission, slot, false)? }),
            Operation::Write { fua } => {
                Ok(Request::Write { lba, buffer: self.payload(submission, slot, true)?, fua })
            }
            Operation::Flush => Ok(Request::Flush),
            Operation::WriteZeroes { fua, deallocate } => {
                if self.is_one_command(blocks) {
                    Ok(Request::WriteZeroes { range: submission.range, fua, deallocate })
                } else {
                    Err(RequestError::Buffer(OUT_OF_BOUNDS))
                }
            }
            Operation::Deallocate => Ok(Request::Deallocate { ranges: self.ranges(submission)? }),
        }
    }

    fn payload(
        &mut self,
        submission: &Submission,
        slot: u32,
        is_write: bool,
    ) -> Result<Buffer, RequestError> {
        let bytes = submission.range.blocks.checked_mul(self.limits.block_bytes);
        if bytes != Some(submission.len) || !self.is_one_command(submission.range.blocks) {
            return Err(RequestError::Buffer(OUT_OF_BOUNDS));
        }
        let buffer = self.payloads.acquire(submission.offset, submission.len, is_write);
        let buffer = buffer.ok_or(RequestError::Buffer(OUT_OF_BOUNDS))?;
        self.in_flight[slot as usize].acquired = submission.len;
        Ok(buffer)
    }

    /// The client would split a larger request, which would bypass the limits on commands in flight.
    fn is_one_command(&self, blocks: u64) -> bool {
        let max = (self.limits.max_transfer_bytes / self.limits.block_bytes.max(1)).clamp(1, 65_536);
        (1..=max).contains(&blocks)
    }

    fn ranges(&self, submission: &Submission) -> Result<Vec<BlockRange>, RequestError> {
        let count =
            usize::try_from(submission.range.blocks).ok().filter(|count| (1..=MAX_RANGES).contains(count));
        let count = count.ok_or(RequestError::InvalidRanges)?;
        if submission.len != (count * RANGE_BYTES) as u64 {
            return Err(RequestError::Buffer(OUT_OF_BOUNDS));
        }
        let mut bytes = vec![0; count * RANGE_BYTES];
        let copied = self.payloads.copy_out(submission.offset, &mut bytes);
        copied.ok_or(RequestError::Buffer(OUT_OF_BOUNDS))?;
        Ok(bytes.as_chunks().0.iter().map(decode_range).collect())
    }

    /// Records which outcomes the session has taken since the last poll.
    fn record_taken(&mut self) -> Result<(), ProtocolViolation> {
        if self.times.has_published() {
            let taken = self.outcomes.taken()?;
            self.times.on_taken(taken, self.outcomes.taken_at());
        }
        Ok(())
    }

    /// Passes completions to the session. Returns whether there was one.
    fn deliver(&mut self) -> Result<bool, ProtocolViolation> {
        self.client.borrow_mut().take_completed(self.member, &mut self.completed, self.times.runs());
        if self.completed.is_empty() {
            return Ok(false);
        }
        for (Completion { tag, result, buffer }, era) in self.completed.drain(..) {
            let slot = tag as u32;
            let command = self.in_flight[slot as usize];
            self.free.push(slot);
            match &result {
                Ok(()) => self.times.on_completed(command.push),
                Err(_) => self.times.on_failed(&command.push),
            }
            let read_offset = command.read_offset.filter(|_| result.is_ok());
            self.payloads.release(buffer, command.acquired, read_offset);
            // The space was available when the command was submitted.
            if !self.outcomes.push(&Outcome { tag: command.tag, result, era }.encode())? {
                return Err(ProtocolViolation("the outcome ring of a volume has lost its space".into()));
            }
        }
        self.outcomes.publish();
        self.flag.wake();
        self.times.on_published(self.outcomes.position());
        Ok(true)
    }
}

impl PolledObject for VolumeQueue {
    fn poll(&mut self, turn: &Turn) -> Result<PollStatus, ProtocolViolation> {
        self.waker.set_idle(false);
        self.record_taken()?;
        if self.closing && self.can_close() {
            return Ok(PollStatus::Closed(Ok(())));
        }
        if !self.open {
            return Ok(self.poll_open());
        }
        let has_submitted = !self.closing && self.submit_pending()?;
        self.client.borrow_mut().turn(turn.now);
        let has_delivered = self.deliver()?;
        if has_submitted || has_delivered {
            return Ok(PollStatus::Busy);
        }
        if !self.client.borrow_mut().prepare_wait() {
            return Ok(PollStatus::Pending);
        }
        // The core may make the queue idle now.
        self.waker.set_idle(true);
        Ok(PollStatus::Idle)
    }

    fn on_ready(&mut self, _: usize, _: Ready) {
        self.waker.clear();
    }

    fn on_close(&mut self, reason: CloseReason) {
        self.closing = true;
        self.orphaned |= !matches!(reason, CloseReason::Requested(_));
        self.client.borrow_mut().dequeue(self.member);
    }

    fn need_wakeup(&self) -> &WakeFlag {
        &self.need_wakeup
    }

    fn source(&self, index: usize) -> Option<BorrowedFd<'_>> {
        (index == 0).then(|| self.waker.source().as_fd())
    }

    fn deadline(&self) -> Option<Instant> {
        // The session does not announce that it takes outcomes.
        let look = self.times.has_published().then(|| Instant::now() + LOOK_INTERVAL);
        self.client.borrow().deadline().into_iter().chain(look).min()
    }
}

impl Drop for VolumeQueue {
    fn drop(&mut self) {
        self.client.borrow_mut().leave(self.member);
    }
}

/// Interval at which an idle queue checks whether its outcomes were taken.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Commands of one queue per turn while others wait.
const QUANTUM: usize = 16;
/// Approximate payload of one queue per turn while others wait, in bytes.
const QUANTUM_BYTES: u64 = 256 * 1024;
/// Maximum number of ranges of a Dataset Management command.
const MAX_RANGES: usize = 256;
const OUT_OF_BOUNDS: &str =
    "the payload of a command is out of bounds, has the wrong length, or overlaps another";
