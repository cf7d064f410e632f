//! A host's queue with a driver, and what must be true of it whatever a target sends.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use isolane_memory::Buffer;
use isolane_proto::host::{Completed, Data, Event, Options, Queue};
use isolane_wire::{SubmissionEntry, digest::crc32c, pdu::IcResp};

use super::stream::{Cutter, fill, take};
use crate::input::Input;

/// The queue, its driver, and what came of them.
pub(crate) struct HostEnd {
    pub(crate) queue: Queue,
    open: BTreeSet<u64>,
    next_tag: u64,
    now: Instant,
    /// Commands to submit as soon as the connection is initialised: opcode, and length of data.
    pub(crate) at_start: Vec<(u8, usize)>,
    transcript: Vec<String>,
}

impl HostEnd {
    pub(crate) fn new(options: Options) -> Self {
        let now = Instant::now();
        Self {
            queue: Queue::new(options, now),
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
    pub(crate) fn receive(&mut self, mut bytes: &[u8], cutter: &mut Cutter, output: &mut Vec<u8>) {
        self.transmit(cutter, output);
        while !bytes.is_empty() && !self.queue.is_closed() {
            let mut overflow = vec![0; cutter.overflow()];
            let n = fill(&mut self.queue.receive_plan(&mut overflow), &mut bytes, cutter.piece());
            assert!(n > 0, "a living connection can always receive");
            self.queue.handle_received(n);
            self.poll(&overflow, cutter);
            self.transmit(cutter, output);
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

    pub(crate) fn transmit(&mut self, cutter: &mut Cutter, output: &mut Vec<u8>) {
        while self.queue.wants_transmit() {
            let n = take(&self.queue.transmit_plan(), cutter.piece(), output);
            assert!(n > 0, "what is to be sent is in the plan");
            self.queue.handle_transmitted(n);
        }
        while let Some(event) = self.queue.poll_event(&[], self.now) {
            self.on_event(event);
        }
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
            Event::Completed(Completed { tag, entry, buffer, intact }) => {
                assert!(self.open.remove(&tag), "command {tag} was completed once");
                let digest = buffer.map(|buffer| crc32c(&buffer.to_vec()));
                self.transcript.push(format!("{tag} {entry:?} {digest:?} {intact}"));
            }
            Event::Terminated(_) | Event::Fatal(_) => self.transcript.push(format!("{event:?}")),
        }
    }

    /// Lets time pass, closes, and counts: every command was completed or is handed back, and its memory too.
    pub(crate) fn end(mut self, cutter: &mut Cutter, output: &mut Vec<u8>) -> Vec<String> {
        self.transmit(cutter, output);
        for _ in 0..3 {
            self.now += Duration::from_secs(60);
            self.queue.handle_timeout(self.now);
            self.transmit(cutter, output);
        }
        self.queue.handle_eof();
        for abandoned in self.queue.abandon_all() {
            assert!(self.open.remove(&abandoned.tag), "command {} was handed back once", abandoned.tag);
            assert!(abandoned.buffer.is_none_or(|buffer| buffer.is_exclusive()), "memory comes back whole");
        }
        assert!(self.open.is_empty(), "no command is lost");
        self.transcript
    }
}

/// Eight bytes of seed, then the stream of a target. However it is cut, the events are the same.
pub(crate) fn host_stream(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let seed = input.u64();
    let play = |cutter| play(seed as u8, input.rest(), cutter);
    assert_eq!(
        play(Cutter::whole()),
        play(Cutter::random(seed)),
        "the events do not depend on how the stream is cut"
    );
}

/// The events that a stream leads to; the lowest bits of `choice` ask for digests.
fn play(choice: u8, stream: &[u8], mut cutter: Cutter) -> Vec<String> {
    let (header_digest, data_digest) = (choice & 1 != 0, choice & 2 != 0);
    let mut end = HostEnd::new(Options { header_digest, data_digest, ..Options::default() });
    end.at_start = vec![(0x02, 512), (0x01, 512), (0x00, 0), (0x02, 4096), (0x02, 9000)];
    let mut output = Vec::new();
    // The commands leave before their answers arrive.
    let (response, answers) = stream.split_at(stream.len().min(IcResp::LEN));
    end.receive(response, &mut cutter, &mut output);
    end.receive(answers, &mut cutter, &mut output);
    end.end(&mut cutter, &mut output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;

    /// Otherwise the changed streams would all die in the handshake.
    #[test]
    fn the_corpus_goes_all_the_way() {
        for stream in corpus::controller_streams() {
            let transcript = play(stream[0], &stream[8..], Cutter::whole());
            assert_eq!(transcript.len(), 6, "ICResp and five completions: {transcript:#?}");
        }
    }
}
