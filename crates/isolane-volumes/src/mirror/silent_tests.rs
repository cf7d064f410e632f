//! Members that do not answer.

use std::sync::mpsc;

use isolane_memory::Payload;
use isolane_memory::Pool;
use isolane_reactor::file::FileOp;
use isolane_volume::nested::{Executor, Operation};
use isolane_volume::{Completer, Step, Task, VolumeError};
use parking_lot::Mutex;

use super::*;
use crate::testing;

/// A member that can stop to answer.
struct Silent {
    inner: Arc<dyn Volume>,
    /// Requests without an answer, while the member is silent.
    unanswered: Mutex<Option<Vec<Completer>>>,
}

impl Silent {
    fn open() -> Arc<Silent> {
        let inner = crate::open(&crate::parse("mem:1M").unwrap()).unwrap();
        Arc::new(Silent { inner, unanswered: Mutex::default() })
    }

    fn silence(&self) {
        *self.unanswered.lock() = Some(Vec::new());
    }

    /// Answers all requests so far.
    fn answer(&self, outcome: &Outcome) {
        let unanswered = self.unanswered.lock().as_mut().map(std::mem::take);
        unanswered.into_iter().flatten().for_each(|completer| completer.complete(outcome.clone()));
    }

    fn unanswered(&self) -> usize {
        self.unanswered.lock().as_ref().map_or(0, Vec::len)
    }
}

impl Volume for Silent {
    fn description(&self) -> &VolumeDescription {
        self.inner.description()
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        match &mut *self.unanswered.lock() {
            None => self.inner.start(request, pool),
            Some(unanswered) => {
                let (completer, step) = Step::pending(&request);
                unanswered.push(completer);
                step
            }
        }
    }
}

/// Opens a new mirror whose members have the same data.
fn open_mirror(
    directory: &tempfile::TempDir,
    options: &[(&str, &str)],
) -> (testing::Driver, [Arc<Silent>; 2]) {
    let members = [Silent::open(), Silent::open()];
    let bitmap = directory.path().join("bitmap").display().to_string();
    let all = [("bitmap", bitmap.as_str()), ("create", "yes")];
    let options = all.iter().chain(options).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let parts = Parts { name: "mirror".to_owned(), options: options.collect(), ..Parts::default() };
    let opened = members.iter().map(|member| Ok(Arc::clone(member) as Arc<dyn Volume>)).collect();
    let mut driver = testing::Driver::new(open(parts, opened).unwrap());
    driver.write(7, &[3; 512], false).unwrap();
    (driver, members)
}

/// Waits until the labels are durable: only a complete member can continue alone.
fn wait_until_in_sync(driver: &testing::Driver, members: &[Arc<Silent>; 2]) {
    let label = |member: &Arc<Silent>| {
        let mut direct = testing::Driver::new(Arc::clone(&member.inner));
        direct.read(2048 - 128, 1).unwrap()[24..40].to_vec()
    };
    while members.iter().any(|member| label(member) != [1_u64, 1].map(u64::to_le_bytes).concat()) {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(driver.volume.conditions()[0].text, "in sync");
}

#[test]
fn continues_without_member_that_does_not_answer() {
    for silent in 0..2 {
        let directory = tempfile::tempdir().unwrap();
        let (mut driver, members) = open_mirror(&directory, &[("member-timeout", "300ms")]);
        wait_until_in_sync(&driver, &members);
        members[silent].silence();
        for lba in 0..4 {
            assert_eq!(driver.read(7, 1).unwrap(), [3; 512]);
            driver.write(lba, &[9; 512], true).unwrap();
            driver.flush().unwrap();
        }
        let unanswered = members[silent].unanswered();
        let text = driver.volume.conditions()[0].text.clone();
        assert!(
            text.starts_with("degraded for ") && text.contains(&format!("without member {}", silent + 1)),
            "{text}"
        );
        assert!(unanswered > 0);
        for lba in 0..4 {
            assert_eq!(driver.read(lba, 1).unwrap(), [9; 512]);
            driver.zero(lba, 1).unwrap();
        }
        assert_eq!(members[silent].unanswered(), unanswered, "a member that was set aside gets requests");
    }
}

#[test]
fn closes_although_no_member_answers() {
    let directory = tempfile::tempdir().unwrap();
    let (driver, members) = open_mirror(&directory, &[("member-timeout", "0s")]);
    members.iter().for_each(|member| member.silence());
    let (sender, closed) = mpsc::channel();
    thread::spawn(move || {
        drop(driver);
        sender.send(()).unwrap();
    });
    closed.recv_timeout(Duration::from_secs(60)).expect("the mirror does not close");
}

#[test]
fn keeps_member_that_answers_soon_after_other() {
    for request in [Request::Flush, Request::Read { lba: 7, blocks: 1 }] {
        let directory = tempfile::tempdir().unwrap();
        let (mut driver, members) = open_mirror(&directory, &[("member-timeout", "300ms")]);
        wait_until_in_sync(&driver, &members);
        members.iter().for_each(|member| member.silence());
        let mut executor = Executor::default();
        let Step::Pending(mut pending) = driver.volume.start(request, &mut driver.pool) else { panic!() };
        executor.start(pending.take_nested().unwrap());
        // A read gets to its second member only after the timeout; both are late then.
        let (mut running, start) = (Vec::new(), Instant::now());
        while running.len() < 2 || start.elapsed() < Duration::from_millis(600) {
            match executor.poll(Instant::now(), &mut driver.pool) {
                Some(Operation::Pending(_, member)) => running.push(member),
                Some(operation) => panic!("{operation:?}"),
                None => thread::sleep(Duration::from_millis(10)),
            }
        }
        // The member of the latest request answers first.
        for running in running.into_iter().rev() {
            let member = members.iter().position(|member| {
                let member: Arc<dyn Volume> = Arc::clone(member) as Arc<dyn Volume>;
                Arc::ptr_eq(&member, running.volume())
            });
            members[member.unwrap()].answer(&Ok(Payload::default()));
            executor.resume(running, Ok(0), FileOp::sync(), Instant::now(), &mut driver.pool);
            let next = executor.poll(Instant::now(), &mut driver.pool);
            assert!(next.is_none(), "the mirror continues without a member: {next:?}");
        }
        Task::from(&pending).into_outcome().unwrap();
        assert_eq!(driver.volume.conditions()[0].text, "in sync");
    }
}

#[test]
fn ends_failed_flush_without_silent_member() {
    let directory = tempfile::tempdir().unwrap();
    let (mut driver, [silent, failing]) = open_mirror(&directory, &[("member-timeout", "300ms")]);
    let members = [silent, failing];
    wait_until_in_sync(&driver, &members);
    members.iter().for_each(|member| member.silence());
    let mut other = testing::Driver::new(Arc::clone(&driver.volume));
    let flush = thread::spawn(move || other.flush());
    while members.iter().any(|member| member.unanswered() == 0) {
        thread::sleep(Duration::from_millis(10));
    }
    let error = VolumeError::SyncFailed { raw_os_error: 5 };
    members[1].answer(&Err(error.clone()));
    *members[1].unanswered.lock() = None;
    // The error of the other flush can be known before this one has recorded its decision.
    let _ = driver.flush();
    assert_eq!(flush.join().unwrap().unwrap_err(), error);
    assert_eq!(driver.flush().unwrap_err(), error);
}
