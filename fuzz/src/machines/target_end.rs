//! A target's queue with a driver whose answers depend on nothing but the events.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use isolane_memory::{Buffer, Page, Payload, Pool};
use isolane_proto::Completion;
use isolane_proto::target::{Event, Limits, Permit, Place, Queue, Transfer};
use isolane_wire::opcode::{AdminOpcode, FabricsType};
use isolane_wire::{Status, SubmissionEntry, digest::crc32c, fabrics::ConnectCommand};

use super::stream::{Cutter, fill, take};
use crate::input::Input;

/// The longest transfer the driver has memory for.
pub(crate) const TRANSFER_LEN_MAX: u32 = 64 * 1024;

/// The queue, its driver, and what came of them.
pub(crate) struct TargetEnd {
    pub(crate) queue: Queue,
    pool: Pool,
    /// Lent for every receive, if the queue shall guess.
    spares: Vec<Page>,
    held: Vec<Permit>,
    is_connected: bool,
    now: Instant,
    /// Bytes that were asked for by R2T, by CID.
    pub(crate) requested: HashMap<u16, u32>,
    pub(crate) transcript: Vec<String>,
}

impl TargetEnd {
    pub(crate) fn new(limits: Limits) -> Self {
        let now = Instant::now();
        Self {
            queue: Queue::new(limits, now),
            pool: Pool::new(1024),
            spares: Vec::new(),
            held: Vec::new(),
            is_connected: false,
            now,
            requested: HashMap::new(),
            transcript: Vec::new(),
        }
    }

    /// The queue guesses from now on where data lands.
    pub(crate) fn guess(&mut self) {
        self.spares = (0..SPARES).map(|_| Page::zeroed()).collect();
    }

    /// Receives all of `bytes`, in pieces, unless the connection ends before.
    pub(crate) fn receive(&mut self, mut bytes: &[u8], cutter: &mut Cutter, output: &mut Vec<u8>) {
        while !bytes.is_empty() && !self.queue.is_closed() {
            let mut overflow = vec![0; cutter.overflow()];
            self.queue.lend_spares(std::mem::take(&mut self.spares));
            let n = fill(&mut self.queue.receive_plan(&mut overflow), &mut bytes, cutter.piece());
            assert!(n > 0, "a living connection can always receive");
            self.queue.handle_received(n);
            self.poll(&overflow, cutter);
            self.take_spares();
            self.transmit(cutter, output);
        }
    }

    /// Other connections write to them.
    fn take_spares(&mut self) {
        self.spares = self.queue.take_spares();
        for page in &mut self.spares {
            page.bytes_mut().expect("nobody else holds a spare page").fill(0xaa);
        }
    }

    fn poll(&mut self, overflow: &[u8], cutter: &mut Cutter) {
        let mut overflow = overflow;
        while let Some(event) = self.queue.poll_event(overflow, self.now) {
            self.on_event(event);
            if cutter.is_whim() && !self.queue.has_deferred_input() {
                self.queue.defer_input(overflow);
                overflow = &[];
            }
        }
    }

    fn transmit(&mut self, cutter: &mut Cutter, output: &mut Vec<u8>) {
        while self.queue.wants_transmit() {
            let n = take(&self.queue.transmit_plan(), cutter.piece(), output);
            assert!(n > 0, "what is to be sent is in the plan");
            self.queue.handle_transmitted(n, &mut self.pool);
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Command { permit, entry, transfer } => {
                self.transcript.push(format!("{entry:?} {transfer:?}"));
                self.on_command(permit, &entry, transfer);
            }
            Event::Data { permit, entry, buffer, intact } => {
                let digest = crc32c(&buffer.to_vec());
                self.transcript.push(format!("{entry:?} {} {digest:#x} {intact}", buffer.len()));
                self.pool.recycle_buffer(buffer);
                let status = if intact { Status::SUCCESS } else { Status::TRANSIENT_TRANSPORT_ERROR };
                self.complete(permit, &entry, status);
            }
            Event::Connected(_) | Event::Terminated(_) | Event::Fatal(_) => {
                self.transcript.push(format!("{event:?}"));
            }
        }
    }

