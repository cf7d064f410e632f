//! Blocks of one large aligned allocation, handed out as disjoint slices.

/// One block. Blocks live as long as the process, which runs one measurement.
pub type Block = &'static mut [u8];

/// Allocates `count` page-aligned blocks of `bytes` each and touches every page.
pub fn blocks(count: usize, bytes: usize) -> Vec<Block> {
    const ALIGNMENT: usize = 2 << 20;
    let region = vec![0u8; count * bytes + ALIGNMENT].leak();
    let skip = region.as_ptr().align_offset(ALIGNMENT);
    let blocks: Vec<Block> = region[skip..].chunks_exact_mut(bytes).take(count).collect();
    blocks.into_iter().enumerate().map(|(index, block)| stamped(block, index)).collect()
}

fn stamped(block: Block, index: usize) -> Block {
    block.fill(index as u8);
    block[..8].copy_from_slice(&(index as u64).to_le_bytes());
    block
}
