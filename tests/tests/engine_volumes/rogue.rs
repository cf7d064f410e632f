//! A client that keeps to nothing.

use std::time::{Duration, Instant};

use isolane_attach::control::{Object, Open, Reply, Request as Ask};
use isolane_attach::{AttachError, Session};
use isolane_host::attached::wire::{Details, Operation, Outcome, Submission, VolumePlace};
use isolane_host::{BlockRange, Class, Options};
use isolane_ring::Flag;
use isolane_ring::entries::{Receiver, Sender};

use crate::clients::PATIENCE;
use crate::world::World;

/// A client that uses the rings as it likes.
pub struct Rogue {
    pub session: Session,
    pub room: isolane_attach::Room,
    pub id: u32,
    pub core: u32,
    pub told: u64,
    pub submissions: Sender,
    pub outcomes: Receiver,
}

pub const ENTRIES: u32 = 128;

impl Rogue {
    pub fn new(world: &World, options: Options) -> Rogue {
        let session = Session::open(&isolane_attach::Options {
            path: world.path(),
            memory_bytes: 16 << 20,
            starts: false,
            ..Default::default()
        });
        let session = session.unwrap();
        let bytes = VolumePlace::bytes(ENTRIES, ENTRIES) + Flag::BYTES;
        let room = session.take(bytes).unwrap();
        room.clear(bytes).unwrap();
        let (flag, offset) = (room.offset(), room.offset() + Flag::BYTES as u64);
        let place = VolumePlace { offset, flag, submissions: ENTRIES, outcomes: ENTRIES };
        let (memory, id) = (session.memory().clone(), session.next_id());
        let details = Details { place, options }.encode().unwrap();
        let object = Object::Volume { uri: world.place().to_string(), details };
        let asked = session.ask("it", &Ask::Open(Open { id, core: None, queue: None, object }), &[]);
        let Reply::Opened { core, .. } = asked.unwrap() else { panic!("not opened") };
        Rogue {
            submissions: Sender::new(&memory, place.submissions().unwrap()).unwrap(),
            outcomes: Receiver::new(&memory, place.outcomes().unwrap()).unwrap(),
            told: place.told().unwrap(),
            session,
            room,
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
        if self.session.memory().flag(self.told).unwrap().take() {
            // It may be dropped already.
            let _ = self.session.port(self.core).tell(self.id);
        }
    }

    pub fn outcome(&mut self) -> Outcome {
        let end = Instant::now() + PATIENCE;
        while self.outcomes.refresh().unwrap() == 0 {
            assert!(Instant::now() < end, "no outcome");
            self.ring();
            std::thread::yield_now();
        }
        let outcome = Outcome::decode(&self.outcomes.pop().unwrap()).unwrap();
        self.outcomes.publish();
        outcome
    }

    pub fn wait_for_the_end(&self) {
        let end = Instant::now() + PATIENCE;
        while !matches!(self.session.check(), Err(AttachError::Over(_))) {
            assert!(Instant::now() < end, "the engine still serves it");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub fn read(tag: u64, offset: u64, len: u64) -> Submission {
    let range = BlockRange { lba: tag % 1000, blocks: len / 512 };
    Submission { tag, operation: Operation::Read, class: Class::Default, lane: 0, range, offset, len }
}
