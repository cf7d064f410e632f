//! Session with an engine: its control connection and the shared memory.
//!
//! The application owns the memory and chooses its layout; the engine validates it. A session survives the engine's
//! process: if that is killed, its supervisor starts another, which resumes the session. A session ends when its last
//! [`Session`] and all objects opened through it are dropped, or with the engine's supervisor.
//!
//! Any thread can use a session. A receiver thread reads the connection, so waiting threads are notified when the
//! session closes.

mod allocation;
mod control_channel;
mod descriptors;
mod doorbells;
mod notification_queue;
mod pending_closes;
mod spawn;
#[cfg(test)]
pub(crate) mod tests;

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use isolane_shm::{Arena, PAGE_SIZE, PeerCred, SharedMemory, timespec};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::geteuid;

use crate::AttachError;
use isolane_engine_api::default_path;
use isolane_engine_api::{PacketError, PacketSocket, Reply, Request, SessionLimits, Welcome};

pub use allocation::Allocation;
use control_channel::{ControlChannel, REPLY_TIMEOUT};
use descriptors::{DUPLICATE, duplicate, renumber};
pub use doorbells::Doorbells;
pub use notification_queue::NotificationQueue;
use spawn::SpawnError;

/// Session with an engine. Clones refer to the same session.
#[derive(Clone, Debug)]
pub struct Session(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    channel: Arc<ControlChannel>,
    memory: SharedMemory,
    /// Pipe that hangs up once neither the engine nor its supervisor holds anything of the session.
    life: OwnedFd,
    arena: Mutex<Arena>,
    welcome: Welcome,
    /// Offset of a page for plain streams, which never write to it.
    unused: u64,
    /// One for each core of the engine.
    doorbells: Vec<Doorbells>,
    next_id: AtomicU32,
    /// See [`SessionOptions::first_descriptor`].
    first_descriptor: u32,
    driver: Mutex<Weak<dyn Any + Send + Sync>>,
}

/// Options of [`Session::open`].
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Path of the engine's socket.
    pub path: PathBuf,
    /// Size of the session's memory in bytes, a multiple of the page size. Pages are allocated on first access.
    pub memory_bytes: usize,
    /// Start an engine if none listens: the program named by the variable `ISOLANE_BIN`, else `isolane` next to this
    /// program, else the one in the PATH. It exits after 30 s without clients. The directory of
    /// [`SessionOptions::path`] must exist, unless that is the [`default_path`].
    pub spawn_engine: bool,
    /// Minimum number of the session's descriptors, for programs that assign numbers themselves. Default: 0.
    pub first_descriptor: u32,
    /// IDs of users whose engines are trusted, in addition to root and this process's user: an engine sees all data
    /// that passes through it. Default: the comma-separated variable `ISOLANE_TRUSTED_UIDS`.
    pub trusted_uids: Vec<u32>,
}

/// Receives the events of a session, on the thread that detects them. It can wake other threads, but must not wait for
/// a reply of the session: none arrives before it returns.
pub trait Watcher: Send + Sync {
    /// The engine was killed, and another one has resumed the session with all its objects.
    fn on_restart(&self, epoch: u64) {
        let _ = epoch;
    }
    /// The session is closed; no further event follows.
    fn on_close(&self);
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            path: default_path(),
            memory_bytes: SessionOptions::MEMORY_BYTES,
            spawn_engine: true,
            first_descriptor: 0,
            trusted_uids: parse_uids(&std::env::var("ISOLANE_TRUSTED_UIDS").unwrap_or_default()),
        }
    }
}

impl SessionOptions {
    /// The default of [`SessionOptions::memory_bytes`].
    pub const MEMORY_BYTES: usize = 1 << 30;
}

/// Skips entries that are not a number.
fn parse_uids(list: &str) -> Vec<u32> {
    list.split(',').filter_map(|uid| uid.trim().parse().ok()).collect()
}

