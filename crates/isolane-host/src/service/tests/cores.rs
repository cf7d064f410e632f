//! Scenario tests of volumes with lanes on several cores. They need at least two cores.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use isolane_reactor::cpu;
use isolane_wire::log::{GenerationLog, RestartLoss, SIGNATURE};
use isolane_wire::opcode::IoOpcode;
use pollster::block_on;

use super::{filled, options, volume, wait_until, write_and_read_back};
use crate::blocking::BlockingVolume;
use crate::cores::Cores;
use crate::error::{ConnectError, RequestError};
use crate::info::ConnectionStatus;
use crate::lane_class::LaneClass;
use crate::mock::{Fault, Script, Target};
use crate::options::{Mode, Options, Reconnect, WriteReplay};
use crate::request::Request;
use crate::volume::Volume;

/// Two cores that this machine has.
fn two() -> Option<[usize; 2]> {
    cpu::allowed().unwrap().first_chunk().copied()
}

/// Lanes of every class on both cores.
fn on_both(cores: [usize; 2], mode: Mode) -> Options {
    let cores = Cores::new(cores).unwrap();
    Options { cores, lanes: 2, read_lanes: 2, poll_lanes: 2, ..options(mode, true) }
}

/// Does something in a thread that runs on one core.
fn on_core<T: Send>(core: usize, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let pinned = scope.spawn(|| {
            cpu::pin(core).unwrap();
            act()
        });
        pinned.join().unwrap()
    })
}

fn connections(volume: &Volume) -> Vec<ConnectionStatus> {
    block_on(volume.connections())
}

/// The controller of the association that is on a core.
fn controller_on(volume: &Volume, core: usize) -> u16 {
    let found = connections(volume).into_iter().find(|status| status.core == Some(core));
    found.expect("an association on the core").cntlid
}

/// The classes of the lanes that commands went through since the last call, all of which are on this core.
fn classes_used(target: &Target, volume: &Volume, core: usize) -> Vec<LaneClass> {
    let used = std::mem::take(&mut *target.shared.ways.lock());
    let connections = connections(volume);
    let lane = |(cntlid, qid)| {
        let status = connections.iter().find(|status| (status.cntlid, status.qid) == (cntlid, qid)).unwrap();
        assert_eq!(status.core, Some(core), "{status:?}");
        status.lane.unwrap().0
    };
    used.into_iter().map(lane).collect()
}

#[test]
fn submits_through_lanes_of_own_core() {
    let Some(cores) = two() else { return };
    for mode in [Mode::Sleep, Mode::Adaptive, Mode::Poll] {
        let target = Target::start(Script::default());
        let volume = volume(&target, on_both(cores, mode));
        for core in cores.into_iter().chain(cores) {
            let used = || classes_used(&target, &volume, core);
            on_core(core, || {
                let urgent = volume.with_class(LaneClass::Poll);
                block_on(volume.write(0, filled(1))).unwrap();
                block_on(volume.read(0, filled(0))).unwrap();
                block_on(urgent.read(0, filled(0))).unwrap();
                assert_eq!(used(), [LaneClass::Default, LaneClass::Read, LaneClass::Poll], "futures");
                volume.run(Request::Write { lba: 0, buffer: filled(1), fua: false }).unwrap();
                volume.run(Request::Read { lba: 0, buffer: filled(0) }).unwrap();
                urgent.run(Request::Write { lba: 0, buffer: filled(1), fua: false }).unwrap();
                assert_eq!(used(), [LaneClass::Default, LaneClass::Read, LaneClass::Poll], "calls that wait");
                write_and_read_back(&volume, 1, 1, 2);
                write_and_read_back(&urgent, 1, 1, 1);
                let [default, read, poll] = [LaneClass::Default, LaneClass::Read, LaneClass::Poll];
                assert_eq!(used(), [default, default, read, read, poll, poll], "submitters");
            });
        }
        for status in connections(&volume) {
            assert_eq!(Some(status.driving_core), status.core);
        }
    }
}

