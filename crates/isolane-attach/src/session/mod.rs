//! A session: the connection to an engine, and the memory that is shared with it.
//!
//! The application owns the memory and says what is where; the engine checks it. A session outlives the
//! engine's process: if that is killed, its supervisor starts the next, which takes the session up. It ends
//! when the last [`Session`] and all that was opened through it are dropped, or with the engine's supervisor.
//!
//! Threads: any may use a session. One of its own sleeps on the connection, so that whoever waits hears of
//! the engine's end.

mod closing;
mod line;
mod port;
mod queue;
mod room;
mod start;
#[cfg(test)]
pub(crate) mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use isolane_ring::{Arena, Memory, PAGE_SIZE, Peer, timespec};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::geteuid;

use crate::AttachError;
use crate::control::{Hello, Limits, Reply, Request, VERSION, Welcome, Wire, WireError};
use crate::stream::Lounge;

use line::Line;
pub use port::Port;
pub use queue::Queue;
pub use room::Room;

/// A session with an engine. Clones are the same session.
#[derive(Clone, Debug)]
pub struct Session(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    line: Arc<Line>,
    memory: Memory,
    /// Hung up once neither the engine nor its supervisor has anything of the session.
    life: OwnedFd,
    arena: Mutex<Arena>,
    welcome: Welcome,
    /// A page for streams that no engine has, which never leave anything there.
    unused: u64,
    /// One for each core of the engine.
    ports: Vec<Port>,
    next_id: AtomicU32,
    lounge: Mutex<Weak<Lounge>>,
}

/// How to attach.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the engine listens.
    pub path: PathBuf,
    /// Bytes of the session's memory, a multiple of the page. Pages are taken once touched.
    pub memory_bytes: usize,
    /// Start an engine where none listens: the program `isolane` that the variable `ISOLANE` names, else the one
    /// beside this program, else the one in the PATH. It ends once nobody has been attached for 30 s. The folder of
    /// [`Options::path`] must be there, unless that is the [`default_path`].
    pub starts: bool,
    /// Users whose engine is attached to, besides this process's own and root: an engine sees all that goes through
    /// it. Numbers, by default those that the variable `ISOLANE_TRUST_UIDS` names, separated by commas.
    pub trusted_uids: Vec<u32>,
}

/// Hears what becomes of a session, on the thread that notices it: it may wake others, but must not ask the
/// session for anything, because no answer comes before it returns.
pub trait Watcher: Send + Sync {
    /// The engine was killed, and another has taken the session up. What was open is open.
    fn on_restarted(&self, epoch: u64);
    /// Nothing will come any more.
    fn on_over(&self);
}

impl Default for Options {
    fn default() -> Options {
        Options {
            path: default_path(),
            memory_bytes: Options::MEMORY_BYTES,
            starts: true,
            trusted_uids: uids(&std::env::var("ISOLANE_TRUST_UIDS").unwrap_or_default()),
        }
    }
}

impl Options {
    /// The default of [`Options::memory_bytes`].
    pub const MEMORY_BYTES: usize = 1 << 30;
}

/// What is no number is nobody.
fn uids(list: &str) -> Vec<u32> {
    list.split(',').filter_map(|uid| uid.trim().parse().ok()).collect()
}

/// Where an engine listens if nobody says otherwise: in `$XDG_RUNTIME_DIR/isolane`, else in a folder of the
/// user's own under `/tmp`.
pub fn default_path() -> PathBuf {
    let own = || PathBuf::from(format!("/tmp/isolane-{}", rustix::process::getuid().as_raw()));
    let folder = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) if Path::new(&runtime).is_absolute() => PathBuf::from(runtime).join("isolane"),
        _ => own(),
    };
    folder.join("engine.sock")
}

