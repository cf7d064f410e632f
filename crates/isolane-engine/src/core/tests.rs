//! Core with scripted objects, turn by turn.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use isolane_engine_api::layout::{DoorbellLayout, NotificationLayout, doorbell, notification};
use isolane_reactor::mailbox;
use isolane_shm::{Bell, PAGE_SIZE, SharedMemory, ShmRef, WakeFlag, entries};

use super::*;
use crate::close_threads::Socket;
use crate::object::{PolledObject, Ready};
use crate::observed::Observed;
use crate::watch::{Record, Watch};

/// Calls of an object.
#[derive(Default)]
struct Seen {
    polls: AtomicU32,
    work: AtomicU32,
    closes: AtomicU32,
    unwatched: AtomicU32,
    relieved: AtomicU32,
    rung_at: AtomicU64,
}

/// Object with scripted work, which notifies its application.
struct Played {
    seen: Arc<Seen>,
    need_wakeup: ShmRef<WakeFlag>,
    queue: Option<Rc<Notifier>>,
    id: u32,
    closing: bool,
    behavior: Behavior,
    /// Regular file, which epoll refuses.
    source: Option<std::fs::File>,
}

/// Scripted behavior.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behavior {
    Normal,
    /// The first poll finds a violation.
    Violates,
    /// The first poll panics.
    Panics,
    /// Each poll flips the read interest, more often than a turn may poll.
    Flips,
    /// The source cannot be watched.
    Unwatchable {
        stays: bool,
    },
}

impl PolledObject for Played {
    fn poll(&mut self, _: &Turn) -> Result<PollStatus, ProtocolViolation> {
        let polls = self.seen.polls.fetch_add(1, Ordering::Relaxed);
        match self.behavior {
            Behavior::Panics => panic!("a defect"),
            Behavior::Violates => return Err(ProtocolViolation("invalid".into())),
            Behavior::Flips if polls < 1000 => {
                return Ok(PollStatus::SetReadInterest { source: 0, reads: polls.is_multiple_of(2) });
            }
            Behavior::Flips | Behavior::Normal | Behavior::Unwatchable { .. } => {}
        }
        if self.closing {
            return Ok(PollStatus::Closed(Ok(())));
        }
        let has_work =
            self.seen.work.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |work| work.checked_sub(1));
        if has_work.is_err() {
            return Ok(PollStatus::Idle);
        }
        self.queue.as_ref().map_or(Ok(true), |queue| queue.push(&notification::entry(self.id)))?;
        Ok(PollStatus::Busy)
    }

    fn on_ready(&mut self, _: usize, _: Ready) {}

    fn on_doorbell(&mut self, at: u64) {
        self.seen.rung_at.store(at, Ordering::Relaxed);
    }

    fn source(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.source.as_ref().filter(|_| index == 0).map(AsFd::as_fd)
    }

    fn on_watch_failed(&mut self, _: &str) -> bool {
        self.seen.unwatched.fetch_add(1, Ordering::Relaxed);
        self.behavior == Behavior::Unwatchable { stays: true }
    }

    fn relieve(&mut self, _: &Turn) -> bool {
        self.seen.relieved.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn on_close(&mut self, _: CloseReason) {
        self.seen.closes.fetch_add(1, Ordering::Relaxed);
        self.closing = true;
    }

    fn need_wakeup(&self) -> &WakeFlag {
        &self.need_wakeup
    }
}

