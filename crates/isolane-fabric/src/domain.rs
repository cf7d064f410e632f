//! Opening of domains.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::abi::{self, DomainOps, Fid, FidDomain, FidFabric, FidOps, Info};
use crate::ffi::{NO, input, into_raw, no_bind, no_control, object, output, status};
use crate::objects::{Domain, DomainShared, Fabric};
use crate::{address, completion_queue, counter, endpoint, memory};

pub(crate) unsafe extern "C" fn open(
    fabric: *mut FidFabric,
    info: *mut Info,
    domain: *mut *mut FidDomain,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or an open fabric, an offer of `getinfo`, and a place for the domain.
        let (fabric, info, domain) = unsafe { (object::<_, Fabric>(fabric)?, input(info)?, output(domain)?) };
        // SAFETY: an offer has attributes and addresses of its lengths.
        let (attributes, source) =
            unsafe { (input(info.domain_attr)?, address::read_with_len(info.src_addr, info.src_addrlen)) };
        // Connections of a domain have any local address of its version.
        let any: IpAddr = match source {
            Some(source) if source.is_ipv6() => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        let shared = Arc::new(DomainShared::new(any)?);
        let mode = attributes.mr_mode;
        let is_basic = mode == abi::MR_BASIC;
        fabric.users.add();
        let made = into_raw(Domain {
            abi: FidDomain {
                fid: Fid { class: abi::CLASS_DOMAIN, context, ops: &FID_OPS },
                ops: &OPS,
                mr: &memory::OPS,
            },
            shared,
            fabric: Arc::clone(&fabric.users),
            has_virtual_addresses: is_basic || mode & abi::MR_VIRT_ADDR != 0,
            chooses_keys: is_basic || mode & abi::MR_PROV_KEY != 0,
        });
        *domain = made.cast();
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open domain.
        let domain = unsafe { object::<_, Domain>(fid) }?;
        domain.shared.users.check_none()?;
        domain.fabric.remove();
        // SAFETY: made by `open`, and not used again.
        drop(unsafe { Box::from_raw(fid.cast::<Domain>()) });
        Ok(())
    })
}

static FID_OPS: FidOps =
    FidOps { size: size_of::<FidOps>(), close, bind: no_bind, control: no_control, ops_open: NO };
static OPS: DomainOps = DomainOps {
    size: size_of::<DomainOps>(),
    av_open: NO,
    cq_open: completion_queue::open,
    endpoint: endpoint::open,
    scalable_ep: NO,
    cntr_open: counter::open,
    poll_open: NO,
    stx_ctx: NO,
    srx_ctx: endpoint::open_shared,
    query_atomic: NO,
    query_collective: NO,
};