impl Session {
    /// Attaches to the engine that listens on `path`, and starts one if there is none.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn connect(path: &Path) -> Result<Session, AttachError> {
        Session::open(&Options { path: path.to_owned(), ..Options::default() })
    }

    /// Attaches to an engine.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn open(options: &Options) -> Result<Session, AttachError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match Session::open_once(options, until) {
                // It has ended before all was there: the next one may be had.
                Err(AttachError::Over(_)) if Instant::now() < until => std::thread::sleep(PAUSE),
                outcome => return outcome,
            }
        }
    }

    fn open_once(options: &Options, until: Instant) -> Result<Session, AttachError> {
        let memory = Memory::create("isolane-session", options.memory_bytes)?;
        let (life, theirs) = pipe_with(PipeFlags::CLOEXEC)
            .map_err(|error| AttachError::system("cannot make a pipe", error))?;
        let (wire, welcome) = reach(options, &memory, theirs.as_fd(), until)?;
        drop(theirs);
        let line = Line::start(wire, welcome.epoch)?;
        let mut arena = Arena::new(memory.bytes());
        let cores = 0..welcome.cores.len() as u32;
        let ports = cores.map(|core| Port::open(&line, &memory, &mut arena, core));
        let ports = ports.collect::<Result<_, _>>().inspect_err(|_| line.hang_up())?;
        let bytes = PAGE_SIZE;
        let unused = arena.take(bytes).ok_or(AttachError::NoRoom { bytes, of: memory.bytes() });
        let unused = unused.inspect_err(|_| line.hang_up())?.offset as u64;
        let arena = Mutex::new(arena);
        Ok(Session(Arc::new(Inner {
            line,
            memory,
            life,
            arena,
            welcome,
            unused,
            ports,
            next_id: AtomicU32::new(1),
            lounge: Mutex::default(),
        })))
    }

    /// On a connection, without any port.
    #[cfg(test)]
    fn of(line: &Arc<Line>, memory_bytes: usize) -> Session {
        let memory = Memory::create("session", memory_bytes).unwrap();
        let (cores, limits) = (vec![0], Limits::default());
        Session(Arc::new(Inner {
            line: Arc::clone(line),
            arena: Mutex::new(Arena::new(memory.bytes())),
            memory,
            life: pipe_with(PipeFlags::CLOEXEC).unwrap().0,
            welcome: Welcome { version: VERSION, session: 1, epoch: 1, cores, limits },
            unused: 0,
            ports: Vec::new(),
            next_id: AtomicU32::new(1),
            lounge: Mutex::default(),
        }))
    }

    /// Asks the engine for something and waits for the answer, which is anything but a refusal. If the engine
    /// is killed meanwhile, the next one is asked.
    ///
    /// # Errors
    /// [`AttachError::Refused`] (of `what`), [`AttachError::Over`].
    pub fn ask(
        &self,
        what: &'static str,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Reply, AttachError> {
        self.0.line.ask(what, request, descriptors)
    }

    /// As [`Session::ask`], without waiting for the answer: [`Session::finish`] does.
    pub(crate) fn begin(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<u32, AttachError> {
        self.0.line.begin(request, descriptors)
    }

    /// The answer to what was begun under this serial number.
    pub(crate) fn finish(&self, what: &'static str, serial: u32) -> Result<Reply, AttachError> {
        self.0.line.finish(what, serial)
    }

    /// The memory that is shared with the engine.
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// Whole pages of the memory for `bytes`, which are what their last owner left there.
    ///
    /// # Errors
    /// [`AttachError::NoRoom`].
    pub fn take(&self, bytes: usize) -> Result<Room, AttachError> {
        self.check_process()?;
        Room::take(self, bytes)
    }

    /// Bytes of each ring of a stream that does not ask for more or less: few where the memory left is no more than what
    /// as many streams as there may be need at least.
    pub(crate) fn ring_bytes(&self) -> usize {
        let least =
            usize::try_from(self.limits().streams).unwrap_or(usize::MAX).saturating_mul(3 * PAGE_SIZE);
        let reserve = least.min(self.memory().bytes() / 2);
        let spare = self.0.arena.lock().free_bytes().saturating_sub(reserve);
        let share = (spare / SHARES).clamp(PAGE_SIZE, RING_BYTES_MAX);
        1 << share.ilog2()
    }

    /// A page of the memory that nobody uses: where the rings of a stream are that no engine has.
    pub(crate) fn unused(&self) -> u64 {
        self.0.unused
    }

    /// Closes an object or a queue, without waiting for anything: what was written is still sent. Its room goes back to
    /// the memory when it has ended; the session lives until then.
    ///
    /// # Errors
    /// [`AttachError::Over`]; then it has ended.
    pub fn close(&self, id: u32, room: Room) -> Result<(), AttachError> {
        self.0.line.close(id, room)
    }

    /// Waits until an object that was closed has ended, but no longer than `until`.
    pub(crate) fn wait_closed(&self, id: u32, until: Instant) {
        self.0.line.wait_closed(id, until);
    }

    /// A name for an object or a queue that nothing else in the session has.
    pub fn next_id(&self) -> u32 {
        self.0.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// A notification queue with rings of so many entries, a power of two: at least as many as objects that
    /// will name it.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn open_queue(&self, entries: u32) -> Result<Queue, AttachError> {
        Queue::open(self, entries)
    }

    /// Where tasks of its streams wait, if there is a stream.
    pub(crate) fn lounge(&self) -> MutexGuard<'_, Weak<Lounge>> {
        self.0.lounge.lock()
    }

    /// The doorbells of one of the engine's cores, by index.
    ///
    /// # Panics
    /// If there is no such core.
    #[inline]
    pub fn port(&self, core: u32) -> &Port {
        &self.0.ports[core as usize]
    }

    /// Numbers of the cores that the engine runs on.
    pub fn cores(&self) -> &[u32] {
        &self.0.welcome.cores
    }

    /// How much the session may have.
    pub fn limits(&self) -> Limits {
        self.0.welcome.limits
    }

    /// The engine's name for the session, as in its log.
    pub fn id(&self) -> u32 {
        self.0.welcome.session
    }

    /// Which engine has the session now: one more with each restart.
    pub fn epoch(&self) -> u64 {
        self.0.line.epoch()
    }

    /// Has `watcher` hear what becomes of the session, as long as it lives. If it is over already, it hears
    /// that at once. In a forked child it hears nothing.
    pub fn watch(&self, watcher: Weak<dyn Watcher>) {
        self.0.line.watch(watcher);
    }

    /// Whether nobody else works for the session, and nobody will: it is over, and all who had something of it have
    /// ended, or have let go of all. Waits so long for that.
    pub(crate) fn is_left(&self, time_max: Duration) -> bool {
        let until = Instant::now() + time_max;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = timespec(left);
            match poll(&mut [PollFd::new(&self.0.life, PollFlags::empty())], Some(&timeout)) {
                Ok(count) => return count > 0,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Whether this is the process that has opened the session.
    ///
    /// # Errors
    /// [`AttachError::Forked`].
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), AttachError> {
        self.0.line.check_process()
    }

    /// Its connection, which is hung up when it is over.
    pub(crate) fn line(&self) -> BorrowedFd<'_> {
        self.0.line.as_fd()
    }

    /// Whether there still is an engine.
    ///
    /// # Errors
    /// [`AttachError::Over`].
    #[inline]
    pub fn check(&self) -> Result<(), AttachError> {
        self.0.line.check()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.line.hang_up();
    }
}