/// Core with its peers.
struct Fixture {
    core: Core,
    record: Record,
    messages: Sender<CoreMessage>,
    events: Receiver<ControlMessage>,
    memory: SharedMemory,
    doorbells: entries::Sender,
    bell: Bell<ShmRef<WakeFlag>>,
    seen: Arc<Seen>,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::with(PORT)
    }

    fn with(port: DoorbellLayout) -> Fixture {
        let (epoll, ours) = (Epoll::new().unwrap(), Epoll::new().unwrap());
        let (messages, inbox) = mailbox::unbounded(epoll.sleeper().waker());
        let (control, events) = mailbox::unbounded(ours.sleeper().waker());
        // Never sleeps; objects become idle immediately.
        let spin = AdaptiveSpin::new(Mode::Poll, Duration::ZERO, Instant::now());
        let memory = SharedMemory::create("core", 32 * PAGE_SIZE).unwrap();
        let ring = port.ring().unwrap();
        let (bell, peer_end) = Bell::new(memory.flag(port.flag()).unwrap()).unwrap();
        let record = Record::new().unwrap();
        let watch = Watch::new(record.clone(), 1);
        let observer = Observer::new(Arc::new(Observed::new(true, &[0])), 0);
        let fixture = Fixture {
            record,
            core: Core::new(0, epoll, inbox, control, spin, watch.part(1).unwrap(), observer),
            messages,
            events,
            doorbells: entries::Sender::open(&memory, ring).unwrap(),
            bell,
            memory: memory.clone(),
            seen: Arc::default(),
        };
        let receiver = entries::Receiver::open(&memory, ring).unwrap();
        let bell = Bell::from_end(memory.flag(port.flag()).unwrap(), Socket::new(peer_end)).unwrap();
        fixture.send(CoreMessage::Doorbells { session: 1, receiver, bell });
        fixture
    }

    /// Opens the queue of the objects. Returns the application's ends.
    fn queue(&self) -> (Bell<ShmRef<WakeFlag>>, entries::Receiver) {
        let place = NotificationLayout { offset: 30 * PAGE_SIZE as u64, cores: 1, entries: 4 };
        let (ring, flag) = (place.ring(0).unwrap(), || self.memory.flag(place.flag()).unwrap());
        let (ours, peer_end) = Bell::new(flag()).unwrap();
        let bell = Bell::from_end(flag(), Socket::new(peer_end)).unwrap();
        let sender = entries::Sender::open(&self.memory, ring).unwrap();
        self.send(CoreMessage::Queue { session: 1, queue: 3, sender, bell });
        (ours, entries::Receiver::open(&self.memory, ring).unwrap())
    }

    fn send(&self, messages: CoreMessage) {
        assert!(self.messages.send(messages).is_ok());
    }

    fn open(&mut self, id: u32, behavior: Behavior) {
        self.send_open(id, behavior);
        self.turn();
    }

    fn send_open(&self, id: u32, behavior: Behavior) {
        let seen = Arc::clone(&self.seen);
        let build: BuildFn = Box::new(move |context: ObjectContext| {
            let need_wakeup = context.memory.flag(NEED_WAKEUP).map_err(|error| error.to_string())?;
            let source = matches!(behavior, Behavior::Unwatchable { .. });
            let source = source.then(|| std::fs::File::open("/proc/self/exe").unwrap());
            let object =
                Played { seen, need_wakeup, queue: context.queue, id, closing: false, behavior, source };
            Ok(BuiltObject { object: Box::new(object), answer: Some(vec![id as u8]) })
        });
        let memory = self.memory.clone();
        self.send(CoreMessage::Open {
            session: 1,
            id,
            queue: Some(3),
            memory,
            application: Arc::from("test"),
            build,
        });
    }

    /// Runs turns until no object is active.
    fn turn(&mut self) {
        loop {
            assert!(self.core.turn().unwrap());
            if !self.core.objects.has_active() {
                return;
            }
        }
    }

    fn next_event(&self) -> Option<(u32, SessionEvent)> {
        match self.events.poll()? {
            ControlMessage::Session { session, event } => Some((session, event)),
            _ => None,
        }
    }

    fn polls(&self) -> u32 {
        self.seen.polls.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn polls_idle_object_only_after_doorbell() {
    let mut fixture = Fixture::new();
    fixture.open(7, Behavior::Normal);
    assert!(
        matches!(fixture.next_event(), Some((1, SessionEvent::Opened { id: 7, result: Ok(answer) })) if answer == [7])
    );
    assert!(fixture.polls() >= 2, "polled again after its flag was armed");
    fixture.turn();
    assert_eq!(fixture.polls(), 0);

    fixture.seen.work.store(3, Ordering::Relaxed);
    let need_wakeup = fixture.memory.flag(NEED_WAKEUP).unwrap();
    assert!(need_wakeup.take(), "an idle object requests a doorbell");
    assert!(fixture.doorbells.push(&doorbell::entry_at(7, 99)).unwrap());
    fixture.doorbells.publish();
    fixture.bell.ring();
    fixture.turn();
    assert_eq!(fixture.seen.rung_at.load(Ordering::Relaxed), 99);
    assert!(fixture.polls() >= 4);
    assert_eq!(fixture.seen.work.load(Ordering::Relaxed), 0);
}

#[test]
fn ignores_doorbells_of_unknown_objects() {
    let mut fixture = Fixture::new();
    fixture.open(7, Behavior::Normal);
    for entry in [doorbell::entry(8), [u64::MAX; 8]] {
        assert!(fixture.doorbells.push(&entry).unwrap());
    }
    fixture.doorbells.publish();
    fixture.polls();
    fixture.turn();
    assert_eq!(fixture.polls(), 0);
}

/// The core does not sleep while doorbells are pending.
#[test]
fn handles_doorbell_flood_over_many_turns() {
    let mut fixture = Fixture::with(DoorbellLayout { offset: 0, entries: 1024 });
    fixture.open(7, Behavior::Normal);
    fixture.polls();
    for id in (0..1024).map(|number| if number < 1023 { 8 } else { 7 }) {
        assert!(fixture.doorbells.push(&doorbell::entry(id)).unwrap());
    }
    fixture.doorbells.publish();
    let Fixture { mut core, messages, seen, .. } = fixture;
    core.spin = AdaptiveSpin::new(Mode::Sleep, Duration::ZERO, Instant::now());
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while seen.polls.load(Ordering::Relaxed) == 0 && start.elapsed() < Duration::from_secs(30) {
                std::thread::yield_now();
            }
            assert!(messages.send(CoreMessage::Exit).is_ok());
        });
        let turns = std::iter::from_fn(|| core.turn().unwrap().then_some(())).count();
        assert!(turns >= 8, "all handled in {turns} turns");
    });
    assert!(seen.polls.load(Ordering::Relaxed) > 0, "the core sleeps before the last doorbell");
}

