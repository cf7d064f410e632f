//! One end: it sends messages, and checks the messages of the other end. It reports to the other end, by a WRITE, how many
//! it has checked, because their slots can be used again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use isolane_memory::testing::guarded_region;
use isolane_verbs::{
    Access, CompletedOperation, Completion, CompletionQueue, Device, DeviceConfig, Limits, LocalData,
    ProtectionDomain, QueuePair, QueuePairConfig, QueuePairState, ReceiveRequest, Registration,
    SendOperation, SendRequest, Sge, Status,
};

use super::message::{DEPTH, Kind, MAX_BYTES, Message, POOL_BYTES, random_bytes};

/// Number of bytes before and after the message in a slot, which nothing may change.
const GUARD_BYTES: u64 = 64;
const GUARD: u8 = 0xa7;
const SLOT_BYTES: u64 = MAX_BYTES as u64 + 2 * GUARD_BYTES;
// Places in the memory of an end: slots of its messages, slots of the other end's messages, memory for READs, the word
// for atomic operations, and the number of its messages that the other end has checked.
const OUTGOING: u64 = 0;
const INCOMING: u64 = OUTGOING + DEPTH * SLOT_BYTES;
const POOL: u64 = INCOMING + DEPTH * SLOT_BYTES;
const WORD: u64 = POOL + POOL_BYTES;
const CHECKED: u64 = WORD + 8;
const MEMORY_BYTES: u64 = CHECKED + 16;
/// Id of a request that reports the number of checked messages.
const REPORT: u64 = u64::MAX;

/// The device and the memory of a program, for queue pairs one after the other.
pub(super) struct Program {
    pub(super) device: Device,
    domain: Arc<ProtectionDomain>,
    memory: Arc<Registration>,
}

/// Messages of a direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) count: u64,
}

pub(super) struct End<'a> {
    program: &'a Program,
    pub(super) config: QueuePairConfig,
    pair: Option<QueuePair>,
    completions: Arc<CompletionQueue>,
    peer_key: u32,
    outgoing: Plan,
    incoming: Plan,
    peer_pool: Vec<u8>,
    /// Requests without a completion, in order, and the result that an atomic operation must have.
    posted: VecDeque<(u64, Option<u64>)>,
    next: u64,
    pub(super) done: u64,
    /// Value of the other end's word after all posted messages.
    word: u64,
    /// Number of messages of the other end that are checked, the number that it knows, and the next one that needs a
    /// receive.
    pub(super) checked: u64,
    reported: u64,
    next_receive: u64,
    /// Messages for which a receive is posted.
    receives: VecDeque<u64>,
    /// The status of the first request that has failed.
    pub(super) failure: Option<Status>,
}

impl Program {
    pub(super) fn new(config: DeviceConfig) -> Program {
        let domain = Arc::new(ProtectionDomain::default());
        let region = guarded_region(MEMORY_BYTES as usize).unwrap();
        let memory = domain.register(region, 0, Access::ALL).unwrap();
        Program { device: Device::open(config).unwrap(), domain, memory }
    }

    /// Key of the memory.
    pub(super) fn key(&self) -> u32 {
        self.memory.key()
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        self.memory.region().copy_in(address as usize, bytes);
    }

    fn bytes(&self, address: u64, len: u64) -> Vec<u8> {
        self.memory.region().to_vec(address as usize, len as usize)
    }

    fn word(&self, address: u64) -> u64 {
        u64::from_le_bytes(self.bytes(address, 8).try_into().expect("8 bytes"))
    }

    /// Prepares a slot for a message of `length` bytes. Returns the address of the message.
    fn clear_slot(&self, slots: u64, number: u64, length: u32) -> u64 {
        let start = slots + number % DEPTH * SLOT_BYTES;
        self.put(start, &vec![GUARD; (2 * GUARD_BYTES + u64::from(length)) as usize]);
        start + GUARD_BYTES
    }

    /// Checks the bytes around the message in a slot, and returns it.
    fn slot(&self, slots: u64, number: u64, length: u32) -> Vec<u8> {
        let start = slots + number % DEPTH * SLOT_BYTES;
        let mut bytes = self.bytes(start, 2 * GUARD_BYTES + u64::from(length));
        let after = bytes.split_off((GUARD_BYTES + u64::from(length)) as usize);
        let message = bytes.split_off(GUARD_BYTES as usize);
        let is_intact = bytes.iter().chain(&after).all(|byte| *byte == GUARD);
        assert!(is_intact, "bytes around message {number} have changed");
        message
    }
}

