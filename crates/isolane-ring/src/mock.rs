//! Both ends of a ring or of a connection in one process, and a vandal who shares the memory: for the tests
//! of whoever uses rings.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::sockopt;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use crate::index::Words;
use crate::memory::{ENTRY_BYTES, Memory, MemoryError};
use crate::{PAGE_SIZE, bytes, entries};

/// Somebody who may write to all of a memory at any time.
#[derive(Clone, Debug)]
pub struct Vandal(Memory);

impl Vandal {
    /// Of this memory.
    pub fn of(memory: &Memory) -> Vandal {
        Vandal(memory.clone())
    }

    /// Writes a word at the `place`th word of the memory, counted around.
    pub fn scribble(&self, place: usize, value: u64) {
        self.word(place).store(value, Ordering::Relaxed);
    }

    /// Adds to such a word, wrapping around: what a slightly broken other side does.
    pub fn nudge(&self, place: usize, by: u64) {
        self.word(place).fetch_add(by, Ordering::Relaxed);
    }

    fn word(&self, place: usize) -> &AtomicU64 {
        let words = self.0.bytes() / size_of::<AtomicU64>();
        let offset = place % words * size_of::<AtomicU64>();
        let piece = self.0.piece(offset as u64, size_of::<AtomicU64>() as u64);
        let address = piece.expect("inside, counted around").as_ptr();
        // SAFETY: an aligned word inside of the mapping, which `self` holds; every pattern of bits is a
        // value.
        unsafe { AtomicU64::from_ptr(address.cast()) }
    }
}

/// Both ends of a ring of bytes. Its indices are in the first page.
///
/// # Errors
/// As [`Memory::create`]; and if `capacity` is not a power of two of whole pages.
pub fn bytes(capacity: usize) -> Result<(bytes::Writer, bytes::Reader, Vandal), MemoryError> {
    let memory = Memory::create("isolane-mock", PAGE_SIZE + capacity.next_multiple_of(PAGE_SIZE))?;
    let place = bytes::Place { words: 0, bytes: PAGE_SIZE as u64, capacity: capacity as u64 };
    Ok((bytes::Writer::new(&memory, place, 0)?, bytes::Reader::new(&memory, place, 0)?, Vandal(memory)))
}

/// Both ends of a ring of entries. Its indices are at the beginning, its entries behind them.
///
/// # Errors
/// As [`Memory::create`]; and if `count` is not a power of two.
pub fn entries(count: usize) -> Result<(entries::Sender, entries::Receiver, Vandal), MemoryError> {
    let memory =
        Memory::create("isolane-mock", (Words::BYTES + count * ENTRY_BYTES).next_multiple_of(PAGE_SIZE))?;
    let place = entries::Place { words: 0, entries: Words::BYTES as u64, count: count as u64 };
    Ok((entries::Sender::new(&memory, place)?, entries::Receiver::new(&memory, place)?, Vandal(memory)))
}

/// Returns `true` if a thread of this process can take the identity of this user: it is root, and not in a user
/// namespace without that user.
pub fn can_be_user(uid: u32) -> bool {
    let become_user = || set_thread_res_uid(None, Uid::from_raw(uid), None).is_ok();
    std::thread::scope(|scope| scope.spawn(become_user).join().unwrap_or(false))
}

/// Runs `body` in a forked child, where locks stay as the threads of this process hold them. Returns whether it came to
/// its end, without a panic and within a minute.
pub fn ends_in_child(body: impl FnOnce()) -> bool {
    // SAFETY: the child has one thread, and ends without running anything that belongs to the others.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(60);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            libc::_exit(i32::from(outcome.is_err()));
        }
        let mut status = -1;
        libc::waitpid(child, &mut status, 0) == child && status == 0
    }
}

/// A TCP connection over loopback without Nagle's delay: the end that connected, and the accepted end.
///
/// # Errors
/// The system's.
pub fn connection() -> io::Result<(TcpStream, TcpStream)> {
    connect_to(&TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?)
}

/// Like [`connection`], with the smallest buffers that the kernel allows. It never enlarges them, so a peer
/// that does not read holds up its sender after a few KiB, on every machine.
///
/// # Errors
/// The system's.
pub fn narrow_connection() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // Before the handshake, which fixes how far the window can open; the accepted end inherits both sizes.
    sockopt::set_socket_recv_buffer_size(&listener, 1)?;
    sockopt::set_socket_send_buffer_size(&listener, 1)?;
    let (near, far) = connect_to(&listener)?;
    sockopt::set_socket_recv_buffer_size(&near, 1)?;
    sockopt::set_socket_send_buffer_size(&near, 1)?;
    Ok((near, far))
}

fn connect_to(listener: &TcpListener) -> io::Result<(TcpStream, TcpStream)> {
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}
