//! The connection to the engine: any thread asks, and one of its own receives.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use isolane_ring::{Memory, process_id};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

use super::closing::{Closing, UNASKED};
use super::{HELLO, Room, Watcher};
use crate::AttachError;
use crate::control::{ASKED_MAX, Object, Open, Reply, Request, VERSION, Welcome, Wire, WireError};

/// The connection.
pub(super) struct Line {
    wire: Wire,
    state: Mutex<State>,
    changed: Condvar,
    epoch: AtomicU64,
    is_over: AtomicBool,
    watchers: Mutex<Vec<Weak<dyn Watcher>>>,
    closing: Mutex<Closing>,
    has_ended: Condvar,
    /// How long the engine may take to answer.
    patience: Duration,
    /// The process that has opened the session: its identity, and its PID for texts.
    process: (u64, u32),
}

#[derive(Default)]
struct State {
    serial: u32,
    /// What is not answered, by serial number.
    asked: BTreeMap<u32, Asked>,
    answers: HashMap<u32, Reply>,
    /// Why it is over.
    over: Option<String>,
}

/// In two halves: a process that was itself stopped takes what has come meanwhile in the second.
struct Waiting {
    halves: u32,
    /// The engine that is waited for.
    epoch: u64,
}

/// What is to be asked again if the engine dies before it has answered.
struct Asked {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    patience: Duration,
}

/// Says hello and waits for the answer, for so long.
pub(super) fn greet(
    wire: &Wire,
    memory: &Memory,
    life: BorrowedFd<'_>,
    path: &Path,
    patience: Duration,
) -> Result<Welcome, AttachError> {
    let stranger = |why: String| AttachError::Stranger { path: path.to_owned(), why };
    let until = Instant::now() + patience;
    say_hello(wire, memory, life)?;
    loop {
        let timeout =
            Timespec::try_from(until.saturating_duration_since(Instant::now())).expect("short enough");
        let count = poll(&mut [PollFd::new(wire, PollFlags::IN)], Some(&timeout));
        if count.map_err(|error| AttachError::system("cannot wait for the engine", error))? == 0 {
            return Err(AttachError::Silent { path: path.to_owned(), patience });
        }
        let packet = match wire.receive(false) {
            Ok(Some(packet)) => packet,
            Ok(None) => continue,
            Err(WireError::Closed) => return Err(WireError::Closed.into()),
            Err(error) => return Err(stranger(error.to_string())),
        };
        match Reply::decode(&packet.bytes).map_err(|error| stranger(error.to_string()))?.1 {
            Reply::Welcome(welcome) if welcome.version == VERSION => return Ok(welcome),
            Reply::Welcome(welcome) => {
                return Err(stranger(format!("its version is {}, not {VERSION}", welcome.version)));
            }
            Reply::Refused(why) => return Err(AttachError::Refused { what: "the session", why }),
            // The engine was killed before it could answer.
            Reply::Restarted { .. } => say_hello(wire, memory, life)?,
            _ => return Err(stranger("it has answered something else than was asked".into())),
        }
    }
}