#[test]
fn splits_lanes_from_first_core() {
    let Some([first, second]) = two() else { return };
    let target = Target::start(Script::default());
    let cores = Cores::new([second, first]).unwrap();
    let volume = volume(&target, Options { cores, lanes: 3, ..options(Mode::Sleep, true) });
    let places: Vec<_> =
        connections(&volume).iter().map(|status| (status.core.unwrap(), status.lane)).collect();
    let lane = |class, number| Some((class, number));
    let expected = [
        (second, None),
        (second, lane(LaneClass::Default, 0)),
        (second, lane(LaneClass::Default, 2)),
        (second, lane(LaneClass::Read, 0)),
        (first, None),
        (first, lane(LaneClass::Default, 1)),
    ];
    assert_eq!(places, expected);
    let lanes = volume.info().negotiated.lanes;
    assert_eq!((lanes.default, lanes.read, lanes.poll), (3, 1, 0));
    block_on(volume.close());
    assert_eq!(target.shared.shutdowns.load(Ordering::SeqCst), 2);
}

#[test]
fn uri_cores_skip_cores_without_lane() {
    let Some([first, second]) = two() else { return };
    let target = Target::start(Script::default());
    let uri = format!("{}?cores={first},{second}", target.uri()).parse().unwrap();
    let volume = BlockingVolume::connect(&uri, Options::default()).unwrap();
    let cores: Vec<_> = volume.connections().iter().map(|status| status.core).collect();
    assert_eq!(cores, [Some(first); 2], "one lane");
    volume.write_at(&[3; 512], 0).unwrap();
    on_core(second, || volume.read_at(&mut [0; 512], 0)).unwrap();
}

#[test]
fn requests_without_local_lane_use_other_core() {
    let Some(cores) = two() else { return };
    for mode in [Mode::Sleep, Mode::Adaptive, Mode::Poll] {
        for inline in [true, false] {
            let target = Target::start(Script::default());
            let options =
                Options { read_lanes: 1, poll_lanes: 1, inline_submit: inline, ..on_both(cores, mode) };
            let volume = volume(&target, options);
            std::thread::scope(|scope| {
                for thread in 0..6 {
                    let volume =
                        if thread == 5 { volume.with_class(LaneClass::Poll) } else { volume.clone() };
                    // On the one core, on the other, or where it likes.
                    let core = [Some(cores[0]), Some(cores[1]), None][thread as usize % 3];
                    scope.spawn(move || {
                        core.into_iter().for_each(|core| cpu::pin(core).unwrap());
                        write_and_read_back(&volume, thread, 6, 1 + thread % 3 * 7);
                        read_write_and_flush_at_once(&volume, thread);
                    });
                }
            });
        }
    }
}

/// Runs requests through several services at the same time.
fn read_write_and_flush_at_once(volume: &Volume, thread: u64) {
    let mut submitter = volume.submitter(9);
    let mut completions = Vec::new();
    for round in 0..9 {
        for tag in 0..3 {
            let lba = 2000 + thread * 10 + tag;
            let (read, write) = (filled(0), filled(round));
            submitter.submit(Request::Read { lba, buffer: read }, 1).unwrap();
            submitter.submit(Request::Write { lba, buffer: write, fua: false }, 2).unwrap();
            submitter.submit(Request::Flush, 3).unwrap();
        }
        assert!(submitter.submit(Request::Flush, 4).is_err(), "nine are outstanding");
        while submitter.outstanding() > 0 {
            assert!(submitter.wait(&mut completions) > 0);
        }
        let mut tags: Vec<_> =
            completions.drain(..).map(|done| done.result.map(|()| done.tag).unwrap()).collect();
        tags.sort_unstable();
        assert_eq!(tags, [1, 1, 1, 2, 2, 2, 3, 3, 3]);
    }
}

#[test]
fn submitter_follows_thread_to_other_core() {
    let Some(cores) = two() else { return };
    let target = Target::start(Script::default());
    let volume = volume(&target, on_both(cores, Mode::Sleep));
    let mut submitter = volume.submitter(2);
    let mut completions = Vec::new();
    for core in cores {
        on_core(core, || {
            submitter.submit(Request::Read { lba: 0, buffer: filled(0) }, 0).unwrap();
            submitter.wait(&mut completions);
        });
        assert_eq!(classes_used(&target, &volume, core), [LaneClass::Read]);
    }
    assert_eq!(completions.len(), 2);
}