#[test]
fn publishes_entries_and_wakes_thread() {
    let mut fixture = Fixture::new();
    let (ours, mut receiver) = fixture.queue();
    fixture.seen.work.store(1, Ordering::Relaxed);
    ours.flag().arm();
    fixture.open(7, Behavior::Normal);
    let has_rung = ours.sleep(Some(Duration::from_secs(60)));
    assert!(has_rung.unwrap(), "the flag was armed, but not rung");
    assert_eq!(receiver.refresh(), Ok(1));
    assert_eq!(receiver.pop(), Some(notification::entry(7)));
}

#[test]
fn closed_queue_gets_no_entries() {
    let mut fixture = Fixture::new();
    let (_ours, mut receiver) = fixture.queue();
    fixture.open(7, Behavior::Normal);
    fixture.next_event();
    fixture.send(CoreMessage::CloseQueue { session: 1, queue: 3 });
    fixture.seen.work.store(1, Ordering::Relaxed);
    assert!(fixture.doorbells.push(&doorbell::entry(7)).unwrap());
    fixture.doorbells.publish();
    fixture.bell.ring();
    fixture.turn();
    assert!(matches!(fixture.next_event(), Some((1, SessionEvent::QueueClosed { queue: 3 }))));
    assert_eq!(fixture.seen.work.load(Ordering::Relaxed), 0, "the object must keep working");
    assert_eq!(receiver.refresh(), Ok(0));
}

#[test]
fn reports_close_of_known_and_unknown_objects() {
    let mut fixture = Fixture::new();
    fixture.open(7, Behavior::Normal);
    fixture.next_event();
    for id in [7, 8] {
        let reason = CloseReason::Requested(isolane_engine_api::CloseMode::Release);
        fixture.send(CoreMessage::Close { session: 1, id, reason });
        fixture.turn();
        assert!(
            matches!(fixture.next_event(), Some((1, SessionEvent::Closed { id: closed, result: Ok(()) })) if closed == id)
        );
    }
    assert_eq!(fixture.seen.closes.load(Ordering::Relaxed), 1);
}

