//! Supervision of an engine's threads: their heartbeat, and the sessions that they work for.
//!
//! Each thread records the session that it works for in memory that the supervisor shares, and copies the
//! current beat to its own counter in each turn. A thread that has missed [`MAX_MISSED_BEATS`] beats is stuck.
//! Beats are counted, not timed, so that a process that was stopped or starved of CPU time does not count as
//! stuck.
//!
//! Invariant: after an engine has died, [`Record::suspect`] names a session only if one of the dead engine's
//! threads worked for that session.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use isolane_engine_api::MAX_CORES;
use isolane_shm::{PAGE_SIZE, SharedMemory, ShmRef};

/// Sessions that an engine's threads work for, in memory that the engine and its supervisor share.
#[derive(Clone, Debug)]
pub(crate) struct Record(SharedMemory);

impl Record {
    pub fn new() -> io::Result<Record> {
        SharedMemory::create("isolane-watch", RECORD_BYTES).map(Record).map_err(io::Error::other)
    }

    /// Maps the memory of the supervisor.
    pub fn open(memory: SharedMemory) -> Record {
        Record(memory)
    }

    pub fn memory(&self) -> &SharedMemory {
        &self.0
    }

    fn word(&self, at: usize) -> io::Result<ShmRef<AtomicU64>> {
        self.0.atomic_u64((at * LINE_BYTES) as u64).map_err(io::Error::other)
    }

    fn words(&self) -> impl Iterator<Item = ShmRef<AtomicU64>> {
        (0..WORDS).filter_map(|at| self.word(at).ok())
    }

    /// Removes all sessions, for the next engine.
    pub fn clear(&self) {
        self.words().for_each(|word| word.store(NONE, Ordering::Relaxed));
    }

    /// Returns the session that has probably ended the engine: the one of the thread that panicked or got stuck, or the
    /// only session at work. Returns `None` if several were at work.
    pub fn suspect(&self) -> Option<u32> {
        let mut sessions: Vec<u64> = self
            .words()
            .map(|word| word.load(Ordering::Relaxed))
            .filter(|session| *session != NONE)
            .collect();
        let culprit = self.word(CULPRIT).map_or(NONE, |word| word.load(Ordering::Relaxed));
        match culprit {
            NONE => {}
            NO_SESSION => return None,
            session => return Some(session as u32),
        }
        sessions.dedup();
        match sessions[..] {
            [session] => Some(session as u32),
            _ => None,
        }
    }
}

/// Heartbeat of all threads of an engine.
pub(crate) struct Watch {
    beat: Arc<AtomicU64>,
    threads: Vec<Arc<AtomicU64>>,
    record: Record,
}

/// Thread that no longer turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stuck {
    /// Index of the core, or `None` for the control thread.
    pub core: Option<usize>,
    /// Session that the thread works for.
    pub session: Option<u32>,
}

impl Watch {
    /// For a control thread and `cores` threads of cores.
    pub fn new(record: Record, cores: usize) -> Watch {
        let threads = (0..=cores).map(|_| Arc::default()).collect();
        Watch { beat: Arc::default(), threads, record }
    }

    /// Returns the part of the control thread (0) or of a core (its index + 1).
    pub fn part(&self, thread: usize) -> io::Result<Part> {
        Ok(Part {
            session: self.record.word(FIRST_THREAD + thread)?,
            culprit: self.record.word(CULPRIT)?,
            beat: Arc::clone(&self.beat),
            seen: Arc::clone(&self.threads[thread]),
        })
    }

    /// Starts the next beat. The caller wakes all threads, so that each turns at least once before the next beat.
    ///
    /// # Errors
    /// [`Stuck`], if a thread has missed too many beats.
    pub fn beat(&self) -> Result<(), Stuck> {
        let beat = self.beat.fetch_add(1, Ordering::Relaxed) + 1;
        let is_stuck = |seen: &Arc<AtomicU64>| beat - seen.load(Ordering::Relaxed) > MAX_MISSED_BEATS;
        let Some(thread) = self.threads.iter().position(is_stuck) else { return Ok(()) };
        let word = self.record.word(FIRST_THREAD + thread);
        let session = word.map_or(NONE, |word| word.load(Ordering::Relaxed));
        if let Ok(culprit) = self.record.word(CULPRIT) {
            blame(&culprit, session);
        }
        let session = (session != NONE).then_some(session as u32);
        Err(Stuck { core: thread.checked_sub(1), session })
    }
}

