//! Namespaces that change while hosts use them.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::stuck::Stuck;
use common::*;
use isolane_memory::Pool;
use isolane_target::{
    NamespaceChange, NamespaceError, NamespaceState, OfflineVolume, Operation, Target, TargetConfig,
};
use isolane_volume::{Request, Step, Volume, VolumeDescription, VolumeError, VolumeInfo};
use isolane_wire::admin::{
    AsyncEvent, Cns, GetLogPageCommand, IdentifyCommand, LogPage, Notice, SetFeaturesCommand,
};
use isolane_wire::feature::{FeatureId, HostBehaviorSupport};
use isolane_wire::pdu::ControllerPdu;
use isolane_wire::registers::{Cc, Csts};
use isolane_wire::{Status, SubmissionEntry, admin, io};

const BLOCK: [u8; 512] = [7; 512];

fn identify(nsid: u32) -> SubmissionEntry {
    IdentifyCommand { cns: Cns::Namespace.code(), nsid, ..IdentifyCommand::default() }.entry()
}

fn on(nsid: u32, entry: SubmissionEntry) -> SubmissionEntry {
    SubmissionEntry { nsid, ..entry }
}

impl MockHost {
    /// Waits for the notice of changed namespaces, reads their list, and requests the next notice.
    fn changed(&mut self, event: &mut u16) -> Vec<u32> {
        let (completion, _) = self.completion(*event);
        let notice = AsyncEvent(completion.dw0).as_notice();
        assert_eq!(notice, Some(Notice::NamespaceAttributeChanged));
        let list = GetLogPageCommand::new(LogPage::ChangedNamespaces, 0, 4096).entry();
        let changed = nsids(&self.fetch(list, 4096).1);
        *event = self.send(admin::async_event_request(), &[]);
        changed
    }

    fn active(&mut self) -> Vec<u32> {
        let command = IdentifyCommand { cns: Cns::ActiveNamespaces.code(), ..IdentifyCommand::default() };
        nsids(&self.fetch(command.entry(), 4096).1)
    }

    /// Returns the number of blocks of a namespace.
    fn blocks(&mut self, nsid: u32) -> u64 {
        u64::from_le_bytes(self.fetch(identify(nsid), 4096).1[..8].try_into().unwrap())
    }
}

fn nsids(list: &[u8]) -> Vec<u32> {
    let ids = list.chunks_exact(4).map(|id| u32::from_le_bytes(id.try_into().unwrap()));
    ids.take_while(|nsid| *nsid != 0).collect()
}

fn assert_unknown(status: Status) {
    assert!(status.is(Status::INVALID_NAMESPACE) && status.dnr(), "{status:?}");
}

/// A target on two cores, an admin queue that requests a notice, and a queue for each core.
fn two_cores(volumes: &[&str]) -> (Target, MockHost, u16, [MockHost; 2]) {
    connected(TargetConfig { cores: one_core_twice(), ..config(volumes) })
}

fn connected(config: TargetConfig) -> (Target, MockHost, u16, [MockHost; 2]) {
    let (target, address) = start(config);
    let (mut admin, first) = pair(address, 31);
    let second = admin.io_queue(2, 31);
    let event = admin.send(admin::async_event_request(), &[]);
    (target, admin, event, [first, second])
}

