//! Streams: their making, their end, and what goes through them.

use std::ffi::{c_char, c_int, c_void};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use isolane_attach::Session;
use isolane_attach::stream::{self, AdoptError, ReadHalf, StreamOptions, WriteHalf};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::sockopt;

use crate::border::{borrowed, give, owned, places, shared, take, text, timeout, values, without_signals};
use crate::call::call;
use crate::failure::Failure;
use crate::options::or_default;
use crate::poller::Members;

const ISOLANE_READ: c_int = 1;
const ISOLANE_WRITE: c_int = 2;

/// A stream. Its three parts may be in use by three threads, so that no reference to all of it is formed while
/// it lives.
pub struct Stream {
    read: ReadHalf,
    write: WriteHalf,
    card: Card,
}

/// What anybody may know of a stream.
struct Card {
    fd: RawFd,
    core: u32,
    id: u32,
    data: AtomicPtr<c_void>,
    /// Those of the same poller.
    members: Option<Arc<Members>>,
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_connect(
    session: *mut Session,
    address: *const c_char,
    options: *const StreamOptions,
) -> *mut Stream {
    call("isolane_stream_connect", || {
        // SAFETY: as the header says.
        let (session, address, options) = unsafe { (shared(session)?, text(address)?, or_default(options)) };
        session.check()?;
        let socket = TcpStream::connect(&*addresses(address)?)?;
        Ok(hand_out(without_signals(|| options.adopt_if_possible(session, socket))?, None))
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_adopt(
    session: *mut Session,
    fd: c_int,
    options: *const StreamOptions,
) -> *mut Stream {
    call("isolane_stream_adopt", || {
        // SAFETY: as the header says.
        let (session, options) = unsafe { (shared(session)?, or_default(options)) };
        // SAFETY: as the header says.
        let stream = unsafe { adopt(fd, |socket| options.adopt(session, socket))? };
        Ok(hand_out(stream, None))
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_into_fd(stream: *mut Stream) -> c_int {
    call("isolane_stream_into_fd", || {
        // SAFETY: as the header says.
        let Stream { read, write, card } = *unsafe { take(stream) }.ok_or(NO_STREAM)?;
        card.leave();
        let socket = stream::Stream::reunite(read, write).into_std().map_err(std::io::Error::from)?;
        Ok(socket.into_raw_fd())
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_read(
    stream: *mut Stream,
    buffer: *mut c_void,
    length: usize,
) -> isize {
    call("isolane_stream_read", || {
        // SAFETY: as the header says.
        let (read, buffer) = unsafe { (reader(stream)?, places(buffer, length)?) };
        Ok(read.read(buffer)? as isize)
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_write(
    stream: *mut Stream,
    buffer: *const c_void,
    length: usize,
) -> isize {
    call("isolane_stream_write", || {
        // SAFETY: as the header says.
        let (write, buffer) = unsafe { (writer(stream)?, values(buffer, length)?) };
        Ok(write.write(buffer)? as isize)
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_try_read(
    stream: *mut Stream,
    buffer: *mut c_void,
    length: usize,
) -> isize {
    call("isolane_stream_try_read", || {
        // SAFETY: as the header says.
        let (read, buffer) = unsafe { (reader(stream)?, places(buffer, length)?) };
        Ok(read.try_read(buffer)? as isize)
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_try_write(
    stream: *mut Stream,
    buffer: *const c_void,
    length: usize,
) -> isize {
    call("isolane_stream_try_write", || {
        // SAFETY: as the header says.
        let (write, buffer) = unsafe { (writer(stream)?, values(buffer, length)?) };
        Ok(write.try_write(buffer)? as isize)
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_set_read_timeout(stream: *mut Stream, timeout_ns: i64) -> c_int {
    call("isolane_stream_set_read_timeout", || {
        // SAFETY: as the header says.
        unsafe { reader(stream)? }.set_timeout(timeout(timeout_ns));
        Ok(0)
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_set_write_timeout(stream: *mut Stream, timeout_ns: i64) -> c_int {
    call("isolane_stream_set_write_timeout", || {
        // SAFETY: as the header says.
        unsafe { writer(stream)? }.set_timeout(timeout(timeout_ns));
        Ok(0)
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_shutdown(stream: *mut Stream, how: c_int) -> c_int {
    call("isolane_stream_shutdown", || {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Failure::argument("give SHUT_RD, SHUT_WR or SHUT_RDWR")),
        };
        if how != Shutdown::Write {
            // SAFETY: as the header says.
            unsafe { reader(stream)? }.shut()?;
        }
        if how != Shutdown::Read {
            // SAFETY: as the header says.
            unsafe { writer(stream)? }.shut()?;
        }
        Ok(0)
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_arm(stream: *mut Stream, interest: c_int) -> c_int {
    call("isolane_stream_arm", || {
        if interest == 0 || interest & !(ISOLANE_READ | ISOLANE_WRITE) != 0 {
            return Err(Failure::argument("give ISOLANE_READ, ISOLANE_WRITE, or both or-ed"));
        }
        // SAFETY: as the header says.
        unsafe { card(stream)? }.members.as_ref().ok_or(NO_POLLER)?;
        // SAFETY: as the header says.
        let reads = interest & ISOLANE_READ != 0 && unsafe { reader(stream)? }.arm()?;
        // SAFETY: as the header says.
        let writes = interest & ISOLANE_WRITE != 0 && unsafe { writer(stream)? }.arm()?;
        Ok((reads || writes).into())
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_fd(stream: *const Stream) -> c_int {
    // SAFETY: as the header says.
    call("isolane_stream_fd", || Ok(unsafe { card(stream)? }.fd))
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_core(stream: *const Stream) -> c_int {
    // SAFETY: as the header says.
    call("isolane_stream_core", || Ok(unsafe { card(stream)? }.core as c_int))
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_set_data(stream: *mut Stream, data: *mut c_void) -> c_int {
    call("isolane_stream_set_data", || {
        // SAFETY: as the header says.
        unsafe { card(stream)? }.data.store(data, Ordering::Release);
        Ok(0)
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_data(stream: *const Stream) -> *mut c_void {
    // SAFETY: as the header says.
    call("isolane_stream_data", || Ok(unsafe { card(stream)? }.data.load(Ordering::Acquire)))
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_stream_close(stream: *mut Stream) {
    call("isolane_stream_close", || {
        // SAFETY: as the header says.
        let stream = unsafe { take(stream) };
        stream.iter().for_each(|stream| stream.card.leave());
        drop(stream);
        Ok(())
    });
}

/// What C knows of a stream from now on.
pub(crate) fn hand_out(stream: stream::Stream, members: Option<Arc<Members>>) -> *mut Stream {
    let (fd, core, id) = (stream.socket().as_raw_fd(), stream.core(), stream.id());
    let (read, write) = stream.split();
    let card = Card { fd, core, id, data: AtomicPtr::default(), members };
    let members = card.members.clone();
    let stream = give(Stream { read, write, card });
    if let Some(members) = members {
        members.add(id, stream);
    }
    stream
}

/// Has a socket of the caller's adopted, which stays the caller's if that fails.
///
/// # Safety
/// As of [`borrowed`].
pub(crate) unsafe fn adopt(
    fd: c_int,
    adopt: impl FnOnce(TcpStream) -> Result<stream::Stream, AdoptError>,
) -> Result<stream::Stream, Failure> {
    // SAFETY: the same is asked.
    let theirs = unsafe { borrowed(fd)? };
    let ours = fcntl_dupfd_cloexec(theirs, FD_MIN).map_err(std::io::Error::from)?;
    // The engine says only that it does not take it.
    sockopt::socket_type(&ours).map_err(std::io::Error::from)?;
    let stream = without_signals(|| adopt(ours.into()))?;
    // SAFETY: it is open, for there is a duplicate; and from now on the stream's.
    drop(unsafe { owned(theirs) });
    Ok(stream)
}

/// What an address in words means.
pub(crate) fn addresses(words: &std::ffi::CStr) -> Result<Vec<SocketAddr>, Failure> {
    let told = words.to_string_lossy();
    let (host, port) = told.rsplit_once(':').ok_or(NO_ADDRESS)?;
    port.parse::<u16>().map_err(|_| NO_ADDRESS)?;
    let unknown = |error| {
        Failure::Told(libc::EHOSTUNREACH, format!("no host {host} is known: {error}; see how it is spelled"))
    };
    Ok(told.to_socket_addrs().map_err(unknown)?.collect())
}

/// # Safety
/// As the header says.
#[inline]
unsafe fn reader<'a>(stream: *mut Stream) -> Result<&'a mut ReadHalf, Failure> {
    match stream.is_null() {
        true => Err(NO_STREAM),
        // SAFETY: there is such a stream, and only one thread uses this part of it.
        false => Ok(unsafe { &mut (*stream).read }),
    }
}

/// # Safety
/// As the header says.
#[inline]
unsafe fn writer<'a>(stream: *mut Stream) -> Result<&'a mut WriteHalf, Failure> {
    match stream.is_null() {
        true => Err(NO_STREAM),
        // SAFETY: there is such a stream, and only one thread uses this part of it.
        false => Ok(unsafe { &mut (*stream).write }),
    }
}

/// # Safety
/// As the header says.
#[inline]
unsafe fn card<'a>(stream: *const Stream) -> Result<&'a Card, Failure> {
    match stream.is_null() {
        true => Err(NO_STREAM),
        // SAFETY: there is such a stream, and this part of it is nowhere changed.
        false => Ok(unsafe { &(*stream).card }),
    }
}

impl Card {
    /// No poller tells of it any more.
    fn leave(&self) {
        if let Some(members) = &self.members {
            members.remove(self.id);
        }
    }
}

/// 0 to 2 are for what a program says and hears.
const FD_MIN: RawFd = 3;
const NO_STREAM: Failure = Failure::Argument("the stream is NULL: see whether what made it has failed");
const NO_POLLER: Failure =
    Failure::Argument("the stream has no poller to tell: make it with isolane_poller_adopt");
const NO_ADDRESS: Failure = Failure::Argument("the address is none: give \"HOST:PORT\", or \"[IPv6]:PORT\"");

/// The halves go to other threads than the one that made them.
const _: fn() = || {
    fn is_sent<T: Send>() {}
    is_sent::<Stream>();
};
