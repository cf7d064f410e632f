//! The usual case of receiving, with less ado: a whole capsule whose header is like the last, and data that
//! has landed in its place.
//!
//! Invariant: it does what [`Queue::poll_event`] would do, or nothing at all.

use isolane_memory::{Buffer, Payload};
use isolane_wire::SubmissionEntry;
use isolane_wire::pdu::CapsuleCmd;

use super::Queue;
use super::capsule::transfer;
use super::event::{Place, Transfer};
use super::permit::Permit;
use super::receive::Receiving;
use crate::Completion;
use crate::queue::Phase;

/// What became of a command.
pub enum Polled {
    /// It was answered.
    Answered,
    /// It is to be answered.
    Command(Permit, Transfer),
}

impl Queue {
    /// The next command, read into `entry`, if nothing is out of the ordinary: an
    /// [`Event::Command`](super::Event::Command) in parts. `None`: ask [`Queue::poll_event`], which misses
    /// nothing.
    ///
    /// `read` may return what a command reads that expects so many bytes; it is answered with them at once,
    /// and takes no place among the commands in flight. So a host that sends more commands than its queue has
    /// entries is told only if that many are unanswered here
    /// ([`Fault::QueueOverrun`](crate::queue::Fault::QueueOverrun)). It is the same for commands that volumes
    /// complete at once: an answer frees its entry when it is queued, as SQHD says, and what the host has
    /// seen of it by then nobody here knows. The entries guard our memory, which the bound of what may wait
    /// to be sent guards for answers.
    #[inline]
    pub fn poll_command(
        &mut self,
        overflow: &[u8],
        entry: &mut SubmissionEntry,
        read: impl FnOnce(&SubmissionEntry, u32) -> Option<Payload>,
    ) -> Option<Polled> {
        if self.receiving != Receiving::Header || self.event.is_some() || self.phase != Phase::Open {
            return None;
        }
        let header = self.receiver.peek_capsule(overflow, entry)?;
        let is_long = header.shape.data_len > self.limits.in_capsule_bytes_max as usize;
        if is_long || self.receiver.is_guessing() && !self.receiver.is_shaped_as_guessed(&header, header.len)
        {
            return None;
        }
        self.slots.admit(entry.cid).ok()?;
        let transfer = transfer(entry, header.shape.data_len as u32);
        let payload = match transfer {
            Transfer::ToHost { len } => read(entry, len),
            _ => None,
        };
        self.receiver.take_header(&header);
        let polled = if let Some(payload) = payload {
            self.answer_with_data(entry.cid, payload, Completion::success());
            Polled::Answered
        } else {
            self.start_capsule_body(&header);
            let permit = self.slots.occupy(entry);
            self.expect_data(transfer, &permit);
            Polled::Command(permit, transfer)
        };
        self.receiver.clear_header();
        Some(polled)
    }

    /// The namespace and block that a command further ahead in the overflow begins at, if it is one of I/O; 0
    /// is the next command. A guess about bytes that nobody has checked yet, good for a hint only.
    #[inline]
    pub fn upcoming_block(&self, overflow: &[u8], ahead: usize) -> Option<(u32, u64)> {
        let unread = self.receiver.unread(overflow).get(ahead * self.receiver.capsule_len()..)?;
        let capsule: &[u8; CapsuleCmd::LEN] = unread.first_chunk()?;
        let entry = CapsuleCmd::decode_checked(capsule, 0).entry;
        Some((entry.nsid, entry.cdw10_11()))
    }

    /// The command of this capsule is accepted: the data that follows belongs to it.
    #[inline]
    pub(super) fn expect_data(&mut self, transfer: Transfer, permit: &Permit) {
        if matches!(transfer, Transfer::FromHost { place: Place::InCapsule, .. }) {
            self.receiving = Receiving::Undecided { slot: permit.slot() };
        }
    }