#[test]
fn volume_comes_and_goes_while_hosts_are_connected() {
    let dir = tempfile::tempdir().unwrap();
    let path = format!("{},size=1M", dir.path().join("image").display());
    let (target, mut admin, mut event, mut queues) = two_cores(&["mem:16M"]);
    queues.iter_mut().for_each(|queue| assert_unknown(queue.run(on(2, io::flush(2))).status));
    assert_eq!(target.add_namespace(None, volume(&path)).unwrap(), 2);
    assert_eq!(admin.changed(&mut event), [2]);
    assert_eq!((admin.active(), admin.blocks(2)), (vec![1, 2], 2048));
    for (at, queue) in (0..).zip(&mut queues) {
        assert_eq!(queue.write(on(2, write_entry(at, 1)), &BLOCK).0.status, Status::SUCCESS);
        assert_eq!(queue.fetch(on(2, read_entry(at, 1)), 512).1, BLOCK);
    }
    assert_eq!(target.counters().namespaces[1].get(Operation::Write).commands, 2);
    let volumes = target.snapshot().volumes;
    assert_eq!(volumes.iter().map(|volume| volume.nsid).collect::<Vec<_>>(), [Some(1), Some(2)]);

    let closing = target.remove_namespace(2).unwrap();
    assert_eq!(admin.changed(&mut event), [2]);
    assert_eq!((admin.active(), admin.blocks(2)), (vec![1], 0));
    for queue in &mut queues {
        assert_unknown(queue.write(on(2, write_entry(5, 1)), &BLOCK).0.status);
        assert_unknown(queue.fetch(on(2, read_entry(5, 1)), 512).0.status);
    }
    assert!(closing.wait(TEST_TIMEOUT), "no command is in flight");
    assert!(target.snapshot().numbers.series.iter().all(|series| series.volume == 0));

    // The lock of the file is free.
    assert_eq!(target.add_namespace(None, volume(&path)).unwrap(), 3, "no ID is used twice");
    assert_eq!(admin.changed(&mut event), [3]);
    assert_eq!(queues[1].fetch(on(3, read_entry(1, 1)), 512).1, BLOCK);
}

#[test]
fn changes_happen_as_a_whole() {
    let (target, mut admin, mut event, mut queues) = two_cores(&["mem:16M", "mem:16M"]);
    let add = |nsid| NamespaceChange::Add { nsid, volume: volume("mem:1M") };
    let failing =
        vec![add(Some(9)), NamespaceChange::Remove { nsid: 1 }, NamespaceChange::Remove { nsid: 7 }];
    assert_eq!(target.change_namespaces(failing).unwrap_err(), NamespaceError::Unknown(7));
    let exists = target.change_namespaces(vec![add(Some(9)), add(Some(2))]).unwrap_err();
    assert_eq!(exists, NamespaceError::Exists(2));
    let twin = volume("mem:1M");
    let twins = [4, 5].map(|nsid| NamespaceChange::Add { nsid: Some(nsid), volume: Arc::clone(&twin) });
    let error = target.change_namespaces(twins.to_vec()).unwrap_err();
    assert!(matches!(error, NamespaceError::SameIdentity { nsid: 4, .. }), "{error}");
    let config = target.change_namespaces(vec![NamespaceChange::Remove { nsid: 1 }, add(Some(5000))]);
    assert!(matches!(config, Err(NamespaceError::Config(_))));
    assert_eq!(admin.active(), [1, 2]);
    assert_eq!(queues[0].write(write_entry(5, 1), &BLOCK).0.status, Status::SUCCESS);

    let changes = vec![
        NamespaceChange::Remove { nsid: 1 },
        NamespaceChange::ReadOnly { nsid: 2, read_only: true },
        add(Some(9)),
        add(None),
    ];
    let changed = target.change_namespaces(changes).unwrap();
    assert_eq!(changed.added, [9, 10]);
    assert_eq!(admin.changed(&mut event), [1, 2, 9, 10], "one notice for all");
    assert_eq!(admin.active(), [2, 9, 10]);
    assert!(changed.closing.wait(TEST_TIMEOUT));
}

#[test]
fn command_in_flight_ends_at_its_removed_volume() {
    let config =
        TargetConfig { stall_after: Duration::ZERO, cores: one_core_twice(), ..config(&["mem:16M"]) };
    let (target, mut admin, mut event, mut queues) = connected(config);
    let state = |target: &Target| target.namespace_control().list().last().unwrap().state;
    let (stuck, relief) = Stuck::new();
    target.add_namespace(Some(2), stuck.clone()).unwrap();
    assert_eq!(state(&target), NamespaceState::Online);
    admin.changed(&mut event);
    let [first, second] = &mut queues;
    let write = first.send(in_capsule(on(2, write_entry(5, 1)), &BLOCK), &BLOCK);
    eventually("the write is at the volume", || stuck.started() == 1);
    eventually("a tick has seen it", || state(&target) == NamespaceState::Stalled);

    let closing = target.remove_namespace(2).unwrap();
    assert_eq!(admin.changed(&mut event), [2]);
    assert_unknown(second.write(on(2, write_entry(9, 1)), &BLOCK).0.status);
    assert_eq!(second.write(write_entry(9, 1), &BLOCK).0.status, Status::SUCCESS, "another namespace");
    assert!(!closing.wait(Duration::ZERO), "a command is at the volume");
    assert_eq!(state(&target), NamespaceState::Closing);
    let reader = relief.release();
    assert_eq!(first.completion(write).0.status, Status::SUCCESS);
    assert!(closing.wait(TEST_TIMEOUT));
    assert_eq!(Arc::strong_count(&stuck), 1, "only this test has the volume");
    drop(stuck);
    assert!(reader.join().unwrap().starts_with(&BLOCK));
}

