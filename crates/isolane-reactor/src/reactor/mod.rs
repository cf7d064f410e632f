//! The event loop of one core.
//!
//! A turn polls the backend (`collect`), handles its events (`on_backend_event`), accepts
//! connections, and reports sockets worth a receive. Without events, it spins or
//! sleeps. The driver then receives, acts, and sends once per socket.

mod external_wait;
mod sockets;
mod zerocopy;

pub use self::sockets::Detached;
pub use self::zerocopy::Sent;
use self::zerocopy::ZeroCopy;
use crate::backend::Backend;
use crate::event::{BackendEvent, PollWait};
use crate::file::{FileCompletion, FileJob, FileOp};
use crate::key::Kind;
use crate::listeners::Listeners;
use crate::sleep_times::SleepTimes;
use crate::socket_table::{SocketEntry, SocketTable};
use crate::spin::AdaptiveSpin;
use crate::waker::Sleeper;
use crate::workers::Workers;
use crate::{Event, ExternalOp, Mode, ReactorConfig, ReactorError, Waker, cpu};
use rustix::fd::AsFd;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Event loop for the sockets and files of one core.
///
/// A reactor may move to another thread while no file operation is in flight. Each move to another
/// thread opens a new io_uring, because a ring accepts submissions from one thread only. Dropping
/// the reactor closes its sockets and waits for file operations in flight.
pub struct Reactor {
    description: String,
    backend: Backend,
    workers: Workers,
    sleeper: Sleeper,
    spin: AdaptiveSpin,
    sockets: SocketTable,
    listeners: Listeners,
    zerocopy: ZeroCopy,
    /// File operations completed without the kernel.
    ended: Vec<FileCompletion>,
    files_in_flight: usize,
    backend_events: Vec<BackendEvent>,
    now: Instant,
    /// The driver moved bytes in this turn.
    busy: bool,
    /// The driver moved bytes in the previous turn.
    was_busy: bool,
    sleep_count: u64,
    busy_ns: u64,
    sleep_times: Arc<SleepTimes>,
}

impl Reactor {
    /// Creates a reactor for the calling thread, which it pins if [`ReactorConfig::core`] is set.
    ///
    /// # Errors
    /// Fails if the thread cannot be pinned or the kernel refuses a required object.
    pub fn new(config: ReactorConfig) -> Result<Reactor, ReactorError> {
        if let Some(core) = config.core {
            cpu::pin(core).map_err(|error| ReactorError::Pin { core, error })?;
        }
        let sleeper = Sleeper::new().map_err(|error| ReactorError::Setup { what: "an eventfd", error })?;
        let (backend, description) = Backend::open(config.io, sleeper.doorbell())?;
        let now = Instant::now();
        Ok(Reactor {
            description,
            backend,
            workers: Workers::new(sleeper.waker()),
            sleeper,
            spin: AdaptiveSpin::new(config.mode, config.spin, now),
            sockets: SocketTable::default(),
            listeners: Listeners::default(),
            zerocopy: ZeroCopy::default(),
            ended: Vec::new(),
            files_in_flight: 0,
            backend_events: Vec::new(),
            now,
            busy: false,
            was_busy: false,
            sleep_count: 0,
            busy_ns: 0,
            sleep_times: Arc::default(),
        })
    }

    /// Returns the backend in use, for a log line: `io_uring`, or `epoll: io_uring is not usable:
    /// …`.
    pub fn backend_description(&self) -> &str {
        &self.description
    }

    /// Changes the idle behavior.
    pub fn set_mode(&mut self, mode: Mode) {
        self.spin.set_mode(mode);
    }

    /// Returns the total duration of turns in which the driver moved bytes, in nanoseconds.
    pub fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// Returns the durations of sleeps, for readers on any thread.
    pub fn sleep_times(&self) -> Arc<SleepTimes> {
        Arc::clone(&self.sleep_times)
    }

    /// Returns the time at which the last turn read the clock.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the number of times the reactor went to sleep.
    pub fn sleep_count(&self) -> u64 {
        self.sleep_count
    }

    /// Returns a handle that wakes this reactor from any thread.
    pub fn waker(&self) -> Waker {
        self.sleeper.waker()
    }

