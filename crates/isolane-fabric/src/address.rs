//! Addresses: names of the program, socket addresses of C, and local addresses.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ptr::null_mut;

use crate::abi;
use crate::ffi::{Errno, Result};

/// Reads a socket address.
///
/// # Safety
/// `address` is null, or has the length of the address of its family.
pub(crate) unsafe fn read(address: *const c_void) -> Option<SocketAddr> {
    let family = address.cast::<libc::sa_family_t>();
    if family.is_null() {
        return None;
    }
    // SAFETY: guaranteed by the caller: the family selects the structure.
    unsafe {
        match c_int::from(family.read_unaligned()) {
            libc::AF_INET => {
                let found = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
                Some(SocketAddr::new(ip.into(), u16::from_be(found.sin_port)))
            }
            libc::AF_INET6 => {
                let found = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(found.sin6_addr.s6_addr).to_canonical();
                Some(SocketAddr::new(ip, u16::from_be(found.sin6_port)))
            }
            _ => None,
        }
    }
}

/// Reads a socket address of `len` bytes.
///
/// # Safety
/// `address` is null or has `len` bytes.
pub(crate) unsafe fn read_with_len(address: *const c_void, len: usize) -> Option<SocketAddr> {
    if len < size_of::<libc::sockaddr_in>() || address.is_null() {
        return None;
    }
    // SAFETY: guaranteed by the caller: the family is among the bytes.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    if c_int::from(family) == libc::AF_INET6 && len < size_of::<libc::sockaddr_in6>() {
        return None;
    }
    // SAFETY: guaranteed by the caller, and the length is checked.
    unsafe { read(address) }
}

/// Returns the bytes of a socket address.
pub(crate) fn bytes(address: SocketAddr) -> Vec<u8> {
    let family = |family: c_int| (family as libc::sa_family_t).to_ne_bytes();
    let port = address.port().to_be_bytes();
    match address.ip() {
        // Family, port, address, and 8 bytes that are 0.
        IpAddr::V4(ip) => [&family(libc::AF_INET)[..], &port, &ip.octets(), &[0; 8]].concat(),
        // Family, port, flow, address, and scope.
        IpAddr::V6(ip) => [&family(libc::AF_INET6)[..], &port, &[0; 4], &ip.octets(), &[0; 4]].concat(),
    }
}

pub(crate) fn format(address: SocketAddr) -> u32 {
    if address.is_ipv4() { abi::SOCKADDR_IN } else { abi::SOCKADDR_IN6 }
}

/// Resolves names of the program.
///
/// # Safety
/// `node` and `service` are null or texts.
pub(crate) unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    family: c_int,
) -> Result<SocketAddr> {
    // SAFETY: all fields are numbers and pointers.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    (hints.ai_family, hints.ai_socktype) = (family, libc::SOCK_STREAM);
    if flags & abi::SOURCE != 0 {
        hints.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & abi::NUMERICHOST != 0 {
        hints.ai_flags |= libc::AI_NUMERICHOST;
    }
    let mut list = null_mut();
    // SAFETY: texts or null; the hints and the list are local.
    let failed = unsafe { libc::getaddrinfo(node, service, &hints, &mut list) };
    if failed != 0 || list.is_null() {
        return Err(Errno::NO_DATA);
    }
    let mut found = Vec::new();
    let mut entry: *const libc::addrinfo = list;
    // SAFETY: the list is from `getaddrinfo`, up to a null pointer, and freed once.
    unsafe {
        while let Some(current) = entry.as_ref() {
            found.extend(read(current.ai_addr.cast()));
            entry = current.ai_next;
        }
        libc::freeaddrinfo(list);
    }
    // An IPv4 address first: a wildcard of version 6 may not be usable.
    found.sort_by_key(|address| address.is_ipv6());
    found.first().copied().ok_or(Errno::NO_DATA)
}

/// Returns the local address from which the system reaches another one.
pub(crate) fn source_for(destination: SocketAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr =
        if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Nothing is sent. A port of 0 would be refused.
    socket.connect((destination.ip(), destination.port().max(1)))?;
    Ok(socket.local_addr()?.ip())
}

/// Returns the name of the interface of a local address. A wildcard has the first one.
pub(crate) fn interface(address: IpAddr) -> CString {
    let found = isolane_verbs::local_addresses().unwrap_or_default();
    let is_loopback = address.is_loopback();
    let at = found.iter().find(|local| local.address == address);
    // All of 127.0.0.0/8 are addresses of the loopback interface.
    let at = at.or_else(|| found.iter().find(|local| is_loopback && local.address.is_loopback()));
    let name = at.or(found.first()).map_or("any", |local| local.name.as_str());
    CString::new(name).unwrap_or_default()
}

/// Copies a socket address to the program, as far as there is space.
///
/// # Errors
/// `ETOOSMALL` if it has less space; the length is the one that it needs.
///
/// # Safety
/// `len` is null or valid, and `address` null or has `*len` bytes.
pub(crate) unsafe fn write(found: SocketAddr, address: *mut c_void, len: *mut usize) -> Result<()> {
    let bytes = bytes(found);
    // SAFETY: guaranteed by the caller.
    let len = unsafe { len.as_mut() }.ok_or(Errno::INVALID)?;
    let space = if address.is_null() { 0 } else { *len };
    // SAFETY: guaranteed by the caller: there are at least that many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast(), space.min(bytes.len())) };
    *len = bytes.len();
    if space < bytes.len() { Err(Errno(abi::ETOOSMALL)) } else { Ok(()) }
}

/// Whether a name is one, or there is none.
///
/// # Safety
/// `name` is null or a text.
pub(crate) unsafe fn is_name(name: *const c_char, expected: &CStr) -> bool {
    // SAFETY: guaranteed by the caller.
    name.is_null() || unsafe { CStr::from_ptr(name) } == expected
}
