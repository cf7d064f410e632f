//! Objects that programs hold pointers to.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::{
    Absent, CompatPortAttr, CqInitAttrEx, DataBuf, DeviceAttr, DeviceAttrEx, ParentDomainInitAttr,
    PollCqAttr, PortAttr, QpInitAttrEx, RecvWr, SendWr, Sge, SrqInitAttrEx, TdInitAttr, Wc, WcTmInfo,
};

#[repr(C)]
pub struct Device {
    pub ops: [Absent; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

#[repr(C)]
pub struct ContextOps {
    pub query_device: Option<unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int>,
    pub query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut CompatPortAttr) -> c_int>,
    pub compat_memory: [Absent; 5],
    pub alloc_mw: Absent,
    pub bind_mw: Absent,
    pub dealloc_mw: Absent,
    pub compat_create_cq: Absent,
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    pub compat_cq: [Absent; 3],
    pub compat_srq: [Absent; 4],
    pub post_srq_recv: Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub compat_qp: [Absent; 4],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub compat_ah: [Absent; 5],
}

#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: pthread_mutex_t,
    pub abi_compat: *mut c_void,
}

/// Functions that were added later. They lie before the context, and the structure grows at its start.
#[repr(C)]
pub struct VerbsContext {
    pub query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
    pub advise_mr: Option<unsafe extern "C" fn(*mut Pd, c_int, u32, *mut Sge, u32) -> c_int>,
    pub alloc_null_mr: Absent,
    pub counters: [Absent; 4],
    pub device_memory: [Absent; 3],
    pub flow_actions: [Absent; 3],
    pub modify_qp_rate_limit: Absent,
    pub alloc_parent_domain: Option<unsafe extern "C" fn(*mut Context, *mut ParentDomainInitAttr) -> *mut Pd>,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut Td) -> c_int>,
    pub alloc_td: Option<unsafe extern "C" fn(*mut Context, *mut TdInitAttr) -> *mut Td>,
    pub modify_cq: Absent,
    pub post_srq_ops: Absent,
    pub work_queues: [Absent; 5],
    pub query_rt_values: Absent,
    pub create_cq_ex: Option<unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx>,
    pub private: *mut c_void,
    pub query_device_ex:
        Option<unsafe extern "C" fn(*mut Context, *const c_void, *mut DeviceAttrEx, usize) -> c_int>,
    pub destroy_flow: Absent,
    pub placeholder2: Absent,
    pub create_flow: Absent,
    pub placeholder1: Absent,
    pub open_qp: Absent,
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int>,
    pub create_srq_ex: Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq>,
    pub open_xrcd: Absent,
    pub close_xrcd: Absent,
    pub placeholder3: u64,
    pub sz: usize,
    pub context: Context,
}

#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

#[repr(C)]
pub struct Td {
    pub context: *mut Context,
}

#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct Ah {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub handle: u32,
}

#[repr(C)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut CompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

#[repr(C)]
pub struct CqEx {
    pub base: Cq,
    pub comp_mask: u32,
    pub status: c_int,
    pub wr_id: u64,
    pub start_poll: unsafe extern "C" fn(*mut CqEx, *mut PollCqAttr) -> c_int,
    pub next_poll: unsafe extern "C" fn(*mut CqEx) -> c_int,
    pub end_poll: unsafe extern "C" fn(*mut CqEx),
    pub read_opcode: unsafe extern "C" fn(*mut CqEx) -> c_int,
    pub read_vendor_err: unsafe extern "C" fn(*mut CqEx) -> u32,
    pub read_byte_len: unsafe extern "C" fn(*mut CqEx) -> u32,
    pub read_imm_data: unsafe extern "C" fn(*mut CqEx) -> u32,
    pub read_qp_num: unsafe extern "C" fn(*mut CqEx) -> u32,
    pub read_src_qp: unsafe extern "C" fn(*mut CqEx) -> u32,
    pub read_wc_flags: unsafe extern "C" fn(*mut CqEx) -> c_uint,
    pub read_slid: unsafe extern "C" fn(*mut CqEx) -> u32,
    pub read_sl: unsafe extern "C" fn(*mut CqEx) -> u8,
    pub read_dlid_path_bits: unsafe extern "C" fn(*mut CqEx) -> u8,
    pub read_completion_ts: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
    pub read_cvlan: Option<unsafe extern "C" fn(*mut CqEx) -> u16>,
    pub read_flow_tag: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_tm_info: Option<unsafe extern "C" fn(*mut CqEx, *mut WcTmInfo)>,
    pub read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
}

#[repr(C)]
pub struct Srq {
    pub context: *mut Context,
    pub srq_context: *mut c_void,
    pub pd: *mut Pd,
    pub handle: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}

#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_int,
    pub qp_type: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}

#[repr(C)]
pub struct QpEx {
    pub base: Qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64),
    pub wr_atomic_fetch_add: unsafe extern "C" fn(*mut QpEx, u32, u64, u64),
    pub wr_bind_mw: Absent,
    pub wr_local_inv: Absent,
    pub wr_rdma_read: unsafe extern "C" fn(*mut QpEx, u32, u64),
    pub wr_rdma_write: unsafe extern "C" fn(*mut QpEx, u32, u64),
    pub wr_rdma_write_imm: unsafe extern "C" fn(*mut QpEx, u32, u64, u32),
    pub wr_send: unsafe extern "C" fn(*mut QpEx),
    pub wr_send_imm: unsafe extern "C" fn(*mut QpEx, u32),
    pub wr_send_inv: Absent,
    pub wr_send_tso: Absent,
    pub wr_set_ud_addr: unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32),
    pub wr_set_xrc_srqn: Absent,
    pub wr_set_inline_data: unsafe extern "C" fn(*mut QpEx, *mut c_void, usize),
    pub wr_set_inline_data_list: unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf),
    pub wr_set_sge: unsafe extern "C" fn(*mut QpEx, u32, u64, u32),
    pub wr_set_sge_list: unsafe extern "C" fn(*mut QpEx, usize, *const Sge),
    pub wr_start: unsafe extern "C" fn(*mut QpEx),
    pub wr_complete: unsafe extern "C" fn(*mut QpEx) -> c_int,
    pub wr_abort: unsafe extern "C" fn(*mut QpEx),
    pub wr_atomic_write: Absent,
}