impl<'a> End<'a> {
    /// Prepares the memory for messages in both directions.
    pub(super) fn new(program: &'a Program, outgoing: Plan, incoming: Plan) -> End<'a> {
        let completions = program.device.completion_queue(8 * DEPTH as usize);
        let limits =
            Limits { send_requests: 4 * DEPTH as usize, receives: DEPTH as usize, ..Limits::default() };
        let config = QueuePairConfig::new(Arc::clone(&program.domain), Arc::clone(&completions));
        let config = QueuePairConfig { limits, outlives_peer: true, ..config };
        program.put(POOL, &random_bytes(incoming.seed, POOL_BYTES as usize));
        program.put(WORD, &[0; 24]);
        let mut end = End {
            program,
            config,
            pair: None,
            completions,
            peer_key: 0,
            outgoing,
            incoming,
            peer_pool: random_bytes(outgoing.seed, POOL_BYTES as usize),
            posted: VecDeque::new(),
            next: 0,
            done: 0,
            word: 0,
            checked: 0,
            reported: 0,
            next_receive: 0,
            receives: VecDeque::new(),
            failure: None,
        };
        (0..DEPTH).for_each(|number| end.clear_incoming(number));
        end
    }

    /// Uses a queue pair, which can send and receive. The memory of the other end has a key.
    pub(super) fn start(&mut self, pair: QueuePair, peer_key: u32) {
        (self.pair, self.peer_key) = (Some(pair), peer_key);
        self.post_receives();
    }

    fn pair(&self) -> &QueuePair {
        self.pair.as_ref().expect("a started end")
    }

    /// Whether everything is sent and checked.
    pub(super) fn is_done(&self) -> bool {
        self.done == self.outgoing.count
            && self.checked == self.incoming.count
            && self.reported == self.checked
            && self.posted.is_empty()
    }

    /// Posts what can be posted, and handles completions. Returns whether there was anything to do.
    pub(super) fn turn(&mut self) -> bool {
        let mut is_active = false;
        while let Some(completion) = self.completions.poll() {
            self.handle(&completion.completion);
            is_active = true;
        }
        if self.failure.is_some() {
            return is_active;
        }
        while self.next < self.outgoing.count
            && self.next < (self.done + DEPTH).min(self.peer_checked() + DEPTH)
        {
            self.post_next();
            is_active = true;
        }
        let is_last = self.checked == self.incoming.count;
        let is_due = self.checked > self.reported && (is_last || self.checked - self.reported >= DEPTH / 4);
        // Reports overtake messages of which a lane has lost a part, and complete after them.
        if is_due && self.posted.len() < 3 * DEPTH as usize {
            self.report();
        }
        is_active
    }

    /// Waits for a completion, and handles it. Returns `false` after `timeout`.
    pub(super) fn wait(&mut self, timeout: Duration) -> bool {
        let completion = self.completions.wait(timeout);
        if let Some(completion) = &completion {
            self.handle(&completion.completion);
        }
        completion.is_some()
    }

    /// Number of requests without a completion.
    pub(super) fn outstanding(&self) -> usize {
        self.posted.len()
    }

    /// Posts a request if none is outstanding: without one, a lost peer is no error.
    pub(super) fn request_if_idle(&mut self) {
        if self.posted.is_empty() {
            self.report();
        }
    }

    pub(super) fn state(&self) -> QueuePairState {
        self.pair().state()
    }

    /// Number of messages of this end that the other one has checked.
    fn peer_checked(&self) -> u64 {
        let [value, inverse] = [self.program.word(CHECKED), self.program.word(CHECKED + 8)];
        // It can be arriving.
        if value == !inverse { value.min(self.next) } else { self.done.saturating_sub(DEPTH) }
    }

    fn report(&mut self) {
        self.reported = self.checked;
        let words = [self.checked.to_le_bytes(), (!self.checked).to_le_bytes()].concat();
        let operation = SendOperation::Write { address: CHECKED, rkey: self.peer_key, immediate: None };
        self.post(REPORT, operation, LocalData::Inline(words), None);
    }

    fn post_next(&mut self) {
        let message = Message::new(self.outgoing.seed, self.next, self.outgoing.count);
        let Message { number, kind, length, .. } = message;
        let key = self.peer_key;
        let address = self.program.clear_slot(OUTGOING, number, length);
        if message.fills_peer() {
            self.program.put(address, &message.bytes());
        }
        let target = INCOMING + number % DEPTH * SLOT_BYTES + GUARD_BYTES;
        let immediate = message.immediate();
        let (operation, result) = match kind {
            Kind::Send { .. } => (SendOperation::Send { immediate }, None),
            Kind::Write { .. } => (SendOperation::Write { address: target, rkey: key, immediate }, None),
            Kind::Read { from } => (SendOperation::Read { address: POOL + from, rkey: key }, None),
            Kind::FetchAdd { add } => {
                let found = self.word;
                self.word = found.wrapping_add(add);
                (SendOperation::FetchAdd { address: WORD, rkey: key, add }, Some(found))
            }
            Kind::CompareSwap { is_equal, swap } => {
                let found = self.word;
                let compare = found.wrapping_add(u64::from(!is_equal));
                self.word = if is_equal { swap } else { found };
                (SendOperation::CompareSwap { address: WORD, rkey: key, compare, swap }, Some(found))
            }
        };
        let sge = Sge { address, length, lkey: self.program.memory.key() };
        self.post(number, operation, LocalData::Sges([sge].into_iter().collect()), result);
        self.next += 1;
    }

    fn post(&mut self, id: u64, operation: SendOperation, data: LocalData, result: Option<u64>) {
        let request = SendRequest { id, operation, data, signaled: true, solicited: false, fenced: false };
        self.posted.push_back((id, result));
        self.pair().post_send(request).unwrap();
    }

    /// Posts receives for the messages whose slots are free.
    fn post_receives(&mut self) {
        while self.next_receive < (self.checked + DEPTH).min(self.incoming.count) {
            let number = self.next_receive;
            let message = Message::new(self.incoming.seed, number, self.incoming.count);
            if message.consumes_receive() {
                let address = INCOMING + number % DEPTH * SLOT_BYTES + GUARD_BYTES;
                let sge = Sge { address, length: message.length, lkey: self.program.memory.key() };
                let request = ReceiveRequest { id: number, data: [sge].into_iter().collect() };
                self.receives.push_back(number);
                self.pair().post_receive(request).unwrap();
            }
            self.next_receive += 1;
        }
    }

    fn clear_incoming(&mut self, number: u64) {
        let message = Message::new(self.incoming.seed, number, self.incoming.count);
        self.program.clear_slot(INCOMING, number, message.length);
    }

    fn handle(&mut self, completion: &Completion) {
        if matches!(completion.operation, CompletedOperation::Receive | CompletedOperation::ReceiveWrite) {
            self.on_received(completion);
        } else {
            self.on_sent(completion);
        }
    }

    fn on_sent(&mut self, completion: &Completion) {
        let (id, result) = self.posted.pop_front().expect("a request for each completion");
        assert_eq!(completion.id, id, "a completion out of order");
        if self.failure.is_some() {
            assert_eq!(completion.status, Status::Flushed);
        } else if completion.status != Status::Success {
            self.failure = Some(completion.status);
        } else if id != REPORT {
            assert_eq!(id, self.done, "a completion is missing");
            self.check_result(&Message::new(self.outgoing.seed, id, self.outgoing.count), result);
            self.done += 1;
        }
    }

    /// Checks the slot of a message of this end that is complete.
    fn check_result(&self, message: &Message, result: Option<u64>) {
        let found = self.program.slot(OUTGOING, message.number, message.length);
        let expected = match (message.kind, result) {
            (_, Some(value)) => value.to_le_bytes().to_vec(),
            (Kind::Read { from }, _) => self.peer_pool[from as usize..][..message.length as usize].to_vec(),
            _ => message.bytes(),
        };
        assert!(found == expected, "{message:?} of this end has wrong bytes");
    }

    fn on_received(&mut self, completion: &Completion) {
        let number = self.receives.pop_front().expect("a receive for each completion");
        assert_eq!(completion.id, number, "a receive out of order");
        if completion.status != Status::Success {
            assert_eq!(completion.status, Status::Flushed);
            return;
        }
        assert!(number >= self.checked, "a receive twice");
        let message = Message::new(self.incoming.seed, number, self.incoming.count);
        let length = u64::from(message.length);
        assert_eq!((completion.length, completion.immediate), (length, message.immediate()), "{message:?}");
        // All messages before it have also arrived.
        for number in self.checked..=number {
            self.check_incoming(number);
            if number + DEPTH < self.incoming.count {
                self.clear_incoming(number + DEPTH);
            }
        }
        self.checked = number + 1;
        self.post_receives();
    }

    /// Checks the slot of a message of the other end.
    fn check_incoming(&self, number: u64) {
        let message = Message::new(self.incoming.seed, number, self.incoming.count);
        let found = self.program.slot(INCOMING, number, message.length);
        let is_right = if message.fills_peer() {
            found == message.bytes()
        } else {
            found.iter().all(|byte| *byte == GUARD)
        };
        assert!(is_right, "{message:?} of the peer has wrong bytes");
    }

    /// Checks the slots of the messages of the other end that can have arrived in part: each byte is old or right.
    pub(super) fn check_unfinished(&self) {
        for number in self.checked..(self.checked + DEPTH).min(self.incoming.count) {
            let message = Message::new(self.incoming.seed, number, self.incoming.count);
            let found = self.program.slot(INCOMING, number, message.length);
            let expected = message.bytes();
            let may_arrive = message.fills_peer();
            let is_right =
                |(found, expected): (&u8, &u8)| *found == GUARD || (may_arrive && found == expected);
            assert!(found.iter().zip(&expected).all(is_right), "{message:?} of the peer has wrong bytes");
        }
    }
}