#[test]
fn data_goes_to_the_namespace_of_its_command() {
    let (target, mut admin, mut event, mut queues) = two_cores(&["mem:16M"]);
    let before = volume("mem:1M");
    target.add_namespace(Some(2), Arc::clone(&before)).unwrap();
    admin.changed(&mut event);
    let [queue, other] = &mut queues;
    let write =
        SubmissionEntry { sgl: isolane_wire::Sgl::Transport { len: 512 }, ..on(2, write_entry(5, 1)) };
    let cid = queue.send(write, &[]);
    let ControllerPdu::R2t(r2t) = queue.answer().pdu else { panic!("no R2T") };

    let replace = NamespaceChange::Replace { nsid: 2, volume: volume("mem:1M"), may_shrink: false };
    let closing = target.change_namespaces(vec![replace]).unwrap().closing;
    assert_eq!(admin.changed(&mut event), [2]);
    assert!(!closing.wait(Duration::ZERO), "the write has no data yet");
    queue.send_granted(&r2t, &BLOCK);
    assert_eq!(queue.completion(cid).0.status, Status::SUCCESS);
    assert!(closing.wait(TEST_TIMEOUT));
    assert_eq!(other.fetch(on(2, read_entry(5, 1)), 512).1, [0; 512], "of the new volume");
    let found = before.try_read(5, 1, &mut Pool::new(16)).unwrap();
    assert_eq!(found.to_vec(), BLOCK, "of the volume before");
}

#[test]
fn file_grows_and_shrinks_while_hosts_are_connected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let text = format!("{},size=1M", path.display());
    let (target, mut admin, mut event, mut queues) = two_cores(&[&text, "mem:1M"]);
    let last = write_entry(4095, 1);
    let refused = queues[0].write(last, &BLOCK).0.status;
    assert!(refused.is(Status::LBA_OUT_OF_RANGE), "{refused:?}");
    assert_eq!(target.resize_namespace(1, Some(2 << 20), false).unwrap(), 2 << 20);
    assert_eq!(admin.changed(&mut event), [1]);
    assert_eq!(admin.blocks(1), 4096);
    for queue in &mut queues {
        assert_eq!(queue.write(last, &BLOCK).0.status, Status::SUCCESS);
        assert_eq!(queue.run(io::flush(1)).status, Status::SUCCESS);
    }
    // Another program has grown the file.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(3 << 20).unwrap();
    assert_eq!(target.resize_namespace(1, None, false).unwrap(), 3 << 20);
    assert_eq!(admin.changed(&mut event), [1]);
    assert_eq!(queues[0].fetch(read_entry(6143, 1), 512).1, [0; 512]);

    for (nsid, bytes, expected) in [
        (1, Some(1 << 20), "its size would shrink from 3M to 1M; allow that with --shrink"),
        (1, Some(1000), "1000 bytes are no multiple of its block size of 512; choose a multiple"),
        (2, Some(2 << 20), "volumes of its kind have a fixed size"),
        (7, None, "namespace 7 does not exist"),
    ] {
        let error = target.resize_namespace(nsid, bytes, false).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(target.resize_namespace(1, Some(1 << 20), true).unwrap(), 1 << 20);
    assert_eq!(admin.changed(&mut event), [1]);
    assert!(queues[1].fetch(read_entry(2048, 1), 512).0.status.is(Status::LBA_OUT_OF_RANGE));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 << 20, "no data is removed");
}

