//! A target that mostly follows the protocol.

use std::collections::VecDeque;

use isolane_proto::host::ConnectionConfig;
use isolane_wire::pdu::{C2hData, CapsuleResp, Digests, HostPdu, IcResp, R2t};
use isolane_wire::{CompletionEntry, Direction, Framing, Sgl, Status};

use super::host_harness::HostHarness;
use super::pdus::{Pdus, append_data, corrupt};
use super::splitter::Splitter;
use super::target_peer::LENGTHS;
use crate::input::Input;

struct Target {
    end: HostHarness,
    splitter: Splitter,
    /// Framing of the PDUs that the target sends.
    framing: Framing,
    sent: Pdus,
    maxh2cdata: u32,
    /// Commands without a response.
    commands: VecDeque<Command>,
}

#[derive(Clone, Copy)]
struct Command {
    cid: u16,
    opcode: u8,
    len: u32,
    /// Bytes sent or granted so far.
    done: u32,
}

/// Decisions of a target, and commands for the host to submit. The first four bytes are the negotiation.
pub(crate) fn host_dialogue(bytes: &[u8]) {
    play(bytes);
}

/// Returns the events of the host.
fn play(bytes: &[u8]) -> Vec<String> {
    let mut input = Input::new(bytes);
    let mut target = Target::connected(&mut input);
    for _ in 0..200 {
        if input.is_empty() || target.end.queue.is_closed() {
            break;
        }
        let bytes = target.step(&mut input);
        target.exchange(&bytes);
    }
    target.finish()
}

impl Target {
    fn connected(input: &mut Input<'_>) -> Self {
        let [choice, hpda, cpda, maxr2t] = input.array();
        let (header_digest, data_digest) = (choice & 1 != 0, choice & 2 != 0);
        let (hpda, cpda, maxr2t) = (hpda % 32, cpda % 32, u32::from(maxr2t % 6));
        let options =
            ConnectionConfig { header_digest, data_digest, hpda, maxr2t, ..ConnectionConfig::default() };
        let mut target = Self {
            end: HostHarness::new(options),
            splitter: if choice & 16 != 0 { Splitter::random(u64::from(choice)) } else { Splitter::whole() },
            framing: Framing::default(),
            sent: Pdus::new(Direction::HostToController),
            maxh2cdata: if choice & 4 != 0 { 4096 } else { 1 << 20 },
            commands: VecDeque::new(),
        };
        target.exchange(&[]);
        let digests = Digests(0).with_header(header_digest).with_data(data_digest);
        target.sent.framing = Framing { header_digest, data_digest, pda: cpda };
        target.exchange(&IcResp { cpda, digests, maxh2cdata: target.maxh2cdata }.encode());
        target.framing = Framing { header_digest, data_digest, pda: hpda };
        target
    }

    fn step(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        match input.u8() % 12 {
            0..=2 => {
                self.end.submit(0x02, input.pick(LENGTHS) as usize);
                Vec::new()
            }
            3..=5 => {
                self.end.submit(0x01, input.pick(LENGTHS) as usize);
                Vec::new()
            }
            6..=8 => self.serve(input),
            9 => self.respond(input),
            10 => {
                let len = usize::from(input.u8());
                input.bytes(len).to_vec()
            }
            _ => self.broken(input),
        }
    }

    /// The next part of a command: data, a grant, or the end.
    fn serve(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let at = usize::from(input.u8());
        let max_part = input.pick(&[u32::MAX, 4096, 4, 512]);
        let choice = input.u8();
        if self.commands.is_empty() {
            return Vec::new();
        }
        let at = at % self.commands.len();
        let command = self.commands[at];
        let part = max_part.min(command.len - command.done);
        if part == 0 {
            self.commands.remove(at);
            return self.response(command.cid, Status::SUCCESS);
        }
        self.commands[at].done += part;
        if command.opcode == 0x02 {
            return self.data(at, part, choice & 1 != 0);
        }
        let r2t = R2t { cccid: command.cid, ttag: u16::from(choice), r2to: command.done, r2tl: part };
        r2t.encode(&self.framing).to_vec()
    }

    fn data(&mut self, at: usize, part: u32, would_end: bool) -> Vec<u8> {
        let command = self.commands[at];
        let last = command.done == command.len;
        let success = last && would_end;
        if success {
            self.commands.remove(at);
        }
        let pdu = C2hData { cccid: command.cid, datao: command.done - part, datal: part, last, success };
        let mut bytes = pdu.encode(&self.framing).to_vec();
        append_data(&mut bytes, &self.framing, std::iter::repeat_n(command.cid as u8, part as usize));
        bytes
    }

    /// Completion of a command, in time or too early.
    fn respond(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let status = Status::new(input.u8() % 4, input.u8());
        let cid = match self.commands.pop_front() {
            Some(command) => command.cid,
            None => u16::from(input.u8()),
        };
        self.response(cid, status)
    }

    fn response(&self, cid: u16, status: Status) -> Vec<u8> {
        let entry = CompletionEntry { cid, status, ..CompletionEntry::default() };
        CapsuleResp { entry }.encode(&self.framing).to_vec()
    }

    /// A valid PDU with one wrong byte, with or without a matching header digest.
    fn broken(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let mut bytes = self.serve(input);
        corrupt(&mut bytes, &self.framing, input);
        bytes
    }

    fn exchange(&mut self, bytes: &[u8]) {
        let mut output = Vec::new();
        self.end.receive(bytes, &mut self.splitter, &mut output);
        self.sent.push(&output);
        while let Some((pdu, data)) = self.sent.next_from_host() {
            self.on_pdu(&pdu, data.len() as u32);
        }
    }

    fn on_pdu(&mut self, pdu: &HostPdu, data_len: u32) {
        match pdu {
            HostPdu::CapsuleCmd(capsule) => {
                let len = capsule.entry.sgl.len().expect("a host knows its SGLs");
                let is_in_capsule = matches!(capsule.entry.sgl, Sgl::InCapsule { .. });
                assert_eq!(data_len, if is_in_capsule { len } else { 0 });
                let done = if is_in_capsule { len } else { 0 };
                let command = Command { cid: capsule.entry.cid, opcode: capsule.entry.opcode, len, done };
                self.commands.push_back(command);
            }
            HostPdu::H2cData(data) => assert!(data.datal <= self.maxh2cdata, "MAXH2CDATA is kept"),
            HostPdu::IcReq(_) | HostPdu::TermReq(_) => {}
        }
    }

    fn finish(self) -> Vec<String> {
        let Self { end, mut splitter, mut sent, .. } = self;
        let mut output = Vec::new();
        let transcript = end.end(&mut splitter, &mut output);
        sent.push(&output);
        while sent.next_from_host().is_some() {}
        transcript
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;

    /// Otherwise all mutated dialogues would end in the handshake.
    #[test]
    fn corpus_reaches_the_end() {
        for dialogue in corpus::host_dialogues() {
            let transcript = play(&dialogue);
            let completed = transcript.iter().filter(|event| event.contains("CompletionEntry"));
            assert!(completed.count() >= 6, "{transcript:#?}");
        }
    }
}
