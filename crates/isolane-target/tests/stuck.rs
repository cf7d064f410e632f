//! Volumes that hang: the target keeps serving other volumes, resets, and shutdowns.

mod common;

use std::net::Shutdown;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::interposer::{Decision, Interposer};
use common::stuck::{Relief, Stuck};
use common::*;
use isolane_target::{IoChoice, Target, TargetConfig};
use isolane_volume::{Request, VolumeError};
use isolane_wire::feature::FeatureId;
use isolane_wire::log::Smart;
use isolane_wire::pdu::{ControllerPdu, IcReq};
use isolane_wire::registers::{Cc, Csts};
use isolane_wire::{Sgl, Status, SubmissionEntry, admin, io};

/// A target whose namespace 1 hangs, and what lets it go on. Namespace 2 is a file.
struct Place {
    /// First: a target that is dropped waits for its volumes, for a time.
    relief: Relief,
    target: Target,
    address: std::net::SocketAddr,
    stuck: Arc<Stuck>,
    _dir: tempfile::TempDir,
}

impl Place {
    fn new(io: IoChoice) -> Place {
        Place::on(one_core_twice(), io)
    }

    fn on(cores: Vec<usize>, io: IoChoice) -> Place {
        Place::start(cores, io, Duration::from_millis(300))
    }

    fn with_limit(stuck_after: Duration) -> Place {
        Place::start(one_core_twice(), IoChoice::Auto, stuck_after)
    }

    fn start(cores: Vec<usize>, io: IoChoice, stuck_after: Duration) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let file = volume(&format!("{},size=1M", dir.path().join("image").display()));
        let (stuck, relief) = Stuck::new();
        let config = TargetConfig {
            io,
            stuck_after,
            queue_depth: 1024,
            cores,
            ..serving(vec![(1, stuck.clone()), (2, file)])
        };
        let (target, address) = start(config);
        Place { target, address, stuck, relief, _dir: dir }
    }

    /// Connects until it is admitted.
    fn admin(&self) -> MockHost {
        let mut admitted = None;
        eventually("the host is admitted", || {
            let mut host = MockHost::initialized(self.address, IcReq::default());
            let answer = host.connect(0, 0xffff, NQN, HOST, 31);
            host.cntlid = answer.dw0 as u16;
            let is_admitted = answer.status == Status::SUCCESS;
            assert!(is_admitted || answer.status == Status::CONNECT_CONTROLLER_BUSY, "{}", answer.status);
            admitted = Some(host).filter(|_| is_admitted);
            is_admitted
        });
        let mut host = admitted.unwrap();
        host.set_property(CC, Cc::enabled().0);
        host
    }

    /// Sends `n` writes of different blocks to the hung volume, and waits until some have arrived.
    fn hang(&self, queue: &mut MockHost, writes: usize, byte: u8) {
        for lba in 0..writes as u64 {
            queue.send(in_capsule(write_entry(lba * 8 % 2048, 1), &[byte; 512]), &[byte; 512]);
        }
        eventually("writes hang", || self.stuck.started() >= writes.min(256));
    }

    /// Releases all operations; the written data is known once the volume is dropped.
    fn release(self) -> (Target, Arc<Stuck>, JoinHandle<Vec<u8>>) {
        (self.target, self.stuck, self.relief.release())
    }
}

fn of_two(entry: SubmissionEntry) -> SubmissionEntry {
    SubmissionEntry { nsid: 2, ..entry }
}

fn expect_two_works(queue: &mut MockHost) {
    assert_eq!(queue.write(of_two(write_entry(8, 8)), &[9; 4096]).0.status, Status::SUCCESS);
    assert_eq!(queue.run(io::flush(2)).status, Status::SUCCESS);
    assert_eq!(queue.fetch(of_two(read_entry(8, 8)), 4096).1, [9; 4096]);
}

/// Sends a write to the block that an older write is stuck at.
fn send_newer(queue: &mut MockHost) -> u16 {
    queue.send(in_capsule(write_entry(0, 1), &[1; 512]), &[1; 512])
}

fn expect_order(written: &[u8]) {
    assert_eq!(written[..1024], [[0xee; 512], [1; 512]].concat(), "the older write landed last");
}

