//! Hints about upcoming commands, as a volume sees them.

mod common;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use common::*;
use isolane_memory::Pool;
use isolane_reactor::file::FileOp;
use isolane_target::TargetConfig;
use isolane_volume::{Request, Step, Task, Upcoming, Volume, VolumeDescription};
use isolane_wire::pdu::CapsuleCmd;
use isolane_wire::{Sgl, Status, SubmissionEntry};

/// A memory volume that records hints.
struct Hinted {
    below: Arc<dyn Volume>,
    hints: Mutex<Vec<(u64, Upcoming)>>,
}

impl Hinted {
    fn hints(&self) -> MutexGuard<'_, Vec<(u64, Upcoming)>> {
        self.hints.lock().unwrap()
    }
}

impl Volume for Hinted {
    fn description(&self) -> &VolumeDescription {
        self.below.description()
    }

    fn prefetch(&self, lba: u64, upcoming: Upcoming) {
        self.hints().push((lba, upcoming));
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        self.below.start(request, pool)
    }

    fn resume(&self, task: Task, result: io::Result<usize>, operation: FileOp, pool: &mut Pool) -> Step {
        self.below.resume(task, result, operation, pool)
    }
}

fn hinted() -> (Arc<Hinted>, TargetConfig) {
    let volume = Arc::new(Hinted { below: volume("mem:16M"), hints: Mutex::default() });
    let config = serving(vec![(1, volume.clone())]);
    (volume, config)
}

/// Sends commands at once and waits for their completions.
fn run_together(queue: &mut MockHost, commands: &[(SubmissionEntry, &[u8])]) {
    let mut bytes = Vec::new();
    for (cid, (entry, data)) in (0..).zip(commands) {
        let entry = SubmissionEntry { cid, ..*entry };
        bytes.extend(&*CapsuleCmd { entry, data_len: data.len() as u32 }.encode(&Default::default()));
        bytes.extend(*data);
    }
    queue.send_bytes(&bytes);
    (0..commands.len()).for_each(|cid| assert_eq!(queue.completion(cid as u16).0.status, Status::SUCCESS));
}

#[test]
fn each_read_is_announced_twice() {
    let (volume, config) = hinted();
    let (_target, address) = start(config);
    let (_admin, mut queue) = pair(address, 31);
    let lbas = || (0..9).map(|command| command * 8);
    let reads = lbas().map(|lba| SubmissionEntry { sgl: Sgl::Transport { len: 4096 }, ..read_entry(lba, 8) });
    let reads: Vec<_> = reads.map(|entry| (entry, &[][..])).collect();
    // A target that is interrupted during a receive gets the commands in two parts.
    eventually("each read is announced as later, then as a read", || {
        volume.hints().clear();
        run_together(&mut queue, &reads);
        let hints = volume.hints();
        lbas().all(|lba| {
            let of_lba: Vec<_> = hints.iter().filter(|hint| hint.0 == lba).map(|hint| hint.1).collect();
            of_lba == [Upcoming::Later, Upcoming::Read]
        })
    });
}

#[test]
fn writes_with_predicted_data_are_announced() {
    let (volume, config) = hinted();
    let (_target, address) = start(config);
    let (_admin, mut queue) = pair(address, 31);
    let data = pattern(1, 4096);
    let lbas = || (0..4).map(|command| command * 8);
    let writes: Vec<_> = lbas().map(|lba| (in_capsule(write_entry(lba, 8), &data), &data[..])).collect();
    eventually("each write is announced", || {
        volume.hints().clear();
        run_together(&mut queue, &writes);
        let hints = volume.hints();
        lbas().all(|lba| hints.contains(&(lba, Upcoming::Write)))
    });
}
