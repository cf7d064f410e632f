//! Queue pairs that connect by number, as unmodified programs connect them.

use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::task::{Wake, Waker};

use super::*;
use crate::types::{AsyncEvent, CompletionNotice, Peer, SendAttributes};

const FIRST: u32 = 77;
const OTHER_FIRST: u32 = u32::MAX;

/// One end that is not connected.
fn unconnected(change: impl FnOnce(&mut QueuePairConfig)) -> End {
    unconnected_at(DeviceConfig::default(), change)
}

pub(super) fn unconnected_at(config: DeviceConfig, change: impl FnOnce(&mut QueuePairConfig)) -> End {
    let mut parts = parts(config, Limits::default());
    parts.config.outlives_peer = true;
    change(&mut parts.config);
    let pair = parts.device.create_queue_pair(&parts.config).unwrap();
    parts.end(pair)
}

fn peer(end: &End) -> Peer {
    Peer { address: Ipv4Addr::LOCALHOST.into(), number: end.pair.number() }
}

/// Moves an end up to the state in which it receives.
fn start_receiving(end: &End, peer: Peer, first_message: u32) {
    end.pair.initialize(ALL).unwrap();
    end.pair.start_receiving(peer, first_message, &ReceiveAttributes::default()).unwrap();
}

fn start_sending(end: &End, first_message: u32) {
    let timeout = Some(TEST_TIMEOUT);
    end.pair.start_sending(first_message, &SendAttributes::default(), timeout).unwrap();
}

pub(super) fn connect(near: &End, far: &End) {
    start_receiving(near, peer(far), FIRST);
    start_receiving(far, peer(near), OTHER_FIRST);
    start_sending(near, OTHER_FIRST);
    start_sending(far, FIRST);
}

fn plain() -> End {
    unconnected(|_| ())
}

#[test]
fn both_orders_of_connecting_work() {
    for is_reversed in [false, true] {
        let (near, far) = (plain(), plain());
        if is_reversed {
            connect(&far, &near)
        } else {
            connect(&near, &far)
        }
        run_each_operation(&near, &far);
        run_each_operation(&far, &near);
    }
}

#[test]
fn requests_wait_for_a_late_peer() {
    for is_reversed in [false, true] {
        let (near, far) = (plain(), plain());
        let (early, late) = if is_reversed { (&far, &near) } else { (&near, &far) };
        start_receiving(early, peer(late), FIRST);
        start_sending(early, OTHER_FIRST);
        early.send(1, SEND, 0, 8);
        // Early attempts find no queue pair that expects them.
        std::thread::sleep(Duration::from_millis(20));
        assert!(early.completions.poll().is_none());
        start_receiving(late, peer(early), OTHER_FIRST);
        start_sending(late, FIRST);
        late.receive(2, 0, 8);
        assert_eq!((early.next(), late.next()), ((1, Status::Success), (2, Status::Success)));
    }
}

#[test]
fn queue_pair_connects_to_itself() {
    let end = plain();
    start_receiving(&end, peer(&end), FIRST);
    start_sending(&end, FIRST);
    run_a_send(&end);
}

