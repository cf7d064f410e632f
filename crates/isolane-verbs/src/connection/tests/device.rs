//! Memory of a device at either end: bytes are copied there while others arrive, and count once they are in place.

use super::*;
use crate::fake_device::{BUFFER_BYTES, FakeDevice};

/// Number of streams of each device.
const STREAMS: usize = 2;

/// An end whose memory is on a device.
fn end(device: &Arc<FakeDevice>) -> End {
    let domain = Arc::new(ProtectionDomain::default());
    let memory = domain.register(device.region(), 0, ALL).unwrap();
    End::over(domain, memory, Limits::default(), None)
}

/// Two ends with memory on devices.
struct Devices {
    near: Arc<FakeDevice>,
    far: Arc<FakeDevice>,
    pair: Pair,
}

impl Devices {
    fn new(segment_bytes: u32, streams: usize, checksums: bool) -> Devices {
        let [near, far] = [0; 2].map(|_| FakeDevice::new(MEMORY_BYTES, streams));
        let pair = Pair::connect_with([end(&near), end(&far)], segment_bytes, RNR_FOREVER, 1, checksums);
        pair.near.fill(0, &pattern(HALF));
        Devices { near, far, pair }
    }

    /// Posts a request of `length` bytes, whose answer or data is in the upper half of the memories.
    fn post(&mut self, kind: Kind, length: u32) {
        let key = self.pair.far.memory.key();
        let (sges, far_half) = (split(&self.pair.near, 0, length), HALF as u64 + 1);
        let answer = split(&self.pair.near, HALF as u64, length);
        match kind {
            Kind::Write => {
                let operation = SendOperation::Write { address: far_half, rkey: key, immediate: None };
                self.pair.near.send(1, operation, &sges).unwrap();
            }
            Kind::Send => {
                let receive = split(&self.pair.far, far_half, length);
                self.pair.far.receive(2, &receive);
                self.pair.near.send(1, SEND, &sges).unwrap();
            }
            Kind::Read => {
                self.pair.far.fill(far_half as usize, &pattern(length as usize));
                let operation = SendOperation::Read { address: far_half, rkey: key };
                self.pair.near.send(1, operation, &answer).unwrap();
            }
        }
    }

    /// Lets the end send the data of the request. Returns that end and the other one.
    fn transmit(&mut self, kind: Kind) -> (&mut End, &mut End) {
        let Pair { near, far } = &mut self.pair;
        // The request, or the receive of the peer.
        let (from, to) = if kind == Kind::Read { (far, near) } else { (near, far) };
        exchange(to, from, usize::MAX);
        from.transmit(usize::MAX);
        (from, to)
    }

    /// Moves bytes until nothing is left, and opens the lane again when an end has ended it.
    fn run_and_reopen(&mut self) {
        for _ in 0..5 {
            while self.pair.near.pair.wants_transmit(0) || self.pair.far.pair.wants_transmit(0) {
                exchange_open(&mut self.pair.near, &mut self.pair.far);
                exchange_open(&mut self.pair.far, &mut self.pair.near);
            }
            if self.pair.near.pair.is_lane_open(0) && self.pair.far.pair.is_lane_open(0) {
                return;
            }
            reopen(&mut self.pair);
        }
        panic!("the request is tried again and again");
    }

    /// Whether the bytes of the request are in their place.
    fn is_placed(&self, kind: Kind, length: u32) -> bool {
        let (end, at) = match kind {
            Kind::Read => (&self.pair.near, HALF),
            Kind::Write | Kind::Send => (&self.pair.far, HALF + 1),
        };
        end.bytes(at, length as usize) == pattern(length as usize)
    }
}

/// Moves bytes while the lane is open.
fn exchange_open(from: &mut End, to: &mut End) {
    if from.pair.is_lane_open(0) {
        from.transmit(800);
    }
    while !from.sent.is_empty() && to.pair.is_lane_open(0) {
        to.deliver(&mut from.sent, 800);
    }
    from.sent.clear();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Send,
    Read,
}

const KINDS: [Kind; 3] = [Kind::Write, Kind::Send, Kind::Read];
const HALF: usize = MEMORY_BYTES / 2;
const LENGTHS: [u32; 7] = [1, 64, 699, 700, 1401, 5000, 30_000];

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 | 1).collect()
}

