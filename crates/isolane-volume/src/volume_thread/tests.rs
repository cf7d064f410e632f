use std::collections::HashMap;
use std::time::Duration;

use isolane_memory::Payload;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::{Completer, VolumeDescription, open, spec};

fn start(text: &str) -> Arc<VolumeThread> {
    let volume = open(&spec::parse(text).unwrap()).unwrap();
    VolumeThread::start(volume, ReactorConfig::default()).unwrap()
}

fn limit() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(60))
}

/// Waits for all requests of the queue.
fn drain(queue: &mut ThreadQueue) -> HashMap<u64, Outcome> {
    let (mut results, until) = (HashMap::new(), limit());
    while queue.outstanding() > 0 {
        queue.wait(until);
        assert!(Instant::now() < until.unwrap(), "{} requests do not complete", queue.outstanding());
        while let Some((tag, result)) = queue.poll() {
            assert!(results.insert(tag, result).is_none(), "request {tag} completed twice");
        }
    }
    results
}

fn write(lba: u64, fill: u8) -> Request {
    let mut data = Buffer::contiguous(4096);
    data.copy_in(0, &[fill; 4096]);
    Request::Write { lba, blocks: 8, data, fua: fill == 3 }
}

/// Reads a block of 4,096 bytes.
fn read(queue: &mut ThreadQueue, lba: u64, destination: Option<Buffer>) -> Payload {
    queue.submit(1000, Request::Read { lba, blocks: 8 }, destination);
    drain(queue).remove(&1000).unwrap().unwrap()
}

/// Returns the address of contiguous memory.
fn address(payload: &Payload) -> Option<*const u8> {
    payload.as_slice().map(<[u8]>::as_ptr)
}

#[test]
fn threads_share_a_volume() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("{},size=64M", dir.path().join("disk").display());
    for text in ["mem:64M", &file] {
        let volume = start(text);
        thread::scope(|scope| {
            for id in 0..4u8 {
                let mut queue = volume.queue();
                scope.spawn(move || {
                    for round in 0..20 {
                        let at = |index: u64| u64::from(id) * 1000 + index * 8;
                        (0..16).for_each(|index| queue.submit(index, write(at(index), id ^ round), None));
                        assert!(drain(&mut queue).values().all(Result::is_ok));
                        for index in 0..16u64 {
                            let destination = index.is_multiple_of(2).then(|| Buffer::contiguous(4096));
                            queue.submit(index, Request::Read { lba: at(index), blocks: 8 }, destination);
                        }
                        let data = drain(&mut queue);
                        assert!(
                            data.values().all(|data| data.as_ref().unwrap().to_vec() == [id ^ round; 4096])
                        );
                    }
                });
            }
        });
    }
}

#[test]
fn reads_into_the_destination() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("{},size=1M", dir.path().join("disk").display());
    for text in ["mem:1M", &file] {
        let mut queue = start(text).queue();
        queue.submit(0, write(8, 9), None);
        assert!(drain(&mut queue)[&0].is_ok());
        for unaligned in [0, 1] {
            let mut destination = Buffer::contiguous(8192).split_off(unaligned * 512);
            destination.split_off(4096);
            let expected = destination.raw_parts(0, 1).next().map(|(start, _)| start);
            let data = read(&mut queue, 8, Some(destination));
            assert_eq!((address(&data), data.to_vec()), (expected, vec![9; 4096]), "{text} {unaligned}");
        }
        // A destination that a request does not take is not the destination of a later one.
        let unused = Buffer::contiguous(4096);
        let place = unused.raw_parts(0, 1).next().map(|(start, _)| start);
        queue.submit(2, Request::Flush, Some(unused));
        let data = read(&mut queue, 8, None);
        assert!(address(&data) != place && data.to_vec() == [9; 4096]);
        drain(&mut queue);
    }
}

#[test]
fn requests_beyond_the_memory_of_a_queue_complete() {
    let dir = tempfile::tempdir().unwrap();
    let volume = start(&format!("{},size=64M", dir.path().join("disk").display()));
    let mut queue = volume.queue();
    // Not aligned, so that each needs memory of the driver; their completions are not taken before the others.
    for tag in 0..8 {
        let destination = Buffer::contiguous((32 << 20) + 512).split_off(512);
        queue.submit(tag, Request::Read { lba: 0, blocks: 65_536 }, Some(destination));
    }
    queue.send();
    assert_eq!(read(&mut volume.queue(), 0, None).to_vec(), [0; 4096]);
    assert!(drain(&mut queue).values().all(|data| data.as_ref().unwrap().len() == 32 << 20));
}

