//! A non-blocking socket: one `readv` a turn, whole batches out, or each request by itself.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;

use rustix::net::sockopt::{set_socket_send_buffer_size, set_tcp_congestion};

use super::work::COMMAND_BYTES;

/// Iovecs of one system call, the kernel's limit.
pub const IOVECS_MAX: usize = 1024;

/// A connected socket that never blocks and never delays a segment.
pub struct Connection {
    stream: TcpStream,
    is_single: bool,
}

impl Connection {
    /// Takes over a connected stream. A bounded send buffer keeps what is under way in the caches; 0 leaves
    /// it to the kernel, which lets it grow to megabytes.
    pub fn new(stream: TcpStream, send_buffer_bytes: usize) -> io::Result<Connection> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        if send_buffer_bytes > 0 {
            set_socket_send_buffer_size(&stream, send_buffer_bytes)?;
        }
        // BBR's timers slow long writes down; where Reno is not to be had, the kernel's choice will do.
        let _ = set_tcp_congestion(&stream, "reno");
        Ok(Connection { stream, is_single: false })
    }

    /// Sends each request by itself, or all that are due together.
    pub fn with_single(self, is_single: bool) -> Connection {
        Connection { is_single, ..self }
    }

    /// One `readv`: the bytes that came, 0 when there are none, an error when the peer is gone.
    pub fn receive(&mut self, places: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self.stream.read_vectored(places) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                yield_in_tests();
                Ok(0)
            }
            result => result,
        }
    }

    /// Whether each request is sent by itself.
    pub fn is_single(&self) -> bool {
        self.is_single
    }

    /// Sends requests that are only commands and lie one behind the other.
    pub fn send_commands(&mut self, commands: &[u8]) -> io::Result<()> {
        let each = if self.is_single { COMMAND_BYTES } else { commands.len().max(1) };
        commands.chunks(each).try_for_each(|command| self.send(&mut [IoSlice::new(command)]))
    }

    /// Sends requests of a command, or of a data header, and a block each.
    pub fn send_blocks(&mut self, batch: &mut [IoSlice<'_>]) -> io::Result<()> {
        let each = if self.is_single { 2 } else { batch.len().max(1) };
        batch.chunks_mut(each).try_for_each(|request| self.send(request))
    }

    /// One `writev` of the whole batch, and more only while the socket is full.
    pub fn send(&mut self, mut batch: &mut [IoSlice<'_>]) -> io::Result<()> {
        while !batch.is_empty() {
            let window = batch.len().min(IOVECS_MAX);
            match self.stream.write_vectored(&batch[..window]) {
                Ok(sent) => IoSlice::advance_slices(&mut batch, sent),
                Err(error) if error.kind() == ErrorKind::WouldBlock => yield_in_tests(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A machine that runs tests has other things to do than to let two threads spin at each other.
fn yield_in_tests() {
    match cfg!(test) {
        true => std::thread::yield_now(),
        false => std::hint::spin_loop(),
    }
}
