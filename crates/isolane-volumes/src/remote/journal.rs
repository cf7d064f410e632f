//! Journal of the associations of remote volumes, in a file that outlives this process.
//!
//! If this process is killed, its targets may still execute writes. Its successor opens the same file, and sends no write
//! to a target before the associations that it finds there are known dead ([`isolane_host::fence`]).
//!
//! The file has slots of [`SLOT_BYTES`]: a tag, a length, and the encoded association; or zeroes. Losing power in the
//! middle of a change leaves a malformed slot, of an association that was not used yet, or was known dead already.
//!
//! Invariant: one process at a time has the file.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use isolane_host::{AssociationJournal, Nqn, StaleAssociation};
use isolane_reactor::file::lock;
use isolane_reactor::retry::{HELD_TIMEOUT, retry_while_held};
use isolane_volume::OpenError;
use parking_lot::{Condvar, Mutex};

/// Associations of this process, and of killed ones before it. Dropping it removes a file without associations.
pub struct JournalFile {
    path: PathBuf,
    file: Arc<File>,
    entries: Mutex<Entries>,
    /// Notified when an entry is erased.
    erased: Condvar,
    /// Writes the file, so that [`AssociationJournal::erase`] does not block.
    writer: Option<(Sender<Change>, JoinHandle<()>)>,
}

#[derive(Default)]
struct Entries {
    by_key: BTreeMap<u64, Entry>,
    next_key: u64,
}

struct Entry {
    slot: usize,
    /// Of an earlier process.
    stale: Option<StaleAssociation>,
}

/// A change of a slot. A record is durable when its result is sent.
struct Change {
    slot: usize,
    content: Box<[u8; SLOT_BYTES]>,
    result: Option<SyncSender<io::Result<()>>>,
}

impl JournalFile {
    /// Opens a journal, or creates it. Waits a few seconds for one that a process has, perhaps a killed one.
    ///
    /// # Errors
    /// The reason, with the remedy.
    pub fn open(path: &Path) -> Result<Arc<JournalFile>, OpenError> {
        let name = path.display().to_string();
        let system = |error: &io::Error, remedy| {
            OpenError::new(&name, error.to_string(), remedy).with_os_error(error.raw_os_error())
        };
        let is_held = |opened: &io::Result<Option<File>>| matches!(opened, Ok(None));
        let notify = || log::warn!("{name} is in use; waiting up to {HELD_TIMEOUT:?} for it");
        let opened = retry_while_held(HELD_TIMEOUT, || open_locked(path), is_held, notify);
        let file = opened.map_err(|error| system(&error, "choose a directory that can be written"))?;
        let file = file.ok_or_else(|| {
            OpenError::new(&name, "another program has this journal", "stop it, or choose another socket")
        })?;
        let mut bytes = Vec::new();
        let read = (&file).take(MAX_SLOTS as u64 * SLOT_BYTES as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| system(&error, "remove it"))?;
        let Some(entries) = decode(&name, &bytes) else {
            return Err(OpenError::new(
                &name,
                "it is not a journal of associations",
                "choose another socket",
            ));
        };
        let file = Arc::new(file);
        let writer = spawn_writer(Arc::clone(&file), name.clone());
        let writer = Some(writer.map_err(|error| system(&error, "free some threads"))?);
        let entries = Mutex::new(entries);
        Ok(Arc::new(JournalFile { path: path.to_owned(), file, entries, erased: Condvar::new(), writer }))
    }

    /// Returns the associations of earlier processes that a client of this subsystem must await, or of any subsystem.
    pub fn stale(&self, nqn: Option<Nqn>) -> Vec<(u64, StaleAssociation)> {
        let entries = self.entries.lock();
        let stale = entries.by_key.iter().filter_map(|(key, entry)| Some((*key, entry.stale.clone()?)));
        stale.filter(|(_, association)| nqn.is_none_or(|nqn| nqn == association.nqn)).collect()
    }

    /// Waits until the associations of this process have ended, for up to `timeout`. Called before the process ends: threads
    /// of clients may still have the journal then, so that it is not dropped.
    pub fn wait_for_end(&self, timeout: Duration) {
        let mut entries = self.entries.lock();
        let deadline = Instant::now() + timeout;
        while entries.by_key.values().any(|entry| entry.stale.is_none()) {
            if self.erased.wait_until(&mut entries, deadline).timed_out() {
                return;
            }
        }
        self.remove_if_empty(&entries);
    }