fn say_hello(wire: &Wire, memory: &Memory, life: BorrowedFd<'_>) -> Result<(), AttachError> {
    match wire.send(&HELLO.encode(FIRST), &[memory.memfd(), life], true) {
        // Who turns everybody away does not listen before it says why.
        Ok(()) | Err(WireError::Closed) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Line {
    /// Of a connection on which the greeting is done. Starts the thread that receives.
    pub fn start(wire: Wire, epoch: u64) -> Result<Arc<Line>, AttachError> {
        Line::with_patience(wire, epoch, PATIENCE)
    }

    /// As [`Line::start`], with a limit on how long the engine may take to answer.
    pub(super) fn with_patience(
        wire: Wire,
        epoch: u64,
        patience: Duration,
    ) -> Result<Arc<Line>, AttachError> {
        let line = Arc::new(Line {
            wire,
            state: Mutex::new(State { serial: FIRST, ..State::default() }),
            changed: Condvar::new(),
            epoch: AtomicU64::new(epoch),
            is_over: AtomicBool::new(false),
            watchers: Mutex::default(),
            closing: Mutex::default(),
            has_ended: Condvar::new(),
            patience,
            process: (process_id(), std::process::id()),
        });
        let receiver = Arc::clone(&line);
        let thread = std::thread::Builder::new().name("isolane-attach".into());
        let thread = thread.spawn(move || receiver.receive());
        thread.map_err(|error| AttachError::system("cannot start a thread", error))?;
        Ok(line)
    }

    /// See [`Session::ask`](super::Session::ask).
    pub fn ask(
        &self,
        what: &'static str,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Reply, AttachError> {
        let serial = self.begin(request, descriptors)?;
        self.finish(what, serial)
    }

    /// Asks for something without waiting for the answer, unless too much is not answered yet. Returns the serial number
    /// for [`Line::finish`].
    pub fn begin(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<u32, AttachError> {
        self.check_process()?;
        let kept = descriptors.iter().map(|descriptor| descriptor.try_clone_to_owned());
        let kept = kept.collect::<Result<_, _>>();
        let kept = kept.map_err(|error| AttachError::system("cannot keep a descriptor", error))?;
        let mut state = self.state.lock();
        let patience = self.patience(request);
        let mut waiting = Waiting { halves: 0, epoch: self.epoch() };
        // So few that to send them never waits: whoever waits holds the lock that the answers need.
        while state.asked.len() >= ASKED_MAX {
            // As long as any of them may take: it is their answers that this waits for.
            let longest = state.asked.values().map(|asked| asked.patience).max().unwrap_or(patience);
            self.wait(&mut state, longest, &mut waiting)?;
        }
        let serial = state.serial.checked_add(1).unwrap_or(FIRST);
        state.serial = serial;
        let bytes = request.encode(serial);
        // Under the lock: what is asked again after a restart must not come before.
        self.wire.send(&bytes, descriptors, true).map_err(|error| self.why_not(&state, error))?;
        state.asked.insert(serial, Asked { bytes, descriptors: kept, patience });
        Ok(serial)
    }

    /// Waits for the answer to what was begun, which is anything but a refusal.
    pub fn finish(&self, what: &'static str, serial: u32) -> Result<Reply, AttachError> {
        match self.answer(serial)? {
            Reply::Refused(why) => Err(AttachError::Refused { what, why }),
            reply => Ok(reply),
        }
    }

    /// See [`Session::close`](super::Session::close).
    pub fn close(&self, id: u32, room: Room) -> Result<(), AttachError> {
        self.check_process()?;
        let mut closing = self.closing.lock();
        closing.begin(id, room);
        closing.ask(&self.wire);
        drop(closing);
        let outcome = self.check();
        if outcome.is_err() {
            // It may have come after the end of all.
            drop(self.ended(id));
        }
        outcome
    }

    /// The session's memory is used up: closed streams may have to make room.
    pub fn relieve(&self) {
        if self.check_process().is_ok() {
            self.closing.lock().relieve(&self.wire, Instant::now());
        }
    }

    fn ended(&self, id: u32) -> Option<Room> {
        let room = self.closing.lock().end(id);
        self.has_ended.notify_all();
        room
    }

    /// Waits until something that was closed has ended, but no longer than `until`.
    pub fn wait_closed(&self, id: u32, until: Instant) {
        let mut closing = self.closing.lock();
        while closing.has(id) && !self.has_ended.wait_until(&mut closing, until).timed_out() {}
    }

    fn answer(&self, serial: u32) -> Result<Reply, AttachError> {
        let mut state = self.state.lock();
        let patience = state.asked.get(&serial).map_or(self.patience, |asked| asked.patience);
        let mut waiting = Waiting { halves: 0, epoch: self.epoch() };
        loop {
            if let Some(reply) = state.answers.remove(&serial) {
                return Ok(reply);
            }
            self.wait(&mut state, patience, &mut waiting)?;
        }
    }

    /// Waits for any answer. An engine that is stuck is replaced, and the next one asked again; if none answers, the
    /// session is over, because the engine may have what was asked for or not.
    fn wait(
        &self,
        state: &mut MutexGuard<'_, State>,
        patience: Duration,
        waiting: &mut Waiting,
    ) -> Result<(), AttachError> {
        if let Some(why) = &state.over {
            return Err(AttachError::Over(why.clone()));
        }
        if !self.changed.wait_for(state, patience / 2).timed_out() {
            return Ok(());
        }
        if waiting.epoch != self.epoch() {
            *waiting = Waiting { halves: 0, epoch: self.epoch() };
            return Ok(());
        }
        waiting.halves += 1;
        if waiting.halves < 2 {
            return Ok(());
        }
        state.asked.clear();
        let why =
            format!("the engine has not answered within {patience:?}, see whether its processes are stopped");
        // Before the thread that receives hears of the end.
        state.over.get_or_insert_with(|| why.clone());
        MutexGuard::unlocked(state, || self.end(why.clone()));
        Err(AttachError::Over(why))
    }

    /// How long the engine may take to answer, its replacement included.
    fn patience(&self, request: &Request) -> Duration {
        match request {
            // A target may be slow: the engine itself gives up before.
            Request::Open(Open { object: Object::Volume { .. }, .. }) => self.patience + VOLUME_PATIENCE,
            _ => self.patience,
        }
    }

    /// What a send that failed says about the session.
    fn why_not(&self, state: &State, error: WireError) -> AttachError {
        match (&state.over, error) {
            (Some(why), _) => AttachError::Over(why.clone()),
            (None, WireError::Closed) => AttachError::Over(CLOSED.into()),
            (None, error) => AttachError::Wire(error),
        }
    }

    /// The thread that receives.
    fn receive(&self) {
        let why = loop {
            match self.wire.receive(true) {
                Ok(Some(packet)) => {
                    if let Err(why) = self.on_packet(&packet.bytes) {
                        break why;
                    }
                }
                // A receive that waits does not come back with nothing, but nothing bad follows if it does.
                Ok(None) => {}
                Err(WireError::Closed) => break CLOSED.into(),
                Err(error) => break error.to_string(),
            }
        };
        self.end(why);
    }

    fn on_packet(&self, bytes: &[u8]) -> Result<(), String> {
        let (serial, reply) = Reply::decode(bytes).map_err(|error| error.to_string())?;
        match reply {
            Reply::Restarted { epoch } => return self.on_restarted(epoch),
            Reply::Ended { id } => {
                drop(self.ended(id));
                return Ok(());
            }
            _ if serial == UNASKED => {
                let mut closing = self.closing.lock();
                closing.on_answered();
                closing.ask(&self.wire);
                return Ok(());
            }
            _ => {}
        }
        let mut state = self.state.lock();
        // Other answers are to what was asked twice.
        if state.asked.remove(&serial).is_some() {
            state.answers.insert(serial, reply);
            self.changed.notify_all();
        }
        Ok(())
    }

    fn on_restarted(&self, epoch: u64) -> Result<(), String> {
        self.epoch.store(epoch, Ordering::Release);
        let state = self.state.lock();
        for asked in state.asked.values() {
            let descriptors: Vec<_> = asked.descriptors.iter().map(AsFd::as_fd).collect();
            self.wire.send(&asked.bytes, &descriptors, true).map_err(|error| error.to_string())?;
        }
        drop(state);
        let mut closing = self.closing.lock();
        closing.on_restarted();
        closing.ask(&self.wire);
        drop(closing);
        self.watchers().iter().for_each(|watcher| watcher.on_restarted(epoch));
        Ok(())
    }

    fn end(&self, why: String) {
        // Before the thread that receives finds the connection closed, and has no better reason.
        self.state.lock().over.get_or_insert(why);
        self.is_over.store(true, Ordering::Release);
        self.hang_up();
        self.changed.notify_all();
        let closing = self.closing.lock().end_all();
        self.has_ended.notify_all();
        drop(closing);
        self.watchers().iter().for_each(|watcher| watcher.on_over());
    }

    /// Those who still live. Not under the lock when they hear something: they may come back to watch.
    fn watchers(&self) -> Vec<Arc<dyn Watcher>> {
        let mut watchers = self.watchers.lock();
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.iter().filter_map(Weak::upgrade).collect()
    }

    pub fn watch(&self, watcher: Weak<dyn Watcher>) {
        if self.check_process().is_err() {
            return;
        }
        let mut watchers = self.watchers.lock();
        if watchers.len() == watchers.capacity() {
            watchers.retain(|watcher| watcher.strong_count() > 0);
        }
        watchers.push(watcher.clone());
        drop(watchers);
        if self.is_over.load(Ordering::Acquire)
            && let Some(watcher) = watcher.upgrade()
        {
            watcher.on_over();
        }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether this is the process that has opened the session. In another, locks may be held by threads that it does
    /// not have, and the shared memory is not mapped.
    #[inline]
    pub fn check_process(&self) -> Result<(), AttachError> {
        match process_id() == self.process.0 {
            true => Ok(()),
            false => Err(AttachError::Forked { pid: self.process.1 }),
        }
    }

    #[inline]
    pub fn check(&self) -> Result<(), AttachError> {
        self.check_process()?;
        match self.is_over.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(AttachError::Over(self.state.lock().over.clone().unwrap_or_else(|| CLOSED.into()))),
        }
    }

    /// Ends the session: the engine sees the end of the connection, and so does the thread that receives.
    pub fn hang_up(&self) {
        // The connection is still that of the process that has forked this one.
        if self.check_process().is_err() {
            return;
        }
        // It fails only if the connection is broken already.
        let _ = shutdown(&self.wire, Shutdown::Both);
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wire.as_fd()
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("wire", &self.wire).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// The serial number of the greeting.
const FIRST: u32 = 1;
const CLOSED: &str = "the engine has closed the connection, or ended with its supervisor";
/// The engine notices after 20 s that one of its threads is stuck.
const PATIENCE: Duration = Duration::from_secs(60);
/// The engine tries for five minutes to connect to a target.
const VOLUME_PATIENCE: Duration = Duration::from_secs(5 * 60);
