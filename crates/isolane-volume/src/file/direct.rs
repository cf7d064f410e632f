//! Direct I/O detection.
//!
//! Queries statx (STATX_DIOALIGN, Linux 6.1) if supported, and always tries a read. A file uses either
//! direct I/O or the page cache, never both.

use std::fs::File;

use isolane_memory::{Buffer, PAGE_SIZE};
use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};
use rustix::io::{Errno, pread};

/// Enables direct I/O if the file supports it in blocks of `block_size` bytes. Returns whether it
/// did.
pub(crate) fn try_enable_direct(file: &File, block_size: u32) -> bool {
    if !supports_alignment(file, block_size) {
        return false;
    }
    let Ok(flags) = fcntl_getfl(file) else { return false };
    if fcntl_setfl(file, flags | OFlags::DIRECT).is_err() {
        return false;
    }
    let direct = [0, u64::from(block_size)].into_iter().all(|offset| can_read(file, offset, block_size));
    if !direct {
        // Clearing a settable flag does not fail; otherwise every request would report it.
        fcntl_setfl(file, flags).ok();
    }
    direct
}

/// Checks the alignment reported by the kernel; `true` if it reports none.
fn supports_alignment(file: &File, block_size: u32) -> bool {
    let Ok(stat) = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return true };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return true;
    }
    let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    // Buffers are aligned to 4 KiB, and a short write continues at any whole block.
    memory != 0 && memory <= block_size && offset != 0 && block_size.is_multiple_of(offset)
}

fn can_read(file: &File, offset: u64, block_size: u32) -> bool {
    let mut buffer = Buffer::contiguous(PAGE_SIZE);
    let Some(bytes) = buffer.as_mut_slice() else { return false };
    loop {
        match pread(file, &mut bytes[..block_size as usize], offset) {
            Ok(_) => return true,
            Err(Errno::INTR) => {}
            // A bad block does not depend on alignment.
            Err(error) => return error == Errno::IO,
        }
    }
}