#[test]
fn flush_uses_every_association() {
    let Some(cores) = two() else { return };
    let target = Target::start(Script::default());
    let options = Options { reconnect: Reconnect::never(), ..on_both(cores, Mode::Sleep) };
    let volume = volume(&target, options);
    let blocking = |volume: &Volume| volume.run(Request::Flush);
    let submitted = |volume: &Volume| {
        let (mut submitter, mut completions) = (volume.submitter(1), Vec::new());
        submitter.submit(Request::Flush, 5).unwrap();
        submitter.wait(&mut completions);
        let completion = completions.remove(0);
        assert_eq!(completion.tag, 5);
        completion.result
    };
    let awaited = |volume: &Volume| block_on(volume.flush());
    type Flush<'a> = &'a dyn Fn(&Volume) -> Result<(), RequestError>;
    let flushes: [Flush; 3] = [&blocking, &submitted, &awaited];
    let controllers = cores.map(|core| controller_on(&volume, core));
    for flush in flushes {
        flush(&volume).unwrap();
        let mut used: Vec<_> =
            std::mem::take(&mut *target.shared.ways.lock()).into_iter().map(|(it, _)| it).collect();
        used.sort_unstable();
        let mut both = controllers;
        both.sort_unstable();
        assert_eq!(used, both);
    }
    assert!(target.shared.commands.lock().iter().all(|&(opcode, _)| opcode == IoOpcode::Flush.code()));
    target.drop_controller(controllers[1]);
    wait_until(|| connections(&volume).iter().all(|status| status.core == Some(cores[0])));
    for flush in flushes {
        assert!(matches!(flush(&volume), Err(RequestError::Lost(_))));
    }
}

#[test]
fn lost_association_does_not_affect_others() {
    let Some(cores) = two() else { return };
    let target = Target::start(Script::default());
    let volume = volume(&target, on_both(cores, Mode::Adaptive));
    let controllers = cores.map(|core| controller_on(&volume, core));
    target.shared.refusing.store(true, Ordering::SeqCst);
    target.drop_controller(controllers[1]);
    let is_down = || connections(&volume).iter().all(|status| status.core == Some(cores[0]));
    wait_until(is_down);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| on_core(cores[1], || write_and_read_back(&volume, 1, 2, 3)));
        on_core(cores[0], || write_and_read_back(&volume, 0, 20, 5));
        assert!(is_down() && !waiting.is_finished());
        assert_eq!(controller_on(&volume, cores[0]), controllers[0], "never lost");
        target.shared.refusing.store(false, Ordering::SeqCst);
        waiting.join().unwrap();
    });
    assert_ne!(controller_on(&volume, cores[1]), controllers[1]);
    // And for good.
    drop(volume);
    let options = Options { reconnect: Reconnect::never(), ..on_both(cores, Mode::Adaptive) };
    let volume = super::volume(&target, options);
    target.drop_controller(controller_on(&volume, cores[1]));
    let read = || volume.run(Request::Read { lba: 0, buffer: filled(0) });
    wait_until(|| on_core(cores[1], || matches!(read(), Err(RequestError::Lost(_)))));
    on_core(cores[0], || write_and_read_back(&volume, 0, 5, 5));
}

#[test]
fn consecutive_losses_lose_no_request() {
    let Some(cores) = two() else { return };
    let target = Target::start(Script::default());
    let volume = volume(&target, Options { read_lanes: 1, ..on_both(cores, Mode::Adaptive) });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (volume, is_over) = (&volume, &is_over);
            scope.spawn(move || {
                cpu::pin(cores[thread as usize % 2]).unwrap();
                while !is_over.load(Ordering::SeqCst) {
                    write_and_read_back(volume, thread, 1, 1 + thread * 5);
                }
            });
        }
        let _ending = super::Ending(&is_over);
        for round in 0..6 {
            let done = target.shared.commands.lock().len();
            wait_until(|| target.shared.commands.lock().len() > done + 50);
            let core = cores[round % 2];
            wait_until(|| connections(&volume).iter().any(|status| status.core == Some(core)));
            target.drop_controller(controller_on(&volume, core));
        }
    });
}

