//! Tests of memory volumes.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{Outcome, open, spec};

pub(super) fn volume(text: &str) -> Arc<dyn Volume> {
    open(&spec::parse(text).unwrap()).unwrap()
}

fn finish(volume: &dyn Volume, request: Request, pool: &mut Pool) -> Outcome {
    match volume.start(request, pool) {
        Step::Done(outcome) => outcome,
        step => panic!("memory completes immediately, not with {step:?}"),
    }
}

pub(super) fn read(volume: &dyn Volume, lba: u64, blocks: u64, pool: &mut Pool) -> Vec<u8> {
    // Even blocks use the immediate path, odd ones a request.
    if lba.is_multiple_of(2) {
        return volume.try_read(lba, blocks, pool).unwrap().to_vec();
    }
    finish(volume, Request::Read { lba, blocks }, pool).unwrap().to_vec()
}

pub(super) fn write(volume: &dyn Volume, lba: u64, bytes: &[u8], pool: &mut Pool) {
    let mut data = pool.buffer(bytes.len()).unwrap();
    data.copy_in(0, bytes);
    let blocks = bytes.len() as u64 / u64::from(volume.info().block_size);
    if lba.is_multiple_of(2) {
        return volume.try_write(lba, blocks, data, pool).unwrap();
    }
    finish(volume, Request::Write { lba, blocks, data, fua: false }, pool).unwrap();
}

#[test]
fn reports_pages_as_extents() {
    let (volume, mut pool) = (volume("mem:1G"), Pool::new(16));
    let extents = |mut lba: u64, end: u64| {
        let mut found = Vec::new();
        while lba < end {
            let Extent { blocks, is_hole } = volume.extent(lba, end - lba);
            found.push((lba, is_hole));
            lba += blocks;
        }
        found
    };
    write(&*volume, 17, &[1; 512], &mut pool);
    write(&*volume, 24, &[1; 8192], &mut pool);
    assert_eq!(extents(3, 80), [(3, true), (16, false), (40, true)]);
    assert_eq!(extents(18, 20), [(18, false)]);
    assert_eq!(extents(0, 2 << 20).len(), 2 + 4, "extents are bounded");
}

#[test]
fn unwritten_volume_reads_as_zeroes() {
    let mut pool = Pool::new(16);
    assert_eq!(read(&*volume("mem:1G"), 12_345, 9, &mut pool), vec![0; 9 * 512]);
}

#[test]
fn read_keeps_its_snapshot() {
    let (volume, mut pool) = (volume("mem:1M"), Pool::new(16));
    write(&*volume, 0, &[1; 4096], &mut pool);
    let before = finish(&*volume, Request::Read { lba: 0, blocks: 8 }, &mut pool).unwrap();
    write(&*volume, 0, &[2; 4096], &mut pool);
    write(&*volume, 1, &[3; 512], &mut pool);
    assert_eq!(before.to_vec(), [1; 4096]);
    assert_eq!(read(&*volume, 0, 8, &mut pool), [vec![2; 512], vec![3; 512], vec![2; 3072]].concat());
}

#[test]
fn rewrites_reuse_pages() {
    let (volume, mut pool) = (volume("mem:1M"), Pool::new(8));
    for round in 0..100 {
        write(&*volume, 0, &[round; 16_384], &mut pool);
        write(&*volume, 3, &[round; 512], &mut pool);
        let seen = finish(&*volume, Request::Read { lba: 0, blocks: 32 }, &mut pool).unwrap();
        pool.recycle_payload(seen);
    }
    assert_eq!(pool.free_pages(), 8);
}

#[test]
fn deallocates_large_ranges_over_many_turns() {
    let (volume, mut pool) = (volume("mem:1G"), Pool::new(8));
    let lbas = [0, 1_000_000, 2_097_151];
    lbas.iter().for_each(|lba| write(&*volume, *lba, &[1; 512], &mut pool));
    let ranges = smallvec![BlockRange { lba: 0, blocks: 10 }, BlockRange { lba: 10, blocks: 2_097_142 }];
    let mut request = Request::Deallocate { ranges, fua: false };
    let mut turns = 1;
    while let Step::Retry(remaining) = volume.start(request, &mut pool) {
        (request, turns) = (remaining, turns + 1);
    }
    assert_eq!(turns, 32);
    assert!(lbas.iter().all(|lba| read(&*volume, *lba, 1, &mut pool) == [0; 512]));
}

