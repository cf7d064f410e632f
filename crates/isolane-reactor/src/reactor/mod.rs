//! The loop of one core.
//!
//! A turn goes: hear what the kernel says (`collect`) → note it (`on_occurrence`) → accept → report the lanes
//! worth a receive; and only if all that yielded nothing, spin or sleep. The driver then receives, acts, and
//! sends once per lane.

mod lending;
mod rest;
mod sockets;

use self::lending::Lending;
pub use self::lending::Sent;
pub use self::rest::Rest;
pub use self::sockets::Detached;
use crate::file::{Checked, Finished, Operation};
use crate::key::Kind;
use crate::lanes::{Lane, Lanes};
use crate::listeners::Listeners;
use crate::poller::{Occurrence, Poller, Wait};
use crate::spin::Spin;
use crate::waker::Sleeper;
use crate::workers::Workers;
use crate::{Config, Event, ListenerToken, Mode, ReactorError, Waker, core};
use rustix::fd::AsFd;
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The sockets, files and sleep of one core. It may be handed to another thread, one at a time, while no file
/// operation is in flight; but not often: the kernel takes requests through a ring from one thread only, so
/// another is opened there. Dropping it closes its sockets, and waits for the file operations in flight.
pub struct Reactor {
    description: String,
    poller: Poller,
    workers: Workers,
    sleeper: Sleeper,
    spin: Spin,
    lanes: Lanes,
    listeners: Listeners,
    lending: Lending,
    /// File operations that ended without the kernel.
    ended: Vec<Finished>,
    files_in_flight: usize,
    occurrences: Vec<Occurrence>,
    now: Instant,
    /// The driver moved bytes since the last turn began.
    is_busy: bool,
    /// It did so in the turn before.
    was_busy: bool,
    sleeps_count: u64,
    busy_time: Duration,
}

impl Reactor {
    /// Sets up a reactor for the calling thread, which it pins if [`Config::core`] says so.
    ///
    /// # Errors
    /// When the kernel refuses what was asked for.
    pub fn new(config: Config) -> Result<Reactor, ReactorError> {
        if let Some(core) = config.core {
            core::pin(core).map_err(|error| ReactorError::Pin { core, error })?;
        }
        let sleeper = Sleeper::new().map_err(|error| ReactorError::Setup { what: "an eventfd", error })?;
        let (poller, description) = Poller::open(config.io, sleeper.doorbell())?;
        let now = Instant::now();
        Ok(Reactor {
            description,
            poller,
            workers: Workers::new(sleeper.waker()),
            sleeper,
            spin: Spin::new(config.mode, config.spin, now),
            lanes: Lanes::default(),
            listeners: Listeners::default(),
            lending: Lending::default(),
            ended: Vec::new(),
            files_in_flight: 0,
            occurrences: Vec::new(),
            now,
            is_busy: false,
            was_busy: false,
            sleeps_count: 0,
            busy_time: Duration::ZERO,
        })
    }

    /// For a log line: `io_uring`, or `epoll: io_uring is not usable: …`.
    pub fn io_description(&self) -> &str {
        &self.description
    }

    /// What it does when there is nothing to do.
    pub fn mode(&self) -> Mode {
        self.spin.mode()
    }

    /// Changes that.
    pub fn set_mode(&mut self, mode: Mode) {
        self.spin.set_mode(mode);
    }

    /// How long the turns took, all in all, in which its driver moved bytes.
    pub fn busy_time(&self) -> Duration {
        self.busy_time
    }

    /// The time at which the last turn looked at its clock.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// How often it went to sleep.
    pub fn sleeps_count(&self) -> u64 {
        self.sleeps_count
    }

    /// Something that wakes this reactor from any thread.
    pub fn waker(&self) -> Waker {
        self.sleeper.waker()
    }

