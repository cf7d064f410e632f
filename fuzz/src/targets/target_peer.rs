//! A host that mostly follows the protocol: it answers R2Ts, keeps digests valid, and corrupts single fields.

use std::collections::VecDeque;

use isolane_proto::target::ConnectionConfig;
use isolane_wire::pdu::{CapsuleCmd, ControllerPdu, Digests, H2cData, IcReq, R2t};
use isolane_wire::{Direction, Framing, Sgl, SubmissionEntry, fabrics::ConnectCommand};

use super::pdus::{Pdus, append_data, corrupt};
use super::splitter::Splitter;
use super::target_harness::TargetHarness;
use crate::input::Input;

/// Lengths of transfers that are worth trying.
pub(crate) const LENGTHS: &[u32] =
    &[0, 1, 4, 511, 512, 4095, 4096, 4100, 8192, 8196, 16384, 16388, 50_000, 65536];

struct Host {
    end: TargetHarness,
    splitter: Splitter,
    /// Framing of the PDUs that the host sends.
    framing: Framing,
    sent: Pdus,
    /// MAXH2CDATA.
    max_data_len: u32,
    /// Remainders of unfinished R2Ts.
    granted: VecDeque<R2t>,
}

/// Decisions of a host: four bytes of negotiation, then one step after the other.
pub(crate) fn target_dialogue(bytes: &[u8]) {
    play(bytes);
}

/// Returns the events of the target.
fn play(bytes: &[u8]) -> Vec<String> {
    let mut input = Input::new(bytes);
    let mut host = Host::connected(&mut input);
    for _ in 0..200 {
        if input.is_empty() || host.end.queue.is_closed() {
            break;
        }
        let bytes = host.step(&mut input);
        host.exchange(&bytes);
    }
    host.finish()
}

impl Host {
    fn connected(input: &mut Input<'_>) -> Self {
        let [choice, hpda, cpda, maxr2t] = input.array();
        let (header_digest, data_digest) = (choice & 1 != 0, choice & 2 != 0);
        let limits = ConnectionConfig {
            cpda: cpda % 32,
            max_h2c_data_bytes: if choice & 4 != 0 { 4096 } else { 1 << 20 },
            max_r2t_bytes: if choice & 8 != 0 { 8192 } else { 1 << 20 },
            ..ConnectionConfig::default()
        };
        let mut host = Self {
            end: TargetHarness::new(limits),
            splitter: match choice & 80 {
                0 | 64 => Splitter::whole(),
                16 => Splitter::random(u64::from(choice)),
                _ => Splitter::bursts(u64::from(choice)),
            },
            framing: Framing::default(),
            max_data_len: if choice & 4 != 0 { 4096 } else { 1 << 16 },
            sent: Pdus::new(Direction::ControllerToHost),
            granted: VecDeque::new(),
        };
        if choice & 32 != 0 {
            host.end.predict();
        }
        let digests = Digests(0).with_header(header_digest).with_data(data_digest);
        host.exchange(&IcReq { hpda: hpda % 32, digests, maxr2t: u32::from(maxr2t % 6) }.encode());
        host.framing = Framing { header_digest, data_digest, pda: cpda % 32 };
        host.sent.framing = Framing { header_digest, data_digest, pda: hpda % 32 };
        let connect = ConnectCommand { qid: 1, sqsize: 31, ..ConnectCommand::default() };
        let bytes = host.in_capsule(connect.entry(), 1024);
        host.exchange(&bytes);
        host
    }

    /// Returns the bytes of the next step.
    fn step(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        match input.u8() % 12 {
            0 | 1 => self.transport(0x02, input),
            2 | 3 => {
                let entry = SubmissionEntry { cid: u16::from(input.u8()), ..SubmissionEntry::new(0x01, 1) };
                self.in_capsule(entry, input.pick(LENGTHS))
            }
            4 | 5 => self.transport(0x01, input),
            6..=8 => self.answer(input, |_, _| {}),
            9 => self.answer(input, break_field),
            10 => {
                let len = usize::from(input.u8());
                input.bytes(len).to_vec()
            }
            _ => self.broken(input),
        }
    }

