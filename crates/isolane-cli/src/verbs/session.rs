//! First messages of client and server of a measurement, and the objects that both need.

use std::sync::Arc;
use std::time::Instant;

use isolane_memory::MemoryRegion;
use isolane_verbs::{
    Access, CompletionQueue, Device, Limits, LocalData, PostError, ProtectionDomain, QueuePair,
    QueuePairConfig, ReceiveRequest, Registration, SendOperation, SendRequest, Sge, SgeList, Status,
    WorkCompletion,
};

use crate::failure::{Failure, IoContext};

/// Operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
}

/// First message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    /// Whether each SEND is answered by one.
    pub(super) echoes: bool,
    pub(super) bytes: u64,
}

/// First message of a server: its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) address: u64,
    pub(super) key: u32,
}

impl Setup {
    pub(super) fn encode(self) -> [u8; MESSAGE_BYTES] {
        message([u64::from(self.echoes), self.bytes])
    }

    pub(super) fn decode(bytes: &[u8]) -> Setup {
        let [echoes, bytes] = words(bytes);
        Setup { echoes: echoes != 0, bytes }
    }
}

impl Offer {
    pub(super) fn encode(self) -> [u8; MESSAGE_BYTES] {
        message([self.address, self.key.into()])
    }

    pub(super) fn decode(bytes: &[u8]) -> Offer {
        let [address, key] = words(bytes);
        Offer { address, key: key as u32 }
    }
}

fn message(words: [u64; 2]) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes.chunks_mut(8).zip(words).for_each(|(part, word)| part.copy_from_slice(&word.to_le_bytes()));
    bytes
}

fn words(bytes: &[u8]) -> [u64; 2] {
    let word =
        |at: usize| bytes[at..at + 8].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    [word(0), word(8)]
}

/// Memory and completions of one end.
pub(super) struct Session {
    pub(super) completions: Arc<CompletionQueue>,
    pub(super) config: QueuePairConfig,
    control: Arc<Registration>,
}

impl Session {
    pub(super) fn new(device: &Device) -> Result<Session, Failure> {
        let domain = Arc::new(ProtectionDomain::default());
        let control = register(&domain, None, MESSAGE_BYTES as u64)?;
        let completions = device.completion_queue(4 * MAX_REQUESTS);
        let limits = Limits { send_requests: MAX_REQUESTS, receives: MAX_REQUESTS, ..Limits::default() };
        let config = QueuePairConfig { limits, ..QueuePairConfig::new(domain, Arc::clone(&completions)) };
        Ok(Session { completions, config, control })
    }

    /// Registers memory of `len` bytes, open to the peer.
    pub(super) fn register(&self, len: u64) -> Result<Arc<Registration>, Failure> {
        self.register_as(None, len)
    }

    /// Registers memory as [`Session::register`], with a key.
    pub(super) fn register_as(&self, key: Option<u32>, len: u64) -> Result<Arc<Registration>, Failure> {
        register(&self.config.domain, key, len)
    }

    /// Posts the receive of the peer's first message.
    pub(super) fn expect_message(&self, pair: &QueuePair) -> Result<(), Failure> {
        receive(pair, CONTROL, &self.control, MESSAGE_BYTES as u64)
    }

    /// Returns the peer's first message.
    pub(super) fn message(&self) -> Vec<u8> {
        self.control.region().to_vec(0, MESSAGE_BYTES)
    }

    /// Sends the first message, without a completion.
    pub(super) fn send_message(&self, pair: &QueuePair, bytes: [u8; MESSAGE_BYTES]) -> Result<(), Failure> {
        let (operation, data) = (SendOperation::Send { immediate: None }, LocalData::Inline(bytes.to_vec()));
        let request =
            SendRequest { id: CONTROL, operation, data, signaled: false, solicited: false, fenced: false };
        pair.post_send(request).map_err(|error| refused(&error))
    }

    /// Polls for the next completion.
    pub(super) fn next(&self) -> Result<u64, Failure> {
        self.next_before(None)
    }

    /// Polls for the next completion, until a deadline.
    pub(super) fn next_before(&self, deadline: Option<Instant>) -> Result<u64, Failure> {
        loop {
            if let Some(completion) = self.completions.poll() {
                return id_of(&completion);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(Failure::new("the peer is silent", "its first message is missing"));
            }
            std::hint::spin_loop();
        }
    }
}

/// Returns the id of a successful completion.
pub(super) fn id_of(completion: &WorkCompletion) -> Result<u64, Failure> {
    match completion.completion.status {
        Status::Success => Ok(completion.completion.id),
        status => Err(Failure::new("a request failed", status.name())),
    }
}

fn register(domain: &ProtectionDomain, key: Option<u32>, len: u64) -> Result<Arc<Registration>, Failure> {
    let region = MemoryRegion::allocate(len as usize).io_context(format!("cannot allocate {len} bytes"))?;
    let access = Access(0).with_local_write(true).with_remote_write(true).with_remote_read(true);
    let registered = domain.register_as(key, region, 0, access.with_remote_atomic(true));
    registered.map_err(|error| Failure::new("cannot register memory", error))
}

/// Returns `len` bytes of a registration from its start.
pub(super) fn sge_list(memory: &Registration, len: u64) -> SgeList {
    [Sge { address: memory.address(), length: len as u32, lkey: memory.key() }].into_iter().collect()
}

/// Posts a receive into memory.
pub(super) fn receive(pair: &QueuePair, id: u64, memory: &Registration, len: u64) -> Result<(), Failure> {
    let request = ReceiveRequest { id, data: sge_list(memory, len) };
    pair.post_receive(request).map_err(|error| refused(&error))
}

/// Posts a signaled request of `len` bytes.
pub(super) fn post(
    pair: &QueuePair,
    id: u64,
    operation: SendOperation,
    memory: &Registration,
    len: u64,
) -> Result<(), Failure> {
    let data = LocalData::Sges(sge_list(memory, len));
    let request = SendRequest { id, operation, data, signaled: true, solicited: false, fenced: false };
    pair.post_send(request).map_err(|error| refused(&error))
}

fn refused(error: &PostError) -> Failure {
    Failure::new("cannot post a request", error)
}

/// Ids of requests: sends are numbered by their slot.
pub(super) const CONTROL: u64 = u64::MAX;
pub(super) const RECEIVE: u64 = u64::MAX - 1;
pub(super) const MESSAGE_BYTES: usize = 16;
/// Maximum number of requests in each queue.
pub(super) const MAX_REQUESTS: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_peer_is_an_error() {
        let device = Device::open(isolane_verbs::DeviceConfig::default()).unwrap();
        let session = Session::new(&device).unwrap();
        let error = session.next_before(Some(Instant::now())).unwrap_err();
        assert!(error.to_string().contains("silent"), "{error}");
    }

    #[test]
    fn messages_survive_encoding() {
        let setup = Setup { echoes: true, bytes: 0x0102_0304_0506_0708 };
        assert_eq!(Setup::decode(&setup.encode()), setup);
        let offer = Offer { address: 0x1112_1314_1516_1718, key: 0x2122_2324 };
        assert_eq!(Offer::decode(&offer.encode()), offer);
    }
}
