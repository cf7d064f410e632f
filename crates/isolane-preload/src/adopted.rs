//! An adopted socket: transfers, waits, and the return of its connection.
//!
//! The stream has a lock that no thread holds while it waits, so another thread can return the socket at any time. A
//! waiting thread then finds no stream, and calls the kernel.

use std::ffi::c_int;
use std::io;
use std::mem::ManuallyDrop;
use std::net::TcpStream;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use isolane_attach::stream::{Direction, Interest, Stream, StreamOptions, StreamWaiter};
use libc::{EAGAIN, EBADF, ECONNABORTED, EINTR, EPIPE};
use parking_lot::Mutex;

use crate::buffers::Buffers;
use crate::engine::{Engine, Notified};
use crate::policy::now_ns;
use crate::{gate, own, sockets};

/// A socket that the engine has.
pub(crate) struct Adopted {
    fd: c_int,
    id: u32,
    engine: Arc<Engine>,
    /// `None` once the socket was returned or closed.
    stream: Mutex<Option<Stream>>,
    /// The program has closed or replaced the descriptor.
    is_closed: AtomicBool,
    /// The peer is on the same machine, where the program can learn by other means that it has sent data.
    has_local_peer: bool,
    /// Size of the sending ring in bytes.
    tx_bytes: usize,
    waiter: StreamWaiter,
    pub(crate) nonblocking: AtomicBool,
    /// In nanoseconds; 0 means none.
    pub(crate) receive_timeout: AtomicU64,
    pub(crate) send_timeout: AtomicU64,
    /// The program's TCP_NOTSENT_LOWAT.
    unsent_limit: c_int,
    watchers: Mutex<Watchers>,
}

/// Waits for events of many sockets.
pub(crate) trait Watcher: Send + Sync {
    /// An event of a socket may have occurred.
    fn mark(&self, fd: c_int);
}

/// Waits for events of a socket.
#[derive(Default)]
struct Watchers {
    /// Eventfds of threads in `poll` or `select`.
    polls: Vec<c_int>,
    sets: Vec<Arc<dyn Watcher>>,
}

/// How to receive.
#[derive(Clone, Copy, Default)]
pub(crate) struct Receive {
    pub(crate) dontwait: bool,
    pub(crate) peek: bool,
    pub(crate) wait_all: bool,
}

/// What a transfer waits for.
#[derive(Clone, Copy)]
enum Wait {
    Data,
    /// For so many bytes.
    Space(u64),
}

/// Result of a transfer.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done,
    /// An error without an effect on the connection.
    Failed(c_int),
    /// Only the kernel can do it.
    Unknown,
    /// The socket is with the kernel again, which continues.
    Returned,
    /// The connection has ended with this error, which the kernel has reported to the engine.
    Broken(c_int),
    /// The engine cannot continue.
    Lost,
}

