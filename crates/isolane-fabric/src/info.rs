//! `fi_getinfo`: the offers of the provider that match hints.

use std::ffi::{CStr, c_char, c_int};
use std::net::SocketAddr;
use std::ptr::null_mut;

use crate::abi::{self, DomainAttr, EpAttr, Info, RxAttr, TxAttr};
use crate::address;
use crate::ffi::{Errno, Result, output, status};
use crate::host::{OwnedInfo, allocate, names_fabric};

pub(crate) const NAME: &CStr = c"isolane";
pub(crate) const VERSION: u32 = 1 << 16;

/// First version of libfabric in which the modes of memory are bits: 1.5.
const VERSION_WITH_MR_MODES: u32 = 1 << 16 | 5;
/// Maximum length of a message in bytes.
pub(crate) const MAX_MESSAGE: usize = 1 << 31;
/// Maximum number of requests in a queue.
pub(crate) const MAX_REQUESTS: usize = 1 << 14;
pub(crate) const DEFAULT_REQUESTS: usize = 1024;
pub(crate) const MAX_IOV: usize = 4;
pub(crate) const MAX_INJECT: usize = 1024;
/// Length of a key in bytes.
const KEY_SIZE: usize = 4;
/// Length of immediate data in bytes.
const CQ_DATA_SIZE: usize = 4;
const MAX_OBJECTS: usize = 1 << 16;
/// A protocol of the provider.
const PROTOCOL: u32 = 1 << 31 | 0x0049_534c;
const PROTOCOL_VERSION: u32 = 1;

const TX_CAPS: u64 = abi::MSG | abi::RMA | abi::READ | abi::WRITE | abi::SEND;
const RX_CAPS: u64 = abi::MSG | abi::RMA | abi::RECV | abi::REMOTE_READ | abi::REMOTE_WRITE;
const DOMAIN_CAPS: u64 = abi::LOCAL_COMM | abi::REMOTE_COMM;
const CAPS: u64 = TX_CAPS | RX_CAPS | DOMAIN_CAPS;
pub(crate) const TX_FLAGS: u64 = abi::COMPLETION
    | abi::INJECT
    | abi::INJECT_COMPLETE
    | abi::TRANSMIT_COMPLETE
    | abi::DELIVERY_COMPLETE
    | abi::MORE
    | abi::FENCE
    | abi::REMOTE_CQ_DATA;
pub(crate) const RX_FLAGS: u64 = abi::COMPLETION | abi::MORE;
const MSG_ORDER: u64 = abi::ORDER_RAR
    | abi::ORDER_RAW
    | abi::ORDER_RAS
    | abi::ORDER_WAW
    | abi::ORDER_WAS
    | abi::ORDER_SAW
    | abi::ORDER_SAS
    | abi::ORDER_RMA_RAR
    | abi::ORDER_RMA_RAW
    | abi::ORDER_RMA_WAW;
const COMP_ORDER: u64 = abi::ORDER_STRICT | abi::ORDER_DATA;

/// Source and destination of an offer.
#[derive(Clone, Copy)]
struct Addresses {
    source: SocketAddr,
    destination: Option<SocketAddr>,
}

pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    list: *mut *mut Info,
) -> c_int {
    status(|| {
        // SAFETY: libfabric passes null or valid hints, and a pointer of the program.
        let (hints, list) = unsafe { (hints.as_ref(), output(list)?) };
        // SAFETY: the attributes are null or valid, and names are null or texts.
        unsafe {
            if let Some(hints) = hints {
                check_hints(hints)?;
            }
            let offers = addresses(node, service, flags, hints)?;
            *list = null_mut();
            for addresses in offers.into_iter().rev() {
                let Some(mut offer) = offer(version, hints, addresses)? else { continue };
                offer.get_mut().next = *list;
                *list = offer.into_raw();
            }
        }
        if (*list).is_null() { Err(Errno::NO_DATA) } else { Ok(()) }
    })
}