#[test]
fn no_stale_write_passes_a_new_one() {
    for choice in [IoChoice::Auto, IoChoice::Epoll] {
        let place = Place::new(choice);
        let admin = place.admin();
        let mut queue = admin.io_queue(1, 31);
        place.hang(&mut queue, 1, 0xee);
        drop((admin, queue));

        let admin = place.admin();
        let mut queue = admin.io_queue(1, 31);
        let newer = send_newer(&mut queue);
        expect_two_works(&mut admin.io_queue(2, 31));
        let (target, stuck, written) = place.release();
        assert_eq!(queue.completion(newer).0.status, Status::SUCCESS);
        drop((admin, queue));
        target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result().unwrap();
        drop(stuck);
        expect_order(&written.join().unwrap());
    }
}

#[test]
fn reset_completes_despite_stuck_write() {
    let place = Place::new(IoChoice::Auto);
    let mut admin = place.admin();
    let mut queue = admin.io_queue(1, 31);
    place.hang(&mut queue, 1, 0xee);
    admin.set_property(CC, 0);
    eventually("it is not ready", || !Csts(admin.property(CSTS) as u32).rdy());
    admin.set_property(CC, Cc::enabled().0);
    let mut queue = admin.io_queue(1, 31);
    send_newer(&mut queue);
    expect_two_works(&mut admin.io_queue(2, 31));
    drop((admin, queue));
    // The write is still remembered by the host's next association.
    let admin = place.admin();
    let mut queue = admin.io_queue(1, 31);
    let newest = send_newer(&mut queue);
    expect_two_works(&mut admin.io_queue(2, 31));
    let (target, stuck, written) = place.release();
    assert_eq!(queue.completion(newest).0.status, Status::SUCCESS);
    drop((admin, queue));
    target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result().unwrap();
    drop(stuck);
    expect_order(&written.join().unwrap());
}

/// A host reconnects a queue as soon as it has closed the old connection.
#[test]
fn holds_connect_until_old_queue_ends() {
    let place = Place::new(IoChoice::Auto);
    let admin = place.admin();
    for round in 1..=4 {
        let mut queue = admin.io_queue(1, 31);
        queue.send(in_capsule(write_entry(round * 8, 1), &[1; 512]), &[1; 512]);
        eventually("the write hangs", || place.stuck.started() as u64 >= round);
        drop(queue);
    }
    expect_two_works(&mut admin.io_queue(1, 31));
    let _all = place.release();
}

#[test]
fn held_connect_follows_end_of_old_queue() {
    let place = Place::with_limit(Duration::from_secs(600));
    let mut admin = place.admin();
    let mut queue = admin.io_queue(1, 31);
    place.hang(&mut queue, 1, 0xee);
    drop(queue);
    let mut second = MockHost::initialized(place.address, IcReq::default());
    let data = connect_data(admin.cntlid, NQN, HOST);
    let cid = second.send(in_capsule(connect_entry(1, 31), &data), &data);
    assert_eq!(admin.run(admin::keep_alive()).status, Status::SUCCESS);
    let (_target, _stuck, _written) = place.release();
    assert_eq!(second.completion(cid).0.status, Status::SUCCESS);
    expect_two_works(&mut second);
}

#[test]
fn held_connect_can_be_retried_after_refusal() {
    let place = Place::with_limit(Duration::from_secs(600));
    let admin = place.admin();
    let mut queue = admin.io_queue(1, 31);
    place.hang(&mut queue, 1, 0xee);
    drop(queue);
    let connect = || {
        let mut host = MockHost::initialized(place.address, IcReq::default());
        host.connect(1, admin.cntlid, NQN, HOST, 31).status
    };
    assert_eq!(connect(), Status::COMMAND_SEQUENCE_ERROR, "without DNR");
    let (address, cntlid) = (place.address, admin.cntlid);
    let _all = place.release();
    let mut host = MockHost::initialized(address, IcReq::default());
    assert_eq!(host.connect(1, cntlid, NQN, HOST, 31).status, Status::SUCCESS);
}