impl Adopted {
    /// Moves a socket to the engine. Returns `None` if it stays with the kernel.
    pub(crate) fn open(engine: &Arc<Engine>, fd: c_int) -> Option<Adopted> {
        let nonblocking = sockets::is_nonblocking(fd)?;
        let has_data = sockets::has_data(fd);
        let share = sockets::send_buffer(fd) / SHARES;
        let limit = share.min(MAX_UNSENT) as c_int;
        let unsent_limit = sockets::replace_unsent_limit(fd, limit);
        // SAFETY: the program closes the descriptor through this library, which returns the socket first.
        let socket = unsafe { TcpStream::from_raw_fd(fd) };
        let has_local_peer = has_local_peer(&socket).unwrap_or(true);
        let tx_bytes = 1 << (share.clamp(MIN_RING, MAX_RING)).ilog2();
        let options = StreamOptions { tx_bytes, ..StreamOptions::default() };
        let mut stream = match engine.adopt(options, socket) {
            Ok(stream) => stream,
            Err(socket) => {
                let _ = socket.into_raw_fd();
                sockets::replace_unsent_limit(fd, unsent_limit);
                return None;
            }
        };
        if has_data {
            wait_for_data(&mut stream);
        }
        Some(Adopted {
            fd,
            id: stream.id(),
            engine: Arc::clone(engine),
            waiter: stream.waiter(),
            stream: Mutex::new(Some(stream)),
            is_closed: false.into(),
            has_local_peer,
            tx_bytes,
            nonblocking: nonblocking.into(),
            receive_timeout: sockets::timeout(fd, libc::SO_RCVTIMEO).into(),
            send_timeout: sockets::timeout(fd, libc::SO_SNDTIMEO).into(),
            unsent_limit,
            watchers: Mutex::default(),
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Receives into one buffer. Returns `None` if no byte is available, or for [`Adopted::receive`] to decide.
    #[inline]
    pub(crate) fn try_receive(&self, start: *mut u8, length: usize) -> Option<usize> {
        let mut stream = self.stream.lock();
        // SAFETY: the program passes a buffer of this length.
        let buffer = unsafe { slice::from_raw_parts_mut(start, length) };
        stream.as_mut()?.try_read(buffer).ok().filter(|count| *count > 0)
    }

    /// Sends one buffer. Returns `None`, without an effect, if there is no space for all of it, or for [`Adopted::send`]
    /// to decide.
    #[inline]
    pub(crate) fn try_send(&self, start: *const u8, length: usize) -> Option<usize> {
        let mut stream = self.stream.lock();
        let stream = stream.as_mut()?;
        if !stream.has_space(length as u64).ok()? {
            return None;
        }
        // SAFETY: the program passes a buffer of this length.
        let buffer = unsafe { slice::from_raw_parts(start, length) };
        stream.try_write(buffer).ok()
    }

    /// Receives as `recvmsg` does, after `done` bytes, to which it adds.
    pub(crate) fn receive(&self, buffers: Buffers<'_>, how: Receive, done: &mut usize) -> Outcome {
        let mut until = None;
        if how.peek && buffers.after(0).nth(1).is_some() {
            return Outcome::Unknown;
        }
        loop {
            let result = match &mut *self.stream.lock() {
                None => return self.gone(),
                Some(stream) => read(stream, buffers, *done, how.peek),
            };
            match result {
                // The ring may be full, while the kernel has more.
                Ok(count) if how.peek && (MIN_RING..buffers.bytes()).contains(&count) => {
                    return Outcome::Unknown;
                }
                Ok(count) => {
                    *done += count;
                    if count == 0 || *done == buffers.bytes() || !how.wait_all {
                        return Outcome::Done;
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return self.failure(&error),
            }
            if let Err(error) = self.wait(Wait::Data, how.dontwait, &mut until, &self.receive_timeout) {
                return Outcome::Failed(error);
            }
        }
    }

    /// Sends as `sendmsg` does, after `done` bytes, to which it adds.
    pub(crate) fn send(&self, buffers: Buffers<'_>, dontwait: bool, done: &mut usize) -> Outcome {
        let mut until = None;
        // Short messages of several threads do not mix, as in the kernel, which waits for space before it starts one.
        let is_whole =
            *done == 0 && buffers.bytes() <= MAX_WHOLE.min(self.tx_bytes) && !self.is_nonblocking(dontwait);
        let space = if is_whole { buffers.bytes() as u64 } else { 1 };
        loop {
            let result = match &mut *self.stream.lock() {
                None => return self.gone(),
                Some(stream) => write(stream, buffers, *done, space),
            };
            match result {
                Ok(count) => {
                    *done += count;
                    if *done == buffers.bytes() {
                        return Outcome::Done;
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return self.failure(&error),
            }
            if let Err(error) = self.wait(Wait::Space(space), dontwait, &mut until, &self.send_timeout) {
                return Outcome::Failed(error);
            }
        }
    }

    /// Returns the outcome of a transfer that finds no stream. The number of a closed descriptor may be of another one by
    /// now, whose bytes are not the caller's.
    fn gone(&self) -> Outcome {
        if self.is_closed.load(Ordering::Acquire) { Outcome::Failed(EBADF) } else { Outcome::Returned }
    }

    fn is_nonblocking(&self, dontwait: bool) -> bool {
        dontwait || self.nonblocking.load(Ordering::Relaxed)
    }

    /// Waits until a transfer can continue. Fails with the number of an error.
    fn wait(
        &self,
        wait: Wait,
        dontwait: bool,
        until: &mut Option<Instant>,
        timeout: &AtomicU64,
    ) -> Result<(), c_int> {
        if self.is_nonblocking(dontwait) {
            return if matches!(wait, Wait::Data) && self.catch_up() { Ok(()) } else { Err(EAGAIN) };
        }
        let timeout = timeout.load(Ordering::Relaxed);
        if timeout > 0 && until.is_none() {
            *until = Instant::now().checked_add(Duration::from_nanos(timeout));
        }
        let direction = match wait {
            Wait::Data => Direction::Read,
            Wait::Space(_) => Direction::Write,
        };
        self.waiter.arm(direction);
        let is_ready = match &mut *self.stream.lock() {
            None => true,
            Some(stream) => match wait {
                Wait::Data => stream.readiness().map(|ready| ready.readable),
                Wait::Space(bytes) => stream.has_space(bytes),
            }
            // The transfer reports the error.
            .unwrap_or(true),
        };
        if is_ready {
            return Ok(());
        }
        let remaining = until.map(|until| until.saturating_duration_since(Instant::now()));
        match self.waiter.sleep(direction, remaining) {
            Ok(true) => Ok(()),
            Ok(false) => Err(EAGAIN),
            Err(_) => Err(EINTR),
        }
    }

    /// Waits until the engine has fetched data, or the end of the stream, that the kernel has from a peer on the same
    /// machine, for at most [`CATCH_UP_TIMEOUT`]. Returns `true` if there is any, or the socket was returned.
    pub(crate) fn catch_up(&self) -> bool {
        if !self.has_local_peer {
            return false;
        }
        let mut until = None;
        loop {
            match &mut *self.stream.lock() {
                None => return true,
                Some(stream) => {
                    let is_behind = stream.is_behind().unwrap_or(false);
                    if is_behind {
                        self.waiter.arm(Direction::Read);
                    }
                    // The transfer reports an error.
                    let is_ready = stream.readiness().map_or(true, |ready| ready.readable);
                    if is_ready || !is_behind {
                        return is_ready;
                    }
                }
            }
            let until = *until.get_or_insert_with(|| Instant::now() + CATCH_UP_TIMEOUT);
            let remaining = until.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return false;
            }
            // The call that waits cannot be interrupted by a signal.
            let _ = self.waiter.sleep(Direction::Read, Some(remaining));
        }
    }

    /// Classifies an error of the stream.
    fn failure(&self, error: &io::Error) -> Outcome {
        match error.raw_os_error() {
            // Of the engine, which no TCP socket reports by itself.
            None | Some(ECONNABORTED) => Outcome::Lost,
            Some(_) if self.engine.is_lost() => Outcome::Lost,
            // The kernel reports the reason to the first call of either direction.
            Some(EPIPE) => match self.stream.lock().as_mut().map(Stream::readiness) {
                Some(Ok(ready)) if ready.error == Some(ECONNABORTED) => Outcome::Lost,
                Some(Ok(ready)) => Outcome::Broken(ready.error.unwrap_or(EPIPE)),
                _ => Outcome::Lost,
            },
            Some(error) => Outcome::Broken(error),
        }
    }

    /// Returns the events that have occurred, as flags of `epoll`. `None`: the socket was returned. With `arm`, the
    /// engine reports the next event.
    pub(crate) fn events(&self, arm: bool) -> Option<u32> {
        let mut stream = self.stream.lock();
        let stream = stream.as_mut()?;
        if arm {
            // An error of the session is an event, which the caller finds next.
            let _ = stream.arm(Interest::Both);
        }
        Some(events(stream))
    }

    /// Returns the events that have occurred. The engine reports the next of the `wanted` ones if none of these has
    /// occurred, or if `must_arm`. `None`: the socket was returned.
    pub(crate) fn events_or_arm(&self, wanted: u32, must_arm: bool) -> Option<u32> {
        let mut stream = self.stream.lock();
        let stream = stream.as_mut()?;
        if !must_arm {
            let events = events(stream);
            if events & wanted != 0 {
                return Some(events);
            }
        }
        let waits_for_space = wanted & (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32 != 0;
        // An error of the session is an event, which the caller finds next.
        let _ = stream.arm(if waits_for_space { Interest::Both } else { Interest::Read });
        Some(events(stream))
    }

    /// Returns the error of the connection, if any.
    pub(crate) fn error(&self) -> Option<c_int> {
        self.stream.lock().as_mut()?.readiness().ok()?.error
    }

    /// Returns the number of bytes that can be read, and of those that are not sent.
    pub(crate) fn queued(&self) -> Option<(u64, u64)> {
        let mut stream = self.stream.lock();
        let stream = stream.as_mut()?;
        Some((stream.readiness().ok()?.unread, stream.unsent_bytes().ok()?))
    }

    pub(crate) fn watch_poll(&self, event: c_int) {
        let mut watchers = self.watchers.lock();
        // A wait that was left by a jump has not removed it.
        if !watchers.polls.contains(&event) {
            watchers.polls.push(event);
        }
    }

    pub(crate) fn unwatch_poll(&self, event: c_int) {
        let mut watchers = self.watchers.lock();
        if let Some(index) = watchers.polls.iter().position(|other| *other == event) {
            watchers.polls.swap_remove(index);
        }
    }

    pub(crate) fn watch_set(&self, set: Arc<dyn Watcher>) {
        self.watchers.lock().sets.push(set);
    }

    pub(crate) fn unwatch_set(&self, set: &Arc<dyn Watcher>) {
        self.watchers.lock().sets.retain(|other| !Arc::ptr_eq(other, set));
    }

    /// Requests the connection back from the engine, and takes the stream from its users.
    pub(crate) fn start_return(&self) -> Option<Stream> {
        let mut stream = self.stream.lock().take()?;
        self.engine.remove(self.id);
        // An error lasts, so that it is found later.
        let _ = stream.start_release();
        Some(stream)
    }

    /// Waits until the engine has returned the connection: the descriptor is the kernel's socket again.
    pub(crate) fn finish_return(&self, stream: Option<Stream>) {
        let Some(stream) = stream else { return };
        match gate::inside(|| stream.into_parts_or_socket()) {
            Ok(parts) => {
                let _ = parts.socket.into_raw_fd();
                sockets::replace_unsent_limit(self.fd, self.unsent_limit);
                sockets::send_all(self.fd, &parts.unsent);
            }
            Err((_, socket)) => {
                let _ = socket.into_raw_fd();
                sockets::reset(self.fd);
            }
        }
    }

    /// Makes calls in progress fail, because the program closes or replaces the descriptor.
    pub(crate) fn set_closed(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Closes the connection; the engine sends the rest.
    pub(crate) fn close(&self) {
        self.set_closed();
        self.engine.remove(self.id);
        let stream = self.stream.lock().take();
        gate::inside(|| drop(stream));
        CLOSED_AT.store(now_ns(), Ordering::Relaxed);
    }

    /// Wakes all threads that wait, after the socket was returned or closed.
    pub(crate) fn wake_all(&self) {
        self.waiter.wake();
        let watchers = self.watchers.lock();
        watchers.polls.iter().for_each(|event| own::signal(*event));
    }
}

impl Notified for Adopted {
    fn notify(&self) {
        let watchers = self.watchers.lock();
        watchers.polls.iter().for_each(|event| own::signal(*event));
        watchers.sets.iter().for_each(|set| set.mark(self.fd));
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        // A stream that is neither returned nor closed belongs to a parent process, or to a failed adoption.
        if let Some(stream) = self.stream.get_mut().take() {
            let _ = ManuallyDrop::new(stream);
        }
    }
}

/// Returns the events of a stream that have occurred.
fn events(stream: &mut Stream) -> u32 {
    let Ok(ready) = stream.readiness() else { return ALL_EVENTS };
    let mut events = 0;
    if ready.readable {
        events |= libc::EPOLLIN | libc::EPOLLRDNORM;
    }
    if ready.finished {
        events |= libc::EPOLLRDHUP;
    }
    if ready.writable {
        events |= libc::EPOLLOUT | libc::EPOLLWRNORM;
    }
    if ready.error.is_some() {
        events |= libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLIN | libc::EPOLLRDHUP;
    }
    events as u32
}

/// Reads into the buffers after the first `skipped` bytes. Returns an error only if no byte was read.
fn read(stream: &mut Stream, buffers: Buffers<'_>, skipped: usize, peek: bool) -> io::Result<usize> {
    if buffers.bytes() == 0 {
        // As the kernel does, which waits for data, or reports an error.
        return stream.try_peek(&mut [0]).map(|_| 0);
    }
    let mut done = 0;
    for (start, length) in buffers.after(skipped) {
        // SAFETY: the program passes buffers of these lengths.
        let buffer = unsafe { slice::from_raw_parts_mut(start, length) };
        match if peek { stream.try_peek(buffer) } else { stream.try_read(buffer) } {
            Ok(count) => {
                done += count;
                if count < length {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Writes the buffers after the first `skipped` bytes, once there is `space` for them. Returns an error only if no byte
/// was written.
fn write(stream: &mut Stream, buffers: Buffers<'_>, skipped: usize, space: u64) -> io::Result<usize> {
    if buffers.bytes() == 0 {
        return stream.try_write(&[]);
    }
    if space > 1 && !stream.has_space(space)? {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let mut done = 0;
    for (start, length) in buffers.after(skipped) {
        // SAFETY: the program passes buffers of these lengths.
        let buffer = unsafe { slice::from_raw_parts(start, length) };
        match stream.try_write(buffer) {
            Ok(count) => {
                done += count;
                if count < length {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Waits until the engine has fetched data that the kernel may have reported to the program. The engine fetches it
/// immediately; if it is restarted in the meantime, the program's read finds no data.
fn wait_for_data(stream: &mut Stream) {
    let (waiter, until) = (stream.waiter(), Instant::now() + DATA_TIMEOUT);
    loop {
        waiter.arm(Direction::Read);
        let remaining = until.saturating_duration_since(Instant::now());
        if remaining.is_zero() || stream.readiness().map_or(true, |ready| ready.readable) {
            return;
        }
        // A signal that is handled does not end the call in which the socket is adopted.
        let _ = waiter.sleep(Direction::Read, Some(remaining));
    }
}

/// Returns `true` if engine and supervisor may still have a socket that this process has closed. They close it soon, but
/// not before `close` returns.
pub(crate) fn is_closing() -> bool {
    now_ns().saturating_sub(CLOSED_AT.load(Ordering::Relaxed)) < CLOSE_TIME.as_nanos() as u64
}

/// Time of the last close of an adopted socket.
static CLOSED_AT: AtomicU64 = AtomicU64::new(0);
const CLOSE_TIME: Duration = Duration::from_millis(100);

/// Waits for the data of up to [`MAX_BEHIND`] sockets ([`Adopted::catch_up`]), and for none of more: that takes a call of
/// the kernel for each. Returns the descriptors of those with data.
pub(crate) fn catch_up<'a>(sockets: impl Iterator<Item = &'a Arc<Adopted>>) -> Vec<c_int> {
    let sockets: Vec<_> = sockets.filter(|adopted| adopted.has_local_peer).take(MAX_BEHIND + 1).collect();
    let found = sockets.iter().filter(|adopted| sockets.len() <= MAX_BEHIND && adopted.catch_up());
    found.map(|adopted| adopted.fd).collect()
}

/// Sockets of a wait that are checked at its end.
const MAX_BEHIND: usize = 64;

/// Returns `true` if the peer has an address of this machine.
fn has_local_peer(socket: &TcpStream) -> io::Result<bool> {
    let peer = socket.peer_addr()?.ip().to_canonical();
    Ok(peer.is_loopback() || peer == socket.local_addr()?.ip().to_canonical())
}

const CATCH_UP_TIMEOUT: Duration = Duration::from_millis(100);
const DATA_TIMEOUT: Duration = Duration::from_secs(1);
const ALL_EVENTS: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// Ring and kernel each hold at most this fraction of the send buffer in unsent bytes, whose packets take up to twice
/// their size there.
const SHARES: usize = 8;
const MAX_UNSENT: usize = 128 << 10;
/// Also the minimum of a receiving ring.
const MIN_RING: usize = 4 << 10;
const MAX_RING: usize = 256 << 10;
/// Messages of at most this size are written at once.
const MAX_WHOLE: usize = 16 << 10;