    fn remove_if_empty(&self, entries: &Entries) {
        if entries.by_key.is_empty() && is_at(&self.file, &self.path) {
            // The next process creates it.
            let _ = fs::remove_file(&self.path);
        }
    }

    fn change(&self, change: Change) {
        if let Some((writer, _)) = &self.writer {
            // Without the thread, the sender of a result is dropped.
            let _ = writer.send(change);
        }
    }
}

impl AssociationJournal for JournalFile {
    fn record(&self, association: &StaleAssociation) -> io::Result<u64> {
        let mut entries = self.entries.lock();
        let is_free = |slot: &usize| entries.by_key.values().all(|entry| entry.slot != *slot);
        let slot = (0..MAX_SLOTS).find(is_free).ok_or(io::ErrorKind::StorageFull)?;
        let key = entries.next_key;
        entries.next_key += 1;
        entries.by_key.insert(key, Entry { slot, stale: None });
        let (result, written) = sync_channel(1);
        // With the lock, so that an older change of the slot comes first.
        self.change(Change { slot, content: encode(association), result: Some(result) });
        drop(entries);
        match written.recv() {
            Ok(Ok(())) => Ok(key),
            failed => {
                self.erase(key);
                Err(failed
                    .map_or_else(io::Error::other, |result| result.err().unwrap_or_else(|| unreachable!())))
            }
        }
    }

    fn erase(&self, key: u64) {
        let mut entries = self.entries.lock();
        // Several clients may have awaited the same association.
        let Some(Entry { slot, .. }) = entries.by_key.remove(&key) else { return };
        self.change(Change { slot, content: Box::new([0; SLOT_BYTES]), result: None });
        self.erased.notify_all();
    }
}

impl Drop for JournalFile {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.writer.take() {
            drop(sender);
            let _ = thread.join();
        }
        self.remove_if_empty(&self.entries.lock());
    }
}

/// Returns `None` if another process has the file.
fn open_locked(path: &Path) -> io::Result<Option<File>> {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    // The process that had it may have removed it.
    Ok((lock(&file, true)? && is_at(&file, path)).then_some(file))
}

/// Whether a path names this file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(file), Ok(there)) => identity(file) == identity(there),
        _ => false,
    }
}

fn spawn_writer(file: Arc<File>, name: String) -> io::Result<(Sender<Change>, JoinHandle<()>)> {
    let (sender, changes): (Sender<Change>, Receiver<Change>) = mpsc::channel();
    let write = move || {
        for Change { slot, content, result } in changes {
            let written = file.write_all_at(&content[..], (slot * SLOT_BYTES) as u64);
            let written = written.and_then(|()| file.sync_data());
            match (result, written) {
                (Some(result), written) => drop(result.send(written)),
                (None, Ok(())) => {}
                (None, Err(error)) => log::limited!(Warn, "{name}: an association cannot be erased: {error}"),
            }
        }
    };
    Ok((sender, thread::Builder::new().name("isolane-journal".to_owned()).spawn(write)?))
}

fn encode(association: &StaleAssociation) -> Box<[u8; SLOT_BYTES]> {
    let (mut slot, bytes) = (Box::new([0; SLOT_BYTES]), association.encode());
    slot[..TAG.len()].copy_from_slice(TAG);
    slot[TAG.len()..HEADER_BYTES].copy_from_slice(&(bytes.len() as u16).to_le_bytes());
    slot[HEADER_BYTES..][..bytes.len()].copy_from_slice(&bytes);
    slot
}

/// Returns `None` for another kind of file.
fn decode(name: &str, bytes: &[u8]) -> Option<Entries> {
    let mut entries = Entries::default();
    if bytes.len() > MAX_SLOTS * SLOT_BYTES {
        return None;
    }
    for (slot, content) in bytes.chunks(SLOT_BYTES).enumerate() {
        let Some(content) = content.strip_prefix(TAG) else {
            if content.iter().any(|byte| *byte != 0) {
                return None;
            }
            continue;
        };
        let association = content
            .split_first_chunk()
            .and_then(|(len, rest)| StaleAssociation::decode(rest.get(..u16::from_le_bytes(*len).into())?));
        if association.is_none() {
            log::error!("{name}: slot {slot} is malformed, not waiting for the end of its association");
            continue;
        }
        let key = entries.next_key;
        entries.next_key += 1;
        entries.by_key.insert(key, Entry { slot, stale: association });
    }
    Some(entries)
}

