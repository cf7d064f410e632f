//! Memory that the kernel reads from after a send has returned, until it says that it is done.

use crate::payload::Payload;

/// What the bytes of one send lie in. Invariant: nothing in it changes or is let go of while it is kept.
#[derive(Debug, Default)]
pub struct Lent {
    /// Memory of headers, sent ones and perhaps older ones.
    pub headers: Vec<u8>,
    /// Payload of which at least a part was sent.
    pub payloads: Vec<Payload>,
    /// Bytes that were sent.
    pub bytes: usize,
}
