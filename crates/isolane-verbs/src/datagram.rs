//! Unreliable datagrams: one end of their protocol, without a socket or a thread.
//!
//! Invariant: a datagram that has the wrong Q_Key, finds no receive, or does not fit is dropped. It changes no memory.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::connection::ReceiveQueue;
use crate::memory::{ProtectionDomain, Right, Spans, copy_in, copy_out};
use crate::types::{
    CompletedOperation, Completion, DatagramRequest, Destination, GRH_BYTES, Limits, LocalData, PostError,
    Queue, QueuePairState, ReceiveRequest, Status,
};
use crate::wire::{
    DatagramSource, Extension, MAX_DATAGRAM_BYTES, MAX_PREFIX_BYTES, Opcode, Segment, SegmentError,
    SegmentFlags,
};

/// An arrived datagram.
pub(crate) struct Arrived<'a> {
    pub(crate) segment: Segment,
    pub(crate) payload: &'a [u8],
    pub(crate) source_gid: [u8; 16],
    pub(crate) destination_gid: [u8; 16],
}

impl<'a> Arrived<'a> {
    /// Decodes a datagram.
    pub(crate) fn decode(
        bytes: &'a [u8],
        source_gid: [u8; 16],
        destination_gid: [u8; 16],
    ) -> Result<Arrived<'a>, SegmentError> {
        let (segment, payload) = Segment::decode_datagram(bytes)?;
        Ok(Arrived { segment, payload, source_gid, destination_gid })
    }
}

/// One end.
pub(crate) struct Datagrams {
    state: QueuePairState,
    domain: Arc<ProtectionDomain>,
    limits: Limits,
    shared: Option<Arc<ReceiveQueue>>,
    q_key: u32,
    receives: VecDeque<ReceiveRequest>,
    /// Completions that the driver has not taken.
    finished: VecDeque<(Queue, Completion)>,
}

impl Datagrams {
    pub(crate) fn new(
        domain: Arc<ProtectionDomain>,
        limits: Limits,
        shared: Option<Arc<ReceiveQueue>>,
    ) -> Datagrams {
        let (receives, finished) = (VecDeque::new(), VecDeque::new());
        Datagrams { state: QueuePairState::Reset, domain, limits, shared, q_key: 0, receives, finished }
    }

    pub(crate) fn state(&self) -> QueuePairState {
        self.state
    }

    /// Moves to the next state. Returns `false` if the order is another one.
    pub(crate) fn advance(&mut self, to: QueuePairState) -> bool {
        let is_allowed = matches!(
            (self.state, to),
            (QueuePairState::Reset, QueuePairState::Init)
                | (QueuePairState::Init, QueuePairState::ReadyToReceive)
                | (QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend)
        );
        self.state = if is_allowed { to } else { self.state };
        is_allowed
    }

    pub(crate) fn set_q_key(&mut self, q_key: u32) {
        self.q_key = q_key;
    }

    pub(crate) fn fail(&mut self) {
        if self.state != QueuePairState::Reset {
            self.state = QueuePairState::Error;
            for request in std::mem::take(&mut self.receives) {
                self.complete(Queue::Receive, request.id, Status::Flushed, CompletedOperation::Receive);
            }
        }
    }

    fn complete(&mut self, queue: Queue, id: u64, status: Status, operation: CompletedOperation) {
        let (length, immediate, solicited, source) = (0, None, false, None);
        let completion = Completion { id, status, operation, length, immediate, solicited, source };
        self.finished.push_back((queue, completion));
    }

    pub(crate) fn poll_completion(&mut self) -> Option<(Queue, Completion)> {
        self.finished.pop_front()
    }

    pub(crate) fn post_receive(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        let sges = request.data.len();
        match self.state {
            QueuePairState::Reset => return Err(PostError::State(self.state)),
            _ if self.shared.is_some() => return Err(PostError::SharedReceiveQueue),
            _ if self.receives.len() >= self.limits.receives => {
                return Err(PostError::Full(self.receives.len()));
            }
            _ if sges > self.limits.sges => {
                return Err(PostError::Sges { sges, limit: self.limits.sges });
            }
            _ => self.receives.push_back(request),
        }
        if self.state == QueuePairState::Error {
            self.fail();
        }
        Ok(())
    }