impl Session {
    /// Attaches to the engine that listens on `path`, or starts one.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn connect(path: &Path) -> Result<Session, AttachError> {
        Session::open(&SessionOptions { path: path.to_owned(), ..SessionOptions::default() })
    }

    /// Attaches to an engine. Retries, because an engine may have to be started first, or may exit during the setup.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn open(options: &SessionOptions) -> Result<Session, AttachError> {
        Session::with_engine(options, Session::open_once)
    }

    /// Checks that an engine accepts sessions, as [`Session::open`] does, without most of the work for one.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn probe(options: &SessionOptions) -> Result<(), AttachError> {
        Session::with_engine(options, |options| {
            greet(options, &SharedMemory::create("isolane-probe", PAGE_SIZE)?).map(drop)
        })
    }

    /// Calls `attach` until it finds an engine that does not exit in the meantime.
    fn with_engine<T>(
        options: &SessionOptions,
        attach: impl Fn(&SessionOptions) -> Result<T, AttachError>,
    ) -> Result<T, AttachError> {
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let mut attempts = 0;
        loop {
            let error = match attach(options) {
                Err(AttachError::NoEngine { path, .. }) if options.spawn_engine => {
                    attempts += 1;
                    let SpawnError { reason, permanent } = spawn::spawn_engine(&path, attempts);
                    let error = AttachError::NotStarted { path, reason };
                    if permanent {
                        return Err(error);
                    }
                    error
                }
                // The engine was killed, or had just decided to exit; another one may be available.
                Err(error @ (AttachError::SessionClosed(_) | AttachError::Socket(PacketError::Closed))) => {
                    error
                }
                result => return result,
            };
            if Instant::now() >= deadline {
                return Err(error);
            }
            std::thread::sleep(RETRY_DELAY);
        }
    }

    fn open_once(options: &SessionOptions) -> Result<Session, AttachError> {
        let first = options.first_descriptor;
        let mut memory = SharedMemory::create("isolane-session", options.memory_bytes)?;
        if first > 0 {
            memory.replace_memfd(|memfd| duplicate(memfd, first)).map_err(AttachError::system(DUPLICATE))?;
        }
        let (socket, life, welcome) = greet(options, &memory)?;
        let channel = ControlChannel::start(socket, welcome.epoch, REPLY_TIMEOUT)?;
        let mut arena = Arena::new(memory.bytes());
        let cores = 0..welcome.cores.len() as u32;
        let doorbells = cores.map(|core| Doorbells::open(&channel, &memory, &mut arena, core, first));
        let doorbells = doorbells.collect::<Result<_, _>>().inspect_err(|_| channel.close())?;
        let bytes = PAGE_SIZE;
        let unused = arena.alloc(bytes).ok_or(AttachError::OutOfMemory { bytes, of: memory.bytes() });
        let unused = unused.inspect_err(|_| channel.close())?.offset as u64;
        let arena = Mutex::new(arena);
        Ok(Session(Arc::new(Inner {
            channel,
            memory,
            life,
            arena,
            welcome,
            unused,
            doorbells,
            next_id: AtomicU32::new(1),
            first_descriptor: first,
            driver: Mutex::new(Weak::<()>::new()),
        })))
    }

    /// Creates a session on a channel, without doorbells.
    #[cfg(test)]
    fn on_channel(channel: &Arc<ControlChannel>, memory_bytes: usize) -> Session {
        use isolane_engine_api::VERSION;
        let memory = SharedMemory::create("session", memory_bytes).unwrap();
        let (cores, limits) = (vec![0], SessionLimits::default());
        Session(Arc::new(Inner {
            channel: Arc::clone(channel),
            arena: Mutex::new(Arena::new(memory.bytes())),
            memory,
            life: pipe_with(PipeFlags::CLOEXEC).unwrap().0,
            welcome: Welcome { version: VERSION, session: 1, epoch: 1, cores, limits },
            unused: 0,
            doorbells: Vec::new(),
            next_id: AtomicU32::new(1),
            first_descriptor: 0,
            driver: Mutex::new(Weak::<()>::new()),
        }))
    }

    /// Sends a request to the engine and waits for the reply. If the engine is killed in the meantime, the request is
    /// repeated to its successor. `what` names the request in [`AttachError::Refused`].
    ///
    /// # Errors
    /// [`AttachError::Refused`], [`AttachError::SessionClosed`].
    pub fn request(
        &self,
        what: &'static str,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Reply, AttachError> {
        self.0.channel.request(what, request, descriptors)
    }

    /// Sends a request without waiting for the reply, unless 32 are in flight. [`Session::finish_request`] must follow.
    pub(crate) fn start_request(&self, request: &Request) -> Result<u32, AttachError> {
        self.0.channel.start_request(request, &[])
    }

    /// Waits for the reply to a request, as [`Session::request`] does.
    pub(crate) fn finish_request(&self, what: &'static str, serial: u32) -> Result<Reply, AttachError> {
        self.0.channel.finish_request(what, serial)
    }

    /// Returns the memory shared with the engine.
    pub fn memory(&self) -> &SharedMemory {
        &self.0.memory
    }

    /// Allocates whole pages of the memory for `bytes`. They are not zeroed.
    ///
    /// # Errors
    /// [`AttachError::OutOfMemory`].
    pub fn alloc(&self, bytes: usize) -> Result<Allocation, AttachError> {
        self.check_process()?;
        Allocation::new(self, bytes)
    }

    /// Returns the default size of a stream's rings in bytes. It shrinks with the free memory, so that the memory lasts
    /// for as many streams as the session can have.
    pub(crate) fn default_ring_bytes(&self) -> usize {
        let minimum =
            usize::try_from(self.limits().streams).unwrap_or(usize::MAX).saturating_mul(3 * PAGE_SIZE);
        let reserve = minimum.min(self.memory().bytes() / 2);
        let spare = self.0.arena.lock().free_bytes().saturating_sub(reserve);
        let share = (spare / SHARES).clamp(PAGE_SIZE, MAX_RING_BYTES);
        1 << share.ilog2()
    }

    /// Returns the offset of an unused page, for the rings of plain streams.
    pub(crate) fn unused(&self) -> u64 {
        self.0.unused
    }

    /// Closes an object or a queue without waiting. Data that was written is still sent. The allocation is freed, and
    /// the session stays open, until the engine has closed the object.
    ///
    /// # Errors
    /// [`AttachError::SessionClosed`]; the object is closed then as well.
    pub fn close(&self, id: u32, allocation: Allocation) -> Result<(), AttachError> {
        self.0.channel.close_object(id, allocation)
    }

    /// Waits until a closed object has ended, or until `deadline`.
    pub(crate) fn wait_closed(&self, id: u32, deadline: Instant) {
        self.0.channel.wait_closed(id, deadline);
    }

    /// Returns a new ID for an object or a queue, unique in the session.
    pub fn next_id(&self) -> u32 {
        self.0.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Opens a notification queue whose rings have `entries` entries: a power of two, and at least the number of
    /// objects that use the queue.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn open_queue(&self, entries: u32) -> Result<NotificationQueue, AttachError> {
        NotificationQueue::open(self, entries)
    }

    /// Slot for the driver that wakes the tasks of the session's streams.
    pub(crate) fn driver(&self) -> MutexGuard<'_, Weak<dyn Any + Send + Sync>> {
        self.0.driver.lock()
    }

    /// Returns the session's descriptors, without the ones of its queues. A forked child that does not exec closes them,
    /// so that the session ends with its process.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let own = [self.connection(), self.memory().memfd(), self.0.life.as_fd()];
        own.into_iter().chain(self.0.doorbells.iter().map(Doorbells::as_fd)).collect()
    }

    /// Returns the doorbells of a core of the engine, by index.
    ///
    /// # Panics
    /// If `core` is out of range.
    #[inline]
    pub fn doorbells(&self, core: u32) -> &Doorbells {
        &self.0.doorbells[core as usize]
    }

    /// Returns the CPUs of the engine's cores.
    pub fn cores(&self) -> &[u32] {
        &self.0.welcome.cores
    }

    /// Returns the limits of the session.
    pub fn limits(&self) -> SessionLimits {
        self.0.welcome.limits
    }

    /// Returns the session's ID, as in the engine's log.
    pub fn id(&self) -> u32 {
        self.0.welcome.session
    }

    /// Returns the engine's epoch: incremented with each restart.
    pub fn epoch(&self) -> u64 {
        self.0.channel.epoch()
    }

    /// Registers `watcher` for as long as it lives. If the session is closed already, the watcher is notified
    /// immediately. It is never notified in a forked child.
    pub fn watch(&self, watcher: Weak<dyn Watcher>) {
        self.0.channel.watch(watcher);
    }

    /// Waits up to `timeout` until no engine and no supervisor holds anything of the session, and none will: it is
    /// closed, and they have exited or released everything. Returns `false` on timeout.
    pub(crate) fn is_abandoned(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            let remaining = timespec(deadline.saturating_duration_since(Instant::now()));
            match poll(&mut [PollFd::new(&self.0.life, PollFlags::empty())], Some(&remaining)) {
                Ok(count) => return count > 0,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Checks that this process opened the session.
    ///
    /// # Errors
    /// [`AttachError::Forked`].
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), AttachError> {
        self.0.channel.check_process()
    }

    /// Returns the control connection, which hangs up when the session closes.
    pub(crate) fn connection(&self) -> BorrowedFd<'_> {
        self.0.channel.as_fd()
    }

    /// Checks that the session is open.
    ///
    /// # Errors
    /// [`AttachError::SessionClosed`].
    #[inline]
    pub fn check(&self) -> Result<(), AttachError> {
        self.0.channel.check()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.channel.close();
    }
}

