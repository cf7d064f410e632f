//! Objects, and their tables of functions.

use std::ffi::{c_char, c_int, c_void};

use super::attributes::{CntrAttr, CqAttr, CqErrEntry, EqAttr, EqErrEntry, Iovec, MrAttr, Msg, MsgRma};
use super::fid::{Fid, NoFn};
use super::info::{FabricAttr, Info, RxAttr};

type Void = *mut c_void;

#[repr(C)]
pub struct Provider {
    pub version: u32,
    pub fi_version: u32,
    pub context: [*mut c_void; 4],
    pub name: *const c_char,
    pub getinfo:
        unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> c_int,
    pub fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int,
    pub cleanup: extern "C" fn(),
}

#[repr(C)]
pub struct FidFabric {
    pub fid: Fid,
    pub ops: &'static FabricOps,
    pub api_version: u32,
}

#[repr(C)]
pub struct FidDomain {
    pub fid: Fid,
    pub ops: &'static DomainOps,
    pub mr: &'static MrOps,
}

#[repr(C)]
pub struct FidMr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct FidEq {
    pub fid: Fid,
    pub ops: &'static EqOps,
}

#[repr(C)]
pub struct FidCq {
    pub fid: Fid,
    pub ops: &'static CqOps,
}

#[repr(C)]
pub struct FidCntr {
    pub fid: Fid,
    pub ops: &'static CntrOps,
}

#[repr(C)]
pub struct FidPep {
    pub fid: Fid,
    pub ops: &'static EpOps,
    pub cm: &'static CmOps,
}

/// A passive endpoint has the fields up to `cm`.
#[repr(C)]
pub struct FidEp {
    pub fid: Fid,
    pub ops: &'static EpOps,
    pub cm: &'static CmOps,
    pub msg: &'static MsgOps,
    pub rma: &'static RmaOps,
    pub tagged: &'static Unsupported<20>,
    pub atomic: &'static Unsupported<20>,
    pub collective: &'static Unsupported<20>,
}

/// A table of which no function is supported.
#[repr(C)]
pub struct Unsupported<const N: usize> {
    pub size: usize,
    pub functions: [NoFn; N],
}

#[repr(C)]
pub struct FabricOps {
    pub size: usize,
    pub domain: unsafe extern "C" fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, Void) -> c_int,
    pub passive_ep: unsafe extern "C" fn(*mut FidFabric, *mut Info, *mut *mut FidPep, Void) -> c_int,
    pub eq_open: unsafe extern "C" fn(*mut FidFabric, *mut EqAttr, *mut *mut FidEq, Void) -> c_int,
    pub wait_open: NoFn,
    pub trywait: unsafe extern "C" fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int,
}

#[repr(C)]
pub struct DomainOps {
    pub size: usize,
    pub av_open: NoFn,
    pub cq_open: unsafe extern "C" fn(*mut FidDomain, *mut CqAttr, *mut *mut FidCq, Void) -> c_int,
    pub endpoint: unsafe extern "C" fn(*mut FidDomain, *mut Info, *mut *mut FidEp, Void) -> c_int,
    pub scalable_ep: NoFn,
    pub cntr_open: unsafe extern "C" fn(*mut FidDomain, *mut CntrAttr, *mut *mut FidCntr, Void) -> c_int,
    pub poll_open: NoFn,
    pub stx_ctx: NoFn,
    pub srx_ctx: unsafe extern "C" fn(*mut FidDomain, *mut RxAttr, *mut *mut FidEp, Void) -> c_int,
    pub query_atomic: NoFn,
    pub query_collective: NoFn,
}

#[repr(C)]
pub struct MrOps {
    pub size: usize,
    pub reg: unsafe extern "C" fn(
        *mut Fid,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut FidMr,
        Void,
    ) -> c_int,
    pub regv: unsafe extern "C" fn(
        *mut Fid,
        *const Iovec,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut FidMr,
        Void,
    ) -> c_int,
    pub regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut FidMr) -> c_int,
}

