//! The segmentation of the stream does not change the events of a host.

use std::collections::VecDeque;
use std::time::Instant;

use isolane_memory::Buffer;
use isolane_wire::pdu::{C2hData, CapsuleResp};
use isolane_wire::{CompletionEntry, Status, SubmissionEntry};
use proptest::prelude::*;

use super::*;
use crate::scenario_tests::pair::fill;

/// Response of the target to one command.
#[derive(Clone, Copy, Debug)]
enum ResponseKind {
    /// All data with a SUCCESS flag.
    Data,
    /// All data, then a response.
    DataAndResponse,
    /// A response with this status code.
    Response(u8),
}

/// One command of 512 bytes and its response.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    is_write: bool,
    response: ResponseKind,
}

/// A host after its handshake, without digests.
fn connected(flow_control_disabled: bool, now: Instant) -> Connection {
    let mut host = Connection::new(ConnectionConfig::default(), now);
    let pending = host.transmit_plan().bytes();
    host.handle_transmitted(pending);
    let response = IcResp { cpda: 0, digests: Digests::default(), maxh2cdata: 4096 }.encode();
    let mut stream: VecDeque<u8> = response.iter().copied().collect();
    let mut overflow = [0; 4096];
    let n = fill(&mut host.receive_plan(&mut overflow), usize::MAX, &mut stream);
    host.handle_received(n);
    assert!(matches!(host.poll_event(&overflow, now), Some(Event::Connected(_))));
    host.set_connected(65, flow_control_disabled);
    host
}

fn submit(host: &mut Connection, exchange: Exchange, tag: u64) -> u16 {
    let (opcode, data) = if exchange.is_write {
        (0x01, Data::Write(Buffer::contiguous(512)))
    } else {
        (0x02, Data::Read(Buffer::contiguous(512)))
    };
    host.submit(SubmissionEntry::new(opcode, 1), data, tag).expect("capacity")
}

fn respond(stream: &mut VecDeque<u8>, cid: u16, response: ResponseKind) {
    let framing = Framing::default();
    let (has_data, success, status) = match response {
        ResponseKind::Data => (true, true, None),
        ResponseKind::DataAndResponse => (true, false, Some(0)),
        ResponseKind::Response(status) => (false, false, Some(status)),
    };
    if has_data {
        let data = C2hData { cccid: cid, datao: 0, datal: 512, last: true, success };
        stream.extend(&*data.encode(&framing));
        stream.extend([cid as u8; 512]);
    }
    if let Some(status) = status {
        let entry = CompletionEntry { cid, status: Status::new(0, status), ..Default::default() };
        stream.extend(&*CapsuleResp { entry }.encode(&framing));
    }
}

/// All events of the host for a stream in segments of up to `segment` bytes.
fn trace(host: &mut Connection, stream: &mut VecDeque<u8>, segment: usize, now: Instant) -> Vec<String> {
    let mut overflow = vec![0xee; 65536];
    let mut trace = Vec::new();
    while !stream.is_empty() {
        let n = fill(&mut host.receive_plan(&mut overflow), segment, stream);
        host.handle_received(n);
        while let Some(event) = host.poll_event(&overflow, now) {
            trace.push(format!("{event:?}"));
            if let Event::Completed(Completed { entry, buffer: Some(buffer), .. }) = event
                && entry.status.is_success()
            {
                trace.push(format!("{:?}", buffer.to_vec()));
            }
        }
        overflow.fill(0xdd);
    }
    trace
}

fn exchange() -> impl Strategy<Value = Exchange> {
    prop_oneof![
        8 => Just(Exchange { is_write: false, response: ResponseKind::Data }),
        2 => Just(Exchange { is_write: false, response: ResponseKind::DataAndResponse }),
        4 => Just(Exchange { is_write: true, response: ResponseKind::Response(0) }),
        1 => (any::<bool>(), 0u8..3).prop_map(|(is_write, status)| Exchange {
            is_write,
            response: ResponseKind::Response(status)
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// No header fits a segment of up to 16 bytes, so there every header is collected.
    #[test]
    fn segmentation_does_not_change_events(
        bursts in prop::collection::vec(prop::collection::vec(exchange(), 1..24), 1..5),
        damage in prop::option::of((any::<prop::sample::Index>(), 1u8..)),
        damaged_burst in 0usize..5,
        flow_control_disabled in prop::bool::weighted(0.9),
        segment in 1usize..=16,
    ) {
        let now = Instant::now();
        let mut hosts = [usize::MAX, segment].map(|segment| (connected(flow_control_disabled, now), segment));
        for (at, burst) in bursts.iter().enumerate() {
            let traces = hosts.each_mut().map(|(host, segment)| {
                let burst = &burst[..burst.len().min(host.capacity())];
                let cids: Vec<u16> = (0..).zip(burst).map(|(tag, one)| submit(host, *one, tag)).collect();
                let pending = host.transmit_plan().bytes();
                host.handle_transmitted(pending);
                let mut stream = VecDeque::new();
                cids.iter().zip(burst).for_each(|(cid, one)| respond(&mut stream, *cid, one.response));
                if let Some((index, bits)) = damage && at == damaged_burst && !stream.is_empty() {
                    // Mostly into a header: 536 bytes are one read.
                    let index = index.index(stream.len());
                    let index = if bits % 4 > 0 { index / 536 * 536 + index % 24 } else { index };
                    stream[index] ^= bits;
                }
                (trace(host, &mut stream, *segment, now), host.in_flight())
            });
            prop_assert_eq!(&traces[0], &traces[1]);
        }
    }
}
