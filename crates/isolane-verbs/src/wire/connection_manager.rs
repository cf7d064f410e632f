//! Messages between connection managers.
//!
//! The listener greets with 8 bytes. A program that listens at the same number for other purposes does not, so the client
//! sends nothing to it. Each message has 32 bytes, and then its private data.

/// Length of a greeting, in bytes.
pub const GREETING_LEN: usize = 8;

/// Start of all greetings.
pub const MAGIC: [u8; 4] = *b"ISLC";

/// Returns the first bytes of a listener: magic, version, port space, and the port that its program knows.
pub fn greeting(port: u16, is_datagram: bool) -> [u8; GREETING_LEN] {
    let [low, high] = port.to_le_bytes();
    let [a, b, c, d] = MAGIC;
    [a, b, c, d, 2, u8::from(is_datagram), low, high]
}

/// Length of a message without private data, in bytes.
pub const LEN: usize = 32;

/// Reason of a rejection (IBA 1.3 §12.6.7.2): no program listens for the request.
pub const INVALID_SERVICE: u32 = 8;
/// The program has rejected the request.
pub const CONSUMER_DEFINED: u32 = 28;
/// A parameter of the request is not supported.
pub const VENDOR_OPTION_NOT_SUPPORTED: u32 = 35;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Opens a connection.
    Request = 1,
    /// Accepts a request.
    Reply = 2,
    /// Confirms a reply.
    Ready = 3,
    /// Rejects a request or a reply.
    Reject = 4,
    /// Ends a connection.
    Disconnect = 5,
    /// Confirms a disconnect.
    Disconnected = 6,
}

impl Kind {
    fn decode(code: u8) -> Option<Kind> {
        use Kind::{Disconnect, Disconnected, Ready, Reject, Reply, Request};
        [Request, Reply, Ready, Reject, Disconnect, Disconnected].into_iter().find(|kind| *kind as u8 == code)
    }
}

/// The first byte of a message is not a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte 0 of a message has kind {0}, which is not defined")]
pub struct UnknownKind(pub u8);

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Kind.
    pub kind: Kind,
    /// Number of outstanding READs and atomic operations that the sender executes.
    pub responder_resources: u8,
    /// Number of READs and atomic operations that the sender has outstanding.
    pub initiator_depth: u8,
    /// Number of retries while the receiver is not ready.
    pub rnr_retries: u8,
    /// Number of retries without a response.
    pub retries: u8,
    /// The queue pair has a shared receive queue.
    pub shares_receives: bool,
    /// WRITEs with immediate data consume no receive.
    pub spares_receives: bool,
    /// The connection is for datagrams.
    pub is_datagram: bool,
    /// Number of the queue pair.
    pub number: u32,
    /// Number of the first message of the sender.
    pub first_message: u32,
    /// Q_Key of a queue pair of datagrams.
    pub q_key: u32,
    /// Reason of a rejection.
    pub reason: u32,
    /// Port of the listener.
    pub port: u16,
    /// Data of the program, up to 255 bytes.
    pub private_data: Vec<u8>,
}

impl Message {
    /// Returns a message whose other fields are 0.
    pub fn new(kind: Kind) -> Message {
        Message {
            kind,
            responder_resources: 0,
            initiator_depth: 0,
            rnr_retries: 0,
            retries: 0,
            shares_receives: false,
            spares_receives: false,
            is_datagram: false,
            number: 0,
            first_message: 0,
            q_key: 0,
            reason: 0,
            port: 0,
            private_data: Vec::new(),
        }
    }

    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        bytes[0] = self.kind as u8;
        bytes[1] = self.private_data.len() as u8;
        bytes[2] = self.responder_resources;
        bytes[3] = self.initiator_depth;
        bytes[4] = self.rnr_retries;
        bytes[5] = self.retries;
        bytes[6] = u8::from(self.shares_receives);
        bytes[7] = u8::from(self.is_datagram);
        for (at, value) in [(8, self.number), (12, self.first_message), (16, self.q_key), (20, self.reason)] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes[24..26].copy_from_slice(&self.port.to_le_bytes());
        bytes[26] = u8::from(self.spares_receives);
        bytes.extend_from_slice(&self.private_data);
        bytes
    }

    /// Decodes the message at the start of `bytes`, and returns its length. `None` if it is incomplete.
    ///
    /// # Errors
    /// [`UnknownKind`], if it is not a message.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Message, usize)>, UnknownKind> {
        let Some(head) = bytes.first_chunk::<LEN>() else { return Ok(None) };
        let kind = Kind::decode(head[0]).ok_or(UnknownKind(head[0]))?;
        let len = LEN + usize::from(head[1]);
        let Some(private_data) = bytes.get(LEN..len) else { return Ok(None) };
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let message = Message {
            kind,
            responder_resources: head[2],
            initiator_depth: head[3],
            rnr_retries: head[4],
            retries: head[5],
            shares_receives: head[6] != 0,
            spares_receives: head[26] != 0,
            is_datagram: head[7] != 0,
            number: word(8) & 0xff_ffff,
            first_message: word(12) & 0xff_ffff,
            q_key: word(16),
            reason: word(20),
            port: word(24) as u16,
            private_data: private_data.to_vec(),
        };
        Ok(Some((message, len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_encoding() {
        let message = Message {
            kind: Kind::Reply,
            responder_resources: 2,
            initiator_depth: 3,
            rnr_retries: 4,
            retries: 5,
            shares_receives: true,
            spares_receives: true,
            is_datagram: true,
            number: 0x01_0203,
            first_message: 0x04_0506,
            q_key: 0x0708_090a,
            reason: 0x0b0c_0d0e,
            port: 0x0f10,
            private_data: b"private".to_vec(),
        };
        let bytes = message.encode();
        assert_eq!(Message::decode(&[&bytes[..], b"next"].concat()), Ok(Some((message, LEN + 7))));
        for len in 0..bytes.len() {
            assert_eq!(Message::decode(&bytes[..len]), Ok(None));
        }
        for code in [0, 7, 255] {
            assert_eq!(Message::decode(&[code; LEN]), Err(UnknownKind(code)));
        }
    }
}
