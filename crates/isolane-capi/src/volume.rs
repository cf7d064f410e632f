//! Volumes: open, information, and blocking calls.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use isolane_memory::Buffer;
use isolane_shm::with_signals_blocked;

use crate::backend::{MAX_REQUEST_BYTES, OpenVolume, Operation};
use crate::entry::call;
use crate::error::Failure;
use crate::ffi::{as_ref, from_raw, into_raw, slice, slice_mut, text};
use crate::fork::Busy;
use crate::{logging, memory};

const ISOLANE_READ_ONLY: c_int = 1;
pub(crate) const ISOLANE_DURABLE: c_int = 1;

/// Handle of a program to a volume.
pub struct Volume(pub(crate) Arc<OpenVolume>);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_volume_open(uri: *const c_char, flags: c_int) -> *mut Volume {
    call("isolane_volume_open", || {
        if flags & !ISOLANE_READ_ONLY != 0 {
            return Err(Failure::Argument("unknown flag: pass 0 or ISOLANE_READ_ONLY"));
        }
        // SAFETY: the header states the requirements.
        let uri = unsafe { text(uri)? };
        let _busy = Busy::open()?;
        logging::start();
        let volume = with_signals_blocked(|| OpenVolume::open(uri, flags & ISOLANE_READ_ONLY != 0));
        logging::flush();
        Ok(into_raw(Volume(Arc::new(volume?))))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_volume_name(volume: *const Volume) -> *const c_char {
    // SAFETY: the header states the requirements.
    call("isolane_volume_name", || Ok(unsafe { as_ref(volume)? }.0.name.as_ptr()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_volume_bytes(volume: *const Volume) -> i64 {
    // SAFETY: the header states the requirements.
    call("isolane_volume_bytes", || Ok(unsafe { as_ref(volume)? }.0.bytes as i64))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_volume_block_bytes(volume: *const Volume) -> c_int {
    // SAFETY: the header states the requirements.
    call("isolane_volume_block_bytes", || Ok(unsafe { as_ref(volume)? }.0.block_bytes as c_int))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_volume_is_read_only(volume: *const Volume) -> c_int {
    // SAFETY: the header states the requirements.
    call("isolane_volume_is_read_only", || Ok(unsafe { as_ref(volume)? }.0.is_read_only.into()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_volume_max_request_bytes(volume: *const Volume) -> isize {
    // SAFETY: the header states the requirements.
    call("isolane_volume_max_request_bytes", || unsafe { as_ref(volume) }.map(|_| MAX_REQUEST_BYTES as isize))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_volume_pread(
    volume: *const Volume,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
) -> isize {
    call("isolane_volume_pread", || {
        // SAFETY: the header states the requirements.
        let (volume, buffer) = unsafe { (open(volume)?, slice_mut::<u8>(buffer, length)?) };
        volume.check(Operation::Read, offset, length as u64)?;
        let mut at = offset;
        for part in buffer.chunks_mut(MAX_REQUEST_BYTES) {
            let len = part.len();
            transfer(volume, Operation::Read, NonNull::from(part).cast(), len, at, false)?;
            at += len as u64;
        }
        Ok(length as isize)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_volume_pwrite(
    volume: *const Volume,
    buffer: *const c_void,
    length: usize,
    offset: u64,
    flags: c_int,
) -> isize {
    call("isolane_volume_pwrite", || {
        // SAFETY: the header states the requirements.
        let (volume, buffer) = unsafe { (open(volume)?, slice::<u8>(buffer, length)?) };
        let fua = is_durable(flags)?;
        volume.check(Operation::Write, offset, length as u64)?;
        let mut at = offset;
        for part in buffer.chunks(MAX_REQUEST_BYTES) {
            transfer(volume, Operation::Write, NonNull::from(part).cast(), part.len(), at, fua)?;
            at += part.len() as u64;
        }
        Ok(length as isize)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_volume_flush(volume: *const Volume) -> c_int {
    // SAFETY: the header states the requirements.
    call("isolane_volume_flush", || unsafe { change(volume, Operation::Flush, 0, 0, false) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_volume_write_zeroes(
    volume: *const Volume,
    length: u64,
    offset: u64,
    flags: c_int,
) -> c_int {
    call("isolane_volume_write_zeroes", || {
        let fua = is_durable(flags)?;
        // SAFETY: the header states the requirements.
        unsafe { change(volume, Operation::WriteZeroes, offset, length, fua) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_volume_discard(volume: *const Volume, length: u64, offset: u64) -> c_int {
    // SAFETY: the header states the requirements.
    call("isolane_volume_discard", || unsafe { change(volume, Operation::Discard, offset, length, false) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_volume_close(volume: *mut Volume) {
    call("isolane_volume_close", || {
        // SAFETY: the header states the requirements.
        let Some(volume) = (unsafe { from_raw(volume) }) else { return Ok(()) };
        // The threads of a parent are not in its child, and their locks can be held.
        if volume.0.is_of_this_process() {
            let _busy = Busy::enter();
            drop(volume);
            logging::flush();
        } else {
            std::mem::forget(volume);
        }
        Ok(())
    });
}

/// Borrows a volume of this process.
///
/// # Safety
/// The requirements of [`as_ref`].
unsafe fn open<'a>(volume: *const Volume) -> Result<&'a OpenVolume, Failure> {
    // SAFETY: this function has the same requirements.
    let volume = unsafe { as_ref(volume)? };
    volume.0.check_process()?;
    Ok(&volume.0)
}

/// Executes a request without data.
///
/// # Safety
/// The requirements of [`as_ref`].
unsafe fn change(
    volume: *const Volume,
    operation: Operation,
    offset: u64,
    length: u64,
    fua: bool,
) -> Result<c_int, Failure> {
    // SAFETY: this function has the same requirements.
    let volume = unsafe { open(volume)? };
    let range = volume.check(operation, offset, length)?;
    let request = volume.request(operation, range, Buffer::default(), fua);
    request.map_or(Ok(()), |request| volume.run(request))?;
    Ok(0)
}

/// Reads or writes a part of the caller's memory, which the caller has borrowed for the call.
fn transfer(
    volume: &OpenVolume,
    operation: Operation,
    start: NonNull<u8>,
    len: usize,
    offset: u64,
    fua: bool,
) -> Result<(), Failure> {
    let range = volume.check(operation, offset, len as u64)?;
    // Another thread can free the handle of the memory.
    let _allocation = memory::find(start.as_ptr().cast(), len);
    // SAFETY: the memory is borrowed for the call, and not accessed until `run` has dropped the buffer; a write only
    // reads it. `run` does not unwind before that.
    let buffer = unsafe { Buffer::from_raw_parts(start, len) };
    volume.request(operation, range, buffer, fua).map_or(Ok(()), |request| volume.run(request))
}

fn is_durable(flags: c_int) -> Result<bool, Failure> {
    match flags & !ISOLANE_DURABLE {
        0 => Ok(flags & ISOLANE_DURABLE != 0),
        _ => Err(Failure::Argument("unknown flag: pass 0 or ISOLANE_DURABLE")),
    }
}

/// Several threads can use a volume.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Volume>();
};

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::thread;

    use super::*;
    use crate::memory::{find, isolane_memory_data, isolane_memory_free, isolane_memory_new};

    #[test]
    fn blocking_call_keeps_its_memory() {
        let uri = CString::new("delay:50ms:mem:1M").unwrap();
        // SAFETY: as in a C program.
        let volume = unsafe { isolane_volume_open(uri.as_ptr(), 0).as_ref().unwrap() };
        for attempt in 0.. {
            assert!(attempt < 100, "no call keeps its memory");
            let memory = isolane_memory_new(4096);
            // SAFETY: as in a C program.
            let start = unsafe { isolane_memory_data(memory) };
            let found = find(start, 4096).unwrap();
            let address = start.expose_provenance();
            let call = thread::spawn(move || {
                let start = std::ptr::with_exposed_provenance_mut(address);
                // SAFETY: as in a C program.
                unsafe { isolane_volume_pread(volume, start, 4096, 0) }
            });
            // The handle, the list, and `found`.
            let is_kept = || Arc::strong_count(&found) > 3;
            while !is_kept() && !call.is_finished() {
                thread::yield_now();
            }
            let was_kept = is_kept();
            assert_eq!(call.join().unwrap(), 4096);
            // SAFETY: as in a C program.
            unsafe { isolane_memory_free(memory) };
            assert_eq!(Arc::strong_count(&found), 1);
            if was_kept {
                break;
            }
        }
        // SAFETY: as in a C program.
        unsafe { isolane_volume_close(std::ptr::from_ref(volume).cast_mut()) };
    }
}
