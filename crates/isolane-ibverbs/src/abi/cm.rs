//! The binary interface of librdmacm.

use std::ffi::{c_char, c_int, c_void};

use libc::{sockaddr, sockaddr_storage, socklen_t};

use super::{AhAttr, CompChannel, Context, Cq, GidBytes, Pd, Qp, Srq};

#[repr(C)]
pub struct CmEventChannel {
    pub fd: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CmAddr {
    pub src_addr: sockaddr_storage,
    pub dst_addr: sockaddr_storage,
    pub sgid: GidBytes,
    pub dgid: GidBytes,
    pub pkey: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CmRoute {
    pub addr: CmAddr,
    pub path_rec: *mut SaPathRec,
    pub num_paths: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct SaPathRec {
    pub dgid: GidBytes,
    pub sgid: GidBytes,
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

#[repr(C)]
pub struct CmId {
    pub verbs: *mut Context,
    pub channel: *mut CmEventChannel,
    pub context: *mut c_void,
    pub qp: *mut Qp,
    pub route: CmRoute,
    pub ps: c_int,
    pub port_num: u8,
    pub event: *mut CmEvent,
    pub send_cq_channel: *mut CompChannel,
    pub send_cq: *mut Cq,
    pub recv_cq_channel: *mut CompChannel,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub pd: *mut Pd,
    pub qp_type: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CmConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CmUdParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: AhAttr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// Parameters of an event, which its port space selects.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CmParam {
    pub conn: CmConnParam,
    pub ud: CmUdParam,
}

#[repr(C)]
pub struct CmEvent {
    pub id: *mut CmId,
    pub listen_id: *mut CmId,
    pub event: c_int,
    pub status: c_int,
    pub param: CmParam,
}

#[repr(C)]
pub struct CmAddrInfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: socklen_t,
    pub ai_dst_len: socklen_t,
    pub ai_src_addr: *mut sockaddr,
    pub ai_dst_addr: *mut sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut CmAddrInfo,
}

pub const PS_TCP: c_int = 0x0106;
pub const PS_UDP: c_int = 0x0111;
pub const PS_IB: c_int = 0x013f;

pub const CM_ADDR_RESOLVED: c_int = 0;
pub const CM_ADDR_ERROR: c_int = 1;
pub const CM_ROUTE_RESOLVED: c_int = 2;
pub const CM_CONNECT_REQUEST: c_int = 4;
pub const CM_CONNECT_RESPONSE: c_int = 5;
pub const CM_CONNECT_ERROR: c_int = 6;
pub const CM_UNREACHABLE: c_int = 7;
pub const CM_REJECTED: c_int = 8;
pub const CM_ESTABLISHED: c_int = 9;
pub const CM_DISCONNECTED: c_int = 10;

pub const RAI_PASSIVE: c_int = 1;
pub const RAI_NUMERICHOST: c_int = 2;
pub const RAI_FAMILY: c_int = 8;