/// A write is lost with its association. Its caller gets the error immediately, and the write is applied
/// late. A new write to the block through another association must wait for it.
#[test]
fn write_waits_for_late_write_of_other_core() {
    let Some(cores) = two() else { return };
    let target = Target::start(Script { only_own_controller: true, ..Script::default() });
    let reconnect = Reconnect { writes: WriteReplay::Never, ..Reconnect::default() };
    let volume = volume(&target, Options { reconnect, ..on_both(cores, Mode::Sleep) });
    let late = Duration::from_millis(300);
    target.inject(0, Fault::LandLate(late));
    let write = |core, lba, fill| {
        on_core(core, || volume.run(Request::Write { lba, buffer: filled(fill), fua: false }))
    };
    let started = Instant::now();
    assert!(matches!(write(cores[0], 7, 1), Err(RequestError::FateUnknown)));
    write(cores[1], 8, 3).unwrap();
    let elsewhere = started.elapsed();
    write(cores[1], 7, 2).unwrap();
    let landed = target.shared.landed.lock().clone();
    let of_block: Vec<_> = landed.iter().filter(|(lba, _)| *lba == 7).collect();
    assert_eq!(of_block, [&(7, 1), &(7, 2)], "the late write came first");
    // Unless this machine stood still, what does not overlap did not wait.
    assert!(landed[0] == (8, 3) || elsewhere >= late, "{landed:?}");
}

#[test]
fn rejects_different_volume_of_other_core() {
    let Some(cores) = two() else { return };
    let target = Target::start(Script { has_many_volumes: true, ..Script::default() });
    let outcome = block_on(Volume::connect(&target.uri(), on_both(cores, Mode::Sleep)));
    let Err(ConnectError::OnCore { core, source }) = outcome else { panic!("it connected") };
    assert!(core == cores[1] && matches!(*source, ConnectError::DifferentVolume(_)), "{source}");
    wait_until(|| target.shared.controllers.lock().is_empty());
}

#[test]
fn error_names_unusable_core() {
    let target = Target::start(Script::default());
    let [usable, missing] = [cpu::allowed().unwrap()[0], cpu::MAX_CORES - 1];
    let cores = Cores::new([usable, missing]).unwrap();
    let options = Options { cores, lanes: 2, ..Options::default() };
    let error = block_on(Volume::connect(&target.uri(), options.clone())).err().unwrap();
    assert!(matches!(error, ConnectError::Core { core, .. } if core == missing), "{error}");
    assert!(error.to_string().contains(&missing.to_string()), "{error}");
    wait_until(|| target.shared.controllers.lock().is_empty());
    let error = crate::Client::connect(&target.uri(), options).err().unwrap();
    assert!(matches!(error, ConnectError::Unsupported(_)), "{error}");
}

/// While the target does not respond, the leader for the poll class is busy, and a caller that has queued its
/// request sleeps.
#[test]
fn caller_leads_only_on_own_core() {
    let Some([first, second]) = two() else { return };
    let target = Target::start(Script::default());
    let cores = Cores::new([first]).unwrap();
    let volume = volume(&target, Options { cores, poll_lanes: 1, ..options(Mode::Sleep, true) });
    for (core, leads) in [(first, true), (second, false)] {
        let disk = target.shared.disk.lock();
        let started = target.shared.commands.lock().len();
        let caller = AtomicI32::new(0);
        std::thread::scope(|scope| {
            let caller = &caller;
            let volume = volume.with_class(LaneClass::Poll);
            scope.spawn(move || {
                cpu::pin(core).unwrap();
                caller.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
                volume.run(Request::Read { lba: 0, buffer: filled(0) }).unwrap();
            });
            wait_until(|| target.shared.commands.lock().len() > started);
            let ticks = || super::busy_ticks(caller.load(Ordering::SeqCst));
            let before = ticks();
            if leads {
                wait_until(|| ticks() > before + 3);
            } else {
                std::thread::sleep(Duration::from_millis(200));
                assert!(ticks() <= before + 1);
            }
            drop(disk);
        });
    }
}

#[test]
fn fails_one_flush_after_restart_of_any_core() {
    let Some(cores) = two() else { return };
    let page = |generation| GenerationLog {
        signature: SIGNATURE,
        version: GenerationLog::VERSION,
        loses: RestartLoss::Cache.code(),
        nsid: 1,
        generation: [generation; 16],
    };
    for core in cores {
        let script = Script { isolane: true, generation: Some(page(1)), ..Script::default() };
        let target = Target::start(script);
        let volume = volume(&target, on_both(cores, Mode::Sleep));
        on_core(core, || block_on(volume.write(0, filled(1)))).unwrap();
        target.shared.script.lock().generation = Some(page(2));
        target.drop_connections();
        let lost = block_on(volume.flush());
        assert!(matches!(lost, Err(RequestError::WritesLost { writes: 1, .. })), "{lost:?}");
        assert!(block_on(volume.flush()).is_ok());
    }
}
