//! The memory behind a pointer of the program.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use isolane_memory::MemoryRegion;

use crate::context::Context;
use crate::driver::{ContextHandle, DeviceOrdinal, Driver, IsManaged, MemoryType, PointerContext};
use crate::error::{CudaError, Result};
use crate::memory::{GpuMemory, Range};

/// Whether [`find`] has found GPU memory before, or the program has used a [`Gpu`](crate::Gpu).
pub fn is_in_use() -> bool {
    IS_IN_USE.load(Ordering::Acquire)
}

static IS_IN_USE: AtomicBool = AtomicBool::new(false);

pub(crate) fn set_in_use() {
    IS_IN_USE.store(true, Ordering::Release);
}

/// Whether the program has loaded the driver library, so that [`find`] can find memory.
pub fn is_driver_loaded() -> bool {
    Driver::of_program().is_some()
}

/// Returns a region of `len` bytes from `start` on, if that is GPU memory. `None` if the CPU can access it.
///
/// The range can have several allocations of one context. If the program frees one of them, later operations fail.
///
/// # Errors
/// If only a part of the range is GPU memory, or the driver reports an error.
///
/// # Safety
/// Until the region is dropped, the memory is the caller's: others that get it after it is freed can find it changed.
pub unsafe fn find(start: NonNull<u8>, len: usize) -> Result<Option<MemoryRegion>> {
    let Some(driver) = Driver::of_program() else { return Ok(None) };
    let address = start.addr().get() as u64;
    let Some(place) = Place::of(driver, address)? else { return Ok(None) };
    let context = match place {
        Place::Context(handle) => Context::of(driver, handle)?,
        Place::Gpu(gpu) => Context::primary(driver, gpu)?,
    };
    let ends = context.with_current(|| allocation_ends(driver, place, address, len))?;
    let range = Range { context, address, ends, is_owned: false };
    set_in_use();
    Ok(Some(MemoryRegion::on_device(start, len, Box::new(GpuMemory(Arc::new(range))))))
}

/// Where GPU memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Context(ContextHandle),
    /// Memory without a context, as of a memory pool, on the GPU with this handle.
    Gpu(i32),
}

impl Place {
    /// Returns the place of the memory at an address. `None` if the CPU can access it, or the driver does not know it.
    fn of(driver: &Driver, address: u64) -> Result<Option<Place>> {
        if driver.attribute(address)? != Some(MemoryType::DEVICE) {
            return Ok(None);
        }
        if driver.attribute(address)?.is_some_and(|IsManaged(managed)| managed != 0) {
            return Ok(None);
        }
        let context = driver.attribute(address)?.map(|PointerContext(handle)| handle);
        if let Some(handle) = context.filter(|handle| !handle.is_null()) {
            return Ok(Some(Place::Context(handle)));
        }
        match driver.attribute(address)? {
            Some(DeviceOrdinal(gpu)) => Ok(Some(Place::Gpu(gpu))),
            None => Err(driver.unknown_pointer()),
        }
    }
}

/// Returns the offsets of the ends of the allocations of a range, the last one cut at its end.
fn allocation_ends(driver: &Driver, place: Place, address: u64, len: usize) -> Result<Box<[usize]>> {
    let (mut ends, mut found) = (Vec::new(), 0);
    while found < len {
        let at = address.wrapping_add(found as u64);
        let is_same = found == 0 || Place::of(driver, at)? == Some(place);
        let (start, size) = if is_same { driver.allocation(at)? } else { (at, 0) };
        let count = start.wrapping_add(size as u64).wrapping_sub(at);
        if count == 0 || count > size as u64 {
            return Err(CudaError::Range { start: address, len, found });
        }
        found = found.saturating_add(count as usize).min(len);
        ends.push(found);
    }
    Ok(ends.into())
}
