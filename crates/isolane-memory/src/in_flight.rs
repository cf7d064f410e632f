//! Memory that the kernel reads after a zero-copy send has returned.

use crate::payload::Payload;

/// Memory of one send. Invariant: none of it changes or is freed while this value lives.
#[derive(Debug, Default)]
pub struct ZeroCopySend {
    /// Memory of headers, which can contain older headers.
    pub headers: Vec<u8>,
    /// Payloads that were sent, at least in part.
    pub payloads: Vec<Payload>,
    /// Number of sent bytes.
    pub bytes: usize,
}