fn run_a_send(end: &End) {
    end.memory.region().copy_in(0, b"to myself");
    end.receive(1, 100, 9);
    end.send(2, SEND, 0, 9);
    let mut done = [end.next(), end.next()];
    done.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(done, [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(end.memory.region().to_vec(100, 9), b"to myself");
}

#[test]
fn only_the_named_peer_is_accepted() {
    let (near, far, stranger) = (plain(), plain(), plain());
    // The stranger names the far end, which expects the near one.
    start_receiving(&stranger, peer(&far), FIRST);
    start_sending(&stranger, OTHER_FIRST);
    stranger.send(9, SEND, 0, 8);
    connect(&near, &far);
    run_each_operation(&near, &far);
    assert!(stranger.completions.poll().is_none());
}

#[test]
fn different_first_messages_fail_the_queue_pair() {
    let (near, far) = (plain(), plain());
    start_receiving(&near, peer(&far), FIRST);
    start_receiving(&far, peer(&near), OTHER_FIRST);
    start_sending(&far, FIRST);
    start_sending(&near, OTHER_FIRST - 1);
    near.send(1, SEND, 0, 8);
    // The queue pair fails before the request is posted, or after it.
    assert!(matches!(near.next(), (1, Status::RetryExceeded | Status::Flushed)));
    assert_eq!(near.pair.state(), QueuePairState::Error);
}

#[test]
fn requests_without_a_peer_fail_in_time() {
    for is_reversed in [false, true] {
        let (near, far) = (plain(), plain());
        let (near, far) = if is_reversed { (far, near) } else { (near, far) };
        start_receiving(&near, peer(&far), FIRST);
        let timeout = Some(Duration::from_millis(20));
        near.pair.start_sending(OTHER_FIRST, &SendAttributes::default(), timeout).unwrap();
        near.send(1, SEND, 0, 8);
        near.send(2, SEND, 0, 8);
        assert_eq!((near.next(), near.next()), ((1, Status::RetryExceeded), (2, Status::Flushed)));
    }
}

#[test]
fn reset_queue_pairs_connect_again() {
    let (near, far) = (plain(), plain());
    for _ in 0..3 {
        connect(&near, &far);
        far.memory.region().copy_in(1_000_000, &[0; 8]);
        run_each_operation(&near, &far);
        near.receive(9, 0, 8);
        near.pair.reset();
        far.pair.reset();
        assert_eq!((near.pair.state(), near.completions.poll()), (QueuePairState::Reset, None));
    }
}

#[test]
fn states_change_in_order() {
    let (near, far) = (plain(), plain());
    let attributes = ReceiveAttributes::default();
    let receiving = || near.pair.start_receiving(peer(&far), FIRST, &attributes);
    assert!(matches!(receiving(), Err(ModifyError::State(QueuePairState::Reset))));
    near.pair.initialize(ALL).unwrap();
    assert!(matches!(near.pair.initialize(ALL), Err(ModifyError::State(QueuePairState::Init))));
    let sending = near.pair.start_sending(FIRST, &SendAttributes::default(), None);
    assert!(matches!(sending, Err(ModifyError::State(QueuePairState::Init))));
    receiving().unwrap();
    assert_eq!(near.pair.state(), QueuePairState::ReadyToReceive);
}

#[test]
fn destroyed_peer_fails_only_later_requests() {
    let (near, far) = (plain(), plain());
    start_receiving(&near, peer(&far), FIRST);
    start_receiving(&far, peer(&near), OTHER_FIRST);
    let timeout = Some(Duration::from_secs(3));
    near.pair.start_sending(OTHER_FIRST, &SendAttributes::default(), timeout).unwrap();
    start_sending(&far, FIRST);
    run_each_operation(&near, &far);
    near.receive(1, 0, 8);
    // It acknowledges requests that it has not seen when it is destroyed. The READ returns the credit for the SEND.
    far.receive(3, 0, 8);
    near.send(5, SendOperation::Read { address: 0, rkey: far.memory.key() }, 0, 8);
    assert_eq!(near.next(), (5, Status::Success));
    near.send(4, SEND, 0, 8);
    drop(far);
    assert_eq!(near.next(), (4, Status::Success));
    near.send(2, SEND, 0, 8);
    assert_eq!((near.next(), near.next()), ((2, Status::RetryExceeded), (1, Status::Flushed)));
}

#[test]
fn shared_receives_continue_a_waiting_peer() {
    let mut shared = None;
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&events);
    let near = plain();
    let mut parts = parts(DeviceConfig::default(), Limits::default());
    let receives = parts.device.shared_receive_queue(Arc::clone(&parts.config.domain), 8, 1);
    parts.config.shared_receive_queue = Some(Arc::clone(&receives));
    parts.config.on_event = Some(Arc::new(move |number, event| seen.lock().unwrap().push((number, event))));
    shared.get_or_insert(Arc::clone(&receives)).arm(1);
    let pair = parts.device.create_queue_pair(&parts.config).unwrap();
    let far = parts.end(pair);
    connect(&near, &far);
    near.memory.region().copy_in(0, b"shared");
    for round in 0..3 {
        // The queue is empty: the peer waits for this receive.
        near.send(round, SEND, 0, 6);
        let data = [far.sge(100, 6)].into_iter().collect();
        receives.post(ReceiveRequest { id: 10 + round, data }).unwrap();
        assert_eq!((far.next(), near.next()), ((10 + round, Status::Success), (round, Status::Success)));
    }
    assert_eq!((far.memory.region().to_vec(100, 6), receives.is_empty()), (b"shared".to_vec(), true));
    assert_eq!(*events.lock().unwrap(), [(far.pair.number(), AsyncEvent::LimitReached)]);
}

#[test]
fn notices_arrive_once_per_request() {
    let (sender, notices) = std::sync::mpsc::channel();
    let near = plain();
    let mut parts = parts(DeviceConfig::default(), Limits::default());
    let on_notice = Box::new(move |notice| sender.send(notice).unwrap());
    let queue = parts.device.completion_queue_with_notices(2, on_notice);
    (parts.config.send_queue, parts.config.receive_queue) = (Arc::clone(&queue), Arc::clone(&queue));
    let pair = parts.device.create_queue_pair(&parts.config).unwrap();
    let far = parts.end(pair);
    connect(&near, &far);
    for solicited in [false, true] {
        queue.request_notice(solicited);
        far.receive(1, 0, 8);
        near.send(2, SEND, 0, 8);
        assert_eq!(near.next(), (2, Status::Success));
        if solicited {
            // An ordinary completion has no notice, a failed one has.
            assert_eq!(far.next(), (1, Status::Success));
            assert!(notices.try_recv().is_err());
            far.pair.fail();
            far.receive(3, 0, 8);
        }
        assert_eq!(notices.recv_timeout(TEST_TIMEOUT), Ok(CompletionNotice::Arrived));
        assert!(queue.poll().is_some());
    }
    (0..3).for_each(|id| far.receive(id, 0, 8));
    assert_eq!(notices.recv_timeout(TEST_TIMEOUT), Ok(CompletionNotice::Overrun));
    assert!(!queue.resize(1) && queue.resize(2));
}

/// A task whose wake drops a queue pair.
struct Dropping(Mutex<Option<End>>, std::sync::mpsc::Sender<()>);

impl Wake for Dropping {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
        self.1.send(()).unwrap();
    }
}

