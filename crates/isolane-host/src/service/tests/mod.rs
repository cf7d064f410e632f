//! Scenario tests of callers that share a volume: leading, waiting, loss, and closing.

mod cores;

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use isolane_memory::Buffer;
use pollster::block_on;

use crate::error::RequestError;
use crate::lane_class::LaneClass;
use crate::mock::{Fault, Script, TEST_TIMEOUT, Target};
use crate::options::{Mode, Options, Reconnect};
use crate::request::Request;
use crate::volume::Volume;

fn options(mode: Mode, inline: bool) -> Options {
    let reconnect = Reconnect {
        min_delay: Duration::from_millis(5),
        max_delay: Duration::from_millis(20),
        ..Reconnect::default()
    };
    Options { mode, inline_submit: inline, lanes: 2, read_lanes: 1, reconnect, ..Options::default() }
}

fn volume(target: &Target, options: Options) -> Volume {
    block_on(Volume::connect(&target.uri(), options)).unwrap()
}

fn filled(fill: u8) -> Buffer {
    let mut buffer = Buffer::contiguous(512);
    buffer.as_mut_slice().unwrap().fill(fill);
    buffer
}

/// Writes and reads back a separate range, `depth` requests at a time.
fn write_and_read_back(volume: &Volume, thread: u64, rounds: u8, depth: u64) {
    let mut submitter = volume.submitter(depth as usize);
    let (first, mut completions) = (thread * 100, Vec::new());
    let fill = |round: u8, at: u64| round ^ at as u8 ^ (thread as u8).wrapping_mul(37);
    for round in 0..rounds {
        for at in 0..depth {
            let buffer = filled(fill(round, at));
            submitter.submit(Request::Write { lba: first + at, buffer, fua: false }, at).unwrap();
        }
        while submitter.outstanding() > 0 {
            assert!(submitter.wait(&mut completions) > 0);
        }
        for completion in completions.drain(..) {
            assert!(completion.result.is_ok(), "{completion:?}");
            let (lba, buffer) = (first + completion.tag, filled(0xff));
            submitter.submit(Request::Read { lba, buffer }, completion.tag).unwrap();
        }
        while submitter.outstanding() > 0 {
            submitter.wait(&mut completions);
        }
        assert_eq!(completions.len(), depth as usize);
        for completion in completions.drain(..) {
            let read = completion.buffer.unwrap().to_vec();
            assert_eq!(
                read,
                [fill(round, completion.tag); 512],
                "block {} of thread {thread}",
                completion.tag
            );
        }
    }
}

#[test]
fn callers_get_their_completions_in_every_mode() {
    for mode in [Mode::Sleep, Mode::Adaptive, Mode::Poll] {
        for inline in [true, false] {
            let target = Target::start(Script::default());
            let volume = volume(&target, options(mode, inline));
            std::thread::scope(|scope| {
                for thread in 0..6 {
                    let volume = &volume;
                    // Some with one request at a time, some with many.
                    scope.spawn(move || write_and_read_back(volume, thread, 6, 1 + thread % 3 * 7));
                }
            });
        }
    }
}

#[test]
fn callers_and_futures_share_a_volume() {
    let target = Target::start(Script::default());
    let volume = volume(&target, options(Mode::Adaptive, true));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let volume = &volume;
            scope.spawn(move || write_and_read_back(volume, thread, 20, 4));
            scope.spawn(move || {
                for round in 0..40 {
                    let at = (1000 + thread) * 512;
                    let buffer = block_on(volume.write(at, filled(round))).unwrap();
                    assert_eq!(block_on(volume.read(at, buffer)).unwrap().to_vec(), [round; 512]);
                }
            });
        }
    });
}

