//! Target connection with a driver whose completions depend only on the events.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use isolane_memory::{Buffer, Page, Payload, Pool};
use isolane_proto::Completion;
use isolane_proto::target::{Connection, ConnectionConfig, DataLocation, Event, Permit, Transfer};
use isolane_wire::opcode::{AdminOpcode, FabricsType};
use isolane_wire::{Status, SubmissionEntry, digest::crc32c, fabrics::ConnectCommand};

use super::splitter::{Splitter, fill, take};
use crate::input::Input;

/// The longest transfer the driver has memory for.
pub(crate) const MAX_TRANSFER_LEN: u32 = 64 * 1024;

/// Connection, driver, and transcript.
pub(crate) struct TargetHarness {
    pub(crate) queue: Connection,
    pool: Pool,
    /// Staging pages for every receive; empty without prediction.
    staging: Vec<Page>,
    held: Vec<Permit>,
    is_connected: bool,
    now: Instant,
    /// Bytes requested by R2T, by CID.
    pub(crate) requested: HashMap<u16, u32>,
    pub(crate) transcript: Vec<String>,
}

impl TargetHarness {
    pub(crate) fn new(limits: ConnectionConfig) -> Self {
        let now = Instant::now();
        Self {
            queue: Connection::new(limits, now),
            pool: Pool::new(1024),
            staging: Vec::new(),
            held: Vec::new(),
            is_connected: false,
            now,
            requested: HashMap::new(),
            transcript: Vec::new(),
        }
    }

    /// Enables receive prediction.
    pub(crate) fn predict(&mut self) {
        self.staging = (0..STAGING_PAGES).map(|_| Page::zeroed()).collect();
    }

    /// Receives all of `bytes`, in pieces, unless the connection ends before.
    pub(crate) fn receive(&mut self, mut bytes: &[u8], splitter: &mut Splitter, output: &mut Vec<u8>) {
        while !bytes.is_empty() && !self.queue.is_closed() {
            let mut overflow = vec![0; splitter.overflow()];
            self.queue.stage_pages(std::mem::take(&mut self.staging));
            let n = fill(&mut self.queue.receive_plan(&mut overflow), &mut bytes, splitter.piece());
            assert!(n > 0, "a living connection can always receive");
            self.queue.handle_received(n);
            self.poll(&overflow, splitter);
            self.reclaim_staging();
            self.transmit(splitter, output);
        }
    }

    /// Overwrites them, as other connections do.
    fn reclaim_staging(&mut self) {
        self.staging = self.queue.take_staged();
        for page in &mut self.staging {
            page.bytes_mut().expect("staging pages are not shared").fill(0xaa);
        }
    }

    fn poll(&mut self, overflow: &[u8], splitter: &mut Splitter) {
        let mut overflow = overflow;
        while let Some(event) = self.queue.poll_event(overflow, self.now) {
            self.on_event(event);
            if splitter.coin_flip() {
                self.queue.defer_input(overflow);
                overflow = &[];
            }
        }
    }

    fn transmit(&mut self, splitter: &mut Splitter, output: &mut Vec<u8>) {
        while self.queue.wants_transmit() {
            let n = take(&self.queue.transmit_plan(), splitter.piece(), output);
            assert!(n > 0, "pending bytes are in the plan");
            self.queue.handle_transmitted(n, &mut self.pool);
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Command { permit, transfer } => {
                let entry = *self.queue.entry(&permit);
                self.transcript.push(format!("{entry:?} {transfer:?}"));
                self.on_command(permit, &entry, transfer);
            }
            Event::Data { permit, buffer, digest_ok } => {
                let entry = *self.queue.entry(&permit);
                let digest = crc32c(&buffer.to_vec());
                self.transcript.push(format!("{entry:?} {} {digest:#x} {digest_ok}", buffer.len()));
                self.pool.recycle_buffer(buffer);
                let status = if digest_ok { Status::SUCCESS } else { Status::TRANSIENT_TRANSPORT_ERROR };
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
            Transfer::FromHost { len, .. } | Transfer::ToHost { len } if len > MAX_TRANSFER_LEN => {
                self.complete(permit, entry, Status::INVALID_FIELD);
            }
            Transfer::FromHost { place: DataLocation::InCapsule, .. } if entry.cid % 16 == 7 => {
                self.complete(permit, entry, Status::INVALID_FIELD);
            }
            Transfer::FromHost { len, place } => {
                let buffer = self.buffer(entry.cid, len as usize);
                match place {
                    DataLocation::InCapsule => self.queue.receive_into(permit, buffer),
                    DataLocation::Transport => {
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

    /// Completes held commands, advances the time, and closes.
    pub(crate) fn end(mut self, splitter: &mut Splitter, output: &mut Vec<u8>) -> Vec<String> {
        for permit in std::mem::take(&mut self.held) {
            self.queue.complete(permit, Completion::success());
        }
        self.transmit(splitter, output);
        for _ in 0..3 {
            self.now += Duration::from_secs(60);
            self.queue.handle_timeout(self.now);
            self.poll(&[], splitter);
        }
        self.queue.handle_eof();
        assert!(self.queue.is_closed());
        self.queue.take_buffers().for_each(drop);
        self.transcript
    }
}

/// Eight bytes of seed, then the stream of a host. Events and responses do not depend on how it is split.
pub(crate) fn target_stream(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let seed = input.u64();
    let whole = play(input.remaining(), Splitter::whole(), false);
    let pieces = play(input.remaining(), Splitter::random(seed), true);
    let predicted = play(input.remaining(), Splitter::bursts(seed), true);
    assert_eq!(whole, predicted, "the result depends on predictions");
    assert_eq!(whole.0, pieces.0, "events depend on how the stream is split");
    assert_eq!(whole.1, pieces.1, "responses depend on how the stream is split");
}

/// Returns the events and the responses of a stream.
fn play(stream: &[u8], mut splitter: Splitter, predict: bool) -> (Vec<String>, Vec<u8>) {
    let mut output = Vec::new();
    let mut end = TargetHarness::new(ConnectionConfig::default());
    if predict {
        end.predict();
    }
    end.receive(stream, &mut splitter, &mut output);
    let transcript = end.end(&mut splitter, &mut output);
    (transcript, output)
}

/// Number of pages in a few capsules.
const STAGING_PAGES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;

    /// Otherwise all mutated streams would end in the handshake.
    #[test]
    fn corpus_reaches_the_end() {
        for stream in corpus::host_streams() {
            let (transcript, output) = play(&stream[8..], Splitter::whole(), false);
            let commands = transcript.iter().filter(|event| event.starts_with("SubmissionEntry"));
            assert_eq!(commands.count(), 6 + 3, "six commands and the data of three in their capsules");
            assert!(output.len() > 4096 + 512, "reads were answered");
        }
    }
}