    /// Accepts connections: [`Event::Accepted`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn listen(&mut self, listener: TcpListener) -> io::Result<ListenerToken> {
        self.listeners.insert(listener, &mut self.poller)
    }

    /// Stops to accept and closes the listener.
    pub fn stop_listening(&mut self, token: ListenerToken) {
        self.listeners.remove(token, &mut self.poller);
    }

    /// Starts a file operation; [`Event::File`] brings it back with `token`. Its buffer belongs to the kernel
    /// until then. An operation whose range is not in its buffer, or a read into shared memory, comes back as
    /// `InvalidInput`; one of no bytes does nothing.
    pub fn submit_file(&mut self, token: u64, file: &Arc<File>, operation: Operation) {
        self.files_in_flight += 1;
        let operation = match Checked::new(operation) {
            Ok(operation) if operation.is_void() => {
                return self.end_file(token, Ok(0), operation.into_operation());
            }
            Ok(operation) => operation,
            Err(operation) => {
                return self.end_file(token, Err(io::ErrorKind::InvalidInput.into()), operation);
            }
        };
        if let Err(operation) = self.poller.submit_file(token, file, operation) {
            self.workers.submit(token, file, operation);
        }
    }

    /// Ends an operation without the kernel.
    fn end_file(&mut self, token: u64, result: io::Result<usize>, operation: Operation) {
        self.ended.push(Finished { token, result, operation });
    }

    /// File operations started and not yet reported.
    pub fn files_in_flight(&self) -> usize {
        self.files_in_flight
    }

    /// One turn: appends what happened to `events`, a bounded number of them. If nothing happened it spins or
    /// sleeps by its [`Mode`]: it returns without an event at `deadline`, and sometimes earlier.
    ///
    /// # Errors
    /// Only if the kernel breaks the reactor itself.
    pub fn turn(&mut self, deadline: Option<Instant>, events: &mut Vec<Event>) -> io::Result<()> {
        let events_before = events.len();
        self.begin_turn();
        let is_urgent = self.lanes.are_all_cold() || !self.spin.is_spinning(self.now);
        self.look(Wait::No { is_urgent }, events)?;
        if events.len() == events_before {
            match self.spin.is_spinning(self.now) {
                true => std::hint::spin_loop(),
                false => self.sleep(deadline, events)?,
            }
        }
        Ok(())
    }

    fn begin_turn(&mut self) {
        let before = std::mem::replace(&mut self.now, Instant::now());
        self.was_busy = std::mem::take(&mut self.is_busy);
        if self.was_busy {
            self.busy_time += self.now.saturating_duration_since(before);
            self.spin.on_work(self.now);
        }
    }

    /// Appends what there is to do, waiting for it as told.
    fn look(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        let events_before = events.len();
        self.collect(wait)?;
        if let Wait::For(_) = wait {
            self.wake_up();
        }
        if !self.occurrences.is_empty() {
            let mut occurrences = std::mem::take(&mut self.occurrences);
            occurrences.drain(..).for_each(|occurrence| self.on_occurrence(occurrence, events));
            self.occurrences = occurrences;
        }
        self.listeners.accept(self.now, &mut self.poller, events);
        self.take_back_due();
        if self.sleeper.take_notification() {
            events.push(Event::Woken);
        }
        self.report_files(events);
        if events.len() > events_before {
            self.spin.on_work(self.now);
        }
        self.report_lanes(events);
        Ok(())
    }

    fn collect(&mut self, wait: Wait) -> io::Result<()> {
        let collected = self.poller.collect(wait, self.sleeper.doorbell(), &mut self.occurrences);
        let Err(refusal) = collected else { return Ok(()) };
        self.follow_thread(refusal)?;
        self.poller.collect(wait, self.sleeper.doorbell(), &mut self.occurrences)
    }

    /// It may have come to another thread: then everything is armed anew.
    #[cold]
    fn follow_thread(&mut self, refusal: io::Error) -> io::Result<()> {
        self.poller.follow_thread(refusal)?;
        self.listeners.on_disarmed();
        for lane in self.lanes.iter() {
            if lane.is_read_armed {
                self.poller.arm_read(lane.socket.as_fd(), lane.key(Kind::Read));
            }
            if lane.is_write_armed {
                self.poller.arm_write(lane.socket.as_fd(), lane.key(Kind::Write))?;
            }
        }
        Ok(())
    }

    fn on_occurrence(&mut self, occurrence: Occurrence, events: &mut Vec<Event>) {
        match occurrence {
            Occurrence::Readable { key, is_hung_up } => {
                let Some(lane) = self.lanes.of_key(key) else { return };
                lane.is_ready = true;
                lane.is_hung_up |= is_hung_up;
                lane.is_read_armed = false;
                let token = lane.token;
                if is_hung_up {
                    // It may be the kernel's way to say that it gives memory back.
                    self.take_back(token);
                }
                self.lanes.activate(token);
                self.spin.on_work(self.now);
            }
            Occurrence::Writable { key } => {
                let Some(lane) = self.lanes.of_key(key) else { return };
                lane.is_write_armed = false;
                if std::mem::take(&mut lane.wants_write) {
                    events.push(Event::Writable(lane.token));
                }
            }
            Occurrence::Acceptable { index } => self.listeners.on_acceptable(index),
            // The notification itself says it.
            Occurrence::Doorbell => {}
            Occurrence::File(finished) => self.report_file(finished, events),
        }
    }

    fn report_files(&mut self, events: &mut Vec<Event>) {
        while let Some(finished) = self.ended.pop().or_else(|| self.workers.poll()) {
            self.report_file(finished, events);
        }
    }

    fn report_file(&mut self, finished: Finished, events: &mut Vec<Event>) {
        self.files_in_flight -= 1;
        events.push(Event::File(finished));
    }

    fn report_lanes(&mut self, events: &mut Vec<Event>) {
        let is_spinning = self.spin.is_spinning(self.now);
        let poller = &mut self.poller;
        let report = |token| events.push(Event::Readable(token));
        let cool = |lane: &mut Lane| {
            if !std::mem::replace(&mut lane.is_read_armed, true) {
                poller.arm_read(lane.socket.as_fd(), lane.key(Kind::Read));
            }
        };
        self.lanes.go_round(LANES_MAX, is_spinning, report, cool);
    }

    /// Sleeps until something happens or `deadline`. Everything that can happen is armed: no lane is active,
    /// no listener ready.
    fn sleep(&mut self, deadline: Option<Instant>, events: &mut Vec<Event>) -> io::Result<()> {
        if !self.lanes.are_all_cold() || self.listeners.is_ready() {
            return Ok(());
        }
        let others = [self.listeners.poll_timeout(), self.lending_timeout()];
        let end = others.into_iter().chain([deadline]).flatten().min();
        let time = end.map(|end| end.saturating_duration_since(self.now));
        if time.is_some_and(|time| time.is_zero()) || !self.sleeper.try_sleep() {
            return Ok(());
        }
        self.sleeps_count += 1;
        let (start, events_before) = (self.now, events.len());
        self.look(Wait::For(time), events)?;
        if events.len() > events_before {
            self.spin.on_slept(self.now.saturating_duration_since(start));
        }
        Ok(())
    }

    fn wake_up(&mut self) {
        self.sleeper.awake();
        self.now = Instant::now();
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.listeners.remove_all(&mut self.poller);
        self.end_lending();
        for lane in self.lanes.iter() {
            self.poller.unregister(lane.socket.as_fd(), lane.armed());
        }
    }
}

/// Lanes reported in one turn.
const LANES_MAX: usize = 64;
