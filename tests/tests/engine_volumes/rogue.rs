//! A client that keeps to nothing.

use std::time::{Duration, Instant};

use isolane_attach::{AttachError, Session};
use isolane_engine_api::{OpenObject, Reply, Request as Ask};
use isolane_host::via_engine::wire::{OpenParams, Operation, Outcome, Submission, VolumeLayout};
use isolane_host::{BlockRange, LaneClass, Options};
use isolane_shm::WakeFlag;
use isolane_shm::entries::{Receiver, Sender};

use crate::clients::TEST_TIMEOUT;
use crate::harness::Harness;

/// A client that uses the rings as it likes.
pub struct Rogue {
    pub session: Session,
    pub allocation: isolane_attach::Allocation,
    pub id: u32,
    pub core: u32,
    pub need_wakeup: u64,
    pub submissions: Sender,
    pub outcomes: Receiver,
}

pub const ENTRIES: u32 = 128;

impl Rogue {
    pub fn new(harness: &Harness, options: Options) -> Rogue {
        let session = Session::open(&isolane_attach::SessionOptions {
            path: harness.path(),
            memory_bytes: 16 << 20,
            spawn_engine: false,
            ..Default::default()
        });
        let session = session.unwrap();
        let bytes = VolumeLayout::bytes(ENTRIES, ENTRIES) + WakeFlag::BYTES;
        let allocation = session.alloc(bytes).unwrap();
        allocation.clear(bytes).unwrap();
        let (flag, offset) = (allocation.offset(), allocation.offset() + WakeFlag::BYTES as u64);
        let place = VolumeLayout { offset, flag, submissions: ENTRIES, outcomes: ENTRIES };
        let (memory, id) = (session.memory().clone(), session.next_id());
        let params = OpenParams { uri: harness.place().to_string(), layout: place, options };
        let object = params.object().unwrap();
        let result =
            session.request("it", &Ask::OpenObject(OpenObject { id, core: None, queue: None, object }), &[]);
        let Reply::Opened { core, .. } = result.unwrap() else { panic!("not opened") };
        Rogue {
            submissions: Sender::open(&memory, place.submissions().unwrap()).unwrap(),
            outcomes: Receiver::open(&memory, place.outcomes().unwrap()).unwrap(),
            need_wakeup: place.need_wakeup().unwrap(),
            session,
            allocation,
            id,
            core,
        }
    }

    pub fn push(&mut self, submission: &Submission) -> bool {
        self.submissions.push(&submission.encode()).unwrap_or(false)
    }

    pub fn ring(&self) {
        self.submissions.publish();
        self.tell();
    }

    pub fn tell(&self) {
        if self.session.memory().flag(self.need_wakeup).unwrap().take() {
            // It may be dropped already.
            let _ = self.session.doorbells(self.core).ring(self.id);
        }
    }

    pub fn outcome(&mut self) -> Outcome {
        self.wait_for_outcome();
        self.take_outcome(0)
    }

    pub fn wait_for_outcome(&mut self) {
        let end = Instant::now() + TEST_TIMEOUT;
        while self.outcomes.refresh().unwrap() == 0 {
            assert!(Instant::now() < end, "no outcome");
            self.ring();
            std::thread::yield_now();
        }
    }

    /// Takes an outcome at the time `at`, as the engine is told.
    pub fn take_outcome(&mut self, at: u64) -> Outcome {
        let outcome = Outcome::decode(&self.outcomes.pop().unwrap()).unwrap();
        self.outcomes.publish_at(at);
        outcome
    }

    pub fn wait_for_the_end(&self) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !matches!(self.session.check(), Err(AttachError::SessionClosed(_))) {
            assert!(Instant::now() < end, "the engine still serves it");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub fn read(tag: u64, offset: u64, len: u64) -> Submission {
    let range = BlockRange { lba: tag % 1000, blocks: len / 512 };
    let (operation, class) = (Operation::Read, LaneClass::Default);
    Submission { tag, operation, class, lane: 0, range, offset, len, pushed: 0 }
}