/// Connects to an engine. Returns the connection, the pipe that shows when nothing of the session is left, and the
/// engine's reply.
fn greet(
    options: &SessionOptions,
    memory: &SharedMemory,
) -> Result<(PacketSocket, OwnedFd, Welcome), AttachError> {
    let first = options.first_descriptor;
    let (life, engine_life) =
        pipe_with(PipeFlags::CLOEXEC).map_err(AttachError::system("cannot create a pipe"))?;
    let life = renumber(life, first).map_err(AttachError::system(DUPLICATE))?;
    let socket = renumber(connect_once(options)?, first).map_err(AttachError::system(DUPLICATE))?;
    let socket = PacketSocket::new(socket);
    let welcome =
        control_channel::handshake(&socket, memory, engine_life.as_fd(), &options.path, HANDSHAKE_TIMEOUT)?;
    Ok((socket, life, welcome))
}

fn connect_once(options: &SessionOptions) -> Result<OwnedFd, AttachError> {
    let path = &options.path;
    let no_engine = |source: Errno| match source {
        // An engine may still be running there, so starting another would not help.
        Errno::ACCESS => {
            AttachError::Forbidden { path: path.to_owned(), uid: geteuid().as_raw(), source: source.into() }
        }
        source => AttachError::NoEngine { path: path.to_owned(), source: source.into() },
    };
    let address = SocketAddrUnix::new(path).map_err(no_engine)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let socket = socket.map_err(AttachError::system("cannot create a socket"))?;
    connect(&socket, &address).map_err(no_engine)?;
    let PeerCred { uid, .. } = PeerCred::from_socket(socket.as_fd())
        .map_err(AttachError::system("cannot read the engine's user"))?;
    // In a world-writable directory, any user can listen on the path first.
    let is_trusted = uid == geteuid().as_raw() || uid == 0 || options.trusted_uids.contains(&uid);
    is_trusted.then_some(socket).ok_or_else(|| AttachError::Untrusted { path: path.clone(), uid })
}

/// Largest default size of a ring, in bytes.
const MAX_RING_BYTES: usize = 256 << 10;
/// A ring takes at most this fraction of the spare memory.
const SHARES: usize = 32;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_DELAY: Duration = Duration::from_millis(20);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