/// # Errors
/// `ENODATA` if the provider does not have what the hints request.
///
/// # Safety
/// The hints are valid.
unsafe fn check_hints(hints: &Info) -> Result<()> {
    // SAFETY: each pointer is null or valid, as guaranteed by the caller.
    let (tx, rx, ep, domain) = unsafe {
        (hints.tx_attr.as_ref(), hints.rx_attr.as_ref(), hints.ep_attr.as_ref(), hints.domain_attr.as_ref())
    };
    let is_offered = hints.caps & !CAPS == 0
        && tx.is_none_or(offers_tx)
        && rx.is_none_or(offers_rx)
        && ep.is_none_or(offers_ep)
        && domain.is_none_or(offers_domain)
        // SAFETY: as above.
        && unsafe { names_fabric(hints.fabric_attr, NAME) };
    if is_offered { Ok(()) } else { Err(Errno::NO_DATA) }
}

fn offers_tx(hints: &TxAttr) -> bool {
    hints.caps & !CAPS == 0
        && hints.op_flags & !TX_FLAGS == 0
        && hints.msg_order & !MSG_ORDER == 0
        && hints.comp_order & !COMP_ORDER == 0
        && hints.inject_size <= MAX_INJECT
        && hints.size <= MAX_REQUESTS
        && hints.iov_limit <= MAX_IOV
        && hints.rma_iov_limit <= 1
}

fn offers_rx(hints: &RxAttr) -> bool {
    hints.caps & !CAPS == 0
        && hints.op_flags & !RX_FLAGS == 0
        && hints.msg_order & !MSG_ORDER == 0
        && hints.comp_order & !COMP_ORDER == 0
        && hints.total_buffered_recv == 0
        && hints.size <= MAX_REQUESTS
        && hints.iov_limit <= MAX_IOV
}

fn offers_ep(hints: &EpAttr) -> bool {
    matches!(hints.kind, abi::EP_UNSPEC | abi::EP_MSG)
        && (hints.protocol == 0 || (hints.protocol == PROTOCOL && hints.protocol_version <= PROTOCOL_VERSION))
        && hints.max_msg_size <= MAX_MESSAGE
        && hints.max_order_raw_size <= MAX_MESSAGE
        && hints.max_order_war_size == 0
        && hints.max_order_waw_size <= MAX_MESSAGE
        && hints.tx_ctx_cnt <= 1
        && (hints.rx_ctx_cnt <= 1 || hints.rx_ctx_cnt == abi::SHARED_CONTEXT)
        && hints.auth_key_size == 0
}

fn offers_domain(hints: &DomainAttr) -> bool {
    // The first two are the modes of versions before 1.5, each alone.
    let is_old = matches!(hints.mr_mode, abi::MR_BASIC | abi::MR_SCALABLE);
    (is_old || hints.mr_mode & (abi::MR_BASIC | abi::MR_SCALABLE) == 0)
        && hints.mr_key_size <= KEY_SIZE
        && hints.cq_data_size <= CQ_DATA_SIZE
        && hints.caps & !DOMAIN_CAPS == 0
        && hints.auth_key_size == 0
        && hints.mr_iov_limit <= 1
        && hints.max_ep_srx_ctx <= MAX_OBJECTS
        && hints.max_ep_stx_ctx == 0
        && [hints.cq_cnt, hints.ep_cnt, hints.tx_ctx_cnt, hints.rx_ctx_cnt, hints.cntr_cnt, hints.mr_cnt]
            .iter()
            .all(|count| *count <= MAX_OBJECTS)
}

