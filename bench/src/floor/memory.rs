//! Blocks of one large aligned allocation on huge pages, as disjoint slices.

use std::io;

use memmap2::{Advice, MmapMut};

/// One block. Blocks live as long as the process, which runs one measurement.
pub type Block = &'static mut [u8];

/// Allocates `count` page-aligned blocks of `bytes` each and touches every page.
pub fn blocks(count: usize, bytes: usize) -> io::Result<Vec<Block>> {
    const ALIGNMENT: usize = 2 << 20;
    let mapping = MmapMut::map_anon(count * bytes + ALIGNMENT)?;
    // A kernel without huge pages refuses, which lowers the floor and everything else on that machine.
    let _ = mapping.advise(Advice::HugePage);
    let mapping: &'static mut MmapMut = Box::leak(Box::new(mapping));
    let skip = mapping.as_ptr().align_offset(ALIGNMENT);
    let mut blocks: Vec<Block> = mapping[skip..].chunks_exact_mut(bytes).take(count).collect();
    for (index, block) in blocks.iter_mut().enumerate() {
        block.fill(index as u8);
        block[..8].copy_from_slice(&(index as u64).to_le_bytes());
    }
    Ok(blocks)
}

/// Prefetches the start of a block. Misses of blocks that are touched before the kernel copies the first one overlap.
pub fn touch(block: &[u8]) {
    std::hint::black_box(block[0]);
}
