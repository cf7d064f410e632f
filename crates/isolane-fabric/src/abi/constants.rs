//! Numbers of libfabric's headers.

use std::ffi::c_int;

pub const CLASS_FABRIC: usize = 1;
pub const CLASS_DOMAIN: usize = 2;
pub const CLASS_EP: usize = 3;
pub const CLASS_SRX_CTX: usize = 6;
pub const CLASS_PEP: usize = 9;
pub const CLASS_MR: usize = 12;
pub const CLASS_EQ: usize = 13;
pub const CLASS_CQ: usize = 14;
pub const CLASS_CNTR: usize = 15;
pub const CLASS_CONNREQ: usize = 18;

pub const MSG: u64 = 1 << 1;
pub const RMA: u64 = 1 << 2;
pub const READ: u64 = 1 << 8;
pub const WRITE: u64 = 1 << 9;
pub const RECV: u64 = 1 << 10;
pub const SEND: u64 = 1 << 11;
pub const REMOTE_READ: u64 = 1 << 12;
pub const REMOTE_WRITE: u64 = 1 << 13;
pub const REMOTE_CQ_DATA: u64 = 1 << 17;
pub const MORE: u64 = 1 << 18;
pub const PEEK: u64 = 1 << 19;
pub const FENCE: u64 = 1 << 21;
pub const COMPLETION: u64 = 1 << 24;
pub const INJECT: u64 = 1 << 25;
pub const INJECT_COMPLETE: u64 = 1 << 26;
pub const TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const DELIVERY_COMPLETE: u64 = 1 << 28;
pub const LOCAL_COMM: u64 = 1 << 51;
pub const REMOTE_COMM: u64 = 1 << 52;
pub const NUMERICHOST: u64 = 1 << 55;
pub const SOURCE: u64 = 1 << 57;
pub const SELECTIVE_COMPLETION: u64 = 1 << 59;

pub const SOCKADDR: u32 = 1;
pub const SOCKADDR_IN: u32 = 2;
pub const SOCKADDR_IN6: u32 = 3;

pub const MR_BASIC: c_int = 1;
pub const MR_SCALABLE: c_int = 2;
pub const MR_VIRT_ADDR: c_int = 1 << 4;
pub const MR_PROV_KEY: c_int = 1 << 6;

pub const THREAD_SAFE: c_int = 1;
pub const PROGRESS_AUTO: c_int = 1;
pub const RM_ENABLED: c_int = 2;
pub const AV_UNSPEC: c_int = 0;

pub const EP_UNSPEC: c_int = 0;
pub const EP_MSG: c_int = 1;

pub const SHARED_CONTEXT: usize = usize::MAX;

pub const ORDER_RAR: u64 = 1 << 0;
pub const ORDER_RAW: u64 = 1 << 1;
pub const ORDER_RAS: u64 = 1 << 2;
pub const ORDER_WAW: u64 = 1 << 4;
pub const ORDER_WAS: u64 = 1 << 5;
pub const ORDER_SAW: u64 = 1 << 7;
pub const ORDER_SAS: u64 = 1 << 8;
pub const ORDER_RMA_RAR: u64 = 1 << 32;
pub const ORDER_RMA_RAW: u64 = 1 << 33;
pub const ORDER_RMA_WAW: u64 = 1 << 35;
pub const ORDER_STRICT: u64 = 0x1ff;
pub const ORDER_DATA: u64 = 1 << 16;

pub const GETWAIT: c_int = 5;
pub const ENABLE: c_int = 6;
pub const BACKLOG: c_int = 7;
pub const GETOPSFLAG: c_int = 2;
pub const SETOPSFLAG: c_int = 3;
pub const GETWAITOBJ: c_int = 16;

pub const WAIT_NONE: c_int = 0;
pub const WAIT_UNSPEC: c_int = 1;
pub const WAIT_FD: c_int = 3;

pub const CNTR_EVENTS_COMP: c_int = 0;

pub const NOTIFY: u32 = 0;
pub const CONNREQ: u32 = 1;
pub const CONNECTED: u32 = 2;
pub const SHUTDOWN: u32 = 3;

pub const CQ_FORMAT_UNSPEC: c_int = 0;
pub const CQ_FORMAT_CONTEXT: c_int = 1;
pub const CQ_FORMAT_MSG: c_int = 2;
pub const CQ_FORMAT_DATA: c_int = 3;
pub const CQ_FORMAT_TAGGED: c_int = 4;

pub const OPT_ENDPOINT: c_int = 0;
pub const OPT_CM_DATA_SIZE: c_int = 1;

pub const EOTHER: c_int = 256;
pub const ETOOSMALL: c_int = 257;
pub const EOPBADSTATE: c_int = 258;
pub const EAVAIL: c_int = 259;
pub const EBADFLAGS: c_int = 260;
pub const ENOEQ: c_int = 261;
pub const EDOMAIN: c_int = 262;
pub const ENOCQ: c_int = 263;
pub const ETRUNC: c_int = 265;
pub const ENOKEY: c_int = 266;
pub const EOVERRUN: c_int = 268;
pub const ENORX: c_int = 269;