/// One thread's part in the supervision.
#[derive(Debug)]
pub(crate) struct Part {
    session: ShmRef<AtomicU64>,
    culprit: ShmRef<AtomicU64>,
    beat: Arc<AtomicU64>,
    seen: Arc<AtomicU64>,
}

impl Part {
    /// Records a turn of the thread.
    #[inline]
    pub fn turn(&self) {
        let beat = self.beat.load(Ordering::Relaxed);
        if self.seen.load(Ordering::Relaxed) != beat {
            self.seen.store(beat, Ordering::Relaxed);
        }
    }

    /// Records the session that the thread works for.
    #[inline]
    pub fn work_for(&self, session: u32) {
        self.session.store(session.into(), Ordering::Relaxed);
    }

    /// Records that the thread works for no session.
    #[inline]
    pub fn work_for_none(&self) {
        self.session.store(NONE, Ordering::Relaxed);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if std::thread::panicking() {
            blame(&self.culprit, self.session.load(Ordering::Relaxed));
        }
    }
}

/// Records the session, if any, of the thread that ends the engine.
fn blame(culprit: &AtomicU64, session: u64) {
    culprit.store(if session == NONE { NO_SESSION } else { session }, Ordering::Relaxed);
}

/// Session numbers start at 1.
const NONE: u64 = 0;
/// The thread that has ended the engine worked for no session.
const NO_SESSION: u64 = u64::MAX;
/// Distance between words, so that threads share no cache line.
const LINE_BYTES: usize = 64;
const CULPRIT: usize = 0;
const FIRST_THREAD: usize = 1;
/// One word for the culprit, the control thread, and each core.
const WORDS: usize = FIRST_THREAD + 1 + MAX_CORES;
const RECORD_BYTES: usize = (WORDS * LINE_BYTES).next_multiple_of(PAGE_SIZE);
/// Maximum number of beats that a thread may miss.
pub(crate) const MAX_MISSED_BEATS: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> (Record, Watch) {
        let record = Record::new().unwrap();
        (record.clone(), Watch::new(record, 2))
    }

    #[test]
    fn suspects_session_of_stuck_thread() {
        let (record, watch) = watch();
        let parts: Vec<Part> = (0..3).map(|thread| watch.part(thread).unwrap()).collect();
        parts[1].work_for(5);
        parts[2].work_for(7);
        for _ in 0..3 * MAX_MISSED_BEATS {
            parts.iter().for_each(Part::turn);
            assert_eq!(watch.beat(), Ok(()));
        }
        let mut beats = 0;
        let stuck = loop {
            parts[..2].iter().for_each(Part::turn);
            beats += 1;
            if let Err(stuck) = watch.beat() {
                break stuck;
            }
        };
        assert_eq!((stuck, beats), (Stuck { core: Some(1), session: Some(7) }, MAX_MISSED_BEATS));
        assert_eq!(record.suspect(), Some(7));
    }

    #[test]
    fn suspects_session_of_panicking_thread() {
        let (record, watch) = watch();
        let (bystander, culprit) = (watch.part(1).unwrap(), watch.part(2).unwrap());
        bystander.work_for(3);
        let thread = std::thread::spawn(move || {
            culprit.work_for(4);
            panic!("session 4 breaks this thread");
        });
        assert!(thread.join().is_err());
        assert_eq!(record.suspect(), Some(4));
    }

    /// Sessions of other threads are not suspects.
    #[test]
    fn suspects_no_session_of_idle_thread() {
        let (record, watch) = watch();
        let (control, core) = (watch.part(0).unwrap(), watch.part(1).unwrap());
        core.work_for(6);
        while watch.beat().is_ok() {
            core.turn();
        }
        assert_eq!(record.suspect(), None);
        record.clear();
        core.work_for(6);
        let thread = std::thread::spawn(move || {
            let _control = control;
            panic!("no session breaks this thread");
        });
        assert!(thread.join().is_err());
        assert_eq!(record.suspect(), None);
    }

    #[test]
    fn suspects_only_session_at_work() {
        let (record, watch) = watch();
        let (one, other) = (watch.part(1).unwrap(), watch.part(2).unwrap());
        assert_eq!(record.suspect(), None);
        one.work_for(3);
        assert_eq!(record.suspect(), Some(3));
        other.work_for(4);
        assert_eq!(record.suspect(), None);
        other.work_for_none();
        assert_eq!(record.suspect(), Some(3));
        record.clear();
        assert_eq!(record.suspect(), None);
    }
}
