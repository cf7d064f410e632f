//! Another size of an open file or device.
//!
//! Invariant: no byte of a file is removed. A volume that shrinks serves less of its file, so that a request in
//! flight beyond the new end cannot let the file grow again.

use std::io::{Seek, SeekFrom};

use super::FileVolume;
use crate::spec::format_size;
use crate::{OpenError, Volume};

/// Returns the number of blocks in `bytes` of the file, or in all of it. Grows a file that is shorter.
pub(super) fn measure(volume: &FileVolume, bytes: Option<u64>, may_shrink: bool) -> Result<u64, OpenError> {
    let fail = |reason: String, remedy: &str| OpenError::new(volume.name(), reason, remedy);
    let block_size = u64::from(volume.info().block_size);
    let mut handle = &*volume.file;
    let stored =
        handle.seek(SeekFrom::End(0)).map_err(|error| fail(error.to_string(), "check its storage"))?;
    let bytes = bytes.unwrap_or(stored);
    if bytes < block_size || (bytes != stored && !bytes.is_multiple_of(block_size)) {
        let reason = format!("{bytes} bytes are no multiple of its block size of {block_size}");
        return Err(fail(reason, "choose a multiple"));
    }
    let (blocks, before) = (bytes / block_size, volume.blocks());
    if blocks < before && !may_shrink {
        let [bytes, before] = [blocks, before].map(|blocks| format_size(blocks * block_size));
        let reason = format!("its size would shrink from {before} to {bytes}");
        return Err(fail(reason, "allow that with --shrink if no host uses the blocks beyond"));
    }
    if bytes > stored {
        if volume.is_device {
            let reason = format!("the device has {}", format_size(stored));
            return Err(fail(reason, "grow the device first"));
        }
        volume.file.set_len(bytes).map_err(|error| {
            let reason = format!("cannot grow it to {} ({error})", format_size(bytes));
            fail(reason, "check the space and the maximum file size of its file system")
        })?;
    }
    Ok(blocks)
}