fn assert_not_ready(status: Status, crd: u8) {
    assert!(status.is(Status::NAMESPACE_NOT_READY) && !status.dnr() && status.crd() == crd, "{status:?}");
}

fn enable_retry_delays() -> (SubmissionEntry, [u8; HostBehaviorSupport::LEN]) {
    let fid = FeatureId::HostBehaviorSupport.code();
    let behavior = HostBehaviorSupport { acre: 1, ..HostBehaviorSupport::default() };
    (SetFeaturesCommand { fid, ..SetFeaturesCommand::default() }.entry(), behavior.encode())
}

#[test]
fn host_with_retry_delays_repeats_commands_of_offline_namespace() {
    let (target, mut admin, mut event, mut queues) = two_cores(&["mem:16M", "mem:16M"]);
    let (command, data) = enable_retry_delays();
    assert_eq!(admin.write(command, &data).0.status, Status::SUCCESS);
    assert_eq!(admin.push(command, &data).status, Status::SUCCESS, "with an R2T");
    let offline = NamespaceChange::Offline { nsid: 2 };
    assert!(target.change_namespaces(vec![offline.clone()]).unwrap().closing.wait(TEST_TIMEOUT));
    for queue in &mut queues {
        assert_not_ready(queue.write(on(2, write_entry(5, 1)), &BLOCK).0.status, 2);
        assert_not_ready(queue.push(on(2, write_entry(5, 1)), &BLOCK).status, 2);
        assert_not_ready(queue.fetch(on(2, read_entry(5, 1)), 512).0.status, 2);
        assert_not_ready(queue.run(io::flush(2)).status, 2);
        assert_eq!(queue.write(write_entry(5, 1), &BLOCK).0.status, Status::SUCCESS, "another namespace");
    }
    assert_eq!((admin.active(), admin.blocks(2)), (vec![1, 2], 32768));
    assert_eq!(target.change_namespaces(vec![offline]).unwrap_err(), NamespaceError::Offline(2));
    let error = target.resize_namespace(2, None, false).unwrap_err();
    assert_eq!(error, NamespaceError::Offline(2));
    let states = target.namespace_control().list().into_iter().map(|status| (status.nsid, status.state));
    assert_eq!(states.collect::<Vec<_>>(), [(1, NamespaceState::Online), (2, NamespaceState::Offline)]);

    let replace = |text, may_shrink| NamespaceChange::Replace { nsid: 2, volume: volume(text), may_shrink };
    let error = target.change_namespaces(vec![replace("mem:1M", false)]).unwrap_err();
    assert!(matches!(error, NamespaceError::Smaller { nsid: 2, .. }), "{error}");
    target.change_namespaces(vec![replace("mem:1M", true)]).unwrap();
    assert_eq!(admin.changed(&mut event), [2]);
    for queue in &mut queues {
        assert_eq!(queue.write(on(2, write_entry(5, 1)), &BLOCK).0.status, Status::SUCCESS);
    }
}

#[test]
fn offline_namespace_holds_commands_of_host_without_retry_delays() {
    let answer_within = Duration::from_secs(3600);
    let (target, address) =
        start(TargetConfig { answer_within, ..config(&["mem:16M", "mem:16M", "mem:16M"]) });
    let (mut admin, mut queue) = pair(address, 31);
    let offline = |nsid| NamespaceChange::Offline { nsid };
    target.change_namespaces(vec![offline(2), offline(3)]).unwrap();
    let held = queue.send(in_capsule(on(2, write_entry(5, 1)), &BLOCK), &BLOCK);
    assert_eq!(queue.write(write_entry(5, 1), &BLOCK).0.status, Status::SUCCESS, "others pass");
    let replace = NamespaceChange::Replace { nsid: 2, volume: volume("mem:16M"), may_shrink: false };
    target.change_namespaces(vec![replace]).unwrap();
    assert_not_ready(queue.completion(held).0.status, 0);
    assert_eq!(
        queue.write(on(2, write_entry(5, 1)), &BLOCK).0.status,
        Status::SUCCESS,
        "the host repeats it"
    );

    let held = queue.send(on(3, io::flush(3)), &[]);
    assert_eq!(queue.run(io::flush(1)).status, Status::SUCCESS);
    target.remove_namespace(3).unwrap();
    assert_unknown(queue.completion(held).0.status);

    target.change_namespaces(vec![offline(2)]).unwrap();
    queue.send(on(2, io::flush(2)), &[]);
    assert_eq!(queue.run(io::flush(1)).status, Status::SUCCESS);
    drop(queue);
    eventually("the connection with a held command ends", || target.connections().len() == 1);
    assert_eq!(admin.active(), [1, 2]);
    target.shutdown(TEST_TIMEOUT).into_result().unwrap();
}

