//! Transmit path: from the application's ring to the socket.

use std::os::fd::AsFd;

use isolane_engine_api::stream::{StreamEnd, recover_sent};
use isolane_shm::{SharedMemory, bytes};
use isolane_tcp::{SendResult, TcpState};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::{Common, PathProgress, QUANTUM, StreamError, system};

/// Transmit state. The consumer position of the ring counts the bytes given to the kernel.
#[derive(Debug)]
pub(super) struct TxPath {
    ring: bytes::Reader,
    capacity: u64,
    /// The socket may have send buffer space.
    pub writable: bool,
    /// Nothing more can or may be sent.
    finished: bool,
    /// Error of a send, until [`TxPath::take_error`] returns it.
    error: Option<i32>,
}

impl TxPath {
    /// See [`StreamMachine::resume`](super::StreamMachine::resume). The application may run at the same time: it
    /// writes into the ring, or sends directly while the ring looks empty to it.
    pub fn resume(common: &Common, memory: &SharedMemory) -> Result<TxPath, StreamError> {
        let Common { socket, block, record, .. } = common;
        let mut ring = bytes::Reader::open(memory, record.place.tx_ring())?;
        // The application counts direct sends before it writes into the ring, and sends nothing directly while
        // the ring holds data. So with data in the ring, the counts of application and kernel agree. With an
        // empty ring, a direct send may be in progress, and the kernel may have counted more.
        ring.refresh()?;
        let native = block.tx_bypassed.get();
        let now =
            isolane_tcp::counters(socket.as_fd()).map_err(system("cannot get the count of sent bytes"))?;
        let is_shut = now.state == TcpState::Closing && block.tx_end_pos().is_some();
        let sent = recover_sent(&now, record.written, native, block.tx_end_pos());
        // A surplus beyond the data in the ring is a direct send that is not counted yet. A deficit means that
        // the application counts bytes that it did not send.
        let more = sent.wrapping_sub(ring.position()).min(ring.available());
        if sent < ring.position() && now.state != TcpState::Closed {
            return Err(TAMPERED);
        }
        if now.state != TcpState::Closed || sent >= ring.position() {
            ring.consume(more as usize);
        }
        ring.publish();
        let finished = is_shut || block.tx_end().is_some();
        Ok(TxPath { ring, capacity: record.place.tx_capacity, writable: true, finished, error: None })
    }

    #[inline]
    pub fn poll(&mut self, common: &Common) -> Result<PathProgress, StreamError> {
        let Common { socket, block, failpoint, .. } = common;
        if self.finished || !self.writable {
            // The times of the bytes need it.
            self.ring.refresh()?;
            return Ok(PathProgress::default());
        }
        let sent = isolane_tcp::send_from(&mut self.ring, socket.as_fd(), QUANTUM)?;
        failpoint.hit()?;
        match sent {
            Ok(SendResult::Bytes(_)) => {
                self.ring.publish();
                failpoint.hit()?;
                // Wakes the application only once a quarter of the ring is free.
                let has_space = self.ring.available() <= self.capacity - self.capacity / 4;
                if has_space {
                    block.tx_flag.wake();
                }
                Ok(PathProgress { busy: true, publishes: has_space })
            }
            Ok(SendResult::Empty) => self.shut_down(common),
            Ok(SendResult::WouldBlock) => {
                self.writable = false;
                Ok(PathProgress::default())
            }
            Err(Errno::NOMEM | Errno::NOBUFS) => Ok(PathProgress::default()),
            Err(error) => {
                self.finished = true;
                self.error = Some(error.raw_os_error());
                block.end_tx(StreamEnd::Failed(error.raw_os_error()));
                block.tx_flag.wake();
                Ok(PathProgress { busy: true, publishes: true })
            }
        }
    }

    /// Shuts the socket down after the last byte, if the application has requested that.
    #[inline]
    fn shut_down(&mut self, common: &Common) -> Result<PathProgress, StreamError> {
        let Some(position) = common.block.tx_end_pos() else { return Ok(PathProgress::default()) };
        // The application stores the position after it has published the last byte.
        if self.ring.refresh()? > 0 {
            return Ok(PathProgress::default());
        }
        if position != self.ring.position() {
            return Err(TAMPERED);
        }
        // Fails only without a connection.
        let _ = shutdown(&common.socket, Shutdown::Write);
        common.failpoint.hit()?;
        self.finished = true;
        Ok(PathProgress { busy: true, publishes: false })
    }

    /// Returns the error of a failed send, once.
    #[inline]
    pub fn take_error(&mut self) -> Option<i32> {
        self.error.take()
    }

    /// Whether there is work that neither the application nor the kernel will announce.
    pub fn has_work(&mut self, common: &Common) -> Result<bool, StreamError> {
        let is_requested = self.ring.refresh()? > 0 || common.block.tx_end_pos().is_some();
        Ok(is_requested && self.writable && !self.finished)
    }

    /// Whether everything is sent and shut down.
    pub fn is_done(&mut self, common: &Common) -> Result<bool, StreamError> {
        Ok(self.ring.refresh()? == 0 && (self.finished || common.block.tx_end_pos().is_none()))
    }

    /// Whether nothing more can be sent, even if the ring holds data.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Number of bytes that the application has published, as last seen.
    #[inline]
    pub fn pushed(&self) -> u64 {
        self.ring.position() + self.ring.available()
    }

    /// Number of bytes given to the kernel.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.ring.position()
    }
}

const TAMPERED: StreamError = StreamError::Violation("wrote invalid transmit counts");