#[test]
fn counters_show_stalled_command() {
    let place = Place::with_limit(Duration::from_secs(600));
    let admin = place.admin();
    let mut queue = admin.io_queue(1, 31);
    let oldest = |target: &Target| target.counters().namespaces[0].oldest_command;
    assert_eq!(oldest(&place.target), None);
    queue.send(in_capsule(write_entry(0, 1), &[1; 512]), &[1; 512]);
    eventually("the age grows", || oldest(&place.target) > Some(Duration::from_millis(300)));
    assert_eq!(place.target.counters().namespaces[1].oldest_command, None);
    // Nothing happens on the core after the command, the last work of its only host.
    drop((queue, admin));
    let (target, _stuck, _written) = place.release();
    eventually("it has ended", || oldest(&target).is_none());
    let write = target.counters().namespaces[0].get(isolane_target::Operation::Write).max;
    assert!(write > Duration::from_millis(300), "{write:?}");
}

/// A host that finds the CNTLID free, or another host's, takes the old controller's writes for ended.
#[test]
fn reset_with_stuck_write_keeps_cntlid() {
    let place = Place::new(IoChoice::Auto);
    let mut old = place.admin();
    let mut queue = old.io_queue(1, 31);
    place.hang(&mut queue, 1, 0xee);
    old.set_property(CC, 0);
    eventually("it is not ready", || !Csts(old.property(CSTS) as u32).rdy());
    let cntlid = old.cntlid;
    drop((old, queue));

    let probe = |admin: &MockHost| {
        let mut probe = MockHost::initialized(admin.stream.peer_addr().unwrap(), IcReq::default());
        probe.connect(1, cntlid, NQN, HOST, 31).status
    };
    let admin = place.admin();
    eventually("the old controller ends", || probe(&admin) == Status::CONNECT_CONTROLLER_BUSY);
    expect_two_works(&mut admin.io_queue(1, 31));
    assert_eq!(place.target.associations().len(), 2);
    assert_eq!(probe(&admin), Status::CONNECT_CONTROLLER_BUSY);
    let (target, _stuck, _written) = place.release();
    eventually("the old controller is gone", || target.associations().len() == 1);
    assert_eq!(probe(&admin), Status::CONNECT_INVALID_PARAMETERS.with_dnr(true));
}

/// Each controller with a stuck command keeps a CNTLID and memory.
#[test]
fn bounds_controllers_of_hung_volume() {
    let place = Place::on(one_core_twice()[..1].to_vec(), IoChoice::Auto);
    for round in 0..300 {
        let admin = place.admin();
        let mut queue = admin.io_queue(1, 31);
        queue.send(in_capsule(write_entry(round * 8, 1), &[1; 512]), &[1; 512]);
        expect_two_works(&mut queue);
    }
    eventually("some controllers are gone", || place.target.associations().len() <= 256);
    assert!(place.stuck.started() <= 256 + 2, "{} commands are stuck", place.stuck.started());
    expect_two_works(&mut place.admin().io_queue(1, 31));
    let _all = place.release();
}

#[test]
fn serves_admin_commands_during_cache_disable() {
    let dir = tempfile::tempdir().unwrap();
    let (_target, address) = holding(dir.path(), |request| matches!(request, Request::Write { .. }));
    let (mut admin, mut queue) = pair(address, 31);
    queue.send(in_capsule(write_entry(0, 1), &[1; 512]), &[1; 512]);
    assert_eq!(queue.fetch(read_entry(8, 8), 4096).0.status, Status::SUCCESS, "the write has arrived");
    admin.send(write_cache(false), &[]);
    assert_eq!(admin.run(admin::keep_alive()).status, Status::SUCCESS);
    assert!(!is_degraded(&mut admin));
    expect_two_works(&mut admin.io_queue(2, 31));
}

#[test]
fn stuck_write_blocks_cache_disable() {
    let place = Place::new(IoChoice::Auto);
    let mut admin = place.admin();
    let mut queue = admin.io_queue(1, 31);
    place.hang(&mut queue, 1, 0xee);
    let mut other = admin.io_queue(2, 31);
    for _ in 0..2 {
        assert_eq!(admin.run(write_cache(false)).status, Status::NAMESPACE_NOT_READY);
        expect_two_works(&mut other);
    }
    let _all = place.release();
    eventually("the cache is off", || admin.run(write_cache(false)).status == Status::SUCCESS);
}

