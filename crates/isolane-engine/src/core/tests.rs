//! A core with objects that the test plays, turn by turn.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use isolane_attach::layout::{PortPlace, QueuePlace, doorbell, notice};
use isolane_reactor::mailbox;
use isolane_ring::{Bell, Flag, Memory, PAGE_SIZE, Shared, entries};

use super::*;
use crate::closer::Socket;
use crate::service::{Ready, Service};
use crate::watch::{Record, Watch};

/// What the object was told, for the test to see.
#[derive(Default)]
struct Seen {
    looks: AtomicU32,
    work: AtomicU32,
    endings: AtomicU32,
    unwatched: AtomicU32,
    relieved: AtomicU32,
}

/// An object that has something to do as often as the test says, and then tells its application.
struct Played {
    seen: Arc<Seen>,
    told: Shared<Flag>,
    queue: Option<Rc<Notifier>>,
    id: u32,
    is_ending: bool,
    manners: Manners,
    /// A file, which no epoll takes.
    source: Option<std::fs::File>,
}

/// How an object's client plays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manners {
    Good,
    /// Its first look finds a lie.
    Lies,
    /// Its first look finds a defect of ours.
    Panics,
    /// At each look it wants to be told of something else, for longer than any turn may take.
    Flips,
    /// It gives what cannot be watched, or gave it to an engine before this one.
    Unwatchable {
        stays: bool,
    },
}

impl Service for Played {
    fn look(&mut self, _: &Turn) -> Result<Looked, Hostile> {
        let looks = self.seen.looks.fetch_add(1, Ordering::Relaxed);
        match self.manners {
            Manners::Panics => panic!("a defect"),
            Manners::Lies => return Err(Hostile("it lies".into())),
            Manners::Flips if looks < 1000 => return Ok(Looked::Hears { reads: looks.is_multiple_of(2) }),
            Manners::Flips | Manners::Good | Manners::Unwatchable { .. } => {}
        }
        if self.is_ending {
            return Ok(Looked::Ended(Ok(())));
        }
        let has_work =
            self.seen.work.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |work| work.checked_sub(1));
        if has_work.is_err() {
            return Ok(Looked::Nothing);
        }
        self.queue.as_ref().map_or(Ok(true), |queue| queue.push(&notice::entry(self.id)))?;
        Ok(Looked::Worked)
    }

    fn on_ready(&mut self, _: Ready) {}

    fn source(&self) -> Option<BorrowedFd<'_>> {
        self.source.as_ref().map(AsFd::as_fd)
    }

    fn on_unwatched(&mut self, _: &str) -> bool {
        self.seen.unwatched.fetch_add(1, Ordering::Relaxed);
        self.manners == Manners::Unwatchable { stays: true }
    }

    fn relieve(&mut self, _: &Turn) -> bool {
        self.seen.relieved.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn on_end(&mut self, _: Ending) {
        self.seen.endings.fetch_add(1, Ordering::Relaxed);
        self.is_ending = true;
    }

    fn told(&self) -> &Flag {
        &self.told
    }
}