/// Returns three SGEs for adjacent bytes.
fn split(end: &End, address: u64, length: u32) -> [Sge; 3] {
    let parts = [length / 3, length / 2 - length / 3, length - length / 2];
    let mut address = address;
    parts.map(|part| {
        let sge = end.sge(address, part);
        address += u64::from(part);
        sge
    })
}

fn success() -> Vec<(u64, Status)> {
    vec![(1, Status::Success)]
}

fn statuses(end: &mut End) -> Vec<(u64, Status)> {
    end.completions().into_iter().map(|done| (done.1, done.2)).collect()
}

#[test]
fn bytes_pass_through_streams_or_without_one() {
    for (streams, checksums) in [(STREAMS, false), (0, false), (STREAMS, true)] {
        for (kind, length) in KINDS.into_iter().flat_map(|kind| LENGTHS.map(|length| (kind, length))) {
            for (chunk, segment_bytes) in [(1, 3000), (333, 1000), (4200, SEGMENT_BYTES), (usize::MAX, 7000)]
            {
                let context =
                    format!("{kind:?}, {length} bytes, chunks of {chunk}, {streams} streams, {checksums}");
                let mut devices = Devices::new(segment_bytes, streams, checksums);
                devices.post(kind, length);
                devices.pair.run_in(chunk);
                assert_eq!(statuses(&mut devices.pair.near), success(), "{context}");
                assert!(devices.is_placed(kind, length), "{context}");
                assert_eq!((devices.near.streams(), devices.far.streams()), (streams, streams), "{context}");
            }
        }
    }
}

#[test]
fn buffer_is_filled_while_the_other_one_is_copied() {
    let mut devices = Devices::new(SEGMENT_BYTES, STREAMS, false);
    let key = devices.pair.far.memory.key();
    let operation = SendOperation::Write { address: 0, rkey: key, immediate: None };
    devices.pair.near.send(1, operation, &[devices.pair.near.sge(0, 3000)]).unwrap();
    devices.pair.near.transmit(usize::MAX);
    let mut pipe = std::mem::take(&mut devices.pair.near.sent);
    // The header with a part of the payload, then full buffers.
    devices.pair.far.deliver(&mut pipe, 24 + 16 + 100);
    for (round, placed) in [(1, 0), (2, BUFFER_BYTES), (3, 2 * BUFFER_BYTES)] {
        let mut overflow = [0; 4096];
        let mut plan = ReceivePlan::new();
        let free = devices.pair.far.pair.fill_receive_plan(0, &mut overflow, &mut plan);
        assert_eq!((plan.len(), free), (1, if round == 1 { BUFFER_BYTES - 100 } else { BUFFER_BYTES }));
        drop(plan);
        devices.pair.far.deliver(&mut pipe, usize::MAX);
        assert_eq!(devices.pair.far.bytes(0, placed + 1)[..placed], pattern(placed), "round {round}");
        assert_eq!(devices.pair.far.bytes(placed, BUFFER_BYTES), [0; BUFFER_BYTES], "round {round}");
    }
    assert_eq!(devices.far.streams(), STREAMS - 1);
    while !pipe.is_empty() {
        devices.pair.far.deliver(&mut pipe, usize::MAX);
    }
    devices.pair.run();
    assert_eq!(statuses(&mut devices.pair.near), success());
    assert_eq!(devices.pair.far.bytes(0, 3001)[..3000], pattern(3000));
}