#[test]
fn woken_task_can_drop_its_queue_pair() {
    let (near, far) = (plain(), plain());
    connect(&near, &far);
    far.receive(1, 0, 8);
    let completions = Arc::clone(&far.completions);
    let (sender, dropped) = std::sync::mpsc::channel();
    let waker = Waker::from(Arc::new(Dropping(Mutex::new(Some(far)), sender)));
    let mut next = Box::pin(completions.next());
    assert!(next.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    near.send(2, SEND, 0, 8);
    dropped.recv_timeout(TEST_TIMEOUT).unwrap();
}

#[test]
fn refused_requests_fail_in_time() {
    let core = isolane_reactor::cpu::allowed().unwrap()[0];
    let modes = [ProgressMode::Polling, ProgressMode::Dedicated { core }];
    for (progress, is_shared) in modes.into_iter().flat_map(|mode| [(mode, true), (mode, false)]) {
        let near = parts(DeviceConfig { progress, ..DeviceConfig::default() }, Limits::default());
        let mut far = parts(DeviceConfig::default(), Limits::default());
        let receives = far.device.shared_receive_queue(Arc::clone(&far.config.domain), 8, 1);
        far.config.shared_receive_queue = Some(receives).filter(|_| is_shared);
        // Enough lanes that polls do not try each of them.
        let others: Vec<_> = (0..20).map(|_| near.device.create_queue_pair(&near.config).unwrap()).collect();
        let pairs = (
            near.device.create_queue_pair(&near.config).unwrap(),
            far.device.create_queue_pair(&far.config).unwrap(),
        );
        let (near, far) = (near.end(pairs.0), far.end(pairs.1));
        start_receiving(&near, peer(&far), FIRST);
        start_receiving(&far, peer(&near), OTHER_FIRST);
        start_sending(&far, FIRST);
        let attributes = SendAttributes { rnr_retries: 2, ..SendAttributes::default() };
        near.pair.start_sending(OTHER_FIRST, &attributes, None).unwrap();
        near.send(1, SEND, 0, 8);
        let deadline = Instant::now() + TEST_TIMEOUT;
        let done = loop {
            assert!(Instant::now() < deadline, "the request does not fail");
            if let Some(done) = near.completions.poll() {
                break done.completion;
            }
        };
        assert_eq!((done.id, done.status), (1, Status::RnrRetryExceeded));
        drop(others);
    }
}

#[test]
fn numbers_are_reused_late() {
    let parts = parts(DeviceConfig::default(), Limits::default());
    let create = || parts.device.create_queue_pair(&parts.config).unwrap();
    let first = create();
    let number = first.number();
    drop(first);
    let others: Vec<QueuePair> = (0..255).map(|_| create()).collect();
    assert!(others.iter().all(|pair| pair.number() != number && pair.number() >> 8 == number >> 8));
    let (again, further) = (create(), create());
    assert_eq!((again.number(), further.number() >> 8 == number >> 8), (number, false));
}
