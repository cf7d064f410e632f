//! Errors of the driver library, and of memory that it does not own.

use std::ffi::c_int;

/// Why GPU memory cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The library cannot be loaded.
    #[error("cannot load libcuda.so.1: {0}; install the driver of the GPU")]
    Library(String),
    /// The library is too old.
    #[error("libcuda.so.1 has no {0}; install a newer driver of the GPU")]
    Symbol(&'static str),
    /// A function of the library has failed.
    #[error("{function}: {name} ({code})")]
    Call {
        /// Name of the function.
        function: &'static str,
        /// Name of the error.
        name: String,
        /// Number of the error.
        code: c_int,
    },
    /// A part of a range is not memory of the same GPU context.
    #[error("{len} bytes at {start:#x}: only the first {found} are GPU memory of one context")]
    Range {
        /// Address of the range.
        start: u64,
        /// Length in bytes.
        len: usize,
        /// Number of bytes before the first one that is not.
        found: usize,
    },
    /// Memory of the host is missing.
    #[error("cannot map {len} bytes for the buffers of a GPU: out of memory; end other programs")]
    HostMemory {
        /// Length in bytes.
        len: usize,
    },
    /// The computer has no such GPU.
    #[error("no GPU has index {index}; there are {count}")]
    NoGpu {
        /// Requested index.
        index: usize,
        /// Number of GPUs.
        count: usize,
    },
}

impl CudaError {
    /// Whether memory of the GPU or of the host is missing.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, CudaError::Call { code: OUT_OF_MEMORY, .. } | CudaError::HostMemory { .. })
    }

    /// Whether the computer has no GPU, or no driver of one.
    pub fn is_no_gpu(&self) -> bool {
        match self {
            CudaError::Library(_) | CudaError::NoGpu { count: 0, .. } => true,
            CudaError::Call { function, code, .. } => *function == "cuInit" && *code == NO_DEVICE,
            _ => false,
        }
    }

    /// Whether the context has ended, with all copies and streams.
    pub(crate) fn is_end_of_context(&self) -> bool {
        matches!(self, CudaError::Call { code, .. } if CONTEXT_ENDED.contains(code))
    }
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: c_int = 100;
/// `CUDA_ERROR_DEINITIALIZED`, `CUDA_ERROR_INVALID_CONTEXT`, and `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
const CONTEXT_ENDED: [c_int; 3] = [4, 201, 709];

pub(crate) type Result<T> = std::result::Result<T, CudaError>;
