//! Stages of I/O commands, as a snapshot of the target shows them.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::interposer::{Decision, Interposer};
use common::*;
use isolane_memory::{Buffer, Pool};
use isolane_observe::snapshot::{Series, Snapshot};
use isolane_observe::stage::{Operation, SizeClass, Stage};
use isolane_target::{IoChoice, Mode, Target, TargetConfig};
use isolane_volume::{Request, Step, Volume, VolumeDescription, VolumeTree};
use isolane_wire::{Sgl, Status, SubmissionEntry};

/// Returns the numbers of one kind once `count` commands are counted.
fn series(target: &Target, operation: Operation, size: SizeClass, count: u64) -> Series {
    let find = |snapshot: Snapshot| {
        snapshot
            .numbers
            .series
            .into_iter()
            .find(|it| it.volume == 0 && (it.operation, it.size) == (operation, size))
    };
    eventually("all are counted", || {
        find(target.snapshot()).is_some_and(|series| series.total.count() == count)
    });
    // A copy can miss parts of the last command. Each core replies to this after it has recorded the command.
    target.connections();
    let series = find(target.snapshot()).expect("counted");
    let stages: u64 = series.stages.iter().map(|at| at.times.sum_ns()).sum();
    assert_eq!(stages, series.total.sum_ns(), "the stages add up to the total: {series:?}");
    series
}

#[test]
fn stages_of_memory_reads_add_up() {
    let (target, address) = start(config(&["mem:16M"]));
    let (_admin, mut queue) = pair(address, 31);
    for at in 0..50 {
        assert_eq!(queue.fetch(read_entry(at * 8, 8), 4096).0.status, Status::SUCCESS);
        assert_eq!(queue.fetch(read_entry(at * 8, 256), 128 << 10).0.status, Status::SUCCESS);
    }
    let small = series(&target, Operation::Read, SizeClass::Small, 50);
    let stages: Vec<Stage> = small.stages.iter().map(|at| at.stage).collect();
    assert_eq!(stages, [Stage::Batch, Stage::Socket], "completed in the receive that delivered it");
    assert_eq!((small.bytes, small.errors), (50 * 4096, 0));
    assert_eq!(small.unseen.map(|unseen| unseen.count()), Some(50));
    let large = series(&target, Operation::Read, SizeClass::Large, 50);
    assert!(large.stage(Stage::Device).is_some() && large.stage(Stage::Answer).is_some(), "{large:?}");
    assert_eq!(large.bytes, 50 * (128 << 10));
}

#[test]
fn stages_of_file_volume_add_up() {
    for io in [IoChoice::Auto, IoChoice::Epoll] {
        check_stages_of_file(io);
    }
}

fn check_stages_of_file(io: IoChoice) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(16 << 20).expect("a length");
    let path = file.path().to_str().expect("UTF-8");
    let (target, address) = start(TargetConfig { io, ..config(&[path]) });
    let (_admin, mut queue) = pair(address, 31);
    for at in 0..20 {
        assert_eq!(queue.write(write_entry(at * 8, 8), &pattern(at, 4096)).0.status, Status::SUCCESS);
        assert_eq!(queue.fetch(read_entry(at * 8, 8), 4096).1, pattern(at, 4096));
    }
    for operation in [Operation::Read, Operation::Write] {
        let series = series(&target, operation, SizeClass::Small, 20);
        let device = series.stage(Stage::Device).expect("at the file");
        assert_eq!(device.count(), 20);
        assert_eq!(series.bytes, 20 * 4096);
    }
}

#[test]
fn counts_wait_for_blocks() {
    let attempts = AtomicU32::new(0);
    let busy = Interposer::over("mem:16M", move |request| match request {
        Request::Write { .. } if attempts.fetch_add(1, Ordering::Relaxed) % 4 != 3 => {
            Decision::Later(request)
        }
        _ => Decision::Pass(request),
    });
    let (target, address) = start(serving(vec![(1, busy)]));
    let (_admin, mut queue) = pair(address, 31);
    for at in 0..8 {
        assert_eq!(queue.write(write_entry(at * 8, 8), &[1; 4096]).0.status, Status::SUCCESS);
    }
    let writes = series(&target, Operation::Write, SizeClass::Small, 8);
    assert_eq!(writes.stage(Stage::Blocks).map(|times| times.count()), Some(8), "{writes:?}");
    assert_eq!(target.snapshot().numbers.counters["range-waits"], 8);
}