#[test]
fn armed_queue_has_a_readable_descriptor() {
    let dir = tempfile::tempdir().unwrap();
    let thread = start(&format!("{},size=1M", dir.path().join("disk").display()));
    let mut queue = thread.queue();
    queue.submit(7, Request::Read { lba: 0, blocks: 1 }, None);
    if queue.arm().unwrap() {
        let fd = queue.wait_fd().unwrap();
        assert_eq!(
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec { tv_sec: 60, tv_nsec: 0 })),
            Ok(1)
        );
    }
    queue.disarm();
    assert_eq!(queue.poll().map(|(tag, _)| tag), Some(7));
    assert!(queue.arm().unwrap(), "nothing is left");
    queue.disarm();
    queue.wait(None);
}

#[test]
fn dropped_queue_leaves_its_requests() {
    let dir = tempfile::tempdir().unwrap();
    let thread = start(&format!("{},size=1M", dir.path().join("disk").display()));
    let mut queue = thread.queue();
    queue.submit(0, write(0, 6), None);
    drop(queue);
    let mut queue = thread.queue();
    let until = limit().unwrap();
    while read(&mut queue, 0, None).to_vec() != [6; 4096] {
        assert!(Instant::now() < until, "the write was lost");
    }
}

#[test]
fn requests_fail_after_the_driver() {
    let description = open(&spec::parse("mem:1M").unwrap()).unwrap().description().clone();
    let thread = VolumeThread::start(Arc::new(Panics(description)), ReactorConfig::default()).unwrap();
    let mut queue = thread.queue();
    for tag in 0..3 {
        queue.submit(tag, Request::Flush, None);
        assert!(drain(&mut queue)[&tag].is_err());
    }
}

#[test]
fn requests_fail_after_other_threads_have_finished_them() {
    let description = open(&spec::parse("mem:1M").unwrap()).unwrap().description().clone();
    let (sender, started) = mpsc::channel();
    let volume = PanicsWithPending { description, started: sender, has_panicked: AtomicBool::new(false) };
    let volume = Arc::new(volume);
    let thread = VolumeThread::start(Arc::clone(&volume) as _, ReactorConfig::default()).unwrap();
    let mut queue = thread.queue();
    // The first is with the driver when it panics, because the flush comes after it; the second comes later.
    for tag in 0..2 {
        let is_finished = Arc::new(AtomicBool::new(false));
        let finished = Arc::clone(&is_finished);
        queue.submit(tag, write(0, 1), None);
        let completer: Completer = started.recv().unwrap();
        let volume = Arc::clone(&volume);
        let other = thread::spawn(move || {
            while !volume.has_panicked.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            // Long enough for a driver that does not wait.
            thread::sleep(Duration::from_millis(20));
            finished.store(true, Ordering::SeqCst);
            drop(completer);
        });
        queue.submit(2, Request::Flush, None);
        let failed = drain(&mut queue);
        assert!(failed[&tag].is_err() && is_finished.load(Ordering::SeqCst), "request {tag} failed early");
        other.join().unwrap();
    }
}

/// A volume whose writes another thread completes, and that panics in the driver.
struct PanicsWithPending {
    description: VolumeDescription,
    started: mpsc::Sender<Completer>,
    has_panicked: AtomicBool,
}

impl Volume for PanicsWithPending {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn start(&self, request: Request, _: &mut Pool) -> Step {
        if matches!(request, Request::Write { .. }) {
            let (completer, step) = Step::pending(&request);
            self.started.send(completer).unwrap();
            return step;
        }
        if thread::current().name() == Some("isolane-volume") {
            self.has_panicked.store(true, Ordering::Relaxed);
            panic!("this volume is broken");
        }
        Step::Retry(request)
    }
}

/// A volume that panics in the driver.
struct Panics(VolumeDescription);

impl Volume for Panics {
    fn description(&self) -> &VolumeDescription {
        &self.0
    }

    fn start(&self, request: Request, _: &mut Pool) -> Step {
        assert!(thread::current().name() != Some("isolane-volume"), "this volume is broken");
        Step::Retry(request)
    }
}