/// A core, and all that talk to it.
struct Fixture {
    core: Core,
    record: Record,
    mail: Sender<Mail>,
    notices: Receiver<Notice>,
    memory: Memory,
    doorbells: entries::Sender,
    bell: Bell<Shared<Flag>>,
    seen: Arc<Seen>,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::with(PORT)
    }

    fn with(port: PortPlace) -> Fixture {
        let (epoll, ours) = (Epoll::new().unwrap(), Epoll::new().unwrap());
        let (mail, inbox) = mailbox::unbounded(epoll.sleeper().waker());
        let (control, notices) = mailbox::unbounded(ours.sleeper().waker());
        // Never sleeps, and lets objects become cold at once.
        let spin = Spin::new(Mode::Poll, Duration::ZERO, Instant::now());
        let memory = Memory::create("core", 32 * PAGE_SIZE).unwrap();
        let ring = port.ring().unwrap();
        let (bell, theirs) = Bell::new(memory.flag(port.flag()).unwrap()).unwrap();
        let record = Record::new().unwrap();
        let watch = Watch::new(record.clone(), 1);
        let fixture = Fixture {
            record,
            core: Core::new(0, epoll, inbox, control, spin, watch.part(1).unwrap()),
            mail,
            notices,
            doorbells: entries::Sender::new(&memory, ring).unwrap(),
            bell,
            memory: memory.clone(),
            seen: Arc::default(),
        };
        let receiver = entries::Receiver::new(&memory, ring).unwrap();
        let bell = Bell::with(memory.flag(port.flag()).unwrap(), Socket::new(theirs)).unwrap();
        fixture.send(Mail::Port { session: 1, receiver, bell });
        fixture
    }

    /// The queue that its objects name: the application's ends.
    fn queue(&self) -> (Bell<Shared<Flag>>, entries::Receiver) {
        let place = QueuePlace { offset: 30 * PAGE_SIZE as u64, cores: 1, entries: 4 };
        let (ring, flag) = (place.ring(0).unwrap(), || self.memory.flag(place.flag()).unwrap());
        let (ours, theirs) = Bell::new(flag()).unwrap();
        let bell = Bell::with(flag(), Socket::new(theirs)).unwrap();
        let sender = entries::Sender::new(&self.memory, ring).unwrap();
        self.send(Mail::Queue { session: 1, queue: 3, sender, bell });
        (ours, entries::Receiver::new(&self.memory, ring).unwrap())
    }

    fn send(&self, mail: Mail) {
        assert!(self.mail.send(mail).is_ok());
    }

    fn open(&mut self, id: u32, manners: Manners) {
        self.send_open(id, manners);
        self.turn();
    }

    fn send_open(&self, id: u32, manners: Manners) {
        let seen = Arc::clone(&self.seen);
        let build: Build = Box::new(move |place: Place| {
            let told = place.memory.flag(TOLD).map_err(|error| error.to_string())?;
            let source = matches!(manners, Manners::Unwatchable { .. });
            let source = source.then(|| std::fs::File::open("/proc/self/exe").unwrap());
            let service = Played { seen, told, queue: place.queue, id, is_ending: false, manners, source };
            Ok(Built { service: Box::new(service), answer: Some(vec![id as u8]) })
        });
        let memory = self.memory.clone();
        self.send(Mail::Open { session: 1, id, queue: Some(3), memory, build });
    }

    /// Turns until nothing is hot.
    fn turn(&mut self) {
        loop {
            assert!(self.core.turn().unwrap());
            if !self.core.objects.has_hot() {
                return;
            }
        }
    }

    fn said(&self) -> Option<(u32, Said)> {
        match self.notices.poll()? {
            Notice::Said { session, said } => Some((session, said)),
            _ => None,
        }
    }

    fn looks(&self) -> u32 {
        self.seen.looks.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn a_cold_object_is_looked_at_only_when_its_doorbell_rings() {
    let mut fixture = Fixture::new();
    fixture.open(7, Manners::Good);
    assert!(
        matches!(fixture.said(), Some((1, Said::Opened { id: 7, outcome: Ok(answer) })) if answer == [7])
    );
    assert!(fixture.looks() >= 2, "it is looked at once more when its flag is armed");
    fixture.turn();
    assert_eq!(fixture.looks(), 0);

    fixture.seen.work.store(3, Ordering::Relaxed);
    let told = fixture.memory.flag(TOLD).unwrap();
    assert!(told.take(), "a cold object asks for a doorbell");
    assert!(fixture.doorbells.push(&doorbell::entry(7)).unwrap());
    fixture.doorbells.publish();
    fixture.bell.ring();
    fixture.turn();
    assert!(fixture.looks() >= 4);
    assert_eq!(fixture.seen.work.load(Ordering::Relaxed), 0);
}

#[test]
fn doorbells_of_objects_that_are_not_there_are_nothing() {
    let mut fixture = Fixture::new();
    fixture.open(7, Manners::Good);
    for entry in [doorbell::entry(8), [u64::MAX; 8]] {
        assert!(fixture.doorbells.push(&entry).unwrap());
    }
    fixture.doorbells.publish();
    fixture.looks();
    fixture.turn();
    assert_eq!(fixture.looks(), 0);
}

/// And the core does not sleep on those that a turn has left.
#[test]
fn a_flood_of_doorbells_is_answered_over_many_turns_and_to_the_last() {
    let mut fixture = Fixture::with(PortPlace { offset: 0, entries: 1024 });
    fixture.open(7, Manners::Good);
    fixture.looks();
    for id in (0..1024).map(|number| if number < 1023 { 8 } else { 7 }) {
        assert!(fixture.doorbells.push(&doorbell::entry(id)).unwrap());
    }
    fixture.doorbells.publish();
    let Fixture { mut core, mail, seen, .. } = fixture;
    core.spin = Spin::new(Mode::Sleep, Duration::ZERO, Instant::now());
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while seen.looks.load(Ordering::Relaxed) == 0 && start.elapsed() < Duration::from_secs(30) {
                std::thread::yield_now();
            }
            assert!(mail.send(Mail::Halt).is_ok());
        });
        let turns = std::iter::from_fn(|| core.turn().unwrap().then_some(())).count();
        assert!(turns >= 8, "all were answered in {turns} turns");
    });
    assert!(seen.looks.load(Ordering::Relaxed) > 0, "it sleeps before the last is answered");
}