#[test]
fn requests_mix_memory_of_host_and_device() {
    for (chunk, length) in
        [100, 1000, usize::MAX].into_iter().flat_map(|chunk| LENGTHS.map(|len| (chunk, len)))
    {
        let mut devices = Devices::new(5000, STREAMS, false);
        let key = devices.pair.far.memory.key();
        let host = |end: &End| {
            let region = MemoryRegion::allocate(MEMORY_BYTES).unwrap();
            end.pair.domain.register(region, 0, ALL).unwrap()
        };
        let [near, far] = [host(&devices.pair.near), host(&devices.pair.far)];
        near.region().copy_in(0, &pattern(HALF));
        let mixed = |end: &End, host: &Registration| {
            let at = |lkey, start| Sge { address: start, length, lkey };
            let (device, host) = (end.memory.key(), host.key());
            [at(device, 0), at(host, 0), at(host, HALF as u64), at(device, HALF as u64)]
        };
        let (sent, received) = (mixed(&devices.pair.near, &near), mixed(&devices.pair.far, &far));
        let [first, second, third, fourth] = received;
        // The other order, so that host and device exchange bytes.
        devices.pair.far.receive(2, &[second, first, fourth, third]);
        devices.pair.near.send(1, SEND, &sent).unwrap();
        let operation = SendOperation::Read { address: 0, rkey: key };
        let read = [sent[3], sent[2]].map(|sge| Sge { length: sge.length / 2, ..sge });
        devices.pair.near.send(3, operation, &read).unwrap();
        devices.pair.run_in(chunk);
        let context = format!("{length} bytes, chunks of {chunk}");
        let done = [(1, Status::Success), (3, Status::Success)];
        assert_eq!(statuses(&mut devices.pair.near), done, "{context}");
        let (bytes, zeroes) = (pattern(length as usize), vec![0; length as usize]);
        let found = [far.region(), devices.pair.far.memory.region()]
            .map(|region| [region.to_vec(0, bytes.len()), region.to_vec(HALF, bytes.len())]);
        // The upper halves of the near memories were zero.
        assert!(found == [[bytes.clone(), zeroes.clone()], [bytes.clone(), zeroes]], "{context}");
        let half = length as usize / 2;
        assert_eq!(devices.pair.near.bytes(HALF, half), bytes[..half], "{context}");
        assert_eq!(near.region().to_vec(HALF, half), bytes[half..2 * half], "{context}");
    }
}

#[test]
fn atomic_operations_change_memory_of_the_device() {
    let mut devices = Devices::new(SEGMENT_BYTES, STREAMS, false);
    let key = devices.pair.far.memory.key();
    devices.pair.far.fill(8, &41_u64.to_le_bytes());
    let add = SendOperation::FetchAdd { address: 8, rkey: key, add: 1 };
    let swap = SendOperation::CompareSwap { address: 8, rkey: key, compare: 42, swap: 7 };
    let late = SendOperation::CompareSwap { address: 8, rkey: key, compare: 42, swap: 9 };
    for (id, operation) in (1..).zip([add, swap, late]) {
        devices.pair.near.send(id, operation, &[devices.pair.near.sge(8 * id, 8)]).unwrap();
    }
    devices.pair.run();
    assert_eq!(statuses(&mut devices.pair.near), [1, 2, 3].map(|id| (id, Status::Success)));
    let found = devices.pair.near.bytes(8, 24);
    assert_eq!(found, [41_u64, 42, 7].map(u64::to_le_bytes).concat());
    assert_eq!(devices.pair.far.bytes(8, 8), 7_u64.to_le_bytes());
    devices.far.fail(0, 1);
    devices.pair.near.send(4, add, &[devices.pair.near.sge(0, 8)]).unwrap();
    devices.pair.run();
    assert_eq!(statuses(&mut devices.pair.near), [(4, Status::RemoteOperation)]);
}

/// Both ends find the lane ended, and open it again.
fn reopen(pair: &mut Pair) {
    pair.near.pair.handle_lane_closed(0);
    pair.far.pair.handle_lane_closed(0);
    pair.near.sent.clear();
    pair.far.sent.clear();
    let (epoch, near_received) = pair.near.pair.start_lane(0).unwrap();
    let far_received = pair.far.pair.accept_lane(0, epoch).unwrap();
    pair.far.pair.handle_lane_open(0, near_received);
    pair.near.pair.handle_lane_open(0, far_received);
}

#[test]
fn bytes_in_a_buffer_are_sent_again_after_the_lane_ends() {
    for (kind, checksums) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        for cut in (0..9000).step_by(251) {
            let mut devices = Devices::new(6000, STREAMS, checksums);
            devices.post(kind, 8000);
            let (from, to) = devices.transmit(kind);
            let mut left = from.sent.len().min(cut);
            while left > 0 {
                let before = from.sent.len();
                to.deliver(&mut from.sent, left.min(500));
                left -= before - from.sent.len();
            }
            reopen(&mut devices.pair);
            assert_eq!((devices.near.streams(), devices.far.streams()), (STREAMS, STREAMS));
            devices.pair.run_in(1234);
            let context = format!("{kind:?}, cut after {cut} bytes, checksums {checksums}");
            assert_eq!(statuses(&mut devices.pair.near), success(), "{context}");
            assert!(devices.is_placed(kind, 8000), "{context}");
        }
    }
}

