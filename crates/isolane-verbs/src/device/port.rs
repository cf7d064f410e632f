//! A port of a device, whose number is a part of the numbers of its queue pairs.

use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;

/// A port with the numbers of 256 queue pairs.
pub(super) struct Port {
    pub(super) listener: Arc<TcpListener>,
    /// For datagrams, with the same number.
    pub(super) datagrams: Arc<UdpSocket>,
    pub(super) number: u16,
    pub(super) used: [bool; NUMBERS_PER_PORT],
    /// Index after the last one used, so that numbers return late.
    pub(super) next: usize,
}

impl Port {
    pub(super) fn allocate(&mut self) -> Option<u32> {
        let indices = (self.next..NUMBERS_PER_PORT).chain(0..self.next);
        let index = indices.into_iter().find(|index| !self.used[*index])?;
        self.used[index] = true;
        self.next = (index + 1) % NUMBERS_PER_PORT;
        Some(u32::from(self.number) << 8 | index as u32)
    }
}

/// Number of queue pairs that a port serves.
pub(super) const NUMBERS_PER_PORT: usize = 256;