/// Returns the addresses of each offer.
///
/// # Safety
/// `node` and `service` are null or texts, and the hints are valid.
unsafe fn addresses(
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: Option<&Info>,
) -> Result<Vec<Addresses>> {
    let family = match hints.map_or(0, |hints| hints.addr_format) {
        0 | abi::SOCKADDR => libc::AF_UNSPEC,
        abi::SOCKADDR_IN => libc::AF_INET,
        abi::SOCKADDR_IN6 => libc::AF_INET6,
        _ => return Err(Errno::NO_DATA),
    };
    // SAFETY: the hints have addresses of these lengths.
    let (mut source, mut destination) = hints.map_or((None, None), |hints| unsafe {
        (
            address::read_with_len(hints.src_addr, hints.src_addrlen),
            address::read_with_len(hints.dest_addr, hints.dest_addrlen),
        )
    });
    if !node.is_null() || !service.is_null() {
        // SAFETY: guaranteed by the caller.
        let found = unsafe { address::resolve(node, service, flags, family) }?;
        if flags & abi::SOURCE != 0 { source = Some(found) } else { destination = Some(found) }
    }
    let is_of_family = |address: &SocketAddr| match family {
        libc::AF_INET => address.is_ipv4(),
        libc::AF_INET6 => address.is_ipv6(),
        _ => true,
    };
    let found = match (source, destination) {
        (Some(source), _) => vec![Addresses { source, destination }],
        (None, Some(destination)) => {
            let ip = address::source_for(destination).map_err(|_| Errno::NO_DATA)?;
            vec![Addresses { source: SocketAddr::new(ip, 0), destination: Some(destination) }]
        }
        (None, None) => {
            let local = isolane_verbs::local_addresses()?;
            let source = |ip| Addresses { source: SocketAddr::new(ip, 0), destination: None };
            local.into_iter().map(|local| source(local.address)).collect()
        }
    };
    Ok(found.into_iter().filter(|found| is_of_family(&found.source)).collect())
}

/// Returns the offer for addresses. `None` if the hints name another domain.
///
/// # Safety
/// The hints are valid.
unsafe fn offer(version: u32, hints: Option<&Info>, addresses: Addresses) -> Result<Option<OwnedInfo>> {
    let name = address::interface(addresses.source.ip());
    // SAFETY: each pointer is null or valid, as guaranteed by the caller.
    let (tx, rx, ep, domain) = unsafe {
        (
            hints.and_then(|hints| hints.tx_attr.as_ref()),
            hints.and_then(|hints| hints.rx_attr.as_ref()),
            hints.and_then(|hints| hints.ep_attr.as_ref()),
            hints.and_then(|hints| hints.domain_attr.as_ref()),
        )
    };
    // SAFETY: the name is null or a text.
    if !domain.is_none_or(|domain| unsafe { address::is_name(domain.name, &name) }) {
        return Ok(None);
    }
    let mut made = OwnedInfo::new()?;
    let info = made.get_mut();
    let caps = caps(hints.map_or(0, |hints| hints.caps));
    info.caps = caps;
    info.addr_format = address::format(addresses.source);
    set_address(&mut info.src_addr, &mut info.src_addrlen, addresses.source)?;
    if let Some(destination) = addresses.destination {
        set_address(&mut info.dest_addr, &mut info.dest_addrlen, destination)?;
    }
    info.handle = hints.map_or(null_mut(), |hints| hints.handle);
    // SAFETY: `OwnedInfo` has all attributes, and owns them.
    unsafe {
        fill_tx(&mut *info.tx_attr, tx, caps);
        fill_rx(&mut *info.rx_attr, rx, caps);
        fill_ep(&mut *info.ep_attr, ep);
        fill_domain(&mut *info.domain_attr, domain, version);
        let fabric = &mut *info.fabric_attr;
        fabric.name = allocate(NAME.to_bytes_with_nul())?.cast();
        (fabric.prov_version, fabric.api_version) = (VERSION, version);
        (*info.domain_attr).name = allocate(name.to_bytes_with_nul())?.cast();
    }
    Ok(Some(made))
}

fn set_address(place: &mut *mut std::ffi::c_void, len: &mut usize, address: SocketAddr) -> Result<()> {
    let bytes = address::bytes(address);
    (*place, *len) = (allocate(&bytes)?, bytes.len());
    Ok(())
}