    /// Returns the bytes of a datagram from the queue pair `number`. `None` if the request has completed with an error.
    pub(crate) fn encode(
        &mut self,
        number: u32,
        request: &DatagramRequest,
    ) -> Result<Option<Vec<u8>>, PostError> {
        if !matches!(self.state, QueuePairState::ReadyToSend | QueuePairState::Error) {
            return Err(PostError::State(self.state));
        }
        let (spans, length) = self.payload(&request.data)?;
        if length > MAX_DATAGRAM_BYTES {
            return Err(PostError::Length(length as u64));
        }
        if self.state == QueuePairState::Error {
            return Ok(self.fail_send(request, Status::Flushed));
        }
        let Some(spans) = spans else { return Ok(self.fail_send(request, Status::LocalProtection)) };
        let Destination { number: destination, q_key, .. } = request.destination;
        let q_key = if q_key & OWN_Q_KEY != 0 { self.q_key } else { q_key };
        let length_on_wire = length as u32;
        let segment = Segment {
            opcode: if request.immediate.is_some() { Opcode::DatagramImmediate } else { Opcode::Datagram },
            flags: SegmentFlags(0).with_solicited(request.solicited),
            message: destination,
            size: length_on_wire,
            length: length_on_wire,
            extension: Extension::Datagram(DatagramSource { q_key, qpn: number }, request.immediate),
            ..Segment::default()
        };
        let mut prefix = [0; MAX_PREFIX_BYTES];
        let len = segment.encode_to(&mut prefix);
        let mut bytes = Vec::with_capacity(len + length);
        bytes.extend_from_slice(&prefix[..len]);
        match &request.data {
            LocalData::Inline(data) => bytes.extend_from_slice(data),
            LocalData::Sges(_) => {
                bytes.resize(len + length, 0);
                if !copy_out(&spans, 0, &mut bytes[len..]) {
                    return Ok(self.fail_send(request, Status::LocalProtection));
                }
            }
        }
        Ok(Some(bytes))
    }

    fn fail_send(&mut self, request: &DatagramRequest, status: Status) -> Option<Vec<u8>> {
        self.complete(Queue::Send, request.id, status, CompletedOperation::Send);
        self.fail();
        None
    }

    /// Returns the memory of a request, `None` if it is not allowed, and its length.
    fn payload(&self, data: &LocalData) -> Result<(Option<Spans>, usize), PostError> {
        match data {
            LocalData::Inline(bytes) if bytes.len() > self.limits.inline_bytes => {
                Err(PostError::Inline { bytes: bytes.len(), limit: self.limits.inline_bytes })
            }
            LocalData::Inline(bytes) => Ok((Some(Spans::new()), bytes.len())),
            LocalData::Sges(sges) if sges.len() > self.limits.sges => {
                Err(PostError::Sges { sges: sges.len(), limit: self.limits.sges })
            }
            LocalData::Sges(sges) => {
                let length = sges.iter().map(|sge| sge.length as usize).sum();
                Ok((self.domain.spans(sges, Right::LocalRead), length))
            }
        }
    }

    /// A datagram has left.
    pub(crate) fn handle_sent(&mut self, request: &DatagramRequest) {
        if request.signaled {
            self.complete(Queue::Send, request.id, Status::Success, CompletedOperation::Send);
        }
    }

    /// Places a datagram, or drops it.
    pub(crate) fn handle_arrived(&mut self, arrived: &Arrived<'_>) {
        let Extension::Datagram(source, immediate) = &arrived.segment.extension else { return };
        let can_receive = matches!(self.state, QueuePairState::ReadyToReceive | QueuePairState::ReadyToSend);
        if !can_receive || source.q_key != self.q_key {
            return;
        }
        let length = GRH_BYTES + arrived.payload.len();
        let Some((id, spans)) = self.take_receive(length) else { return };
        let mut bytes = [0; GRH_BYTES + MAX_DATAGRAM_BYTES];
        bytes[..GRH_BYTES].copy_from_slice(&global_route(arrived));
        bytes[GRH_BYTES..length].copy_from_slice(arrived.payload);
        if !spans.is_some_and(|spans| copy_in(&spans, 0, &bytes[..length])) {
            self.complete(Queue::Receive, id, Status::LocalProtection, CompletedOperation::Receive);
            self.fail();
            return;
        }
        let completion = Completion {
            id,
            status: Status::Success,
            operation: CompletedOperation::Receive,
            length: length as u64,
            immediate: *immediate,
            solicited: arrived.segment.flags.solicited(),
            source: Some(source.qpn & 0xff_ffff),
        };
        self.finished.push_back((Queue::Receive, completion));
    }

    /// Takes the next receive if it has space for `length` bytes. Returns its memory, `None` if it is not allowed.
    fn take_receive(&mut self, length: usize) -> Option<(u64, Option<Spans>)> {
        let fits = |request: &ReceiveRequest| {
            request.data.iter().map(|sge| sge.length as usize).sum::<usize>() >= length
        };
        match &self.shared {
            Some(shared) => {
                let taken = shared.take_if(fits)?;
                Some((taken.request.id, shared.domain().spans(&taken.request.data, Right::LocalWrite)))
            }
            None => {
                self.receives.front().filter(|request| fits(request))?;
                let request = self.receives.pop_front()?;
                Some((request.id, self.domain.spans(&request.data, Right::LocalWrite)))
            }
        }
    }
}

/// Returns the header that precedes the payload in a receive (IBA 1.3 §8.3).
fn global_route(arrived: &Arrived<'_>) -> [u8; GRH_BYTES] {
    const VERSION: u8 = 6 << 4;
    const NEXT_IS_BTH: u8 = 0x1b;
    let mut grh = [0; GRH_BYTES];
    grh[0] = VERSION;
    grh[4..6].copy_from_slice(&(arrived.payload.len() as u16).to_be_bytes());
    (grh[6], grh[7]) = (NEXT_IS_BTH, u8::MAX);
    grh[8..24].copy_from_slice(&arrived.source_gid);
    grh[24..].copy_from_slice(&arrived.destination_gid);
    grh
}

