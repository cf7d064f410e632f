//! Members that do not answer.

use std::sync::mpsc;

use isolane_memory::Pool;
use isolane_volume::{Completer, Step};
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
    let (name, argument) = ("mirror".to_owned(), String::new());
    let parts = Parts { name, argument, members: Vec::new(), options: options.collect(), uuid: None };
    let opened = members.iter().map(|member| Ok(Arc::clone(member) as Arc<dyn Volume>)).collect();
    let mut driver = testing::Driver::new(open(parts, opened).unwrap());
    driver.write(7, &[3; 512], false).unwrap();
    (driver, members)
}

#[test]
fn continues_without_member_that_does_not_answer() {
    for silent in 0..2 {
        let directory = tempfile::tempdir().unwrap();
        let (mut driver, members) = open_mirror(&directory, &[("member-timeout", "300ms")]);
        // Only a complete member can continue alone.
        let label = || {
            let mut direct = testing::Driver::new(Arc::clone(&members[silent].inner));
            direct.read(2048 - 128, 1).unwrap()[24..40].to_vec()
        };
        while label() != [1_u64, 1].map(u64::to_le_bytes).concat() {
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(driver.volume.conditions()[0].text, "in sync");
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
