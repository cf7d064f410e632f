//! The session of this process with an engine, attached when the first socket moves there.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use isolane_attach::stream::{Poller, Stream, StreamOptions};
use isolane_attach::{Session, SessionOptions, default_path};
use parking_lot::Mutex;

use crate::numbers::NumberMap;
use crate::policy::{RETRY_DELAY, now_ns};
use crate::{gate, own};

/// Receives the events of a stream.
pub(crate) trait Notified: Send + Sync {
    /// An event may have occurred.
    fn notify(&self);
}

/// A session, and the queue of its streams' events.
pub(crate) struct Engine {
    session: Session,
    poller: Mutex<Poller>,
    queue: u32,
    /// Descriptor that is readable when the queue has entries while a thread sleeps.
    bell: c_int,
    streams: Mutex<NumberMap<u32, Weak<dyn Notified>>>,
    /// Number of cores that this process or the engine can use.
    cores: usize,
    /// Distinguishes the sessions of this process.
    pub(crate) generation: u64,
}

static CURRENT: Mutex<Option<Arc<Engine>>> = Mutex::new(None);
/// Time before which no attempt to attach is made.
static RETRY_AT: AtomicU64 = AtomicU64::new(0);
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Returns the session, and attaches first if necessary. `None`: no engine is available.
pub(crate) fn attached() -> Option<Arc<Engine>> {
    if gate::is_closed() {
        return None;
    }
    let mut current = CURRENT.lock();
    if current.is_none() {
        if !may_be_available() {
            return None;
        }
        let engine = without_signals(Engine::attach);
        if engine.is_none() {
            retry_later();
        }
        *current = engine.map(Arc::new);
    }
    current.clone()
}

/// Returns `false` soon after an attempt to attach has failed.
pub(crate) fn may_be_available() -> bool {
    now_ns() >= RETRY_AT.load(Ordering::Relaxed)
}

fn retry_later() {
    RETRY_AT.store(now_ns().saturating_add(RETRY_DELAY.as_nanos() as u64), Ordering::Relaxed);
}

/// Path of the engine's socket, before the program changes its environment.
static PATH: OnceLock<PathBuf> = OnceLock::new();

/// Reads `ISOLANE_PRELOAD_SOCKET`.
pub(crate) fn read_environment() {
    if let Some(path) = std::env::var_os("ISOLANE_PRELOAD_SOCKET") {
        let _ = PATH.set(path.into());
    }
}

impl Engine {
    /// `None`, too, if the session's memory exceeds a limit of the process: that would end the process, or take what the
    /// program needs.
    fn attach() -> Option<Engine> {
        if !own::has_space(SessionOptions::MEMORY_BYTES as u64) {
            return None;
        }
        let options = SessionOptions {
            path: PATH.get().cloned().unwrap_or_else(default_path),
            spawn_engine: false,
            first_descriptor: own::first_descriptor(),
            ..SessionOptions::default()
        };
        let session = Session::open(&options).ok()?;
        let poller = Poller::new(&session, MAX_STREAMS).ok()?;
        let bell = poller.as_fd().as_raw_fd();
        own::set_session(session.descriptors().iter().map(AsRawFd::as_raw_fd).chain([bell]));
        Some(Engine {
            queue: poller.queue(),
            cores: own::cores(session.cores()),
            bell,
            poller: Mutex::new(poller),
            streams: Mutex::default(),
            generation: GENERATION.fetch_add(1, Ordering::Relaxed) + 1,
            session,
        })
    }

    /// Moves a socket to the engine, or returns it.
    pub(crate) fn adopt(&self, options: StreamOptions, socket: TcpStream) -> Result<Stream, TcpStream> {
        if self.streams.lock().len() >= MAX_STREAMS as usize {
            return Err(socket);
        }
        without_signals(|| options.adopt_into_queue(&self.session, socket, self.queue))
            .map_err(|error| error.socket)
    }

    pub(crate) fn insert(&self, id: u32, stream: Weak<dyn Notified>) {
        self.streams.lock().insert(id, stream);
    }