/// Bit of a destination's Q_Key that selects the one of the sender.
const OWN_Q_KEY: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use isolane_memory::MemoryRegion;

    use super::*;
    use crate::memory::{Access, Registration};
    use crate::types::{Sge, SgeList};

    struct End {
        datagrams: Datagrams,
        memory: Arc<Registration>,
    }

    fn end() -> End {
        let domain = Arc::new(ProtectionDomain::default());
        let memory = domain.register(MemoryRegion::allocate(8192).unwrap(), 0, Access::ALL).unwrap();
        let mut datagrams = Datagrams::new(domain, Limits::default(), None);
        datagrams.set_q_key(0x11);
        for state in [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
            assert!(datagrams.advance(state) && !datagrams.advance(state));
        }
        End { datagrams, memory }
    }

    impl End {
        fn sge_list(&self, length: u32) -> SgeList {
            [Sge { address: 0, length, lkey: self.memory.key() }].into_iter().collect()
        }

        fn receive(&mut self, id: u64, length: u32) {
            let data = self.sge_list(length);
            self.datagrams.post_receive(ReceiveRequest { id, data }).unwrap();
        }

        fn arrive(&mut self, bytes: &[u8]) -> Result<(), SegmentError> {
            self.datagrams.handle_arrived(&Arrived::decode(bytes, [1; 16], [2; 16])?);
            Ok(())
        }
    }

    fn request(data: LocalData, q_key: u32) -> DatagramRequest {
        let destination = Destination { address: [127, 0, 0, 1].into(), number: 5, q_key };
        DatagramRequest { id: 1, data, destination, immediate: Some(9), signaled: true, solicited: true }
    }

    #[test]
    fn arrives_with_a_header() {
        let (mut near, mut far) = (end(), end());
        near.memory.region().copy_in(0, b"datagram");
        far.receive(7, 100);
        let request = request(LocalData::Sges(near.sge_list(8)), 0x11);
        let bytes = near.datagrams.encode(0x1234, &request).unwrap().unwrap();
        near.datagrams.handle_sent(&request);
        assert_eq!(near.datagrams.poll_completion().map(|(_, done)| done.status), Some(Status::Success));
        far.arrive(&bytes).unwrap();
        let (_, done) = far.datagrams.poll_completion().unwrap();
        assert_eq!((done.id, done.length, done.immediate, done.source), (7, 48, Some(9), Some(0x1234)));
        let received = far.memory.region().to_vec(0, 48);
        assert_eq!(
            (&received[..8], &received[40..]),
            (&[0x60, 0, 0, 0, 0, 8, 0x1b, 255][..], &b"datagram"[..])
        );
        assert_eq!((&received[8..24], &received[24..40]), (&[1; 16][..], &[2; 16][..]));
    }

    #[test]
    fn unexpected_ones_are_dropped() {
        let (mut near, mut far) = (end(), end());
        let inline = || LocalData::Inline(vec![3; 8]);
        let mut encode = |q_key| near.datagrams.encode(1, &request(inline(), q_key)).unwrap().unwrap();
        let (good, bad, own) = (encode(0x11), encode(0x12), encode(0x8000_0012));
        // No receive, a wrong key, and a receive that is too short.
        far.arrive(&good).unwrap();
        far.receive(1, 47);
        far.arrive(&bad).unwrap();
        far.arrive(&good).unwrap();
        assert_eq!(far.datagrams.poll_completion(), None);
        assert_eq!(far.memory.region().to_vec(0, 48), [0; 48]);
        // Damaged ones.
        for len in 0..good.len() {
            assert!(far.arrive(&good[..len]).is_err(), "{len} bytes");
        }
        assert!(far.arrive(&[&good[..], &[0]].concat()).is_err());
        let mut other = end();
        other.receive(2, 48);
        other.arrive(&own).unwrap();
        assert_eq!(other.datagrams.poll_completion().map(|(_, done)| done.id), Some(2));
    }

    #[test]
    fn errors_of_the_program_are_reported() {
        let mut near = end();
        let long = LocalData::Sges(near.sge_list(4097));
        assert_eq!(near.datagrams.encode(1, &request(long, 0)), Err(PostError::Length(4097)));
        near.receive(5, 48);
        let unknown = Sge { address: 0, length: 1, lkey: !near.memory.key() };
        let data = LocalData::Sges([unknown].into_iter().collect());
        assert_eq!(near.datagrams.encode(1, &request(data, 0)), Ok(None));
        let done: Vec<_> = std::iter::from_fn(|| near.datagrams.poll_completion())
            .map(|(_, done)| (done.id, done.status))
            .collect();
        assert_eq!(done, [(1, Status::LocalProtection), (5, Status::Flushed)]);
        assert_eq!(near.datagrams.state(), QueuePairState::Error);
    }
}
