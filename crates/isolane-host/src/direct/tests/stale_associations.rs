//! A client in the place of a process that was killed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::connect::journal::{AssociationJournal, StaleAssociation};
use crate::error::ConnectError;
use crate::mock::Fault;

/// Keeps notes as a supervisor would.
#[derive(Default)]
struct Notes {
    entries: Mutex<Vec<(u64, StaleAssociation)>>,
    made: Mutex<u64>,
    refusing: AtomicBool,
}

impl AssociationJournal for Notes {
    fn record(&self, association: &StaleAssociation) -> io::Result<u64> {
        if self.refusing.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut made = self.made.lock();
        *made += 1;
        let note = StaleAssociation::decode(&association.encode()).unwrap();
        self.entries.lock().push((*made, note));
        Ok(*made)
    }

    fn erase(&self, key: u64) {
        self.entries.lock().retain(|(entries, _)| *entries != key);
    }
}

fn connect_with_journal(
    target: &Target,
    options: Options,
    notes: &Arc<Notes>,
) -> Result<Client, ConnectError> {
    let left = notes.entries.lock().clone();
    let journal: Arc<dyn AssociationJournal> = Arc::clone(notes) as _;
    Client::connect_with_journal(&target.uri(), options, &journal, &left)
}

/// A client that ends as if its process was killed, with a write of unknown fate in flight.
fn kill_with_a_write(target: &Target, notes: &Arc<Notes>, fault: Fault) {
    let options = Options { reconnect: Reconnect::never(), ..options() };
    let mut client = connect_with_journal(target, options, notes).unwrap();
    target.inject(0, fault);
    client.submit(0, write(0, 512, 1), 1);
    client.turn(&mut Vec::new(), Wait::None);
    let end = Instant::now() + TEST_TIMEOUT;
    while target.shared.script.lock().fault.is_some() {
        assert!(Instant::now() < end, "the write was not sent");
        std::thread::yield_now();
    }
    drop(client);
}

#[test]
fn writes_wait_for_stale_association_reads_do_not() {
    let (target, notes) = (Target::start(Script::default()), Arc::new(Notes::default()));
    kill_with_a_write(&target, &notes, Fault::LandLate(Duration::from_millis(300)));
    assert_eq!(notes.entries.lock().len(), 1, "it may still land");
    let mut client = connect_with_journal(&target, options(), &notes).unwrap();
    client.submit(0, write(0, 512, 2), 2);
    client.submit(0, write(4000, 512, 3), 3);
    let read = run(&mut client, read(0, 512));
    assert!(read.result.is_ok() && read.buffer.unwrap().to_vec() == [0; 512], "reads do not wait");
    let completions = wait_for(&mut client, 2);
    assert!(completions.iter().all(|completion| completion.result.is_ok()), "{completions:?}");
    assert_eq!(target.shared.landed.lock()[..2], [(0, 1), (0, 2)], "no write was overtaken by an old one");
    assert_eq!(notes.entries.lock().len(), 1, "only its association is recorded");
    client.close();
    assert!(notes.entries.lock().is_empty(), "it shut down cleanly");
}

#[test]
fn association_stays_known_if_its_shutdown_times_out() {
    let script = Script { completes_shutdown: false, ..Script::default() };
    let (target, notes) = (Target::start(script), Arc::new(Notes::default()));
    let client = connect_with_journal(&target, options(), &notes).unwrap();
    client.close();
    assert_eq!(target.shared.shutdowns.load(Ordering::SeqCst), 1);
    assert_eq!(notes.entries.lock().len(), 1, "its commands may still be in progress");
}

/// It is sent as no timeout.
#[test]
fn keep_alive_below_a_millisecond_never_expires() {
    let (target, notes) = (Target::start(Script::default()), Arc::new(Notes::default()));
    let options = Options { keep_alive: Duration::from_micros(500), ..options() };
    let _client = connect_with_journal(&target, options, &notes).unwrap();
    let entries = notes.entries.lock();
    let stale = StaleAssociation { command_quiesce_time: Some(Duration::ZERO), ..entries[0].1.clone() };
    assert_eq!(stale.expiry(Instant::now()), None);
}

#[test]
fn unrecorded_association_is_not_used() {
    let (target, notes) = (Target::start(Script::default()), Arc::new(Notes::default()));
    notes.refusing.store(true, Ordering::SeqCst);
    let error = connect_with_journal(&target, options(), &notes).err().unwrap();
    assert!(matches!(error, ConnectError::System { .. }), "{error}");
    assert!(error.to_string().contains("a journal entry"), "{error}");
}

#[test]
fn erases_lost_association_once_dead() {
    let (target, notes) = (Target::start(Script::default()), Arc::new(Notes::default()));
    let mut client = connect_with_journal(&target, options(), &notes).unwrap();
    target.inject(0, Fault::ApplyAndClose);
    assert!(run(&mut client, write(0, 512, 1)).result.is_ok());
    let entries: Vec<u64> = notes.entries.lock().iter().map(|(key, _)| *key).collect();
    assert_eq!(entries, [*notes.made.lock()], "the last association made is the one that lives");
    assert!(*notes.made.lock() >= 2);
    target.inject(0, Fault::Close);
    assert!(run(&mut client, read(0, 512)).result.is_ok());
    assert_eq!(notes.entries.lock().len(), 1, "erased, because no write was in flight");
}

#[test]
fn unknown_fate_fails_writes() {
    let script = Script { keeps_controllers: true, ..Script::default() };
    let (target, notes) = (Target::start(script), Arc::new(Notes::default()));
    let short = short_reconnect();
    let options = Options { keep_alive: Duration::ZERO, reconnect: short, ..options() };
    drop(connect_with_journal(&target, options.clone(), &notes).unwrap());
    let (key, left) = notes.entries.lock()[0].clone();
    let mut client = connect_with_journal(&target, options, &notes).unwrap();
    for _ in 0..2 {
        let completion = run(&mut client, write(0, 512, 2));
        assert!(matches!(completion.result, Err(crate::RequestError::Fenced)), "{completion:?}");
    }
    let has_entry = || notes.entries.lock().iter().any(|(entries, _)| *entries == key);
    assert!(has_entry(), "it may still be alive");
    target.shared.controllers.lock().remove(&left.cntlid);
    turn_until(&mut client, &mut Vec::new(), |_, _| !has_entry());
    assert!(run(&mut client, write(0, 512, 3)).result.is_ok());
}

/// Without a CQT, and without reconnecting, the stale association is still waited for.
#[test]
fn waits_for_stale_association_without_reconnect() {
    let (target, notes) = (Target::start(Script::default()), Arc::new(Notes::default()));
    kill_with_a_write(&target, &notes, Fault::LandLate(Duration::from_millis(300)));
    // The keep-alive timeout is noted with the association.
    notes.entries.lock().iter_mut().for_each(|(_, left)| left.keep_alive = TEST_TIMEOUT);
    let options = Options { reconnect: Reconnect::never(), ..options() };
    let mut client = connect_with_journal(&target, options, &notes).unwrap();
    let completion = run(&mut client, write(0, 512, 2));
    assert!(completion.result.is_ok(), "{completion:?}");
    assert_eq!(target.shared.landed.lock().clone(), [(0, 1), (0, 2)]);
}
