//! A non-blocking socket: one `readv` per turn, one `writev` per batch or per request.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;

use rustix::net::sockopt::{set_socket_send_buffer_size, set_tcp_congestion};

/// PDU type of a command capsule.
pub const COMMAND_PDU: u8 = 0x04;
/// PDU type of a response capsule.
pub const RESPONSE_PDU: u8 = 0x05;
/// PDU type of data from controller to host.
pub const C2H_DATA_PDU: u8 = 0x07;
/// CapsuleCmd: the 8-byte common header and the 64-byte submission queue entry.
pub const COMMAND_BYTES: usize = 72;
/// C2HData, H2CData, and R2T headers and CapsuleResp.
pub const HEADER_BYTES: usize = 24;
/// The kernel's limit of iovecs per system call.
pub const MAX_IOVECS: usize = 1024;

/// A connected socket that never blocks and never delays a segment.
pub struct Socket {
    stream: TcpStream,
    /// Sends each request with its own system call.
    pub unbatched: bool,
}

impl Socket {
    /// Wraps a connected stream. A bounded send buffer keeps data in flight in the caches; with 0 the kernel lets
    /// the buffer grow to megabytes.
    pub fn new(stream: TcpStream, unbatched: bool, send_buffer_bytes: usize) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        if send_buffer_bytes > 0 {
            set_socket_send_buffer_size(&stream, send_buffer_bytes)?;
        }
        // BBR's timers delay long writes. Without Reno, the kernel's default serves.
        let _ = set_tcp_congestion(&stream, "reno");
        Ok(Socket { stream, unbatched })
    }

    /// Calls `readv` once. Returns the number of received bytes, 0 if nothing is available.
    pub fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self.stream.read_vectored(buffers) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                relax();
                Ok(0)
            }
            result => result,
        }
    }

    /// Sends adjacent commands without data.
    pub fn send_commands(&mut self, commands: &[u8]) -> io::Result<()> {
        let each = if self.unbatched { COMMAND_BYTES } else { commands.len().max(1) };
        commands.chunks(each).try_for_each(|command| self.send(&mut [IoSlice::new(command)]))
    }

    /// Sends requests of a header and a block each.
    pub fn send_blocks(&mut self, batch: &mut [IoSlice<'_>]) -> io::Result<()> {
        let each = if self.unbatched { 2 } else { batch.len().max(1) };
        batch.chunks_mut(each).try_for_each(|request| self.send(request))
    }

    /// Sends the batch with one `writev`, or more if the socket is full.
    pub fn send(&mut self, mut batch: &mut [IoSlice<'_>]) -> io::Result<()> {
        while !batch.is_empty() {
            let window = batch.len().min(MAX_IOVECS);
            match self.stream.write_vectored(&batch[..window]) {
                Ok(sent) => IoSlice::advance_slices(&mut batch, sent),
                Err(error) if error.kind() == ErrorKind::WouldBlock => relax(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Spins; yields in tests, whose machine has other work.
fn relax() {
    if cfg!(test) { std::thread::yield_now() } else { std::hint::spin_loop() }
}