#[test]
fn held_command_fails_before_its_host_gives_up() {
    let answer_within = Duration::from_millis(1);
    let (target, address) = start(TargetConfig { answer_within, ..config(&["mem:16M"]) });
    let (_admin, mut queue) = pair(address, 31);
    target.change_namespaces(vec![NamespaceChange::Offline { nsid: 1 }]).unwrap();
    assert_not_ready(queue.fetch(read_entry(5, 1), 512).0.status, 0);
}

#[test]
fn volume_that_did_not_open_comes_later() {
    let missing = |nsid| OfflineVolume { nsid, name: "/srv/b.img".into(), reason: "it is missing".into() };
    let mut config = TargetConfig { cores: one_core_twice(), ..config(&["mem:16M"]) };
    config.subsystems[0].offline = vec![missing(3)];
    let (target, mut admin, mut event, mut queues) = connected(config);
    let status = target.namespace_control().list().swap_remove(1);
    assert_eq!((status.nsid, status.state, status.bytes), (3, NamespaceState::Offline, 0));
    assert_eq!((&status.volume[..], status.reason.as_deref()), ("/srv/b.img", Some("it is missing")));
    assert_eq!(admin.active(), [1], "hosts cannot be told its size");
    let (entry, data) = enable_retry_delays();
    assert_eq!(admin.write(entry, &data).0.status, Status::SUCCESS);
    for queue in &mut queues {
        assert_not_ready(queue.fetch(on(3, read_entry(5, 1)), 512).0.status, 2);
    }
    assert_eq!(target.add_namespace(Some(3), volume("mem:1M")), Err(NamespaceError::Exists(3)));

    let replace = NamespaceChange::Replace { nsid: 3, volume: volume("mem:1M"), may_shrink: false };
    target.change_namespaces(vec![replace]).unwrap();
    assert_eq!(admin.changed(&mut event), [3]);
    assert_eq!((admin.active(), admin.blocks(3)), (vec![1, 3], 2048));
    for queue in &mut queues {
        assert_eq!(queue.write(on(3, write_entry(5, 1)), &BLOCK).0.status, Status::SUCCESS);
    }
    assert_eq!(target.add_namespace(None, volume("mem:1M")).unwrap(), 4, "its ID was taken");
}