    /// Accepts connections and reports them as [`Event::Accepted`], with the returned index.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn listen(&mut self, listener: TcpListener) -> io::Result<usize> {
        self.listeners.insert(listener, &mut self.backend)
    }

    /// Stops accepting at the listener with this index, and closes it. Its connections stay. No other listener gets the
    /// index. Returns the connections that it has not reported, with the addresses of their peers.
    pub fn close_listener(&mut self, index: usize) -> Vec<(TcpStream, SocketAddr)> {
        self.listeners.remove(index, &mut self.backend)
    }

    /// Stops accepting and closes all listeners.
    pub fn stop_listening(&mut self) {
        self.listeners.remove_all(&mut self.backend);
    }

    /// Stops accepting, or starts it again. In the meantime, connections wait in the kernel.
    pub fn pause_listening(&mut self, paused: bool) {
        self.listeners.paused = paused;
    }

    /// Returns the listening sockets, in the order of their indices.
    pub fn listeners(&self) -> impl Iterator<Item = &TcpListener> {
        self.listeners.sockets()
    }

    /// Stops accepting and returns all listeners.
    pub fn take_listeners(&mut self) -> Vec<TcpListener> {
        self.listeners.take(&mut self.backend)
    }

    /// Starts a file operation. [`Event::File`] returns it with `token`; the kernel owns its buffer
    /// until then. An operation whose range exceeds its buffer, or a read into shared memory,
    /// completes with `InvalidInput`. An operation of zero bytes does nothing.
    pub fn submit_file(&mut self, token: u64, file: &Arc<File>, operation: FileOp) {
        self.files_in_flight += 1;
        match FileJob::new(token, file, operation) {
            Ok(job) if job.is_noop() => self.ended.push(job.complete(Ok(0))),
            Ok(job) => {
                if let Err(job) = self.backend.submit_file(job) {
                    self.workers.submit(job);
                }
            }
            Err(operation) => {
                let result = Err(io::ErrorKind::InvalidInput.into());
                self.ended.push(FileCompletion { token, result, operation, thread: None });
            }
        }
    }

    /// Registers an operation that completes outside of the reactor, on any thread. [`Event::File`] reports
    /// it with `token`.
    pub fn register_external(&mut self, token: u64) -> ExternalOp {
        self.files_in_flight += 1;
        self.workers.register(token)
    }

    /// Returns the number of file operations that found all threads of their file busy.
    pub fn file_thread_waits(&self) -> u64 {
        self.workers.waits()
    }

    /// Returns the number of file operations started and not yet reported.
    pub fn files_in_flight(&self) -> usize {
        self.files_in_flight
    }

    /// Runs one turn: appends a bounded number of events to `events`. Without events it spins or
    /// sleeps according to its [`Mode`] and returns at `deadline` or earlier.
    ///
    /// # Errors
    /// Fails only if the backend itself fails.
    pub fn turn(&mut self, deadline: Option<Instant>, events: &mut Vec<Event>) -> io::Result<()> {
        let events_before = events.len();
        self.begin_turn();
        let urgent = self.sockets.is_all_idle() || !self.spin.is_spinning(self.now);
        self.poll(PollWait::No { urgent }, events)?;
        if events.len() == events_before {
            if self.spin.is_spinning(self.now) {
                std::hint::spin_loop()
            } else {
                self.sleep(deadline, events)?
            }
        }
        Ok(())
    }

    fn begin_turn(&mut self) {
        let before = std::mem::replace(&mut self.now, Instant::now());
        self.was_busy = std::mem::take(&mut self.busy);
        if self.was_busy {
            self.busy_ns += self.now.saturating_duration_since(before).as_nanos() as u64;
            self.spin.on_work(self.now);
        }
    }

    /// Polls the backend and appends events, waiting as `wait` specifies.
    fn poll(&mut self, wait: PollWait, events: &mut Vec<Event>) -> io::Result<()> {
        let events_before = events.len();
        self.collect(wait)?;
        if let PollWait::For(_) = wait {
            self.wake_up();
        }
        if !self.backend_events.is_empty() {
            let mut backend_events = std::mem::take(&mut self.backend_events);
            backend_events.drain(..).for_each(|event| self.on_backend_event(event, events));
            self.backend_events = backend_events;
        }
        self.listeners.accept(self.now, &mut self.backend, events);
        self.reap_due();
        if self.sleeper.take_notification() {
            events.push(Event::Woken);
        }
        self.report_files(events);
        if events.len() > events_before {
            self.spin.on_work(self.now);
        }
        self.report_sockets(events);
        Ok(())
    }

    fn collect(&mut self, wait: PollWait) -> io::Result<()> {
        let collected = self.backend.collect(wait, self.sleeper.doorbell(), &mut self.backend_events);
        let Err(error) = collected else { return Ok(()) };
        self.rebind_thread(error)?;
        self.backend.collect(wait, self.sleeper.doorbell(), &mut self.backend_events)
    }

    /// Rebinds the backend to the calling thread after a move and arms everything again.
    #[cold]
    fn rebind_thread(&mut self, error: io::Error) -> io::Result<()> {
        self.backend.rebind_thread(error)?;
        self.listeners.on_disarmed();
        for entry in self.sockets.iter() {
            if entry.read_armed {
                self.backend.arm_read(entry.socket.as_fd(), entry.key(Kind::Read));
            }
            if entry.write_armed {
                self.backend.arm_write(entry.socket.as_fd(), entry.key(Kind::Write))?;
            }
        }
        Ok(())
    }

    fn on_backend_event(&mut self, event: BackendEvent, events: &mut Vec<Event>) {
        match event {
            BackendEvent::Readable { key, hung_up } => {
                let Some(entry) = self.sockets.by_key(key) else { return };
                entry.ready = true;
                entry.hung_up |= hung_up;
                entry.read_armed = false;
                let token = entry.token;
                if hung_up {
                    // The error queue may hold zero-copy completions.
                    self.reap(token);
                }
                self.sockets.activate(token);
                self.spin.on_work(self.now);
            }
            BackendEvent::Writable { key } => {
                let Some(entry) = self.sockets.by_key(key) else { return };
                entry.write_armed = false;
                if std::mem::take(&mut entry.wants_write) {
                    events.push(Event::Writable(entry.token));
                }
            }
            BackendEvent::Acceptable { index } => self.listeners.on_acceptable(index),
            // `take_notification` reports it.
            BackendEvent::Doorbell => {}
            BackendEvent::File(finished) => self.report_file(finished, events),
        }
    }

    fn report_files(&mut self, events: &mut Vec<Event>) {
        while let Some(finished) = self.ended.pop().or_else(|| self.workers.poll()) {
            self.report_file(finished, events);
        }
    }

    fn report_file(&mut self, finished: FileCompletion, events: &mut Vec<Event>) {
        self.files_in_flight -= 1;
        events.push(Event::File(finished));
    }

    fn report_sockets(&mut self, events: &mut Vec<Event>) {
        let is_spinning = self.spin.is_spinning(self.now);
        let backend = &mut self.backend;
        let report = |token| events.push(Event::Readable(token));
        let cool = |entry: &mut SocketEntry| {
            if !std::mem::replace(&mut entry.read_armed, true) {
                backend.arm_read(entry.socket.as_fd(), entry.key(Kind::Read));
            }
        };
        self.sockets.poll_active(MAX_SOCKETS_PER_TURN, is_spinning, report, cool);
    }

    /// Sleeps until an event or `deadline`. All event sources are armed at this point: no socket is
    /// active and no listener is ready.
    fn sleep(&mut self, deadline: Option<Instant>, events: &mut Vec<Event>) -> io::Result<()> {
        if !self.sockets.is_all_idle() || self.listeners.is_ready() {
            return Ok(());
        }
        let others = [self.listeners.poll_timeout(), self.zerocopy_timeout()];
        let end = others.into_iter().chain([deadline]).flatten().min();
        let time = end.map(|end| end.saturating_duration_since(self.now));
        if time.is_some_and(|time| time.is_zero()) || !self.sleeper.try_sleep() {
            return Ok(());
        }
        self.sleep_count += 1;
        let (start, events_before) = (self.now, events.len());
        self.sleep_times.begin(start);
        let polled = self.poll(PollWait::For(time), events);
        self.sleep_times.end(self.now);
        polled?;
        let slept = self.now.saturating_duration_since(start);
        if events.len() > events_before {
            self.spin.on_slept(slept);
        } else if let Some(time) = time {
            let late = slept.saturating_sub(time);
            if late > MAX_TIMER_SLACK {
                self.sleep_times.add_late(late);
            }
        }
        Ok(())
    }

    fn wake_up(&mut self) {
        self.sleeper.finish_sleep();
        self.now = Instant::now();
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.stop_listening();
        self.drain_zerocopy();
        for entry in self.sockets.iter() {
            self.backend.unregister(entry.socket.as_fd(), entry.armed());
        }
    }
}

/// Number of sockets that one turn reports.
const MAX_SOCKETS_PER_TURN: usize = 64;
/// Delay of a timer that is not late: the kernel adds 50 µs by default, and wakes the thread.
const MAX_TIMER_SLACK: Duration = Duration::from_micros(200);
