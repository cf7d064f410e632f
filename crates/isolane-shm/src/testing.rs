//! Test support: both ends of a ring or connection in one process, and a peer that corrupts shared memory.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::sockopt;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use crate::index::RingIndices;
use crate::memory::{ENTRY_BYTES, MemoryError, SharedMemory};
use crate::{PAGE_SIZE, bytes, entries};

/// A peer that can write anywhere in the memory at any time.
#[derive(Clone, Debug)]
pub struct Corruptor(SharedMemory);

impl Corruptor {
    /// Creates a corruptor of `memory`.
    pub fn new(memory: &SharedMemory) -> Corruptor {
        Corruptor(memory.clone())
    }

    /// Writes `value` to word `index` of the memory, modulo its size.
    pub fn scribble(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Relaxed);
    }

    /// Adds `by` to word `index`, wrapping around, as a slightly broken peer might.
    pub fn nudge(&self, index: usize, by: u64) {
        self.word(index).fetch_add(by, Ordering::Relaxed);
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        let words = self.0.bytes() / size_of::<AtomicU64>();
        let offset = index % words * size_of::<AtomicU64>();
        let slice = self.0.raw_slice(offset as u64, size_of::<AtomicU64>() as u64);
        let address = slice.expect("inside, modulo the size").as_ptr();
        // SAFETY: an aligned word inside the mapping, which `self` holds; every bit pattern is valid.
        unsafe { AtomicU64::from_ptr(address.cast()) }
    }
}

/// Returns both ends of a byte ring. Its indices are in the first page.
///
/// # Errors
/// As [`SharedMemory::create`]; and if `capacity` is not a power of two, or not whole pages.
pub fn bytes(capacity: usize) -> Result<(bytes::Writer, bytes::Reader, Corruptor), MemoryError> {
    let memory = SharedMemory::create("isolane-test", PAGE_SIZE + capacity.next_multiple_of(PAGE_SIZE))?;
    let layout = bytes::Layout { indices: 0, bytes: PAGE_SIZE as u64, capacity: capacity as u64 };
    Ok((bytes::Writer::open(&memory, layout)?, bytes::Reader::open(&memory, layout)?, Corruptor(memory)))
}

/// Returns both ends of an entry ring, whose entries follow its indices at the start of the memory.
///
/// # Errors
/// As [`SharedMemory::create`]; and if `count` is not a power of two.
pub fn entries(count: usize) -> Result<(entries::Sender, entries::Receiver, Corruptor), MemoryError> {
    let memory = SharedMemory::create(
        "isolane-test",
        (RingIndices::BYTES + count * ENTRY_BYTES).next_multiple_of(PAGE_SIZE),
    )?;
    let layout = entries::Layout { indices: 0, entries: RingIndices::BYTES as u64, count: count as u64 };
    Ok((
        entries::Sender::open(&memory, layout)?,
        entries::Receiver::open(&memory, layout)?,
        Corruptor(memory),
    ))
}

/// Returns `true` if a thread of this process can become user `uid`: the process is root, and its user namespace has
/// that user.
pub fn can_be_user(uid: u32) -> bool {
    let become_user = || set_thread_res_uid(None, Uid::from_raw(uid), None).is_ok();
    std::thread::scope(|scope| scope.spawn(become_user).join().unwrap_or(false))
}

/// Runs `body` in a forked child, where locks held by other threads of this process are never released. Returns `true`
/// if it finishes within a minute and does not panic.
pub fn finishes_in_child(body: impl FnOnce()) -> bool {
    // SAFETY: the child has one thread, and exits without running code of the others.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(60);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            libc::_exit(i32::from(result.is_err()));
        }
        let mut status = -1;
        libc::waitpid(child, &mut status, 0) == child && status == 0
    }
}

/// Returns a TCP connection over loopback with `TCP_NODELAY`: the connecting end and the accepted end.
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