#[test]
fn losses_under_racing_callers_lose_nothing() {
    for inline in [true, false] {
        let target = Target::start(Script::default());
        let volume = volume(&target, options(Mode::Adaptive, inline));
        let is_over = AtomicBool::new(false);
        let commands = || target.shared.commands.lock().len();
        let associations = || *target.shared.cntlid_next.lock();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (volume, is_over) = (&volume, &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::SeqCst) {
                        write_and_read_back(volume, thread, 1, 1 + thread * 5);
                    }
                });
            }
            let _ending = Ending(&is_over);
            for _ in 0..4 {
                let (done, lost) = (commands(), associations());
                wait_until(|| commands() > done + 50);
                target.drop_connections();
                wait_until(|| associations() > lost);
            }
        });
    }
}

/// Sets a flag when dropped, also by a panic, so that no thread waits forever.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn idle_volume_sends_keep_alive_and_detects_loss() {
    let target = Target::start(Script::default());
    let keep_alive = Duration::from_millis(200);
    let volume = volume(&target, Options { keep_alive, ..options(Mode::Sleep, true) });
    wait_until(|| target.shared.keep_alives.load(Ordering::SeqCst) >= 3);
    let controllers = || -> Vec<u16> { target.shared.controllers.lock().keys().copied().collect() };
    let before = controllers();
    target.drop_connections();
    wait_until(|| !controllers().is_empty() && controllers().iter().all(|id| !before.contains(id)));
    write_and_read_back(&volume, 0, 1, 4);
}

#[test]
fn close_ends_leader_of_silent_target() {
    let target = Target::start(Script::default());
    let volume = volume(&target, options(Mode::Sleep, true));
    target.inject(0, Fault::Silence);
    std::thread::scope(|scope| {
        let reading = volume.clone();
        let reader = scope.spawn(move || {
            let mut submitter = reading.submitter(1);
            submitter.submit(Request::Read { lba: 0, buffer: filled(0) }, 7).unwrap();
            let mut completions = Vec::new();
            submitter.wait(&mut completions);
            completions.remove(0)
        });
        wait_until(|| !target.shared.commands.lock().is_empty());
        block_on(volume.clone().close());
        let completion = reader.join().unwrap();
        assert!(matches!((completion.tag, completion.result), (7, Err(RequestError::Closed))));
    });
    let mut late = volume.submitter(2);
    late.submit(Request::Flush, 1).unwrap();
    late.submit(Request::Read { lba: 0, buffer: filled(0) }, 2).unwrap();
    let mut completions = Vec::new();
    while late.outstanding() > 0 {
        late.wait(&mut completions);
    }
    assert!(completions.iter().all(|late| matches!(late.result, Err(RequestError::Closed))));
    assert!(completions[1].buffer.is_some());
}

#[test]
fn poll_class_caller_polls() {
    let target = Target::start(Script::default());
    let volume = volume(&target, Options { poll_lanes: 1, ..options(Mode::Sleep, true) });
    write_and_read_back(&volume.with_class(LaneClass::Poll), 0, 5, 3);
    assert!(target.shared.queues.lock().iter().all(|&(qid, _)| qid == 4));
    target.inject(0, Fault::Close);
    write_and_read_back(&volume.with_class(LaneClass::Poll), 0, 2, 1);
    // While the target does not answer, the caller's thread is busy.
    let caller = AtomicI32::new(0);
    std::thread::scope(|scope| {
        let disk = target.shared.disk.lock();
        scope.spawn(|| {
            caller.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
            write_and_read_back(&volume.with_class(LaneClass::Poll), 0, 1, 1);
        });
        wait_until(|| caller.load(Ordering::SeqCst) != 0);
        let started = busy_ticks(caller.load(Ordering::SeqCst));
        wait_until(|| busy_ticks(caller.load(Ordering::SeqCst)) > started + 3);
        drop(disk);
    });
}

