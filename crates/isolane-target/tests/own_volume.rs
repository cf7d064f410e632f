//! A volume of another crate that completes requests on its own thread: `examples/own_volume.rs`.

mod common;
#[allow(dead_code)]
#[path = "../examples/own_volume.rs"]
mod own_volume;

use std::sync::Arc;

use common::*;
use isolane_target::{IoChoice, Target, TargetConfig};
use isolane_wire::{Sgl, Status, SubmissionEntry, io};
use own_volume::OwnVolume;

#[test]
fn serves_volume_that_completes_on_another_thread() {
    for io in [IoChoice::Auto, IoChoice::Epoll] {
        let mut config = TargetConfig { io, ..config(&[]) };
        config.subsystems[0].volumes.push((1, Arc::new(OwnVolume::new(2048))));
        let (target, address) = start(config);
        let (admin, mut queue) = pair(address, 31);
        let data = pattern(3, 64 * 1024);
        assert_eq!(queue.push(write_entry(5, 128), &data).status, Status::SUCCESS);
        assert_eq!(queue.run(io::flush(1)).status, Status::SUCCESS);
        assert!(queue.fetch(read_entry(5, 128), 64 * 1024).1 == data);
        let read = |lba| SubmissionEntry { sgl: Sgl::Transport { len: 512 }, ..read_entry(lba, 1) };
        let cids: Vec<u16> = (5..21).map(|lba| queue.send(read(lba), &[])).collect();
        for (cid, block) in cids.into_iter().zip(data.chunks(512)) {
            let (completion, read) = queue.completion(cid);
            assert_eq!((completion.status, &read[..]), (Status::SUCCESS, block));
        }
        assert!(queue.fetch(read_entry(2048, 1), 512).0.status.is(Status::LBA_OUT_OF_RANGE));
        drop((admin, queue));
        target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result().unwrap();
    }
}
