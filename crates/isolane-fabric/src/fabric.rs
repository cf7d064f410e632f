//! Opening of fabrics, and waits for objects.

use std::ffi::{c_int, c_void};
use std::mem::size_of;

use crate::abi::{self, FabricAttr, FabricOps, Fid, FidFabric, FidOps};
use crate::completion_queue::Cq;
use crate::counter::Counter;
use crate::event_queue::EventQueue;
use crate::ffi::{Errno, NO, Result, input, into_raw, no_bind, no_control, object, output, status, values};
use crate::host::names_fabric;
use crate::objects::Fabric;
use crate::{domain, event_queue, info, passive};

pub(crate) unsafe extern "C" fn open(
    attributes: *mut FabricAttr,
    fabric: *mut *mut FidFabric,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null or valid attributes, and a place for the fabric.
        let (found, fabric) = unsafe { (input(attributes)?, output(fabric)?) };
        // SAFETY: as above.
        if !unsafe { names_fabric(attributes, info::NAME) } {
            return Err(Errno::NO_DATA);
        }
        let abi = FidFabric {
            fid: Fid { class: abi::CLASS_FABRIC, context, ops: &FID_OPS },
            ops: &OPS,
            api_version: found.api_version,
        };
        *fabric = into_raw(Fabric { abi, users: Default::default() }).cast();
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open fabric.
        unsafe { object::<_, Fabric>(fid) }?.users.check_none()?;
        // SAFETY: made by `open`, and not used again.
        drop(unsafe { Box::from_raw(fid.cast::<Fabric>()) });
        Ok(())
    })
}

/// Prepares a wait for descriptors: `EAGAIN` if an object has something to read.
unsafe extern "C" fn trywait(_: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int {
    status(|| {
        let count = usize::try_from(count).map_err(|_| Errno::INVALID)?;
        // SAFETY: the program passes `count` open objects.
        for fid in unsafe { values(fids, count) }? {
            // SAFETY: as above.
            if !unsafe { can_wait(*fid) }? {
                return Err(Errno::AGAIN);
            }
        }
        Ok(())
    })
}

/// # Safety
/// The object is null or open.
unsafe fn can_wait(fid: *mut Fid) -> Result<bool> {
    // SAFETY: guaranteed by the caller; the class is the one of the type.
    unsafe {
        match input(fid)?.class {
            abi::CLASS_EQ => Ok(object::<_, EventQueue>(fid)?.events.is_empty()),
            abi::CLASS_CQ => Ok(object::<_, Cq>(fid)?.prepare_wait()),
            abi::CLASS_CNTR => Ok(object::<_, Counter>(fid)?.prepare_wait()),
            _ => Err(Errno::INVALID),
        }
    }
}

static FID_OPS: FidOps =
    FidOps { size: size_of::<FidOps>(), close, bind: no_bind, control: no_control, ops_open: NO };
static OPS: FabricOps = FabricOps {
    size: size_of::<FabricOps>(),
    domain: domain::open,
    passive_ep: passive::open,
    eq_open: event_queue::open,
    wait_open: NO,
    trywait,
};