#[test]
fn controller_shutdown_completes_despite_hung_volume() {
    let place = Place::new(IoChoice::Auto);
    let mut admin = place.admin();
    let mut queue = admin.io_queue(1, 31);
    expect_two_works(&mut queue);
    assert!(!is_degraded(&mut admin));
    place.hang(&mut queue, 1, 0xee);
    shut_down(&mut admin);
    assert!(is_degraded(&mut admin));
    let _all = place.release();
}

/// The end of the process ends the threads that hang; nothing else does.
#[test]
fn target_stops_despite_hung_volume() {
    for choice in [IoChoice::Auto, IoChoice::Epoll] {
        let Place { relief, target, address, stuck, _dir } = Place::new(choice);
        let admin = MockHost::admin(address);
        let mut queue = admin.io_queue(1, 31);
        expect_two_works(&mut queue);
        queue.send(in_capsule(write_entry(0, 1), &[1; 512]), &[1; 512]);
        eventually("a write hangs", || stuck.started() == 1);
        let (ended, has_ended) = mpsc::channel();
        let shutdown = thread::spawn(move || ended.send(target.shutdown(Duration::ZERO)));
        let report = has_ended.recv_timeout(TEST_TIMEOUT).expect("the shutdown ends");
        assert_eq!((report.commands_aborted, report.flushes_failed, report.cores_failed), (1, 1, 0));
        assert!(report.cores_stuck >= 1, "{report}");
        shutdown.join().unwrap().unwrap();
        drop(relief);
    }
}

#[test]
fn controller_shutdown_completes_despite_failed_volume() {
    let flushes = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&flushes);
    let failing = Interposer::over("mem:1M", |request| match request {
        Request::Flush => Decision::Fail(VolumeError::SyncFailed { raw_os_error: 5 }),
        _ => Decision::Pass(request),
    });
    let counting = Interposer::over("mem:1M", move |request| {
        count.fetch_add(usize::from(matches!(request, Request::Flush)), Ordering::SeqCst);
        Decision::Pass(request)
    });
    let (_target, address) = start(serving(vec![(1, failing), (2, counting)]));
    let mut admin = MockHost::admin(address);
    shut_down(&mut admin);
    assert_eq!(flushes.load(Ordering::SeqCst), 1);
    assert!(is_degraded(&mut admin));
}

/// Hung operations do not block the operations of other files.
#[test]
fn hung_volume_does_not_block_others() {
    for choice in [IoChoice::Auto, IoChoice::Epoll] {
        let place = Place::new(choice);
        let admin = place.admin();
        let mut queues: Vec<_> = (1..=8).map(|qid| admin.io_queue(qid, 1023)).collect();
        for queue in &mut queues {
            place.hang(queue, 256, 0xee);
        }
        expect_two_works(&mut admin.io_queue(9, 31));
        let _all = place.release();
    }
}

/// A target with one core and two files, of which namespace 1 never completes the requests that `is_held`
/// selects, and namespace 2 every other request.
fn holding(dir: &Path, is_held: fn(&Request) -> bool) -> (Target, std::net::SocketAddr) {
    let file = |name: &str| format!("{},size=1M", dir.join(name).display());
    let hung = Interposer::over(&file("hung"), move |request| {
        if is_held(&request) { Decision::Later(request) } else { Decision::Pass(request) }
    });
    let count = AtomicUsize::new(0);
    let busy =
        Interposer::over(&file("busy"), move |request| match count.fetch_add(1, Ordering::SeqCst) % 2 {
            0 => Decision::Later(request),
            _ => Decision::Pass(request),
        });
    start(TargetConfig {
        stuck_after: TEST_TIMEOUT,
        queue_depth: 1024,
        cores: one_core_twice()[..1].to_vec(),
        ..serving(vec![(1, hung), (2, busy)])
    })
}