#[test]
fn relief_polls_objects_of_its_session() {
    let mut fixture = Fixture::new();
    fixture.open(7, Behavior::Normal);
    fixture.polls();
    for (session, relieved) in [(2, 0), (1, 1)] {
        fixture.send(CoreMessage::Relieve { session });
        fixture.turn();
        assert_eq!(fixture.seen.relieved.load(Ordering::Relaxed), relieved);
        assert_eq!(fixture.polls() > 0, relieved > 0);
    }
}

#[test]
fn session_end_closes_only_its_objects() {
    let mut fixture = Fixture::new();
    fixture.open(7, Behavior::Normal);
    fixture.open(8, Behavior::Normal);
    fixture.send(CoreMessage::EndSession { session: 2 });
    fixture.turn();
    assert_eq!(fixture.seen.closes.load(Ordering::Relaxed), 0);
    fixture.send(CoreMessage::EndSession { session: 1 });
    fixture.turn();
    assert_eq!(fixture.seen.closes.load(Ordering::Relaxed), 2);
    assert!(fixture.core.objects.is_empty());
}

#[test]
fn reports_violation_and_drops_object() {
    let mut fixture = Fixture::new();
    fixture.open(7, Behavior::Violates);
    assert!(matches!(fixture.next_event(), Some((1, SessionEvent::Opened { .. }))));
    assert!(
        matches!(fixture.next_event(), Some((1, SessionEvent::Violation { reason })) if reason == "invalid")
    );
    assert!(fixture.core.objects.is_empty());
}

#[test]
fn unwatchable_object_stays_only_on_request() {
    for stays in [false, true] {
        let mut fixture = Fixture::new();
        fixture.open(7, Behavior::Unwatchable { stays });
        assert_eq!(fixture.seen.unwatched.load(Ordering::Relaxed), 1);
        match fixture.next_event() {
            Some((1, SessionEvent::Opened { id: 7, result: Err(reason) })) => {
                assert!(!stays && reason.contains("watch"))
            }
            Some((1, SessionEvent::Opened { id: 7, result: Ok(_) })) => assert!(stays),
            other => panic!("{other:?}"),
        }
        assert_eq!(fixture.core.objects.is_empty(), !stays);
    }
}

#[test]
fn polls_flipping_object_once_per_turn() {
    let mut fixture = Fixture::new();
    fixture.send_open(7, Behavior::Flips);
    for _ in 0..3 {
        assert!(fixture.core.turn().unwrap());
        assert_eq!(fixture.polls(), 1);
    }
    fixture.send(CoreMessage::Exit);
    assert!(!fixture.core.turn().unwrap(), "messages are read between two polls");
}

#[test]
fn shutdown_closes_objects_then_ends_core() {
    let mut fixture = Fixture::new();
    fixture.open(7, Behavior::Normal);
    fixture.send(CoreMessage::Shutdown);
    while fixture.core.turn().unwrap() {}
    assert_eq!(fixture.seen.closes.load(Ordering::Relaxed), 1);
}

const PORT: DoorbellLayout = DoorbellLayout { offset: 0, entries: 8 };
const NEED_WAKEUP: u64 = 31 * PAGE_SIZE as u64;

#[test]
fn panicking_core_records_its_session() {
    let mut fixture = Fixture::new();
    let watch = Watch::new(fixture.record.clone(), 1);
    fixture.core.watch = watch.part(1).unwrap();
    let control = watch.part(0).unwrap();
    fixture.open(7, Behavior::Normal);
    for _ in 0..3 * crate::watch::MAX_MISSED_BEATS {
        control.turn();
        fixture.core.turn().unwrap();
        assert_eq!(watch.beat(), Ok(()), "a turning core counts as stuck");
    }
    assert_eq!(fixture.record.suspect(), None, "no session is at work between turns");
    fixture.send_open(8, Behavior::Panics);
    let Fixture { core, record, .. } = fixture;
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || core.run()));
    assert!(result.is_err(), "the core has not panicked");
    assert_eq!(record.suspect(), Some(1));
}
