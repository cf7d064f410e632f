//! Whether a file can be read and written directly, at this block size.
//!
//! Asked with statx where the kernel tells (STATX_DIOALIGN, Linux 6.1), and tried with a read in any case. A
//! file that is direct is never used through the page cache, and the other way round.

use std::fs::File;

use isolane_memory::{Buffer, PAGE_SIZE};
use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};
use rustix::io::{Errno, pread};

/// Switches the file to direct I/O if it can do that in blocks of `block_size` bytes. Says whether it did.
pub(crate) fn switch_to_direct(file: &File, block_size: u32) -> bool {
    if !may_align(file, block_size) {
        return false;
    }
    let Ok(flags) = fcntl_getfl(file) else { return false };
    if fcntl_setfl(file, flags | OFlags::DIRECT).is_err() {
        return false;
    }
    let is_direct = [0, u64::from(block_size)].into_iter().all(|offset| can_read(file, offset, block_size));
    if !is_direct {
        // Clearing a flag that could be set does not fail; if it did, every request would say so.
        fcntl_setfl(file, flags).ok();
    }
    is_direct
}

/// What the kernel says, if it says anything.
fn may_align(file: &File, block_size: u32) -> bool {
    let Ok(stat) = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return true };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return true;
    }
    let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    // Pages are aligned to 4 KiB, and after a short write the rest begins at any whole block.
    memory != 0 && memory <= block_size && offset != 0 && block_size.is_multiple_of(offset)
}

fn can_read(file: &File, offset: u64, block_size: u32) -> bool {
    let mut buffer = Buffer::contiguous(PAGE_SIZE);
    let Some(bytes) = buffer.as_mut_slice() else { return false };
    loop {
        match pread(file, &mut bytes[..block_size as usize], offset) {
            Ok(_) => return true,
            Err(Errno::INTR) => {}
            // A bad block says nothing about alignment.
            Err(error) => return error == Errno::IO,
        }
    }
}