#[test]
fn refuses_offline_volume_without_an_id_of_its_own() {
    for (nsid, expected) in [(1, "1"), (0, "0"), (1 << 20, "1048576")] {
        let mut config = config(&["mem:1M"]);
        let (name, reason) = ("b".to_owned(), "missing".to_owned());
        config.subsystems[0].offline = vec![OfflineVolume { nsid, name, reason }];
        let error = Target::start(config).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// A volume with a volatile cache that counts writes and flushes, and keeps whether all writes were durable.
struct Recorder {
    description: VolumeDescription,
    writes: AtomicUsize,
    flushes: AtomicUsize,
    durable: Mutex<bool>,
    failure: Option<VolumeError>,
}

impl Recorder {
    fn new(failure: Option<VolumeError>) -> Arc<Recorder> {
        let memory = volume("mem:1M");
        let info = VolumeInfo { volatile_cache: true, ..memory.info().clone() };
        let description = VolumeDescription { info, ..memory.description().clone() };
        let (writes, flushes, durable) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(true));
        Arc::new(Recorder { description, writes, flushes, durable, failure })
    }
}

impl Volume for Recorder {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn failure(&self) -> Option<VolumeError> {
        self.failure.clone()
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        match request {
            Request::Write { data, fua, .. } => {
                self.writes.fetch_add(1, Ordering::SeqCst);
                *self.durable.lock().unwrap() &= fua;
                pool.recycle_buffer(data);
            }
            Request::Flush => _ = self.flushes.fetch_add(1, Ordering::SeqCst),
            _ => {}
        }
        Step::Done(Ok(isolane_memory::Payload::default()))
    }
}

#[test]
fn controller_shutdown_skips_failed_namespace() {
    let failed = Recorder::new(Some(VolumeError::SyncFailed { raw_os_error: 5 }));
    let others = Recorder::new(None);
    let (target, address) = start(serving(vec![(1, failed.clone()), (2, others.clone())]));
    let status = target.namespace_control().list().swap_remove(0);
    assert_eq!(status.state, NamespaceState::Failed);
    assert!(status.reason.is_some_and(|reason| reason.contains("sync failed")));
    let mut admin = MockHost::admin(address);
    admin.set_property(CC, Cc::enabled().with_shn(Cc::SHN_NORMAL).0);
    eventually("the shutdown is complete", || {
        Csts(admin.property(CSTS) as u32).shst() == Csts::SHST_COMPLETE
    });
    let flushes = [&failed, &others].map(|volume| volume.flushes.load(Ordering::SeqCst));
    assert_eq!(flushes, [0, 1]);
}

#[test]
fn host_that_never_flushes_writes_durably_to_a_new_cache() {
    let (target, mut admin, mut event, mut queues) = two_cores(&["mem:16M"]);
    let recorder = Recorder::new(None);
    target.add_namespace(Some(2), recorder.clone()).unwrap();
    admin.changed(&mut event);
    for queue in &mut queues {
        assert_eq!(queue.write(on(2, write_entry(5, 1)), &BLOCK).0.status, Status::SUCCESS);
    }
    assert_eq!((recorder.writes.load(Ordering::SeqCst), *recorder.durable.lock().unwrap()), (2, true));
}

/// Offset of NSATTR in Identify Namespace; bit 0 is the write protection.
const NSATTR: usize = 99;

#[test]
fn write_protection_changes_under_io() {
    let (target, mut admin, mut event, [mut first, mut second]) = two_cores(&["mem:16M", "mem:16M"]);
    assert_eq!(first.write(write_entry(5, 1), &BLOCK).0.status, Status::SUCCESS);

    target.set_read_only(1, true).unwrap();
    assert_eq!(admin.changed(&mut event), [1]);
    for queue in [&mut first, &mut second] {
        let status = queue.write(write_entry(5, 1), &[8; 512]).0.status;
        assert!(status.is(Status::NAMESPACE_WRITE_PROTECTED) && status.dnr(), "{status:?}");
        assert_eq!(queue.fetch(read_entry(5, 1), 512).1, BLOCK);
        let other = SubmissionEntry { nsid: 2, ..write_entry(5, 1) };
        assert_eq!(queue.write(other, &BLOCK).0.status, Status::SUCCESS, "another namespace");
    }
    assert_eq!(admin.fetch(identify(1), 4096).1[NSATTR], 1);
    assert_eq!(admin.fetch(identify(2), 4096).1[NSATTR], 0);

    target.set_read_only(1, false).unwrap();
    assert_eq!(admin.changed(&mut event), [1]);
    for queue in [&mut first, &mut second] {
        assert_eq!(queue.write(write_entry(5, 1), &[8; 512]).0.status, Status::SUCCESS);
    }
    assert_eq!(admin.fetch(identify(1), 4096).1[NSATTR], 0);
}

#[test]
fn refuses_unknown_namespace_and_read_only_volume() {
    let (target, address) = start(config(&["mem:16M", "mem:16M,ro"]));
    let (_admin, mut queue) = pair(address, 31);
    assert_eq!(target.set_read_only(7, true), Err(NamespaceError::Unknown(7)));
    let error = target.set_read_only(2, false).unwrap_err();
    assert!(matches!(error, NamespaceError::ReadOnlyVolume { nsid: 2, .. }), "{error}");
    let other = SubmissionEntry { nsid: 2, ..write_entry(5, 1) };
    assert!(queue.write(other, &BLOCK).0.status.is(Status::NAMESPACE_WRITE_PROTECTED));
}
