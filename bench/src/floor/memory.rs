//! Blocks of one large aligned allocation on huge pages, handed out as disjoint slices.

use std::io;

use memmap2::{Advice, MmapMut};

/// One block. Blocks live as long as the process, which runs one measurement.
pub type Block = &'static mut [u8];

/// Allocates `count` page-aligned blocks of `bytes` each and touches every page.
pub fn blocks(count: usize, bytes: usize) -> io::Result<Vec<Block>> {
    const ALIGNMENT: usize = 2 << 20;
    let mapping = MmapMut::map_anon(count * bytes + ALIGNMENT)?;
    // A kernel without huge pages refuses; the floor is the lower for it, and so is everything else there.
    let _ = mapping.advise(Advice::HugePage);
    let mapping: &'static mut MmapMut = Box::leak(Box::new(mapping));
    let skip = mapping.as_ptr().align_offset(ALIGNMENT);
    let blocks: Vec<Block> = mapping[skip..].chunks_exact_mut(bytes).take(count).collect();
    Ok(blocks.into_iter().enumerate().map(|(index, block)| stamped(block, index)).collect())
}

fn stamped(block: Block, index: usize) -> Block {
    block.fill(index as u8);
    block[..8].copy_from_slice(&(index as u64).to_le_bytes());
    block
}

/// Has the processor look up a block's page and fetch its start while it does other things: several blocks
/// that are touched before the kernel copies the first one are waited for once instead of one after the
/// other.
pub fn touch(block: &[u8]) {
    std::hint::black_box(block[0]);
}