#[test]
fn rejects_invalid_requests_and_recycles_memory() {
    let (volume, mut pool) = (volume("mem:1M,ro"), Pool::new(8));
    let data = pool.buffer(512).unwrap();
    let write = Request::Write { lba: 0, blocks: 1, data, fua: false };
    assert_eq!(finish(&*volume, write, &mut pool).unwrap_err(), crate::VolumeError::ReadOnly);
    assert_eq!(pool.free_pages(), 8);
    for (lba, blocks) in [(2048, 1), (2047, 2), (u64::MAX, 1), (1, u64::MAX)] {
        assert!(finish(&*volume, Request::Read { lba, blocks }, &mut pool).is_err());
    }
}

#[test]
fn concurrent_reads_never_see_torn_blocks() {
    let volume = volume("mem:64k");
    let threads: Vec<_> = (0..4u64)
        .map(|id| {
            let volume = Arc::clone(&volume);
            std::thread::spawn(move || {
                let mut pool = Pool::new(16);
                for round in 0..3000u64 {
                    let lba = (round * 7 + id) % 24;
                    if id % 2 == 0 {
                        let blocks = 1 + (round as usize) % 8;
                        write(&*volume, lba, &vec![round as u8; 512 * blocks], &mut pool);
                    } else {
                        let bytes = read(&*volume, lba, 8, &mut pool);
                        assert!(bytes.chunks(512).all(|block| block.iter().all(|&byte| byte == block[0])));
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[derive(Clone, Debug)]
enum Op {
    Write { lba: u64, blocks: u64, byte: u8, is_contiguous: bool },
    Zero { lba: u64, blocks: u64 },
    Deallocate { ranges: Vec<(u64, u64)> },
}

fn op(volume_blocks: u64) -> impl Strategy<Value = Op> {
    let range = (0..volume_blocks).prop_flat_map(move |lba| (Just(lba), 0..=(volume_blocks - lba)));
    let write = (range.clone(), any::<u8>(), any::<bool>());
    prop_oneof![
        write.prop_map(|((lba, blocks), byte, is_contiguous)| Op::Write { lba, blocks, byte, is_contiguous }),
        range.clone().prop_map(|(lba, blocks)| Op::Zero { lba, blocks }),
        prop::collection::vec(range, 0..3).prop_map(|ranges| Op::Deallocate { ranges }),
    ]
}

fn apply(volume: &dyn Volume, model: &mut [u8], op: Op, pool: &mut Pool) {
    let block_size = volume.info().block_size as usize;
    let bytes = |lba: u64, blocks: u64| lba as usize * block_size..(lba + blocks) as usize * block_size;
    let request = match op {
        Op::Write { lba, blocks, byte, is_contiguous } => {
            let len = blocks as usize * block_size;
            let mut data = if is_contiguous { Buffer::contiguous(len) } else { pool.buffer(len).unwrap() };
            data.copy_in(0, &vec![byte; len]);
            model[bytes(lba, blocks)].fill(byte);
            Request::Write { lba, blocks, data, fua: true }
        }
        Op::Zero { lba, blocks } => {
            model[bytes(lba, blocks)].fill(0);
            Request::WriteZeroes { lba, blocks, fua: false, deallocate: true }
        }
        Op::Deallocate { ranges } => {
            ranges.iter().for_each(|(lba, blocks)| model[bytes(*lba, *blocks)].fill(0));
            let ranges = ranges.into_iter().map(|(lba, blocks)| BlockRange { lba, blocks }).collect();
            Request::Deallocate { ranges, fua: false }
        }
    };
    finish(volume, request, pool).unwrap();
}

proptest! {
    #[test]
    fn random_requests_match_a_plain_array(
        is_small in any::<bool>(),
        ops in prop::collection::vec(op(50), 1..20),
    ) {
        let volume = volume(if is_small { "mem:25k" } else { "mem:200k,block-size=4096" });
        let mut model = vec![0; volume.info().bytes() as usize];
        let mut pool = Pool::new(64);
        for op in ops {
            apply(&*volume, &mut model, op, &mut pool);
        }
        prop_assert_eq!(read(&*volume, 0, 50, &mut pool), model);
        prop_assert_eq!(pool.free_pages(), 64);
    }
}

#[test]
fn try_read_and_try_write_reject_invalid_requests() {
    let mut pool = Pool::new(16);
    let writable = volume("mem:1M");
    for (lba, blocks) in [(2047, 2), (u64::MAX, 1)] {
        assert!(writable.try_read(lba, blocks, &mut pool).is_none());
    }
    let read_only = volume("mem:1M,ro");
    for (volume, lba, blocks) in
        [(&writable, 2041, 8), (&writable, 0, 7), (&writable, u64::MAX, 8), (&read_only, 0, 8)]
    {
        let data = pool.buffer(4096).unwrap();
        assert!(volume.try_write(lba, blocks, data, &mut pool).is_err());
    }
}