#[repr(C)]
pub struct EqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut FidEq, *mut u32, Void, usize, u64) -> isize,
    pub readerr: unsafe extern "C" fn(*mut FidEq, *mut EqErrEntry, u64) -> isize,
    pub write: unsafe extern "C" fn(*mut FidEq, u32, *const c_void, usize, u64) -> isize,
    pub sread: unsafe extern "C" fn(*mut FidEq, *mut u32, Void, usize, c_int, u64) -> isize,
    pub strerror: unsafe extern "C" fn(*mut FidEq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

#[repr(C)]
pub struct CqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut FidCq, Void, usize) -> isize,
    pub readfrom: unsafe extern "C" fn(*mut FidCq, Void, usize, *mut u64) -> isize,
    pub readerr: unsafe extern "C" fn(*mut FidCq, *mut CqErrEntry, u64) -> isize,
    pub sread: unsafe extern "C" fn(*mut FidCq, Void, usize, *const c_void, c_int) -> isize,
    pub sreadfrom: unsafe extern "C" fn(*mut FidCq, Void, usize, *mut u64, *const c_void, c_int) -> isize,
    pub signal: unsafe extern "C" fn(*mut FidCq) -> c_int,
    pub strerror: unsafe extern "C" fn(*mut FidCq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

#[repr(C)]
pub struct CntrOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut FidCntr) -> u64,
    pub readerr: unsafe extern "C" fn(*mut FidCntr) -> u64,
    pub add: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub set: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub wait: unsafe extern "C" fn(*mut FidCntr, u64, c_int) -> c_int,
    pub adderr: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub seterr: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
}

#[repr(C)]
pub struct EpOps {
    pub size: usize,
    pub cancel: unsafe extern "C" fn(*mut Fid, Void) -> isize,
    pub getopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, Void, *mut usize) -> c_int,
    pub setopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, *const c_void, usize) -> c_int,
    pub tx_ctx: NoFn,
    pub rx_ctx: NoFn,
    pub rx_size_left: NoFn,
    pub tx_size_left: NoFn,
}

#[repr(C)]
pub struct CmOps {
    pub size: usize,
    pub setname: unsafe extern "C" fn(*mut Fid, Void, usize) -> c_int,
    pub getname: unsafe extern "C" fn(*mut Fid, Void, *mut usize) -> c_int,
    pub getpeer: unsafe extern "C" fn(*mut FidEp, Void, *mut usize) -> c_int,
    pub connect: unsafe extern "C" fn(*mut FidEp, *const c_void, *const c_void, usize) -> c_int,
    pub listen: unsafe extern "C" fn(*mut FidPep) -> c_int,
    pub accept: unsafe extern "C" fn(*mut FidEp, *const c_void, usize) -> c_int,
    pub reject: unsafe extern "C" fn(*mut FidPep, *mut Fid, *const c_void, usize) -> c_int,
    pub shutdown: unsafe extern "C" fn(*mut FidEp, u64) -> c_int,
    pub join: NoFn,
}

#[repr(C)]
pub struct MsgOps {
    pub size: usize,
    pub recv: unsafe extern "C" fn(*mut FidEp, Void, usize, Void, u64, Void) -> isize,
    pub recvv: unsafe extern "C" fn(*mut FidEp, *const Iovec, *mut Void, usize, u64, Void) -> isize,
    pub recvmsg: unsafe extern "C" fn(*mut FidEp, *const Msg, u64) -> isize,
    pub send: unsafe extern "C" fn(*mut FidEp, Void, usize, Void, u64, Void) -> isize,
    pub sendv: unsafe extern "C" fn(*mut FidEp, *const Iovec, *mut Void, usize, u64, Void) -> isize,
    pub sendmsg: unsafe extern "C" fn(*mut FidEp, *const Msg, u64) -> isize,
    pub inject: unsafe extern "C" fn(*mut FidEp, Void, usize, u64) -> isize,
    pub senddata: unsafe extern "C" fn(*mut FidEp, Void, usize, Void, u64, u64, Void) -> isize,
    pub injectdata: unsafe extern "C" fn(*mut FidEp, Void, usize, u64, u64) -> isize,
}

#[repr(C)]
pub struct RmaOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut FidEp, Void, usize, Void, u64, u64, u64, Void) -> isize,
    pub readv: unsafe extern "C" fn(*mut FidEp, *const Iovec, *mut Void, usize, u64, u64, u64, Void) -> isize,
    pub readmsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize,
    pub write: unsafe extern "C" fn(*mut FidEp, Void, usize, Void, u64, u64, u64, Void) -> isize,
    pub writev:
        unsafe extern "C" fn(*mut FidEp, *const Iovec, *mut Void, usize, u64, u64, u64, Void) -> isize,
    pub writemsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize,
    pub inject: unsafe extern "C" fn(*mut FidEp, Void, usize, u64, u64, u64) -> isize,
    pub writedata: unsafe extern "C" fn(*mut FidEp, Void, usize, Void, u64, u64, u64, u64, Void) -> isize,
    pub injectdata: unsafe extern "C" fn(*mut FidEp, Void, usize, u64, u64, u64, u64) -> isize,
}
