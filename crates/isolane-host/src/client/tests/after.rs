//! A client in the place of a process that was killed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::error::ConnectError;
use crate::mock::Misdeed;
use crate::predecessor::{Predecessor, Witness};

/// Keeps notes as a supervisor would.
#[derive(Default)]
struct Notes {
    kept: Mutex<Vec<(u64, Predecessor)>>,
    made: Mutex<u64>,
    is_refusing: AtomicBool,
}

impl Witness for Notes {
    fn on_made(&self, association: &Predecessor) -> io::Result<u64> {
        if self.is_refusing.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut made = self.made.lock();
        *made += 1;
        let note = Predecessor::decode(&association.encode()).unwrap();
        self.kept.lock().push((*made, note));
        Ok(*made)
    }

    fn on_dead(&self, key: u64) {
        self.kept.lock().retain(|(kept, _)| *kept != key);
    }
}

fn connect_after(target: &Target, options: Options, notes: &Arc<Notes>) -> Result<Client, ConnectError> {
    let left = notes.kept.lock().clone();
    let witness: Arc<dyn Witness> = Arc::clone(notes) as _;
    Client::connect_after(&target.uri(), options, &witness, &left)
}

/// A client that ends as if its process was killed, with a write of unknown fate under way.
fn kill_with_a_write(target: &Target, notes: &Arc<Notes>, misdeed: Misdeed) {
    let options = Options { reconnect: Reconnect::never(), ..options() };
    let mut client = connect_after(target, options, notes).unwrap();
    target.set_misdeed(0, misdeed);
    client.submit(0, write(0, 512, 1), 1);
    client.turn(&mut Vec::new(), Wait::None);
    let end = Instant::now() + PATIENCE;
    while target.shared.script.lock().misdeed.is_some() {
        assert!(Instant::now() < end, "the write was not sent");
        std::thread::yield_now();
    }
    drop(client);
}

#[test]
fn nothing_is_written_before_what_was_left_is_known_dead_and_reads_go_on() {
    let (target, notes) = (Target::start(Script::default()), Arc::new(Notes::default()));
    kill_with_a_write(&target, &notes, Misdeed::LandLate(Duration::from_millis(300)));
    assert_eq!(notes.kept.lock().len(), 1, "it may still land");
    let mut client = connect_after(&target, options(), &notes).unwrap();
    client.submit(0, write(0, 512, 2), 2);
    client.submit(0, write(4000, 512, 3), 3);
    let read = run(&mut client, read(0, 512));
    assert!(read.result.is_ok() && read.buffer.unwrap().to_vec() == [0; 512], "reads do not wait");
    let completions = wait_for(&mut client, 2);
    assert!(completions.iter().all(|completion| completion.result.is_ok()), "{completions:?}");
    assert_eq!(target.shared.landed.lock()[..2], [(0, 1), (0, 2)], "no write was overtaken by an old one");
    assert_eq!(notes.kept.lock().len(), 1, "only its own association is to be known of");
    client.close();
    assert!(notes.kept.lock().is_empty(), "it ended in order");
}

#[test]
fn association_stays_known_if_its_shutdown_times_out() {
    let script = Script { completes_shutdown: false, ..Script::default() };
    let (target, notes) = (Target::start(script), Arc::new(Notes::default()));
    let client = connect_after(&target, options(), &notes).unwrap();
    client.close();
    assert_eq!(target.shared.shutdowns.load(Ordering::SeqCst), 1);
    assert_eq!(notes.kept.lock().len(), 1, "its commands may still be in progress");
}

#[test]
fn an_association_that_nobody_can_know_of_is_not_used() {
    let (target, notes) = (Target::start(Script::default()), Arc::new(Notes::default()));
    notes.is_refusing.store(true, Ordering::SeqCst);
    let error = connect_after(&target, options(), &notes).err().unwrap();
    assert!(matches!(error, ConnectError::System { .. }), "{error}");
    assert!(error.to_string().contains("a note of the association"), "{error}");
}

#[test]
fn each_association_is_noted_and_a_lost_one_only_until_it_is_known_dead() {
    let (target, notes) = (Target::start(Script::default()), Arc::new(Notes::default()));
    let mut client = connect_after(&target, options(), &notes).unwrap();
    target.set_misdeed(0, Misdeed::ApplyAndClose);
    assert!(run(&mut client, write(0, 512, 1)).result.is_ok());
    let kept: Vec<u64> = notes.kept.lock().iter().map(|(key, _)| *key).collect();
    assert_eq!(kept, [*notes.made.lock()], "the last association made is the one that lives");
    assert!(*notes.made.lock() >= 2);
    target.set_misdeed(0, Misdeed::Close);
    assert!(run(&mut client, read(0, 512)).result.is_ok());
    assert_eq!(notes.kept.lock().len(), 1, "without a write under way nothing of it is to be feared");
}

#[test]
fn what_cannot_be_known_fails_instead_of_waiting_for_ever() {
    let script = Script { keeps_controllers: true, ..Script::default() };
    let (target, notes) = (Target::start(script), Arc::new(Notes::default()));
    let short = giving_up_soon();
    let options = Options { keep_alive: Duration::ZERO, reconnect: short, ..options() };
    drop(connect_after(&target, options.clone(), &notes).unwrap());
    let (key, left) = notes.kept.lock()[0].clone();
    let mut client = connect_after(&target, options, &notes).unwrap();
    for _ in 0..2 {
        let completion = run(&mut client, write(0, 512, 2));
        assert!(matches!(completion.result, Err(crate::RequestError::HeldBack)), "{completion:?}");
    }
    let is_kept = || notes.kept.lock().iter().any(|(kept, _)| *kept == key);
    assert!(is_kept(), "it may still be alive");
    target.shared.controllers.lock().remove(&left.cntlid);
    turn_until(&mut client, &mut Vec::new(), |_, _| !is_kept());
    assert!(run(&mut client, write(0, 512, 3)).result.is_ok());
}

/// The target reports no CQT, and this side does not reconnect: no reason not to wait for what was left.
#[test]
fn what_was_left_is_waited_for_without_reconnect() {
    let (target, notes) = (Target::start(Script::default()), Arc::new(Notes::default()));
    kill_with_a_write(&target, &notes, Misdeed::LandLate(Duration::from_millis(300)));
    // The keep-alive timeout is noted with the association.
    notes.kept.lock().iter_mut().for_each(|(_, left)| left.keep_alive = PATIENCE);
    let options = Options { reconnect: Reconnect::never(), ..options() };
    let mut client = connect_after(&target, options, &notes).unwrap();
    let completion = run(&mut client, write(0, 512, 2));
    assert!(completion.result.is_ok(), "{completion:?}");
    assert_eq!(target.shared.landed.lock().clone(), [(0, 1), (0, 2)]);
}