#[test]
fn response_that_host_does_not_read_is_in_socket() {
    let (target, address) = start(config(&["mem:16M"]));
    let (_admin, mut queue) = pair(address, 31);
    let (count, len) = (24, 1 << 20);
    let read = SubmissionEntry { sgl: Sgl::Transport { len }, ..read_entry(0, 2048) };
    let cids: Vec<u16> = (0..count).map(|_| queue.send(read, &[])).collect();
    let pause = Duration::from_millis(20);
    eventually("the socket is full", || {
        let sent = target.counters().sent_bytes;
        std::thread::sleep(pause);
        sent > u64::from(len) && target.counters().sent_bytes == sent
    });
    for cid in cids {
        assert_eq!(queue.completion(cid).1.len(), len as usize);
    }
    let reads = series(&target, Operation::Read, SizeClass::Large, count);
    let longest = Duration::from_nanos(reads.max_ns);
    assert!(longest >= pause, "{longest:?}");
    assert!(reads.stage_sum_ns(Stage::Socket) >= pause.as_nanos() as u64, "{reads:?}");
}

#[test]
fn snapshot_names_connections_and_slow_operations() {
    let (target, address) = start(config(&["mem:16M", "null:16M"]));
    let (_admin, mut queue) = pair(address, 31);
    assert_eq!(queue.write(write_entry(8, 8), &[1; 4096]).0.status, Status::SUCCESS);
    let written = series(&target, Operation::Write, SizeClass::Small, 1);
    let snapshot = target.snapshot();
    assert_eq!(snapshot.volumes.iter().map(|at| at.nsid).collect::<Vec<_>>(), [Some(1), Some(2)]);
    let [connection] = &snapshot.numbers.connections[..] else { panic!("{:?}", snapshot.numbers) };
    assert_eq!((connection.queue, connection.host.as_str()), (1, HOST));
    assert_eq!(connection.totals[0].1.sum_ns(), written.total.sum_ns());
    eventually("the second has ended", || !target.snapshot().slow.is_empty());
    let slow = &target.snapshot().slow[0];
    assert_eq!((slow.lba, slow.bytes, slow.connection), (8, 4096, connection.id));
    assert_eq!(slow.total_ns, written.max_ns);
    assert_eq!(slow.stages.iter().map(|(_, ns)| ns).sum::<u64>(), slow.total_ns);
}

/// Writes to its first member, then to its second.
struct Twice {
    description: VolumeDescription,
    members: Vec<Arc<dyn Volume>>,
}

impl Volume for Twice {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn members(&self) -> Vec<Arc<dyn Volume>> {
        self.members.clone()
    }

    fn tree(&self) -> VolumeTree {
        let members = self.members.iter().map(|member| member.tree()).collect();
        VolumeTree { members, ..VolumeTree::new(self.name(), "twice") }
    }

    fn start(&self, request: Request, _: &mut Pool) -> Step {
        let members = self.members.clone();
        Step::nested(request, |io, request| async move {
            if let Request::Write { lba, blocks, .. } = request {
                let data = Buffer::from(vec![1; blocks as usize * 512]);
                io.start(&members[0], Request::Write { lba, blocks, data, fua: false }).await?;
                io.sleep(Duration::from_millis(5)).await;
            }
            io.start(&members[1], request).await
        })
    }
}

#[test]
fn names_member_that_completed_last() {
    let members = vec![volume("mem:1M"), volume("mem:1M")];
    let description = VolumeDescription { name: "twice".into(), ..members[0].description().clone() };
    let twice: Arc<dyn Volume> = Arc::new(Twice { description, members });
    let (target, address) = start(serving(vec![(1, twice)]));
    let (_admin, mut queue) = pair(address, 31);
    assert_eq!(queue.write(write_entry(8, 8), &[1; 4096]).0.status, Status::SUCCESS);
    let whole = series(&target, Operation::Write, SizeClass::Small, 1);
    let snapshot = target.snapshot();
    let parents: Vec<_> = snapshot.volumes.iter().map(|volume| (volume.id, volume.parent)).collect();
    assert_eq!(parents, [(0, None), (1, Some(0)), (2, Some(0))]);
    let of = |id| snapshot.numbers.series.iter().find(|series| series.volume == id).expect("a series");
    assert_eq!((of(1).total.count(), of(1).last), (1, 0));
    assert_eq!((of(2).total.count(), of(2).last), (1, 1));
    // The pause counts from the start of a turn, so it has no lower bound here.
    assert!(of(2).last_by_ns > 0 && of(2).last_by_ns < whole.max_ns, "{snapshot:?}");
    eventually("the second has ended", || !target.snapshot().slow.is_empty());
    assert_eq!(target.snapshot().slow[0].last_member, Some(2));
}

