//! Addresses by name, and endpoints made from them.

use std::ffi::{c_char, c_int};
use std::net::SocketAddr;
use std::ptr::null_mut;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use super::id::{
    create, from_abi, rdma_bind_addr, rdma_destroy_id, rdma_resolve_addr, rdma_resolve_route, read_address,
    write_address,
};
use super::qp::{rdma_create_qp, rdma_destroy_qp, rdma_destroy_srq};
use crate::abi;
use crate::ffi::{Errno, Result, input, into_raw, output, value};

/// Addresses of the program, with the memory that they point to.
#[repr(C)]
struct Found {
    abi: abi::CmAddrInfo,
    source: sockaddr_storage,
    destination: sockaddr_storage,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const abi::CmAddrInfo,
    result: *mut *mut abi::CmAddrInfo,
) -> c_int {
    value(|| {
        // SAFETY: the program passes null or a pointer for the result, and null or hints, that no other thread
        // changes.
        let (result, hints) = unsafe { (output(result)?, hints.as_ref()) };
        let flags = hints.map_or(0, |hints| hints.ai_flags);
        let is_passive = flags & abi::RAI_PASSIVE != 0;
        let family = hints.map_or(0, |hints| hints.ai_family);
        // SAFETY: the addresses of hints are null, or structures of the type that their family names.
        let (mut source, mut destination) = unsafe {
            (
                hints.map_or(Ok(None), |hints| hint(hints.ai_src_addr, hints.ai_src_len))?,
                hints.map_or(Ok(None), |hints| hint(hints.ai_dst_addr, hints.ai_dst_len))?,
            )
        };
        if !node.is_null() || !service.is_null() {
            // SAFETY: the program passes null or strings that end with a zero.
            let address = match unsafe { resolve(node, service, flags, family) } {
                Ok(address) => Some(address),
                Err(error) => return Ok(error),
            };
            (source, destination) = if is_passive { (address, None) } else { (source, address) };
        } else if hints.is_none() {
            return Err(Errno::INVALID);
        }
        let known = destination.or(source).map(|address| match address {
            SocketAddr::V4(_) => libc::AF_INET,
            SocketAddr::V6(_) => libc::AF_INET6,
        });
        // SAFETY: all fields are numbers and pointers.
        let empty: sockaddr_storage = unsafe { std::mem::zeroed() };
        let abi = abi::CmAddrInfo {
            ai_flags: flags,
            ai_family: known.unwrap_or(family),
            ai_qp_type: hints.map_or(0, |hints| hints.ai_qp_type),
            ai_port_space: hints.map_or(0, |hints| hints.ai_port_space),
            ai_src_len: source.map_or(0, len),
            ai_dst_len: destination.map_or(0, len),
            ai_src_addr: null_mut(),
            ai_dst_addr: null_mut(),
            ai_src_canonname: null_mut(),
            ai_dst_canonname: null_mut(),
            ai_route_len: 0,
            ai_route: null_mut(),
            ai_connect_len: 0,
            ai_connect: null_mut(),
            ai_next: null_mut(),
        };
        let found = into_raw(Found { abi, source: empty, destination: empty });
        // SAFETY: just made, so this is the only pointer to it.
        let fields = unsafe { &mut *found };
        for (address, storage, pointer) in [
            (source, &mut fields.source, &mut fields.abi.ai_src_addr),
            (destination, &mut fields.destination, &mut fields.abi.ai_dst_addr),
        ] {
            if let Some(address) = address {
                *storage = write_address(address);
                *pointer = std::ptr::from_mut(storage).cast::<sockaddr>();
            }
        }
        if fields.abi.ai_port_space == 0 {
            fields.abi.ai_port_space =
                if fields.abi.ai_qp_type == abi::QPT_UD { abi::PS_UDP } else { abi::PS_TCP };
        }
        if fields.abi.ai_qp_type == 0 {
            fields.abi.ai_qp_type =
                if fields.abi.ai_port_space == abi::PS_UDP { abi::QPT_UD } else { abi::QPT_RC };
        }
        *result = found.cast();
        Ok(0)
    })
}

/// Reads an address of hints that can be missing.
///
/// # Safety
/// `address` is null, or a structure of the type that its family names.
unsafe fn hint(address: *mut sockaddr, len: socklen_t) -> Result<Option<SocketAddr>> {
    // SAFETY: guaranteed by the caller.
    if len == 0 { Ok(None) } else { unsafe { read_address(address) }.map(Some) }
}

