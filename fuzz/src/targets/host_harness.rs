//! Host connection with a driver that checks its invariants.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use isolane_memory::Buffer;
use isolane_proto::host::{Completed, Connection, ConnectionConfig, Data, Event};
use isolane_wire::{SubmissionEntry, digest::crc32c, pdu::IcResp};

use super::splitter::{Splitter, fill, take};
use crate::input::Input;

/// Connection, driver, and transcript.
pub(crate) struct HostHarness {
    pub(crate) queue: Connection,
    open: BTreeSet<u64>,
    next_tag: u64,
    now: Instant,
    /// Commands to submit as soon as the connection is initialised: opcode, and length of data.
    pub(crate) at_start: Vec<(u8, usize)>,
    transcript: Vec<String>,
}

impl HostHarness {
    pub(crate) fn new(options: ConnectionConfig) -> Self {
        let now = Instant::now();
        Self {
            queue: Connection::new(options, now),
            open: BTreeSet::new(),
            next_tag: 0,
            now,
            at_start: Vec::new(),
            transcript: Vec::new(),
        }
    }

    /// Submits a Read (02h) or a Write, if there is room.
    pub(crate) fn submit(&mut self, opcode: u8, len: usize) {
        let data = match opcode {
            _ if len == 0 => Data::None,
            0x02 => Data::Read(Buffer::contiguous(len)),
            _ => Data::Write(Buffer::contiguous(len)),
        };
        if self.queue.submit(SubmissionEntry::new(opcode, 1), data, self.next_tag).is_ok() {
            self.open.insert(self.next_tag);
            self.next_tag += 1;
        }
    }

    /// Receives all of `bytes`, in pieces, unless the connection ends before.
    pub(crate) fn receive(&mut self, mut bytes: &[u8], splitter: &mut Splitter, output: &mut Vec<u8>) {
        self.transmit(splitter, output);
        while !bytes.is_empty() && !self.queue.is_closed() {
            let mut overflow = vec![0; splitter.overflow()];
            let n = fill(&mut self.queue.receive_plan(&mut overflow), &mut bytes, splitter.piece());
            assert!(n > 0, "a living connection can always receive");
            self.queue.handle_received(n);
            self.poll(&overflow);
            self.transmit(splitter, output);
        }
    }

    fn poll(&mut self, overflow: &[u8]) {
        while let Some(event) = self.queue.poll_event(overflow, self.now) {
            self.on_event(event);
        }
    }

    pub(crate) fn transmit(&mut self, splitter: &mut Splitter, output: &mut Vec<u8>) {
        while self.queue.wants_transmit() {
            let n = take(&self.queue.transmit_plan(), splitter.piece(), output);
            assert!(n > 0, "pending bytes are in the plan");
            self.queue.handle_transmitted(n);
        }
        self.poll(&[]);
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Connected(response) => {
                self.transcript.push(format!("{response:?}"));
                self.queue.set_connected(32, true);
                for (opcode, len) in std::mem::take(&mut self.at_start) {
                    self.submit(opcode, len);
                }
            }
            Event::Completed(Completed { tag, entry, buffer, digest_ok }) => {
                assert!(self.open.remove(&tag), "command {tag} was completed once");
                let digest = buffer.map(|buffer| crc32c(&buffer.to_vec()));
                self.transcript.push(format!("{tag} {entry:?} {digest:?} {digest_ok}"));
            }
            Event::Terminated(_) | Event::Fatal(_) => self.transcript.push(format!("{event:?}")),
        }
    }

    /// Advances the time, closes, and checks that each command was completed or is returned with its memory.
    pub(crate) fn end(mut self, splitter: &mut Splitter, output: &mut Vec<u8>) -> Vec<String> {
        self.transmit(splitter, output);
        for _ in 0..3 {
            self.now += Duration::from_secs(60);
            self.queue.handle_timeout(self.now);
            self.transmit(splitter, output);
        }
        for abandoned in self.queue.abandon_all() {
            assert!(self.open.remove(&abandoned.tag), "command {} was handed back once", abandoned.tag);
            assert!(abandoned.buffer.is_none_or(|buffer| buffer.is_exclusive()), "all memory is returned");
        }
        assert!(self.open.is_empty(), "no command is lost");
        self.transcript
    }
}

/// Eight bytes of seed, then the stream of a target. Events do not depend on how the stream is split.
pub(crate) fn host_stream(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let seed = input.u64();
    let play = |splitter| play(seed as u8, input.remaining(), splitter);
    assert_eq!(
        play(Splitter::whole()),
        play(Splitter::random(seed)),
        "events depend on how the stream is split"
    );
}

/// Returns the events of a stream; the lowest bits of `choice` enable digests.
fn play(choice: u8, stream: &[u8], mut splitter: Splitter) -> Vec<String> {
    let (header_digest, data_digest) = (choice & 1 != 0, choice & 2 != 0);
    let mut end =
        HostHarness::new(ConnectionConfig { header_digest, data_digest, ..ConnectionConfig::default() });
    end.at_start = vec![(0x02, 512), (0x01, 512), (0x00, 0), (0x02, 4096), (0x02, 9000)];
    let mut output = Vec::new();
    // Commands are sent before their responses arrive.
    let (response, answers) = stream.split_at(stream.len().min(IcResp::LEN));
    end.receive(response, &mut splitter, &mut output);
    end.receive(answers, &mut splitter, &mut output);
    end.end(&mut splitter, &mut output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;

    /// Otherwise all mutated streams would end in the handshake.
    #[test]
    fn corpus_reaches_the_end() {
        for stream in corpus::controller_streams() {
            let transcript = play(stream[0], &stream[8..], Splitter::whole());
            assert_eq!(transcript.len(), 6, "ICResp and five completions: {transcript:#?}");
        }
    }
}
