//! Memory of NVIDIA GPUs as registered memory of verbs.
//!
//! The driver library `libcuda.so.1` is not linked. A program that has GPU memory has loaded it, and [`find`] finds the
//! memory behind a pointer of such a program. [`Gpu`] loads it for programs without other CUDA libraries.
//!
//! * [`find`]: the region of a pointer, if it is GPU memory.
//! * [`Gpu`], [`GpuInfo`]: allocation of GPU memory.
//!
//! Invariant: a program that has not loaded the driver library gets neither the library nor a context.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod channel;
mod context;
mod driver;
mod error;
mod gpu;
mod memory;
mod pointer;

pub use error::CudaError;
pub use gpu::{Gpu, GpuInfo};
pub use pointer::{find, is_driver_loaded, is_in_use};