#[test]
fn error_of_the_device_ends_its_request() {
    for (kind, length) in KINDS.into_iter().flat_map(|kind| [64, 5000].map(|length| (kind, length))) {
        for (is_near, checksums) in [(true, false), (false, false), (true, true), (false, true)] {
            // Each operation fails once, and then fails with all after it.
            for (successes, count) in
                (0..).flat_map(|successes| [1, usize::MAX].map(|count| (successes, count)))
            {
                let mut devices = Devices::new(3000, STREAMS, checksums);
                devices.post(kind, length);
                let device = Arc::clone(if is_near { &devices.near } else { &devices.far });
                device.fail(successes, count);
                devices.run_and_reopen();
                let has_failed = device.failures_left() < count;
                device.fail(0, 0);
                let context = format!(
                    "{kind:?}, {length} bytes, near {is_near}, checksums {checksums}, after {successes}, {count}"
                );
                let done = statuses(&mut devices.pair.near);
                if done == success() {
                    assert!(devices.is_placed(kind, length), "{context}");
                    assert!(count == 1 || !has_failed, "{context}");
                } else {
                    assert!(has_failed, "{context}");
                    let is_local = done[0].1 == Status::LocalProtection;
                    let is_remote = [Status::RemoteOperation, Status::RemoteAccess].contains(&done[0].1);
                    assert!(if is_near { is_local } else { is_remote }, "{context}: {done:?}");
                }
                assert_eq!((devices.near.streams(), devices.far.streams()), (STREAMS, STREAMS), "{context}");
                if !has_failed {
                    break;
                }
            }
        }
    }
}

#[test]
fn deregistration_waits_for_copies() {
    for (kind, delivered) in KINDS.into_iter().flat_map(|kind| [100, 900, 2500].map(|count| (kind, count))) {
        let mut devices = Devices::new(SEGMENT_BYTES, STREAMS, false);
        devices.post(kind, 8000);
        let (from, to) = devices.transmit(kind);
        let kept = from.sent.len() - delivered;
        while from.sent.len() > kept {
            let most = (from.sent.len() - kept).min(500);
            to.deliver(&mut from.sent, most);
        }
        let region = Arc::clone(to.memory.region());
        to.pair.domain.deregister(&to.memory);
        to.pair.revoke(&region);
        assert_eq!((Arc::strong_count(&region), devices.near.streams(), devices.far.streams()), (2, 2, 2));
        let device = if kind == Kind::Read { &devices.near } else { &devices.far };
        let before = region.to_vec(0, MEMORY_BYTES);
        device.fail(0, usize::MAX);
        devices.pair.run();
        device.fail(0, 0);
        assert!(region.to_vec(0, MEMORY_BYTES) == before, "{kind:?}, {delivered} bytes");
        let status = statuses(&mut devices.pair.near)[0].1;
        let expected = if kind == Kind::Read { Status::LocalProtection } else { Status::RemoteAccess };
        assert_eq!(status, expected, "{kind:?}, {delivered} bytes");
    }
}

#[test]
fn region_has_an_owner_until_its_last_copy_has_ended() {
    for is_dropped in [false, true] {
        let mut devices = Devices::new(SEGMENT_BYTES, STREAMS, false);
        devices.post(Kind::Write, 8000);
        let (near, far) = devices.transmit(Kind::Write);
        for _ in 0..5 {
            far.deliver(&mut near.sent, 500);
        }
        assert!(devices.far.streams() < STREAMS, "no copy is in progress");
        let (device, registration) = (Arc::clone(&devices.far), Arc::clone(&devices.pair.far.memory));
        // The stream checks the owners.
        if is_dropped {
            drop(devices);
        } else {
            devices.pair.far.pair.fail();
        }
        assert_eq!(device.streams(), STREAMS);
        drop(registration);
    }
}