#[test]
fn a_queue_is_told_and_its_thread_woken() {
    let fixture = Fixture::new();
    let (ours, receiver) = fixture.queue();
    fixture.seen.work.store(1, Ordering::Relaxed);
    let (receiver, fixture) = (RefCell::new(receiver), RefCell::new(fixture));
    let has_come = ours.wait::<io::Error>(Some(Duration::from_secs(60)), || {
        fixture.borrow_mut().open(7, Manners::Good);
        Ok(false)
    });
    assert!(has_come.unwrap(), "the flag was armed, and nobody rang");
    assert_eq!(receiver.borrow_mut().refresh(), Ok(1));
    assert_eq!(receiver.borrow_mut().pop(), Some(notice::entry(7)));
}

#[test]
fn a_queue_that_is_closed_is_written_to_no_more_whatever_still_names_it() {
    let mut fixture = Fixture::new();
    let (_ours, mut receiver) = fixture.queue();
    fixture.open(7, Manners::Good);
    fixture.said();
    fixture.send(Mail::CloseQueue { session: 1, queue: 3 });
    fixture.seen.work.store(1, Ordering::Relaxed);
    assert!(fixture.doorbells.push(&doorbell::entry(7)).unwrap());
    fixture.doorbells.publish();
    fixture.bell.ring();
    fixture.turn();
    assert!(matches!(fixture.said(), Some((1, Said::Closed { queue: 3 }))));
    assert_eq!(fixture.seen.work.load(Ordering::Relaxed), 0, "it works on");
    assert_eq!(receiver.refresh(), Ok(0));
}

#[test]
fn an_end_is_told_once_it_is_reached_and_that_of_nothing_at_once() {
    let mut fixture = Fixture::new();
    fixture.open(7, Manners::Good);
    fixture.said();
    for id in [7, 8] {
        let ending = Ending::Asked(isolane_attach::control::End::Release);
        fixture.send(Mail::End { session: 1, id, ending });
        fixture.turn();
        assert!(matches!(fixture.said(), Some((1, Said::Ended { id: told, outcome: Ok(()) })) if told == id));
    }
    assert_eq!(fixture.seen.endings.load(Ordering::Relaxed), 1);
}

