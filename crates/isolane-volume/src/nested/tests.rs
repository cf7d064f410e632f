use super::*;
use crate::{VolumeDescription, open, spec};
use isolane_memory::{Buffer, Pool};
use std::time::Instant;

/// Runs a step in an executor whose members complete without operations. Time passes at deadlines.
fn run(step: Step, pool: &mut Pool) -> (Outcome, Duration) {
    let (mut executor, start) = (Executor::default(), Instant::now());
    let Step::Pending(mut pending) = step else { panic!("{step:?}") };
    executor.start(pending.take_nested().unwrap());
    let mut now = start;
    loop {
        assert!(executor.poll(now, pool).is_none());
        match executor.deadline() {
            Some(deadline) => now = deadline,
            None => return (crate::Task::from(&pending).into_outcome(), now - start),
        }
    }
}

#[test]
fn runs_members_concurrently_and_sleeps() {
    let volume = open(&spec::parse("mem:1M").unwrap()).unwrap();
    let mut pool = Pool::new(16);
    let data = Buffer::from(vec![7; 1024]);
    let write = Request::Write { lba: 1, blocks: 2, data, fua: false };
    let step = Step::nested(write, |io, write| async move {
        io.sleep(Duration::from_secs(5)).await;
        io.start(&volume, write).await?;
        let read = |lba| (Arc::clone(&volume), Request::Read { lba, blocks: 2 });
        let mut payloads = io.run_all([read(0), read(2)]).await?.into_iter();
        let mut first = payloads.next().unwrap();
        first.append(payloads.next().unwrap());
        Ok(first)
    });
    let (outcome, passed) = run(step, &mut pool);
    assert_eq!(outcome.unwrap().to_vec(), [vec![0; 512], vec![7; 1024], vec![0; 512]].concat());
    // The time that passed before the first poll is added.
    assert!((5..10).contains(&passed.as_secs()), "{passed:?}");
}

/// A member that completes after three attempts.
struct Slow(VolumeDescription, std::sync::atomic::AtomicU32);

impl Volume for Slow {
    fn description(&self) -> &VolumeDescription {
        &self.0
    }

    fn start(&self, request: Request, _: &mut Pool) -> Step {
        match self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0..3 => Step::Retry(request),
            _ => Step::failed(VolumeError::ReadOnly),
        }
    }
}

#[test]
fn waits_for_members_after_early_return() {
    let description = open(&spec::parse("mem:1M").unwrap()).unwrap().description().clone();
    let slow: Arc<dyn Volume> = Arc::new(Slow(description, Default::default()));
    let nested = Arc::clone(&slow);
    let step = Step::nested(Request::Flush, |io, request| async move {
        drop(io.start(&nested, request));
        Ok(Default::default())
    });
    let (outcome, passed) = run(step, &mut Pool::new(1));
    assert!(outcome.is_ok());
    assert_eq!(passed, executor::RETRY * 3);
    let repeated = Step::nested(Request::Flush, |io, request| async move { io.start(&slow, request).await });
    assert_eq!(run(repeated, &mut Pool::new(1)).0.unwrap_err(), VolumeError::ReadOnly);
}

#[test]
fn times_members_and_names_last_write() {
    let member = |text| open(&spec::parse(text).unwrap()).unwrap();
    let (first, last) = (member("mem:1M"), member("mem:1M"));
    let addresses = [address_of(&first), address_of(&last)];
    let data = Buffer::from(vec![7; 1024]);
    let write = Request::Write { lba: 1, blocks: 2, data, fua: false };
    let step = Step::nested(write, |io, write| async move {
        let copy = Request::Write { lba: 1, blocks: 2, data: Buffer::from(vec![7; 1024]), fua: false };
        io.start(&first, copy).await?;
        io.start(&last, write).await
    });
    let (mut executor, mut pool) = (Executor::timed(), Pool::new(16));
    let Step::Pending(mut pending) = step else { panic!("{step:?}") };
    executor.start_tagged(pending.take_nested().unwrap(), Some(9));
    assert!(executor.poll(Instant::now(), &mut pool).is_none());
    let ends: Vec<MemberEnd> = std::iter::from_fn(|| executor.poll_ended()).collect();
    let mut members: Vec<usize> = ends.iter().map(MemberEnd::member).collect();
    members.dedup();
    assert_eq!(members, [addresses[1], addresses[0]], "the last ends come first: {ends:?}");
    let is_last = |end: &&MemberEnd| matches!(end, MemberEnd::Last { tag: Some(9), bytes: 1024, .. });
    assert_eq!(ends.iter().find(is_last).map(MemberEnd::member), Some(addresses[1]), "{ends:?}");
    let has_ended = |end: &MemberEnd| matches!(end, MemberEnd::One { succeeded: true, bytes: 1024, .. });
    assert_eq!(ends.iter().filter(|end| has_ended(end)).count(), 2, "{ends:?}");
}