#[test]
fn retries_commands_despite_hung_volume() {
    let dir = tempfile::tempdir().unwrap();
    let (_target, address) = holding(dir.path(), |request| matches!(request, Request::Write { .. }));
    let (_admin, mut queue) = pair(address, 1023);
    for _ in 0..200 {
        queue.send(in_capsule(write_entry(0, 1), &[1; 512]), &[1; 512]);
    }
    assert_eq!(queue.fetch(read_entry(8, 8), 4096).0.status, Status::SUCCESS, "the writes have arrived");

    let other = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
    let mut admin = MockHost::admin_with(address, IcReq::default(), other);
    let mut queues = [1, 2].map(|qid| admin.io_queue_with(qid, 31, IcReq::default(), other));
    let entry = of_two(write_entry(8, 8));
    let writes = queues.each_mut().map(|queue| queue.send(in_capsule(entry, &[9; 4096]), &[9; 4096]));
    for (queue, cid) in queues.iter_mut().zip(writes) {
        assert_eq!(queue.completion(cid).0.status, Status::SUCCESS);
    }
    let flushes = queues.each_mut().map(|queue| queue.send(io::flush(2), &[]));
    for (queue, cid) in queues.iter_mut().zip(flushes) {
        assert_eq!(queue.completion(cid).0.status, Status::SUCCESS);
    }
    shut_down(&mut admin);
    assert!(!is_degraded(&mut admin), "a volume was not flushed");
}

/// A volume with one flush at a time, as a buffered file: the flush of a shutdown does not wait for all flushes of hosts.
#[test]
fn shutdown_flushes_despite_flushes_of_hosts() {
    const FLUSHES: usize = 30;
    let [permits, tries, passed] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
    let counts = [&permits, &tries, &passed].map(Arc::clone);
    let limited = Interposer::over("mem:1M", move |request| {
        let [permits, tries, passed] = &counts;
        if !matches!(request, Request::Flush) {
            return Decision::Pass(request);
        }
        tries.fetch_add(1, Ordering::SeqCst);
        let take = |left: usize| left.checked_sub(1);
        if permits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            return Decision::Later(request);
        }
        passed.fetch_add(1, Ordering::SeqCst);
        Decision::Pass(request)
    });
    let (_target, address) = start(TargetConfig {
        stuck_after: TEST_TIMEOUT,
        queue_depth: 1024,
        cores: one_core_twice()[..1].to_vec(),
        ..serving(vec![(1, limited)])
    });
    let (_admin, mut queue) = pair(address, 1023);
    for _ in 0..FLUSHES {
        queue.send(io::flush(1), &[]);
    }
    eventually("all flushes have arrived", || tries.load(Ordering::SeqCst) >= 2 * FLUSHES);

    let other = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
    let mut admin = MockHost::admin_with(address, IcReq::default(), other);
    admin.set_property(CC, Cc::enabled().with_shn(Cc::SHN_NORMAL).0);
    eventually("the shutdown is complete", || {
        permits.store(1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(5));
        Csts(admin.property(CSTS) as u32).shst() == Csts::SHST_COMPLETE
    });
    let passed = passed.load(Ordering::SeqCst);
    permits.store(usize::MAX, Ordering::SeqCst);
    assert!(passed < FLUSHES, "it waited for the flushes of a host");
}

/// A read waits with memory promised to it: that must not count as waiting for memory.
#[test]
fn blocked_read_does_not_block_other_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let (_target, address) = holding(dir.path(), |request| matches!(request, Request::Read { .. }));
    let (admin, mut queue) = pair(address, 1023);
    for _ in 0..100 {
        queue.send(SubmissionEntry { sgl: Sgl::Transport { len: 4096 }, ..read_entry(8, 8) }, &[]);
    }
    assert_eq!(
        queue.write(write_entry(8, 8), &[9; 4096]).0.status,
        Status::SUCCESS,
        "the reads have arrived"
    );
    let mut queue = admin.io_queue(2, 31);
    expect_two_works(&mut queue);
    assert_eq!(queue.push(of_two(write_entry(0, 64)), &[8; 32 << 10]).status, Status::SUCCESS);
}

