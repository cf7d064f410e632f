//! Address handles: destinations of datagrams.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv6Addr};

use crate::abi;
use crate::ffi::{Errno, Result, check, input, into_raw, object, output, pointer, status, value};
use crate::memory::Pd;

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    abi: abi::Ah,
    pub(crate) address: IpAddr,
}

/// Returns the address that a GID stands for.
pub(crate) fn from_gid(gid: &abi::Gid) -> IpAddr {
    let address = Ipv6Addr::from(*gid);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut abi::Pd, attributes: *mut abi::AhAttr) -> *mut abi::Ah {
    pointer(|| {
        // SAFETY: the program passes null or a live domain, and null or attributes that no thread changes during the
        // call.
        let (domain, attributes) = unsafe { (object::<_, Pd>(pd)?, input(attributes)?) };
        check(attributes.is_global != 0 && attributes.port_num == 1 && attributes.grh.sgid_index == 0)?;
        // SAFETY: the context lives as long as its objects.
        let context = unsafe { domain.context() }?.as_abi();
        domain.users.add();
        let address = from_gid(&attributes.grh.dgid.0);
        Ok(into_raw(Ah { abi: abi::Ah { context, pd, handle: 0 }, address }).cast())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut abi::Ah) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or an address handle that it has not destroyed.
        let found = unsafe { object::<_, Ah>(ah) }?;
        // SAFETY: the domain lives as long as its objects.
        unsafe { object::<_, Pd>(found.abi.pd) }?.users.remove();
        // SAFETY: made by `ibv_create_ah`.
        drop(unsafe { Box::from_raw(ah.cast::<Ah>()) });
        Ok(())
    })
}

/// The header before a datagram, in network byte order.
#[repr(C)]
pub struct Grh {
    version_class_flow: u32,
    payload_len: u16,
    next_header: u8,
    hop_limit: u8,
    source: abi::GidBytes,
    destination: abi::GidBytes,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    _context: *mut abi::Context,
    port: u8,
    completion: *mut abi::Wc,
    header: *mut Grh,
    attributes: *mut abi::AhAttr,
) -> c_int {
    value(|| {
        // SAFETY: null or a completion, and null or attributes that no other thread uses during the call.
        let (completion, attributes) = unsafe { (input(completion)?, output(attributes)?) };
        // SAFETY: the program passes null, or the first 40 bytes of the buffer that the datagram has filled.
        *attributes = unsafe { answer_to(port, completion, header) }?;
        Ok(0)
    })
}

/// Returns the address of the sender of a datagram.
///
/// # Safety
/// `header` is null, or the header before a datagram that has arrived.
unsafe fn answer_to(port: u8, completion: &abi::Wc, header: *mut Grh) -> Result<abi::AhAttr> {
    check(port == 1 && completion.wc_flags & abi::WC_GRH != 0)?;
    // SAFETY: guaranteed by the caller.
    let header = unsafe { input(header) }?;
    let grh = abi::GlobalRoute {
        dgid: header.source,
        flow_label: u32::from_be(header.version_class_flow) & 0xf_ffff,
        hop_limit: u8::MAX,
        ..abi::GlobalRoute::default()
    };
    Ok(abi::AhAttr { grh, is_global: 1, port_num: port, ..abi::AhAttr::default() })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut abi::Pd,
    completion: *mut abi::Wc,
    header: *mut Grh,
    port: u8,
) -> *mut abi::Ah {
    let mut attributes = abi::AhAttr::default();
    // SAFETY: the program keeps the contract of `ibv_create_ah_from_wc`; the attributes are a local variable.
    unsafe {
        match ibv_init_ah_from_wc(std::ptr::null_mut(), port, completion, header, &mut attributes) {
            0 => ibv_create_ah(pd, &mut attributes),
            _ => std::ptr::null_mut(),
        }
    }
}

/// Addresses of the link layer are resolved by the kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut abi::Context,
    _attributes: *mut abi::AhAttr,
    _mac: *mut c_void,
    _vid: *mut u16,
) -> c_int {
    value(|| Err(Errno::UNSUPPORTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_addresses() {
        let v4 = IpAddr::from([192, 0, 2, 7]);
        let v6: IpAddr = "2001:db8::9".parse().unwrap();
        assert_eq!([from_gid(&isolane_verbs::gid(v4)), from_gid(&isolane_verbs::gid(v6))], [v4, v6]);
    }
}