#[test]
fn relief_reaches_objects_of_its_session_and_has_them_looked_at() {
    let mut fixture = Fixture::new();
    fixture.open(7, Manners::Good);
    fixture.looks();
    for (session, relieved) in [(2, 0), (1, 1)] {
        fixture.send(Mail::Relieve { session });
        fixture.turn();
        assert_eq!(fixture.seen.relieved.load(Ordering::Relaxed), relieved);
        assert_eq!(fixture.looks() > 0, relieved > 0);
    }
}

#[test]
fn a_session_that_is_over_takes_its_objects_along_and_no_others() {
    let mut fixture = Fixture::new();
    fixture.open(7, Manners::Good);
    fixture.open(8, Manners::Good);
    fixture.send(Mail::EndSession { session: 2 });
    fixture.turn();
    assert_eq!(fixture.seen.endings.load(Ordering::Relaxed), 0);
    fixture.send(Mail::EndSession { session: 1 });
    fixture.turn();
    assert_eq!(fixture.seen.endings.load(Ordering::Relaxed), 2);
    assert!(fixture.core.objects.is_empty());
}

#[test]
fn a_hostile_object_is_told_of_and_dropped() {
    let mut fixture = Fixture::new();
    fixture.open(7, Manners::Lies);
    assert!(matches!(fixture.said(), Some((1, Said::Opened { .. }))));
    assert!(matches!(fixture.said(), Some((1, Said::Hostile { why })) if why == "it lies"));
    assert!(fixture.core.objects.is_empty());
}

#[test]
fn an_object_that_cannot_be_watched_is_told_so_and_stays_only_if_it_wants() {
    for stays in [false, true] {
        let mut fixture = Fixture::new();
        fixture.open(7, Manners::Unwatchable { stays });
        assert_eq!(fixture.seen.unwatched.load(Ordering::Relaxed), 1);
        match fixture.said() {
            Some((1, Said::Opened { id: 7, outcome: Err(why) })) => assert!(!stays && why.contains("watch")),
            Some((1, Said::Opened { id: 7, outcome: Ok(_) })) => assert!(stays),
            other => panic!("{other:?}"),
        }
        assert_eq!(fixture.core.objects.is_empty(), !stays);
    }
}

#[test]
fn an_object_that_always_wants_to_hear_of_something_else_is_looked_at_once_a_turn() {
    let mut fixture = Fixture::new();
    fixture.send_open(7, Manners::Flips);
    for _ in 0..3 {
        assert!(fixture.core.turn().unwrap());
        assert_eq!(fixture.looks(), 1);
    }
    fixture.send(Mail::Halt);
    assert!(!fixture.core.turn().unwrap(), "mail is read between two looks");
}

#[test]
fn a_stop_ends_all_objects_and_then_the_core() {
    let mut fixture = Fixture::new();
    fixture.open(7, Manners::Good);
    fixture.send(Mail::Stop);
    while fixture.core.turn().unwrap() {}
    assert_eq!(fixture.seen.endings.load(Ordering::Relaxed), 1);
}

const PORT: PortPlace = PortPlace { offset: 0, entries: 8 };
const TOLD: u64 = 31 * PAGE_SIZE as u64;

#[test]
fn panic_of_core_names_the_session_at_work_and_a_turn_takes_the_beat() {
    let mut fixture = Fixture::new();
    let watch = Watch::new(fixture.record.clone(), 1);
    fixture.core.watch = watch.part(1).unwrap();
    let control = watch.part(0).unwrap();
    fixture.open(7, Manners::Good);
    for _ in 0..3 * crate::watch::MISSED_MAX {
        control.turn();
        fixture.core.turn().unwrap();
        assert_eq!(watch.beat(), Ok(()), "a core that turns is taken for stuck");
    }
    assert_eq!(fixture.record.suspect(), None, "no session is at work between turns");
    fixture.send_open(8, Manners::Panics);
    let Fixture { core, record, .. } = fixture;
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || core.run()));
    assert!(outcome.is_err(), "the core has not panicked");
    assert_eq!(record.suspect(), Some(1));
}