#[test]
fn cores_count_turns_and_sleeps() {
    let (target, address) = start(TargetConfig { mode: Mode::Sleep, ..config(&["mem:16M"]) });
    let (_admin, mut queue) = pair(address, 31);
    let core = || target.snapshot().numbers.cores.remove(0);
    let before = target.source().turns()[0].number;
    eventually("it has worked and slept", || {
        assert_eq!(queue.fetch(read_entry(0, 8), 4096).0.status, Status::SUCCESS);
        let core = core();
        core.asleep_ns > 0 && core.turns.is_some_and(|turns| turns.count() > 10)
    });
    assert!(core().busy_ns > 0 && core().thread > 0);
    assert!(target.source().turns()[0].number > before);
    let source = target.source();
    drop(target);
    assert!(source.snapshot().is_none() && source.turns().is_empty());
}

#[test]
fn connections_have_the_cpu_of_their_packets() {
    // Only root may raise it.
    let busy_poll = if rustix::process::geteuid().is_root() { 7 } else { 0 };
    let listen = vec![format!("127.0.0.1:0,busy-poll={busy_poll}").parse().expect("an address")];
    let (target, address) = start(TargetConfig { listen, ..config(&["mem:16M"]) });
    let (_admin, mut queue) = pair(address, 31);
    eventually("a tick has read it", || {
        assert_eq!(queue.fetch(read_entry(0, 8), 4096).0.status, Status::SUCCESS);
        let connections = target.snapshot().numbers.connections;
        connections.iter().any(|connection| connection.queue == 1 && connection.incoming_cpu.is_some())
    });
    assert_eq!(target.snapshot().program.limits["busy-poll"], busy_poll);
}

#[test]
fn reports_sleep_in_progress() {
    let (target, _) = start(TargetConfig { mode: Mode::Sleep, ..config(&["mem:16M"]) });
    let source = target.source();
    let state = || (source.turns()[0].number, target.snapshot().numbers.cores[0].asleep_ns);
    let mut before = state();
    eventually("the time grows during one sleep", || {
        let now = state();
        let (same_turn, more) = (now.0 == before.0, now.1 > before.1);
        before = now;
        same_turn && more && source.turns()[0].number == now.0
    });
}

#[test]
fn counts_volumes_beyond_memory_together() {
    let volumes = ["mem:16M", "null:16M", "null:32M"];
    let (target, address) = start(TargetConfig { observe_memory: 10 << 10, ..config(&volumes) });
    let (_admin, mut queue) = pair(address, 31);
    for nsid in 1..=3 {
        let read = SubmissionEntry { nsid, ..read_entry(0, 8) };
        assert_eq!(queue.fetch(read, 4096).0.status, Status::SUCCESS);
    }
    let counts = || {
        let series = target.snapshot().numbers.series;
        series.iter().map(|it| (it.volume, it.operation, it.total.count())).collect::<Vec<_>>()
    };
    eventually("all are counted", || counts().iter().map(|(.., count)| count).sum::<u64>() == 3);
    let volumes = target.snapshot().volumes;
    let others = volumes.last().unwrap();
    assert_eq!((volumes.len(), others.name.as_str()), (4, "others"));
    assert_eq!(counts(), [(0, Operation::Read, 1), (others.id, Operation::Read, 2)]);
}

#[test]
fn records_nothing_if_off() {
    let (target, address) = start(TargetConfig { observe: false, ..config(&["mem:16M"]) });
    let (_admin, mut queue) = pair(address, 31);
    for at in 0..10 {
        assert_eq!(queue.write(write_entry(at * 8, 8), &[1; 4096]).0.status, Status::SUCCESS);
    }
    let snapshot = target.snapshot();
    assert!(snapshot.numbers.series.is_empty() && snapshot.numbers.connections.is_empty());
}