    /// Like [`Queue::receive_into`], if all of the data has landed where it was guessed to and needs no other
    /// look: then it is in the buffer now, and there will be no [`Event::Data`](super::Event::Data).
    /// Otherwise nothing has happened.
    #[inline]
    pub fn receive_landed(
        &mut self,
        permit: Permit,
        mut buffer: Buffer,
    ) -> Result<(Permit, Buffer), (Permit, Buffer)> {
        let is_next = self.receiving == Receiving::Undecided { slot: permit.slot() };
        match self.receiver.landed() {
            Some((guess, placed)) if is_next && placed == buffer.len() && !self.receiver.is_digested() => {
                self.spares.settle(guess.cid, placed, &mut buffer);
                self.receiver.receive_landed();
                self.receiving = Receiving::Header;
                Ok((permit, buffer))
            }
            _ => Err((permit, buffer)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Instant;

    use isolane_memory::Pool;
    use isolane_wire::pdu::IcReq;
    use isolane_wire::{Framing, Sgl};
    use proptest::prelude::*;

    use super::*;
    use crate::pair::{fill, take};
    use crate::target::{Event, Limits};

    /// A target whose reads return their CID, at once or as any other command; what returns nothing waits to
    /// the end.
    struct Target {
        queue: Queue,
        reads_at_once: bool,
        /// Reads that were answered at once.
        answered: usize,
        held: Vec<Permit>,
        output: VecDeque<u8>,
    }

    impl Target {
        fn new(reads_at_once: bool, flow_control_disabled: bool) -> Target {
            let mut queue = Queue::new(Limits::default(), Instant::now());
            queue.set_connected(1, 7, flow_control_disabled);
            Target { queue, reads_at_once, answered: 0, held: Vec::new(), output: VecDeque::new() }
        }

        fn hear(&mut self, stream: &[u8], piece: usize) {
            let mut overflow = vec![0; piece];
            let mut stream: VecDeque<u8> = stream.iter().copied().collect();
            while !stream.is_empty() {
                let n = fill(&mut self.queue.receive_plan(&mut overflow), usize::MAX, &mut stream);
                self.queue.handle_received(n);
                while self.act(&overflow) {}
                self.speak();
            }
            for permit in std::mem::take(&mut self.held) {
                self.queue.complete(permit, Completion::success());
            }
            self.speak();
        }

        fn act(&mut self, overflow: &[u8]) -> bool {
            let mut entry = SubmissionEntry::new(0, 0);
            let polled = match self.reads_at_once {
                true => {
                    self.queue.poll_command(overflow, &mut entry, |entry, len| Some(returned(entry.cid, len)))
                }
                false => None,
            };
            match polled {
                Some(Polled::Answered) => self.answered += 1,
                Some(Polled::Command(permit, transfer)) => self.answer(permit, transfer),
                None => match self.queue.poll_event(overflow, Instant::now()) {
                    Some(Event::Command { permit, transfer, .. }) => self.answer(permit, transfer),
                    Some(_) => {}
                    None => return false,
                },
            }
            true
        }

        fn answer(&mut self, permit: Permit, transfer: Transfer) {
            match transfer {
                Transfer::ToHost { len } => {
                    let payload = returned(permit.cid(), len);
                    self.queue.complete_with_data(permit, payload, Completion::success());
                }
                _ => self.held.push(permit),
            }
        }

        fn speak(&mut self) {
            while self.queue.wants_transmit() {
                let n = take(&self.queue.transmit_plan(), usize::MAX, &mut self.output);
                self.queue.handle_transmitted(n, &mut Pool::new(0));
            }
        }
    }

    fn returned(cid: u16, len: u32) -> Payload {
        Payload::from(vec![cid as u8; len as usize])
    }

    fn capsule(opcode: u8, cid: u16, len: u32) -> Vec<u8> {
        let entry = SubmissionEntry { cid, sgl: Sgl::Transport { len }, ..SubmissionEntry::new(opcode, 1) };
        CapsuleCmd { entry, data_len: 0 }.encode(&Framing::default()).to_vec()
    }

    const FLUSH: u8 = 0x00;
    const READ: u8 = 0x02;

    #[test]
    fn what_comes_behind_a_read_that_is_like_it_is_answered_at_once() {
        let mut target = Target::new(true, true);
        let reads: Vec<u8> = (0..3).flat_map(|cid| capsule(READ, cid, 4096)).collect();
        target.hear(&[IcReq::default().encode().to_vec(), reads].concat(), 4096);
        assert_eq!((target.answered, target.queue.slots.occupied()), (2, 0));
    }

    proptest! {
        /// Also where a CID is in flight already, and where there are too many commands.
        #[test]
        fn what_is_answered_at_once_is_answered_alike(
            commands in prop::collection::vec((prop::bool::weighted(0.7), 0u16..12, 1u32..9000), 0..40),
            piece in 1usize..4096,
            flow_control_disabled: bool,
        ) {
            let mut stream = IcReq::default().encode().to_vec();
            for (is_read, cid, len) in commands {
                stream.extend(if is_read { capsule(READ, cid, len) } else { capsule(FLUSH, cid, 0) });
            }
            let [at_once, later] = [true, false].map(|reads_at_once| {
                let mut target = Target::new(reads_at_once, flow_control_disabled);
                target.hear(&stream, piece);
                target.output
            });
            prop_assert_eq!(at_once, later);
        }
    }
}