const SLOT_BYTES: usize = 1024;
const TAG: &[u8; 8] = b"isolane\n";
const HEADER_BYTES: usize = TAG.len() + size_of::<u16>();
const _: () = assert!(HEADER_BYTES + StaleAssociation::MAX_BYTES <= SLOT_BYTES);
/// More than the associations of all members, and of those that they replace.
const MAX_SLOTS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "nqn.2024-01.org.example:one";
    const OTHER: &str = "nqn.2024-01.org.example:other";

    fn association(nqn: &str) -> StaleAssociation {
        StaleAssociation {
            address: "127.0.0.1:4420".parse().unwrap(),
            nqn: nqn.parse().unwrap(),
            cntlid: 7,
            host_nqn: isolane_host::host_nqn(),
            host_id: isolane_host::host_id(),
            keep_alive: Duration::from_secs(15),
            traffic_based_keep_alive: false,
            command_quiesce_time: Some(Duration::ZERO),
        }
    }

    fn path() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vm.sock.journal");
        (dir, path)
    }

    fn stale(journal: &JournalFile, nqn: Option<&str>) -> Vec<StaleAssociation> {
        let stale = journal.stale(nqn.map(|nqn| nqn.parse().unwrap()));
        stale.into_iter().map(|(_, association)| association).collect()
    }

    #[test]
    fn successor_finds_what_was_not_erased() {
        let (_dir, path) = path();
        let journal = JournalFile::open(&path).unwrap();
        let first = journal.record(&association(ONE)).unwrap();
        journal.record(&association(OTHER)).unwrap();
        assert!(journal.stale(None).is_empty(), "only those of earlier processes are stale");
        journal.erase(first);
        journal.record(&association(ONE)).unwrap();
        // The slot is in use again.
        journal.erase(first);
        drop(journal);
        let journal = JournalFile::open(&path).unwrap();
        assert_eq!(stale(&journal, None).len(), 2);
        assert_eq!(stale(&journal, Some(OTHER)), [association(OTHER)]);
        for (key, _) in journal.stale(None) {
            journal.erase(key);
        }
        drop(journal);
        assert!(!path.exists(), "a journal without associations is left");
    }

    #[test]
    fn end_waits_for_own_associations() {
        let (_dir, path) = path();
        let journal = JournalFile::open(&path).unwrap();
        journal.record(&association(OTHER)).unwrap();
        drop(journal);
        let journal = JournalFile::open(&path).unwrap();
        let key = journal.record(&association(ONE)).unwrap();
        journal.wait_for_end(Duration::ZERO);
        thread::scope(|scope| {
            let end = scope.spawn(|| {
                journal.wait_for_end(Duration::from_secs(60));
                journal.entries.lock().by_key.contains_key(&key)
            });
            journal.erase(key);
            assert!(!end.join().unwrap());
        });
        assert_eq!(stale(&journal, None), [association(OTHER)]);
    }

    #[test]
    fn other_process_is_refused() {
        let (_dir, path) = path();
        let file = open_locked(&path).unwrap().unwrap();
        assert!(open_locked(&path).unwrap().is_none());
        fs::remove_file(&path).unwrap();
        assert!(open_locked(&path).unwrap().is_some(), "a removed file is in no one's way");
        assert!(!is_at(&file, &path));
    }

    #[test]
    fn malformed_slots_are_dropped_other_files_kept() {
        let (_dir, path) = path();
        let valid = encode(&association(ONE));
        let mut malformed = encode(&association(OTHER));
        malformed[HEADER_BYTES + 1] ^= 0xff;
        fs::write(&path, [&malformed[..], &[0; SLOT_BYTES], &valid[..], &valid[..20]].concat()).unwrap();
        let journal = JournalFile::open(&path).unwrap();
        assert_eq!(stale(&journal, None), [association(ONE)]);
        drop(journal);
        let long = vec![0; MAX_SLOTS * SLOT_BYTES + 1];
        for other in [&b"data of a user"[..], &[&valid[..], b"x"].concat(), &long] {
            fs::write(&path, other).unwrap();
            let error = JournalFile::open(&path).err().unwrap().to_string();
            assert!(error.contains("it is not a journal of associations; choose another socket"), "{error}");
            assert!(fs::read(&path).unwrap() == other, "the file was changed");
        }
    }

    #[test]
    fn full_journal_refuses_an_association() {
        let (_dir, path) = path();
        fs::write(&path, encode(&association(ONE)).repeat(MAX_SLOTS)).unwrap();
        let journal = JournalFile::open(&path).unwrap();
        let error = journal.record(&association(ONE)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        journal.erase(journal.stale(None)[3].0);
        journal.record(&association(ONE)).unwrap();
    }
}