/// Returns the capabilities of an endpoint for requested ones.
fn caps(requested: u64) -> u64 {
    if requested & (abi::MSG | abi::RMA) == 0 {
        return CAPS;
    }
    let both = |caps: u64, capability: u64, directions: u64| {
        let is_limited = caps & directions != 0;
        if caps & capability != 0 && !is_limited { caps | directions } else { caps }
    };
    let caps = both(requested, abi::MSG, abi::SEND | abi::RECV);
    let rma = abi::READ | abi::WRITE | abi::REMOTE_READ | abi::REMOTE_WRITE;
    both(caps, abi::RMA, rma) | DOMAIN_CAPS
}

fn or(hint: Option<usize>, default: usize) -> usize {
    hint.filter(|hint| *hint > 0).unwrap_or(default)
}

fn fill_tx(tx: &mut TxAttr, hints: Option<&TxAttr>, caps: u64) {
    tx.caps = caps & TX_CAPS;
    tx.op_flags = hints.map_or(0, |hints| hints.op_flags);
    tx.msg_order = MSG_ORDER;
    tx.comp_order = abi::ORDER_STRICT;
    tx.inject_size = MAX_INJECT;
    tx.size = or(hints.map(|hints| hints.size), DEFAULT_REQUESTS);
    (tx.iov_limit, tx.rma_iov_limit) = (MAX_IOV, 1);
}

fn fill_rx(rx: &mut RxAttr, hints: Option<&RxAttr>, caps: u64) {
    rx.caps = caps & RX_CAPS;
    rx.op_flags = hints.map_or(0, |hints| hints.op_flags);
    rx.msg_order = MSG_ORDER;
    rx.comp_order = COMP_ORDER;
    rx.size = or(hints.map(|hints| hints.size), DEFAULT_REQUESTS);
    rx.iov_limit = MAX_IOV;
}

fn fill_ep(ep: &mut EpAttr, hints: Option<&EpAttr>) {
    ep.kind = abi::EP_MSG;
    (ep.protocol, ep.protocol_version) = (PROTOCOL, PROTOCOL_VERSION);
    ep.max_msg_size = MAX_MESSAGE;
    (ep.max_order_raw_size, ep.max_order_waw_size) = (MAX_MESSAGE, MAX_MESSAGE);
    ep.tx_ctx_cnt = 1;
    ep.rx_ctx_cnt = or(hints.map(|hints| hints.rx_ctx_cnt), 1);
}

fn fill_domain(domain: &mut DomainAttr, hints: Option<&DomainAttr>, version: u32) {
    let choice = |hint: Option<c_int>, default| hint.filter(|hint| *hint != 0).unwrap_or(default);
    domain.threading = choice(hints.map(|hints| hints.threading), abi::THREAD_SAFE);
    domain.control_progress = choice(hints.map(|hints| hints.control_progress), abi::PROGRESS_AUTO);
    domain.data_progress = choice(hints.map(|hints| hints.data_progress), abi::PROGRESS_AUTO);
    domain.resource_mgmt = choice(hints.map(|hints| hints.resource_mgmt), abi::RM_ENABLED);
    domain.av_type = choice(hints.map(|hints| hints.av_type), abi::AV_UNSPEC);
    // None of the later modes is needed.
    let old_mode = hints.map_or(0, |hints| hints.mr_mode) & (abi::MR_BASIC | abi::MR_SCALABLE);
    let is_old = version < VERSION_WITH_MR_MODES && old_mode == 0;
    domain.mr_mode = if is_old { abi::MR_SCALABLE } else { old_mode };
    (domain.mr_key_size, domain.cq_data_size) = (KEY_SIZE, CQ_DATA_SIZE);
    (domain.cq_cnt, domain.ep_cnt) = (MAX_OBJECTS, MAX_OBJECTS);
    (domain.tx_ctx_cnt, domain.rx_ctx_cnt) = (MAX_OBJECTS, MAX_OBJECTS);
    (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (1, 1);
    (domain.max_ep_stx_ctx, domain.max_ep_srx_ctx) = (0, MAX_OBJECTS);
    (domain.cntr_cnt, domain.mr_iov_limit, domain.mr_cnt) = (MAX_OBJECTS, 1, MAX_OBJECTS);
    domain.caps = DOMAIN_CAPS;
}