    fn on_command(&mut self, permit: Permit, entry: &SubmissionEntry, transfer: Transfer) {
        match transfer {
            _ if entry.cid % 16 == 5 => self.held.push(permit),
            Transfer::Invalid(status) => self.complete(permit, entry, status),
            Transfer::None => self.complete(permit, entry, Status::SUCCESS),
            Transfer::FromHost { len, .. } | Transfer::ToHost { len } if len > TRANSFER_LEN_MAX => {
                self.complete(permit, entry, Status::INVALID_FIELD);
            }
            Transfer::FromHost { place: Place::InCapsule, .. } if entry.cid % 16 == 7 => {
                self.queue.discard_data(&permit);
                self.complete(permit, entry, Status::INVALID_FIELD);
            }
            Transfer::FromHost { len, place } => {
                let buffer = self.buffer(entry.cid, len as usize);
                match place {
                    Place::InCapsule => self.queue.receive_into(permit, buffer),
                    Place::Transport => {
                        self.requested.insert(entry.cid, len);
                        self.queue.request_data(permit, buffer);
                    }
                }
            }
            Transfer::ToHost { len } => {
                let status = if entry.cid % 16 == 9 { Status::INTERNAL_ERROR } else { Status::SUCCESS };
                let completion = Completion { status, ..Completion::success() };
                self.queue.complete_with_data(permit, Payload::zeroes(len as usize), completion);
            }
        }
    }

    fn complete(&mut self, permit: Permit, entry: &SubmissionEntry, status: Status) {
        let is_connect =
            entry.opcode == AdminOpcode::Fabrics.code() && entry.fctype() == FabricsType::Connect.code();
        if is_connect && status.is_success() && !self.is_connected {
            let connect = ConnectCommand::parse(entry);
            let is_flow_control_disabled = connect.attributes.disable_sq_flow_control();
            self.queue.set_connected(connect.qid, connect.sqsize, is_flow_control_disabled);
            self.is_connected = true;
        }
        self.queue.complete(permit, Completion { status, ..Completion::success() });
    }

    /// Memory of pages or of one block, by turns.
    fn buffer(&mut self, cid: u16, len: usize) -> Buffer {
        let pages = if cid.is_multiple_of(2) { self.pool.buffer(len) } else { None };
        pages.unwrap_or_else(|| Buffer::contiguous(len))
    }

    /// Answers what is held, lets time pass, closes.
    pub(crate) fn end(mut self, cutter: &mut Cutter, output: &mut Vec<u8>) -> Vec<String> {
        for permit in std::mem::take(&mut self.held) {
            self.queue.complete(permit, Completion::success());
        }
        self.transmit(cutter, output);
        for _ in 0..3 {
            self.now += Duration::from_secs(60);
            self.queue.handle_timeout(self.now);
            self.poll(&[], cutter);
        }
        self.queue.handle_eof();
        assert!(self.queue.is_closed());
        self.queue.take_buffers().for_each(drop);
        self.transcript
    }
}

/// Eight bytes of seed, then the stream of a host. However it is cut, the events and the answers are the
/// same.
pub(crate) fn target_stream(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let seed = input.u64();
    let whole = play(input.rest(), Cutter::whole(), false);
    let pieces = play(input.rest(), Cutter::random(seed), true);
    let guessed = play(input.rest(), Cutter::bursts(seed), true);
    assert_eq!(whole, guessed, "nothing depends on guesses");
    assert_eq!(whole.0, pieces.0, "the events do not depend on how the stream is cut");
    assert_eq!(whole.1, pieces.1, "the answers do not depend on how the stream is cut");
}

/// The events and the answers that a stream leads to.
fn play(stream: &[u8], mut cutter: Cutter, is_guessing: bool) -> (Vec<String>, Vec<u8>) {
    let mut output = Vec::new();
    let mut end = TargetEnd::new(Limits::default());
    if is_guessing {
        end.guess();
    }
    end.receive(stream, &mut cutter, &mut output);
    let transcript = end.end(&mut cutter, &mut output);
    (transcript, output)
}

/// As many pages as some capsules have.
const SPARES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;

    /// Otherwise the changed streams would all die in the handshake.
    #[test]
    fn the_corpus_goes_all_the_way() {
        for stream in corpus::host_streams() {
            let (transcript, output) = play(&stream[8..], Cutter::whole(), false);
            let commands = transcript.iter().filter(|event| event.starts_with("SubmissionEntry"));
            assert_eq!(commands.count(), 6 + 3, "six commands and the data of three in their capsules");
            assert!(output.len() > 4096 + 512, "reads were answered");
        }
    }
}
