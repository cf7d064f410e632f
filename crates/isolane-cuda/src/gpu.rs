//! A GPU of the computer, for programs without other CUDA libraries.

use std::ptr::NonNull;
use std::sync::Arc;

use isolane_memory::MemoryRegion;

use crate::context::Context;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::memory::{GpuMemory, Range};
use crate::pointer::set_in_use;

/// A GPU with its primary context.
pub struct Gpu {
    context: Arc<Context>,
    info: GpuInfo,
}

/// Description of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Index among the GPUs of the computer.
    pub index: usize,
    /// Name of the model.
    pub name: String,
}

impl Gpu {
    /// Loads the driver library, and opens the GPU with an index.
    ///
    /// # Errors
    /// If there is no driver or no such GPU, or the driver reports an error.
    pub fn open(index: usize) -> Result<Gpu> {
        let driver = Driver::load()?;
        driver.initialize()?;
        let count = driver.gpu_count()?;
        if index >= count {
            return Err(CudaError::NoGpu { index, count });
        }
        let (handle, name) = driver.gpu(index)?;
        let context = Context::primary(driver, handle)?;
        set_in_use();
        Ok(Gpu { context, info: GpuInfo { index, name } })
    }

    /// Returns its description.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// Allocates GPU memory, which is freed with the region.
    ///
    /// # Errors
    /// If there is not enough memory, or `len` is 0.
    pub fn allocate(&self, len: usize) -> Result<Arc<MemoryRegion>> {
        let address = self.context.with_current(|| self.context.driver().allocate(len))?;
        let context = Arc::clone(&self.context);
        let range = Range { context, address, ends: [len].into(), is_owned: true };
        let start = NonNull::new(std::ptr::without_provenance_mut(address as usize));
        let start = start.ok_or(CudaError::Range { start: address, len, found: 0 })?;
        Ok(Arc::new(MemoryRegion::on_device(start, len, Box::new(GpuMemory(Arc::new(range))))))
    }
}
