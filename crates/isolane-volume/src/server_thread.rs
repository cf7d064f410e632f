//! The thread of a server of one volume: its start, and its shutdown, which ends with a flush of the volume.
//!
//! Invariant: the result of the flush is the result of the shutdown, unless the thread fails or the volume hangs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use isolane_reactor::Waker;

use crate::{Outcome, VolumeError, VolumeQueue};

/// State of a server, which its thread drives.
pub trait ServerCore {
    /// Returns the waker of its reactor.
    fn waker(&self) -> Waker;

    /// Runs one turn of its reactor, which advances the shutdown.
    ///
    /// # Errors
    /// The reactor failed.
    fn turn(&mut self) -> io::Result<()>;

    /// Returns its shutdown.
    fn shutdown(&mut self) -> &mut Shutdown;
}

/// Thread of a server. Dropping it starts the shutdown without waiting for it.
pub struct ServerThread {
    is_stopping: Arc<AtomicBool>,
    waker: Waker,
    report: Receiver<Result<(), ShutdownError>>,
}

/// Error of a shutdown.
#[derive(Debug, thiserror::Error)]
pub enum ShutdownError {
    /// The volume does not complete its requests, or the final flush.
    #[error("{name} has not completed {requests} requests; check its storage")]
    Hung {
        /// Name of the volume.
        name: String,
        /// Number of requests, with the flush.
        requests: usize,
    },
    /// The final flush failed: completed writes may be lost.
    #[error("{name}: flush failed: {error}")]
    Flush {
        /// Name of the volume.
        name: String,
        /// The error.
        error: VolumeError,
    },
    /// The thread of the server ended early or hangs in the kernel; the log has the cause.
    #[error("the server has ended early, or hangs in the kernel")]
    Thread,
}

impl ServerThread {
    /// Starts a thread, which creates the server and drives it.
    ///
    /// # Errors
    /// The error of `create`, or of a thread that the system refuses.
    pub fn start<C: ServerCore, E: From<io::Error> + Send + 'static>(
        name: &str,
        create: impl FnOnce(Shutdown) -> Result<C, E> + Send + 'static,
    ) -> Result<ServerThread, E> {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let shutdown = Shutdown { is_stopping: Arc::clone(&is_stopping), progress: None };
        let (started, is_started) = mpsc::channel();
        let (reporter, report) = mpsc::channel();
        let run = move || match create(shutdown) {
            Ok(mut core) => {
                // The receiver waits for it.
                let _ = started.send(Ok(core.waker()));
                let result = run(&mut core);
                // The drop waits for requests in flight, which a volume that hangs never completes.
                if result.is_ok() {
                    drop(core);
                }
                // The receiver may have stopped waiting.
                let _ = reporter.send(result);
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        };
        thread::Builder::new().name(name.to_owned()).spawn(run)?;
        let waker = is_started.recv().map_err(io::Error::other)??;
        Ok(ServerThread { is_stopping, waker, report })
    }

    /// Starts the shutdown without waiting for it, so that several servers end together.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Starts the shutdown, and waits for its end.
    ///
    /// # Errors
    /// Data that may not be durable.
    pub fn shutdown(self) -> Result<(), ShutdownError> {
        self.stop();
        match self.report.recv_timeout(DRAIN_TIMEOUT + FLUSH_TIMEOUT + MARGIN) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(ShutdownError::Thread),
        }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs until the shutdown has ended.
fn run(core: &mut impl ServerCore) -> Result<(), ShutdownError> {
    loop {
        if let Err(error) = core.turn() {
            log::error!("the reactor failed: {error}; the export has ended");
            return Err(ShutdownError::Thread);
        }
        let progress = &mut core.shutdown().progress;
        if let Some(Progress::Ended(result)) =
            progress.take_if(|progress| matches!(progress, Progress::Ended(_)))
        {
            return result;
        }
    }
}

/// Shutdown of a server. Each turn calls [`Shutdown::begin`], then [`Shutdown::end_drain`], then
/// [`Shutdown::check_flush`], until one has something to do.
pub struct Shutdown {
    is_stopping: Arc<AtomicBool>,
    progress: Option<Progress>,
}

enum Progress {
    /// Requests complete.
    Drain(Instant),
    /// The volume flushes.
    Flush(Instant),
    Ended(Result<(), ShutdownError>),
}

impl Shutdown {
    /// Tag of the final flush. A key of a slot map never has this value.
    pub const FLUSH_TAG: u64 = u64::MAX;

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.progress.is_some()
    }

    /// Begins if it was requested. Returns `true` then: the server accepts nothing more.
    pub fn begin(&mut self, now: Instant) -> bool {
        let begins = self.progress.is_none() && self.is_stopping.load(Ordering::Acquire);
        if begins {
            self.progress = Some(Progress::Drain(now + DRAIN_TIMEOUT));
        }
        begins
    }

    /// Returns `true` once all requests have completed, or had enough time: the server closes its connections and starts
    /// the flush, with [`Shutdown::FLUSH_TAG`].
    pub fn end_drain(&mut self, is_drained: bool, now: Instant) -> bool {
        let ends = matches!(&self.progress, Some(Progress::Drain(until)) if is_drained || now >= *until);
        if ends {
            self.progress = Some(Progress::Flush(now + FLUSH_TIMEOUT));
        }
        ends
    }

    /// Ends if the volume takes too long for the flush.
    pub fn check_flush(&mut self, queue: &VolumeQueue, now: Instant) {
        if matches!(&self.progress, Some(Progress::Flush(until)) if now >= *until) {
            let (name, requests) = (queue.volume().name().to_owned(), queue.in_flight());
            self.progress = Some(Progress::Ended(Err(ShutdownError::Hung { name, requests })));
        }
    }

    /// Ends with the outcome of the flush.
    pub fn end(&mut self, outcome: Outcome, queue: &VolumeQueue) {
        let name = || queue.volume().name().to_owned();
        let result = outcome.map(drop).map_err(|error| ShutdownError::Flush { name: name(), error });
        self.progress = Some(Progress::Ended(result));
    }
}

/// Time for the requests in flight at the end, and for their replies.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the final flush.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(12);
/// Time of the thread to end after its own limits.
const MARGIN: Duration = Duration::from_secs(3);