/// Sends writes to the volume that hangs on eight queues, more than the pool of one core holds, until the
/// target takes no more of them; meanwhile others are served, and a new association of the host: `after` its
/// connections have broken, or next to them.
fn expect_memory_for_others(after: bool, write: fn(&mut MockHost, &AtomicUsize)) {
    let place = Place::on(one_core_twice()[..1].to_vec(), IoChoice::Auto);
    let old_admin = place.admin();
    let mut others = old_admin.io_queue(9, 31);
    let sent = Arc::new(AtomicUsize::new(0));
    let queues = (1..=8).map(|qid| old_admin.io_queue(qid, 127)).collect::<Vec<_>>();
    let streams: Vec<_> = queues.iter().map(|queue| queue.stream.try_clone().unwrap()).collect();
    let threads = queues.into_iter().map(|mut queue| {
        let sent = Arc::clone(&sent);
        thread::spawn(move || {
            write(&mut queue, &sent);
            queue.expect_end();
        })
    });
    let threads: Vec<_> = threads.collect();
    eventually("memory is taken", || sent.load(Ordering::SeqCst) > 4 << 20);
    for _ in 0..200 {
        expect_two_takes_much(&mut others);
    }
    if after {
        streams.iter().for_each(|stream| stream.shutdown(Shutdown::Both).unwrap());
        old_admin.stream.shutdown(Shutdown::Both).unwrap();
        eventually("the connections are gone", || place.target.counters().connections_open == 0);
    }
    let admin = place.admin();
    let mut queue = admin.io_queue(1, 31);
    expect_two_takes_much(&mut queue);
    expect_two_works(&mut queue);
    drop(place.release());
    // A thread may find its connection broken while it sends.
    threads.into_iter().for_each(|thread| drop(thread.join()));
}

fn expect_two_takes_much(queue: &mut MockHost) {
    assert_eq!(queue.push(of_two(write_entry(0, 256)), &[8; 128 << 10]).status, Status::SUCCESS);
}

#[test]
fn hung_volume_leaves_memory_for_requested_data() {
    expect_memory_for_others(false, |queue, sent| {
        let len = 128 << 10;
        for lba in 0..100 {
            let entry = write_entry(lba * 16 % 1024, 256);
            queue.send(SubmissionEntry { sgl: Sgl::Transport { len }, ..entry }, &[]);
        }
        for _ in 0..100 {
            let Some(Answer { pdu: ControllerPdu::R2t(r2t), .. }) = queue.try_answer() else { return };
            queue.send_granted(&r2t, &[0xee; 128 << 10]);
            sent.fetch_add(len as usize, Ordering::SeqCst);
        }
    });
}

#[test]
fn hung_volume_leaves_memory_for_in_capsule_data() {
    expect_memory_for_others(true, |queue, sent| {
        for lba in 0..127 {
            queue.send(in_capsule(write_entry(lba * 16, 32), &[0xee; 16 << 10]), &[0xee; 16 << 10]);
            sent.fetch_add(16 << 10, Ordering::SeqCst);
        }
    });
}

#[test]
fn hung_reads_do_not_block_other_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let (_target, address) = holding(dir.path(), |request| matches!(request, Request::Read { .. }));
    let (_admin, mut queue) = pair(address, 1023);
    let len = 128 << 10;
    for _ in 0..100 {
        queue.send(SubmissionEntry { sgl: Sgl::Transport { len }, ..read_entry(0, 256) }, &[]);
    }
    for _ in 0..10 {
        assert_eq!(queue.fetch(of_two(read_entry(0, 256)), len).0.status, Status::SUCCESS);
    }
    expect_two_works(&mut queue);
}

fn write_cache(is_enabled: bool) -> SubmissionEntry {
    let fid = FeatureId::VolatileWriteCache.code();
    admin::SetFeaturesCommand { fid, cdw11: u32::from(is_enabled), ..Default::default() }.entry()
}

fn shut_down(admin: &mut MockHost) {
    admin.set_property(CC, Cc::enabled().with_shn(Cc::SHN_NORMAL).0);
    eventually("the shutdown is complete", || {
        let csts = Csts(admin.property(CSTS) as u32);
        assert!(!csts.cfs(), "the controller failed");
        csts.shst() == Csts::SHST_COMPLETE
    });
}

fn is_degraded(admin: &mut MockHost) -> bool {
    let page = admin::GetLogPageCommand::new(admin::LogPage::Smart, 0, 512);
    let (_, bytes) = admin.fetch(page.entry(), 512);
    Smart::decode_prefix(&bytes).unwrap().critical_warning.reliability()
}
