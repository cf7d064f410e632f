//! Constants of the headers.

use std::ffi::{c_int, c_uint};

pub const NODE_CA: c_int = 1;
pub const TRANSPORT_IB: c_int = 0;
pub const PORT_ACTIVE: c_int = 4;
pub const MTU_4096: c_int = 5;
pub const LINK_LAYER_ETHERNET: u8 = 2;
pub const PHYS_STATE_LINK_UP: u8 = 5;
pub const ATOMIC_GLOB: c_int = 2;
pub const GID_TYPE_ROCE_V2: u32 = 2;
pub const GID_TYPE_SYSFS_ROCE_V2: c_int = 1;
pub const QPF_GRH_REQUIRED: u8 = 1;

pub const DEVICE_CURR_QP_STATE_MOD: c_uint = 1 << 7;
pub const DEVICE_SYS_IMAGE_GUID: c_uint = 1 << 11;
pub const DEVICE_RC_RNR_NAK_GEN: c_uint = 1 << 12;
pub const DEVICE_N_NOTIFY_CQ: c_uint = 1 << 14;

pub const ACCESS_LOCAL_WRITE: c_int = 1;
pub const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub const ACCESS_REMOTE_READ: c_int = 1 << 2;
pub const ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;
pub const ACCESS_MW_BIND: c_int = 1 << 4;
pub const ACCESS_ZERO_BASED: c_int = 1 << 5;
pub const ACCESS_ON_DEMAND: c_int = 1 << 6;
pub const ACCESS_HUGETLB: c_int = 1 << 7;
pub const ACCESS_OPTIONAL: c_int = 0x3ff0_0000;

pub const REREG_MR_CHANGE_TRANSLATION: c_int = 1;
pub const REREG_MR_CHANGE_PD: c_int = 1 << 1;
pub const REREG_MR_CHANGE_ACCESS: c_int = 1 << 2;

pub const QPT_RC: c_int = 2;
pub const QPT_UC: c_int = 3;
pub const QPT_UD: c_int = 4;

pub const QPS_RESET: c_int = 0;
pub const QPS_INIT: c_int = 1;
pub const QPS_RTR: c_int = 2;
pub const QPS_RTS: c_int = 3;
pub const QPS_SQD: c_int = 4;
pub const QPS_ERR: c_int = 6;

pub const QP_STATE: c_int = 1;
pub const QP_CUR_STATE: c_int = 1 << 1;
pub const QP_EN_SQD_ASYNC_NOTIFY: c_int = 1 << 2;
pub const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub const QP_PKEY_INDEX: c_int = 1 << 4;
pub const QP_PORT: c_int = 1 << 5;
pub const QP_QKEY: c_int = 1 << 6;
pub const QP_AV: c_int = 1 << 7;
pub const QP_PATH_MTU: c_int = 1 << 8;
pub const QP_TIMEOUT: c_int = 1 << 9;
pub const QP_RETRY_CNT: c_int = 1 << 10;
pub const QP_RNR_RETRY: c_int = 1 << 11;
pub const QP_RQ_PSN: c_int = 1 << 12;
pub const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub const QP_ALT_PATH: c_int = 1 << 14;
pub const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub const QP_SQ_PSN: c_int = 1 << 16;
pub const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub const QP_PATH_MIG_STATE: c_int = 1 << 18;
pub const QP_DEST_QPN: c_int = 1 << 20;

pub const QP_INIT_ATTR_PD: u32 = 1;
pub const QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;
/// RDMA WRITE and SEND, both also with immediate data, RDMA READ, and the two atomic operations.
pub const QP_EX_SUPPORTED: u64 = 0x7f;

/// Flags and a parent domain, neither of which changes a queue.
pub const CQ_INIT_ATTR_KNOWN: u32 = 3;

pub const SRQ_MAX_WR: c_int = 1;
pub const SRQ_LIMIT: c_int = 1 << 1;
pub const SRQ_INIT_ATTR_TYPE: u32 = 1;
pub const SRQ_INIT_ATTR_PD: u32 = 1 << 1;
pub const SRQT_BASIC: c_int = 0;

pub const WR_RDMA_WRITE: c_int = 0;
pub const WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub const WR_SEND: c_int = 2;
pub const WR_SEND_WITH_IMM: c_int = 3;
pub const WR_RDMA_READ: c_int = 4;
pub const WR_ATOMIC_CMP_AND_SWP: c_int = 5;
pub const WR_ATOMIC_FETCH_AND_ADD: c_int = 6;

pub const SEND_FENCE: c_uint = 1;
pub const SEND_SIGNALED: c_uint = 1 << 1;
pub const SEND_SOLICITED: c_uint = 1 << 2;
pub const SEND_INLINE: c_uint = 1 << 3;

pub const WC_SEND: c_int = 0;
pub const WC_RDMA_WRITE: c_int = 1;
pub const WC_RDMA_READ: c_int = 2;
pub const WC_COMP_SWAP: c_int = 3;
pub const WC_FETCH_ADD: c_int = 4;
pub const WC_RECV: c_int = 128;
pub const WC_RECV_RDMA_WITH_IMM: c_int = 129;
pub const WC_GRH: c_uint = 1;
pub const WC_WITH_IMM: c_uint = 1 << 1;

/// Flags of extended completion queues that need no function beyond the ones always present.
pub const WC_EX_SUPPORTED: u64 = 0x7f;

pub const EVENT_CQ_ERR: c_int = 0;
pub const EVENT_QP_FATAL: c_int = 1;
pub const EVENT_QP_REQ_ERR: c_int = 2;
pub const EVENT_QP_ACCESS_ERR: c_int = 3;
pub const EVENT_COMM_EST: c_int = 4;
pub const EVENT_SRQ_LIMIT_REACHED: c_int = 15;
pub const EVENT_QP_LAST_WQE_REACHED: c_int = 16;