/// Dials until an engine answers: one may have to be started, or may be killed in the middle of the greeting.
fn reach(
    options: &Options,
    memory: &Memory,
    life: BorrowedFd<'_>,
    until: Instant,
) -> Result<(Wire, Welcome), AttachError> {
    let path = &options.path;
    let mut starts = 0;
    loop {
        let outcome = dial(options)
            .map(Wire::new)
            .and_then(|wire| line::greet(&wire, memory, life, path, GREETING).map(|welcome| (wire, welcome)));
        let error = match outcome {
            Err(AttachError::NoEngine { .. }) if options.starts => {
                starts += 1;
                let unstarted = start::start(path, starts);
                let is_hopeless = unstarted.is_hopeless;
                let error = AttachError::NotStarted { path: path.clone(), why: unstarted.why };
                if is_hopeless {
                    return Err(error);
                }
                error
            }
            // It was killed, or had just decided to end.
            Err(error @ AttachError::Wire(WireError::Closed)) => error,
            outcome => return outcome,
        };
        if Instant::now() >= until {
            return Err(error);
        }
        std::thread::sleep(PAUSE);
    }
}

fn dial(options: &Options) -> Result<OwnedFd, AttachError> {
    let path = &options.path;
    let no_engine = |source: Errno| match source {
        // One may run there all the same: to start another is of no use.
        Errno::ACCESS => {
            AttachError::Forbidden { path: path.to_owned(), uid: geteuid().as_raw(), source: source.into() }
        }
        source => AttachError::NoEngine { path: path.to_owned(), source: source.into() },
    };
    let address = SocketAddrUnix::new(path).map_err(no_engine)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let socket = socket.map_err(|error| AttachError::system("cannot make a socket", error))?;
    connect(&socket, &address).map_err(no_engine)?;
    let Peer { uid, .. } = Peer::of(socket.as_fd())
        .map_err(|error| AttachError::system("cannot ask whose engine it is", error))?;
    // In a folder that everybody may write to, whoever comes first can listen.
    let is_trusted = uid == geteuid().as_raw() || uid == 0 || options.trusted_uids.contains(&uid);
    is_trusted.then_some(socket).ok_or_else(|| AttachError::Untrusted { path: path.clone(), uid })
}

/// The largest ring that is chosen for a stream.
const RING_BYTES_MAX: usize = 256 << 10;
/// A ring takes at most this part of what can be spared.
const SHARES: usize = 32;
/// How long an engine may be out of reach.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the greeting may take.
const GREETING: Duration = Duration::from_secs(10);
/// What is said first.
const HELLO: Request = Request::Hello(Hello { version: VERSION });