/// Returns the length of an address for the program, in bytes.
fn len(address: SocketAddr) -> socklen_t {
    match address {
        SocketAddr::V4(_) => size_of::<sockaddr_in>() as socklen_t,
        SocketAddr::V6(_) => size_of::<sockaddr_in6>() as socklen_t,
    }
}

/// Resolves names. An address of version 4 is preferred.
///
/// # Errors
/// An error of `getaddrinfo`, which is also one of `rdma_getaddrinfo`.
///
/// # Safety
/// `node` and `service` are null, or strings that end with a zero.
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    flags: c_int,
    family: c_int,
) -> std::result::Result<SocketAddr, c_int> {
    // SAFETY: all fields are numbers and pointers.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    (hints.ai_family, hints.ai_socktype) = (family, libc::SOCK_STREAM);
    for (flag, meaning) in
        [(abi::RAI_PASSIVE, libc::AI_PASSIVE), (abi::RAI_NUMERICHOST, libc::AI_NUMERICHOST)]
    {
        if flags & flag != 0 {
            hints.ai_flags |= meaning;
        }
    }
    let mut list = null_mut();
    // SAFETY: guaranteed by the caller; the system makes a list that ends with a null pointer, which is freed after
    // its use.
    unsafe {
        let error = libc::getaddrinfo(node, service, &hints, &mut list);
        if error != 0 {
            return Err(error);
        }
        let mut found = None;
        let mut next = list.cast_const();
        while let Some(entry) = next.as_ref() {
            let address = read_address(entry.ai_addr).ok();
            match (found, address) {
                (None, _) | (Some(SocketAddr::V6(_)), Some(SocketAddr::V4(_))) => found = address,
                _ => {}
            }
            next = entry.ai_next;
        }
        libc::freeaddrinfo(list);
        found.ok_or(libc::EAI_NONAME)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(found: *mut abi::CmAddrInfo) {
    if !found.is_null() {
        // SAFETY: made by `rdma_getaddrinfo`.
        drop(unsafe { Box::from_raw(found.cast::<Found>()) });
    }
}

/// Makes an identifier whose operations wait for their result, and its queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut abi::CmId,
    addresses: *mut abi::CmAddrInfo,
    pd: *mut abi::Pd,
    attributes: *mut abi::QpInitAttr,
) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or a pointer for the result, and an entry of `rdma_getaddrinfo`.
        let (id, addresses) = unsafe { (output(id)?, input(addresses)?) };
        // SAFETY: no channel, so the identifier makes its own one.
        let made = unsafe { create(null_mut(), null_mut(), addresses.ai_port_space, Default::default()) }?;
        // SAFETY: just made; the program passes null or a live domain, and null or attributes with live queues.
        let prepared = unsafe {
            let found = from_abi(made)?;
            if addresses.ai_flags & abi::RAI_PASSIVE != 0 {
                found.abi.pd = pd;
                found.qp_attributes = attributes
                    .as_ref()
                    .map(|attributes| abi::QpInitAttr { qp_type: addresses.ai_qp_type, ..*attributes });
                if rdma_bind_addr(made, addresses.ai_src_addr) == 0 { Ok(()) } else { Err(Errno::last()) }
            } else {
                let is_resolved = rdma_resolve_addr(made, addresses.ai_src_addr, addresses.ai_dst_addr, 0)
                    == 0
                    && rdma_resolve_route(made, 0) == 0;
                let has_pair = is_resolved
                    && match attributes.as_mut() {
                        Some(attributes) => {
                            attributes.qp_type = addresses.ai_qp_type;
                            rdma_create_qp(made, pd, attributes) == 0
                        }
                        None => true,
                    };
                if has_pair { Ok(()) } else { Err(Errno::last()) }
            }
        };
        if let Err(error) = prepared {
            // SAFETY: just made, and the program never gets it.
            unsafe { rdma_destroy_id(made) };
            return Err(error);
        }
        *id = made;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut abi::CmId) {
    // SAFETY: the program passes null, or an identifier that it has not destroyed and that no other thread uses
    // again.
    unsafe {
        if id.is_null() {
            return;
        }
        if !(*id).qp.is_null() {
            rdma_destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            rdma_destroy_srq(id);
        }
        rdma_destroy_id(id);
    }
}
