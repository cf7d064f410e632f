//! Streams: connect, adopt, transfer data, and close.
//!
//! Invariant: a failed adoption leaves the descriptor with the caller.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use isolane_attach::Session;
use isolane_attach::stream::{self, AdoptError, ReadHalf, StreamOptions, WriteHalf};
use isolane_shm::{process_id, with_signals_blocked};
use parking_lot::Mutex;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::sockopt;

use crate::entry::{call, close};
use crate::error::Failure;
use crate::ffi::{as_ref, borrowed, from_raw, into_raw, owned, slice, slice_mut, text, timeout};
use crate::fork::Busy;
use crate::options::or_default;

const ISOLANE_READ: c_int = 1;
const ISOLANE_WRITE: c_int = 2;

/// A stream. Three threads can use its three parts at a time, so code forms no reference to the whole.
pub struct Stream {
    /// Dropped first, so that the poller no longer returns the stream.
    meta: StreamMeta,
    read: ReadHalf,
    write: WriteHalf,
}

/// Properties of a stream that every thread can read.
struct StreamMeta {
    fd: RawFd,
    core: u32,
    id: u32,
    data: AtomicPtr<c_void>,
    /// Streams of the same poller.
    members: Option<Arc<Members>>,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_connect(
    session: *mut Session,
    address: *const c_char,
    options: *const StreamOptions,
) -> *mut Stream {
    call("isolane_stream_connect", || {
        // SAFETY: the header states the requirements.
        let (session, address, options) = unsafe { (as_ref(session)?, text(address)?, or_default(options)) };
        session.check()?;
        let _busy = Busy::enter();
        let socket = TcpStream::connect(&*addresses(address)?)?;
        Ok(into_raw_stream(with_signals_blocked(|| options.adopt_if_possible(session, socket))?, None))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_adopt(
    session: *mut Session,
    fd: c_int,
    options: *const StreamOptions,
) -> *mut Stream {
    call("isolane_stream_adopt", || {
        // SAFETY: the header states the requirements.
        let (session, options) = unsafe { (as_ref(session)?, or_default(options)) };
        // SAFETY: the header states the requirements.
        let stream = unsafe { adopt(fd, |socket| options.adopt(session, socket))? };
        Ok(into_raw_stream(stream, None))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_into_fd(stream: *mut Stream) -> c_int {
    call("isolane_stream_into_fd", || {
        // SAFETY: the header states the requirements.
        let Stream { read, write, meta } = *unsafe { from_raw(stream) }.ok_or(NO_STREAM)?;
        drop(meta);
        let socket = stream::Stream::reunite(read, write).into_std().map_err(std::io::Error::from)?;
        Ok(socket.into_raw_fd())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_read(
    stream: *mut Stream,
    buffer: *mut c_void,
    length: usize,
) -> isize {
    call("isolane_stream_read", || {
        // SAFETY: the header states the requirements.
        let (read, buffer) = unsafe { (reader(stream)?, slice_mut(buffer, length)?) };
        Ok(read.read(buffer)? as isize)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_write(
    stream: *mut Stream,
    buffer: *const c_void,
    length: usize,
) -> isize {
    call("isolane_stream_write", || {
        // SAFETY: the header states the requirements.
        let (write, buffer) = unsafe { (writer(stream)?, slice(buffer, length)?) };
        Ok(write.write(buffer)? as isize)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_try_read(
    stream: *mut Stream,
    buffer: *mut c_void,
    length: usize,
) -> isize {
    call("isolane_stream_try_read", || {
        // SAFETY: the header states the requirements.
        let (read, buffer) = unsafe { (reader(stream)?, slice_mut(buffer, length)?) };
        Ok(read.try_read(buffer)? as isize)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_try_write(
    stream: *mut Stream,
    buffer: *const c_void,
    length: usize,
) -> isize {
    call("isolane_stream_try_write", || {
        // SAFETY: the header states the requirements.
        let (write, buffer) = unsafe { (writer(stream)?, slice(buffer, length)?) };
        Ok(write.try_write(buffer)? as isize)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_set_read_timeout(stream: *mut Stream, timeout_ns: i64) -> c_int {
    call("isolane_stream_set_read_timeout", || {
        // SAFETY: the header states the requirements.
        unsafe { reader(stream)? }.set_timeout(timeout(timeout_ns));
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_set_write_timeout(stream: *mut Stream, timeout_ns: i64) -> c_int {
    call("isolane_stream_set_write_timeout", || {
        // SAFETY: the header states the requirements.
        unsafe { writer(stream)? }.set_timeout(timeout(timeout_ns));
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_shutdown(stream: *mut Stream, how: c_int) -> c_int {
    call("isolane_stream_shutdown", || {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Failure::Argument("unknown direction: pass SHUT_RD, SHUT_WR, or SHUT_RDWR")),
        };
        if how != Shutdown::Write {
            // SAFETY: the header states the requirements.
            unsafe { reader(stream)? }.shut()?;
        }
        if how != Shutdown::Read {
            // SAFETY: the header states the requirements.
            unsafe { writer(stream)? }.shut()?;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_arm(stream: *mut Stream, interest: c_int) -> c_int {
    call("isolane_stream_arm", || {
        if interest == 0 || interest & !(ISOLANE_READ | ISOLANE_WRITE) != 0 {
            return Err(Failure::Argument("unknown interest: pass ISOLANE_READ, ISOLANE_WRITE, or both"));
        }
        // SAFETY: the header states the requirements.
        unsafe { meta(stream)? }.members.as_ref().ok_or(NO_POLLER)?;
        // SAFETY: the header states the requirements.
        let reads = interest & ISOLANE_READ != 0 && unsafe { reader(stream)? }.arm()?;
        // SAFETY: the header states the requirements.
        let writes = interest & ISOLANE_WRITE != 0 && unsafe { writer(stream)? }.arm()?;
        Ok((reads || writes).into())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_fd(stream: *const Stream) -> c_int {
    // SAFETY: the header states the requirements.
    call("isolane_stream_fd", || Ok(unsafe { meta(stream)? }.fd))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_core(stream: *const Stream) -> c_int {
    // SAFETY: the header states the requirements.
    call("isolane_stream_core", || Ok(unsafe { meta(stream)? }.core as c_int))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_set_data(stream: *mut Stream, data: *mut c_void) -> c_int {
    call("isolane_stream_set_data", || {
        // SAFETY: the header states the requirements.
        unsafe { meta(stream)? }.data.store(data, Ordering::Release);
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_data(stream: *const Stream) -> *mut c_void {
    // SAFETY: the header states the requirements.
    call("isolane_stream_data", || Ok(unsafe { meta(stream)? }.data.load(Ordering::Acquire)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_close(stream: *mut Stream) {
    // SAFETY: the header states the requirements.
    unsafe { close("isolane_stream_close", stream) };
}

/// Transfers a stream to C.
pub(crate) fn into_raw_stream(stream: stream::Stream, members: Option<Arc<Members>>) -> *mut Stream {
    let (fd, core, id) = (stream.socket().as_raw_fd(), stream.core(), stream.id());
    let (read, write) = stream.split();
    let meta = StreamMeta { fd, core, id, data: AtomicPtr::default(), members: members.clone() };
    let stream = into_raw(Stream { read, write, meta });
    if let Some(members) = members {
        members.add(id, stream);
    }
    stream
}

/// Adopts a socket of the caller, and closes `fd`. If the adoption fails, `fd` stays open.
///
/// # Safety
/// The requirements of [`borrowed`] and [`owned`].
pub(crate) unsafe fn adopt(
    fd: c_int,
    adopt: impl FnOnce(TcpStream) -> Result<stream::Stream, AdoptError>,
) -> Result<stream::Stream, Failure> {
    // SAFETY: this function has the same requirements.
    let original = unsafe { borrowed(fd)? };
    let socket = fcntl_dupfd_cloexec(original, MIN_FD).map_err(std::io::Error::from)?;
    // Reports `ENOTSOCK`; the engine would only refuse the descriptor.
    sockopt::socket_type(&socket).map_err(std::io::Error::from)?;
    let stream = with_signals_blocked(|| adopt(socket.into()))?;
    // SAFETY: the descriptor is open, because its duplication succeeded, and the caller transfers it.
    drop(unsafe { owned(original) });
    Ok(stream)
}

/// Resolves `HOST:PORT` or `[IPv6]:PORT`.
pub(crate) fn addresses(text: &std::ffi::CStr) -> Result<Vec<SocketAddr>, Failure> {
    let text = text.to_string_lossy();
    let (host, port) = text.rsplit_once(':').ok_or(INVALID_ADDRESS)?;
    port.parse::<u16>().map_err(|_| INVALID_ADDRESS)?;
    let unknown = |error| {
        Failure::WithErrno(libc::EHOSTUNREACH, format!("unknown host {host}: {error}; check the spelling"))
    };
    Ok(text.to_socket_addrs().map_err(unknown)?.collect())
}

/// # Safety
/// `stream` is null or open, and only this thread uses the part.
#[inline]
unsafe fn reader<'a>(stream: *mut Stream) -> Result<&'a mut ReadHalf, Failure> {
    if stream.is_null() {
        return Err(NO_STREAM);
    }
    // SAFETY: the stream is open, and only this thread uses its half.
    Ok(unsafe { &mut (*stream).read })
}

/// # Safety
/// `stream` is null or open, and only this thread uses the part.
#[inline]
unsafe fn writer<'a>(stream: *mut Stream) -> Result<&'a mut WriteHalf, Failure> {
    if stream.is_null() {
        return Err(NO_STREAM);
    }
    // SAFETY: the stream is open, and only this thread uses its half.
    Ok(unsafe { &mut (*stream).write })
}

/// # Safety
/// `stream` is null or open, and only this thread uses the part.
#[inline]
unsafe fn meta<'a>(stream: *const Stream) -> Result<&'a StreamMeta, Failure> {
    if stream.is_null() {
        return Err(NO_STREAM);
    }
    // SAFETY: the stream is open, and no code forms a mutable reference to this part.
    Ok(unsafe { &(*stream).meta })
}

impl Drop for StreamMeta {
    /// Leaves the stream's poller.
    fn drop(&mut self) {
        if let Some(members) = &self.members {
            members.remove(self.id);
        }
    }
}

/// Open streams of a poller, by their IDs; looked up once per notification.
pub(crate) struct Members {
    streams: Mutex<HashMap<u32, AtomicPtr<Stream>>>,
    /// The process that created the poller.
    process: u64,
}

impl Members {
    pub(crate) fn new() -> Self {
        Self { streams: Mutex::default(), process: process_id() }
    }

    fn add(&self, id: u32, stream: *mut Stream) {
        self.streams.lock().insert(id, AtomicPtr::new(stream));
    }

    fn remove(&self, id: u32) {
        // In a forked child, a thread that only the parent has can hold the lock.
        if self.process == process_id() {
            self.streams.lock().remove(&id);
        }
    }

    pub(crate) fn find(&self, id: u32) -> Option<*mut Stream> {
        self.streams.lock().get(&id).map(|stream| stream.load(Ordering::Relaxed))
    }
}

/// Descriptors 0 to 2 are standard input, output, and error.
const MIN_FD: RawFd = 3;
const NO_STREAM: Failure = Failure::Argument("stream is NULL: check the result of the call that returned it");
const NO_POLLER: Failure =
    Failure::Argument("stream has no poller: create the stream with isolane_poller_adopt");
const INVALID_ADDRESS: Failure = Failure::Argument("invalid address: pass \"HOST:PORT\" or \"[IPv6]:PORT\"");

/// The halves can move to other threads.
const _: fn() = || {
    fn is_sent<T: Send>() {}
    is_sent::<Stream>();
};

#[cfg(test)]
mod tests {
    use isolane_shm::testing;

    use super::*;

    #[test]
    fn forked_child_ignores_lock_of_parent() {
        let members = Members::new();
        let held = members.streams.lock();
        assert!(testing::finishes_in_child(|| members.remove(1)), "the child waits for the lock");
        drop(held);
    }
}