    pub(crate) fn remove(&self, id: u32) {
        self.streams.lock().remove(&id);
    }

    pub(crate) fn cores(&self) -> usize {
        self.cores
    }

    pub(crate) fn bell(&self) -> c_int {
        self.bell
    }

    /// Returns `true` if the session is closed.
    pub(crate) fn is_lost(&self) -> bool {
        self.session.check().is_err()
    }

    /// Passes events that have been reported on to the threads and sets that wait for them. Returns `false` if the session
    /// is closed.
    pub(crate) fn fetch(&self) -> bool {
        self.pass_on(fetch)
    }

    /// As [`Engine::fetch`]. Afterwards, the bell becomes readable with the next event.
    pub(crate) fn arm(&self) -> bool {
        self.pass_on(fetch_and_arm)
    }

    /// As [`Engine::arm`], after the bell was readable.
    pub(crate) fn clear(&self) -> bool {
        self.pass_on(|poller, ids| {
            poller.disarm()?;
            fetch_and_arm(poller, ids)
        })
    }

    fn pass_on(&self, fetch: impl FnOnce(&mut Poller, &mut Vec<u32>) -> io::Result<()>) -> bool {
        let mut ids = Vec::new();
        let result = fetch(&mut self.poller.lock(), &mut ids);
        for id in ids {
            let adopted = self.streams.lock().get(&id).and_then(Weak::upgrade);
            adopted.into_iter().for_each(|adopted| adopted.notify());
        }
        result.is_ok()
    }
}

fn fetch(poller: &mut Poller, ids: &mut Vec<u32>) -> io::Result<()> {
    while let Some(id) = poller.try_next()? {
        ids.push(id);
    }
    Ok(())
}

fn fetch_and_arm(poller: &mut Poller, ids: &mut Vec<u32>) -> io::Result<()> {
    loop {
        fetch(poller, ids)?;
        if !poller.arm()? {
            return Ok(());
        }
    }
}

/// Forgets a session that has ended, or violates the protocol.
pub(crate) fn forget(engine: &Arc<Engine>) {
    let mut current = CURRENT.lock();
    if current.as_ref().is_some_and(|other| Arc::ptr_eq(other, engine)) {
        *current = None;
        retry_later();
    }
}

/// Ends the session for good, once no socket is adopted.
pub(crate) fn detach() {
    drop(CURRENT.lock().take());
}

/// Waits until threads of ended sessions have exited, for at most [`THREAD_EXIT_TIMEOUT`].
pub(crate) fn wait_for_threads() {
    let until = Instant::now() + THREAD_EXIT_TIMEOUT;
    while has_thread() && Instant::now() < until {
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn has_thread() -> bool {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return false };
    threads.flatten().any(|thread| {
        std::fs::read(thread.path().join("comm")).is_ok_and(|name| name.trim_ascii() == THREAD_NAME)
    })
}

/// Locks the session for a fork.
pub(crate) fn lock_for_fork() {
    std::mem::forget(CURRENT.lock());
}

pub(crate) fn unlock_in_parent() {
    // SAFETY: this thread has locked it before the fork.
    unsafe { CURRENT.force_unlock() };
}

/// Forgets the session of the parent.
pub(crate) fn reset_in_child() {
    // SAFETY: no other thread exists. The old value is not dropped: it belongs to the parent.
    unsafe { std::ptr::write((&raw const CURRENT).cast_mut(), Mutex::new(None)) };
    RETRY_AT.store(0, Ordering::Relaxed);
}

/// Runs `work` with all signals blocked, so that threads that it starts get none of the program's.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let (mut all, mut old) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both sets are initialized by the calls. The C library leaves out its own signals.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
    }
    let result = gate::inside(work);
    // SAFETY: the set is initialized.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    result
}

const THREAD_EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Name of a session's thread.
const THREAD_NAME: &[u8] = b"isolane-attach";
/// Streams of a session, and entries of its queue.
const MAX_STREAMS: u32 = 1 << 14;