    /// A command whose data is not in its capsule.
    fn transport(&mut self, opcode: u8, input: &mut Input<'_>) -> Vec<u8> {
        let (cid, len) = (u16::from(input.u8()), input.pick(LENGTHS));
        let entry = SubmissionEntry { cid, sgl: Sgl::Transport { len }, ..SubmissionEntry::new(opcode, 1) };
        CapsuleCmd { entry, data_len: 0 }.encode(&self.framing).to_vec()
    }

    fn in_capsule(&mut self, entry: SubmissionEntry, len: u32) -> Vec<u8> {
        let entry = SubmissionEntry { sgl: Sgl::InCapsule { offset: 0, len }, ..entry };
        let mut bytes = CapsuleCmd { entry, data_len: len }.encode(&self.framing).to_vec();
        self.append_data(&mut bytes, len, entry.cid);
        bytes
    }

    /// H2CData for the remainder of the oldest R2T, or for a part of it.
    fn answer(&mut self, input: &mut Input<'_>, change: fn(&mut H2cData, &mut Input<'_>)) -> Vec<u8> {
        let Some(r2t) = self.granted.front_mut() else { return Vec::new() };
        let part = input.pick(&[u32::MAX, 4096, 2048, 4, 1]).min(r2t.r2tl).min(self.max_data_len);
        let last = part == r2t.r2tl;
        let mut pdu = H2cData { cccid: r2t.cccid, ttag: r2t.ttag, datao: r2t.r2to, datal: part, last };
        r2t.r2to += part;
        r2t.r2tl -= part;
        if last {
            self.granted.pop_front();
        }
        change(&mut pdu, input);
        let mut bytes = pdu.encode(&self.framing).to_vec();
        self.append_data(&mut bytes, pdu.datal.min(1 << 17), pdu.cccid);
        bytes
    }

    /// A valid PDU with one wrong byte, with or without a matching header digest.
    fn broken(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let mut bytes =
            if input.u8() & 1 == 0 { self.transport(0x01, input) } else { self.answer(input, |_, _| {}) };
        corrupt(&mut bytes, &self.framing, input);
        bytes
    }

    fn append_data(&self, bytes: &mut Vec<u8>, len: u32, seed: u16) {
        let data = (0..len).map(|index| (index as u16).wrapping_mul(31).wrapping_add(seed) as u8);
        append_data(bytes, &self.framing, data);
    }

    fn exchange(&mut self, bytes: &[u8]) {
        let mut output = Vec::new();
        self.end.receive(bytes, &mut self.splitter, &mut output);
        self.read_answers(&output);
    }

    fn read_answers(&mut self, output: &[u8]) {
        self.sent.push(output);
        while let Some((pdu, _)) = self.sent.next_from_controller() {
            if let ControllerPdu::R2t(r2t) = pdu {
                let known = self.end.requested.get(&r2t.cccid).copied().unwrap_or(0);
                assert!(
                    u64::from(r2t.r2to) + u64::from(r2t.r2tl) <= u64::from(known),
                    "an R2T stays in the data"
                );
                self.granted.push_back(r2t);
            }
        }
    }

    fn finish(self) -> Vec<String> {
        let Self { end, mut splitter, mut sent, .. } = self;
        let mut output = Vec::new();
        let transcript = end.end(&mut splitter, &mut output);
        sent.push(&output);
        while sent.next_from_controller().is_some() {}
        transcript
    }
}

fn break_field(pdu: &mut H2cData, input: &mut Input<'_>) {
    let change = input.pick(&[1_u32, 4, 0xffff_ffff, 0x8000_0000, 4096]);
    match input.u8() % 5 {
        0 => pdu.cccid = pdu.cccid.wrapping_add(change as u16),
        1 => pdu.ttag = pdu.ttag.wrapping_add(change as u16),
        2 => pdu.datao = pdu.datao.wrapping_add(change),
        3 => pdu.datal = pdu.datal.wrapping_add(change),
        _ => pdu.last = !pdu.last,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;

    /// Otherwise all mutated dialogues would end in the handshake.
    #[test]
    fn corpus_reaches_the_end() {
        for dialogue in corpus::target_dialogues() {
            let transcript = play(&dialogue);
            let written =
                transcript.iter().filter(|event| event.contains("Transport") && event.ends_with("true"));
            assert!(written.count() >= 2, "{transcript:#?}");
        }
    }
}
