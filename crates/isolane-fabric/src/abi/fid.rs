//! The start of each object.

use std::ffi::{c_int, c_void};

/// A function that is not supported: it ignores its arguments, and returns `-FI_ENOSYS`.
pub type NoFn = extern "C" fn() -> isize;

#[repr(C)]
pub struct Fid {
    pub class: usize,
    pub context: *mut c_void,
    pub ops: &'static FidOps,
}

#[repr(C)]
pub struct FidOps {
    pub size: usize,
    pub close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
    pub ops_open: NoFn,
}