/// Processor time that a thread of this process has used.
fn busy_ticks(thread: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn submitter_rejects_requests_beyond_depth() {
    let target = Target::start(Script::default());
    let volume = volume(&target, options(Mode::Sleep, true));
    let mut submitter = volume.submitter(2);
    let mut completions = Vec::new();
    assert_eq!(submitter.wait(&mut completions), 0, "nothing is outstanding");
    assert!(submitter.submit(Request::Flush, 1).is_ok() && submitter.submit(Request::Flush, 2).is_ok());
    match submitter.submit(Request::Read { lba: 7, buffer: filled(9) }, 3) {
        Err(Request::Read { lba: 7, buffer }) => assert_eq!(buffer.to_vec(), [9; 512]),
        other => panic!("{other:?}"),
    }
    while submitter.outstanding() > 0 {
        submitter.poll(&mut completions);
    }
    assert_eq!(completions.len(), 2);
}

/// For every kind of leader, and with other requests outstanding.
#[test]
fn wait_with_deadline_ends_without_target() {
    for inline in [true, false] {
        let target = Target::start(Script::default());
        let volume = volume(&target, options(Mode::Sleep, inline));
        let mut submitter = volume.submitter(3);
        let mut completions = Vec::new();
        let disk = target.shared.disk.lock();
        for tag in 0..2 {
            submitter.submit(Request::Read { lba: tag, buffer: filled(0) }, tag).unwrap();
            let until = Instant::now() + Duration::from_millis(20);
            assert_eq!(submitter.wait_until(&mut completions, until), 0);
            assert!(Instant::now() >= until, "it has not waited");
        }
        assert_eq!(submitter.outstanding(), 2);
        // Others serve the volume after the caller that led has left.
        drop(disk);
        while submitter.outstanding() > 0 {
            submitter.wait_until(&mut completions, Instant::now() + TEST_TIMEOUT);
        }
        assert!(completions.iter().all(|completion| completion.result.is_ok()), "{completions:?}");
    }
}

#[test]
fn completes_requests_without_waiter() {
    let target = Target::start(Script::default());
    let volume = volume(&target, options(Mode::Sleep, true));
    let mut submitter = volume.submitter(1);
    submitter.submit(Request::Write { lba: 3, buffer: filled(5), fua: false }, 0).unwrap();
    submitter.send();
    drop(submitter);
    wait_until(|| target.shared.landed.lock().len() == 1);
}

fn wait_until(is_done: impl Fn() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !is_done() {
        assert!(Instant::now() < deadline, "it did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn nothing_is_allocated_for_a_request() {
    let target = Target::start(Script::default());
    let volume = volume(&target, options(Mode::Adaptive, true));
    let mut submitter = volume.submitter(8);
    let mut completions = Vec::with_capacity(8);
    let mut buffers: Vec<Buffer> = (0..8).map(filled).collect();
    let mut round = || {
        while let Some(buffer) = buffers.pop() {
            let tag = buffers.len() as u64;
            let request = match tag % 2 {
                0 => Request::Read { lba: tag, buffer },
                _ => Request::Write { lba: tag, buffer, fua: false },
            };
            assert!(submitter.submit(request, tag).is_ok());
        }
        while submitter.outstanding() > 0 {
            submitter.wait(&mut completions);
        }
        buffers.extend(completions.drain(..).filter_map(|completion| completion.buffer));
    };
    (0..100).for_each(|_| round());
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(vec![0u8; 8])));
    assert_eq!(counted.count_total, 1, "the counter counts");
    // A list can reach a new maximum length late, but rarely.
    let mut attempts =
        (0..5).map(|_| allocation_counter::measure(|| (0..100).for_each(|_| round())).count_total);
    assert!(attempts.any(|allocated| allocated == 0), "by this thread, which leads");
}

#[test]
fn lists_connections_until_closed() {
    for inline in [true, false] {
        let target = Target::start(Script::default());
        let volume = volume(&target, options(Mode::Sleep, inline));
        let qids: Vec<_> = block_on(volume.connections()).iter().map(|status| status.qid).collect();
        assert_eq!(qids, [0, 1, 2, 3]);
        let clone = volume.clone();
        block_on(volume.close());
        assert_eq!(block_on(clone.connections()), []);
    }
}
