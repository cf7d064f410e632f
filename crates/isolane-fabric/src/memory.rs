//! Memory regions, for operations of peers.
//!
//! A program's key is the one on the wire minus 1, because 0 is not a key there.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use isolane_memory::{MemoryRegion, guard_copies};
use isolane_verbs::{Access, Registration};

use crate::abi::{self, Fid, FidMr, FidOps, Iovec, MrAttr, MrOps};
use crate::ffi::{
    Errno, NO, Result, check, check_flags, input, into_raw, no_bind, object, output, status, values,
};
use crate::objects::{Domain, DomainShared, LOCAL_KEY};

/// A memory region.
#[repr(C)]
struct Mr {
    abi: FidMr,
    registration: Arc<Registration>,
    domain: Arc<DomainShared>,
}

/// Returns the key on the wire for a key of a program, unless it is too long.
pub(crate) fn wire_key(key: u64) -> Option<u32> {
    u32::try_from(key).ok()?.checked_add(1).filter(|key| *key != LOCAL_KEY)
}

/// Registers memory.
///
/// # Safety
/// The program passes null, or an open domain, ranges that it keeps until the region is closed, and a place for the
/// region.
unsafe fn register(
    fid: *mut Fid,
    ranges: &[Iovec],
    access: u64,
    requested_key: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let (domain, mr) = unsafe { (object::<_, Domain>(fid)?, output(mr)?) };
    let [range] = ranges else { return Err(Errno::INVALID) };
    let known = abi::SEND | abi::RECV | abi::READ | abi::WRITE | abi::REMOTE_READ | abi::REMOTE_WRITE;
    check(access & !known == 0 && range.iov_len > 0)?;
    let start = NonNull::new(range.iov_base.cast::<u8>()).ok_or(Errno::INVALID)?;
    check(range.iov_len <= isize::MAX as usize)?;
    guard_copies();
    // SAFETY: the program keeps the memory. If it does not, accesses fail.
    let region = Arc::new(unsafe { MemoryRegion::from_raw(start, range.iov_len) });
    let rights = Access(0)
        .with_local_write(true)
        .with_remote_read(access & abi::REMOTE_READ != 0)
        .with_remote_write(access & abi::REMOTE_WRITE != 0);
    let address = if domain.has_virtual_addresses { start.addr().get() as u64 } else { 0 };
    let key =
        if domain.chooses_keys { None } else { Some(wire_key(requested_key).ok_or(Errno(abi::ENOKEY))?) };
    let memory = &domain.shared.memory;
    let registration = memory.register_as(key, region, address, rights).map_err(|_| Errno::INVALID)?;
    if key.is_some_and(|key| key != registration.key()) {
        // Another region has the key.
        memory.deregister(&registration);
        return Err(Errno(abi::ENOKEY));
    }
    domain.shared.users.add();
    let fid = Fid { class: abi::CLASS_MR, context, ops: &FID_OPS };
    let key = u64::from(registration.key()) - 1;
    let abi = FidMr { fid, mem_desc: null_mut(), key };
    *mr = into_raw(Mr { abi, registration, domain: Arc::clone(&domain.shared) }).cast();
    Ok(())
}

unsafe extern "C" fn reg(
    fid: *mut Fid,
    buffer: *const c_void,
    len: usize,
    access: u64,
    _offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    let range = Iovec { iov_base: buffer.cast_mut(), iov_len: len };
    // SAFETY: as guaranteed for this function.
    status(|| unsafe {
        check_flags(flags, 0)?;
        register(fid, &[range], access, requested_key, mr, context)
    })
}

unsafe extern "C" fn regv(
    fid: *mut Fid,
    ranges: *const Iovec,
    count: usize,
    access: u64,
    _offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as guaranteed for this function: there are `count` ranges.
    status(|| unsafe {
        check_flags(flags, 0)?;
        register(fid, values(ranges, count)?, access, requested_key, mr, context)
    })
}

unsafe extern "C" fn regattr(
    fid: *mut Fid,
    attributes: *const MrAttr,
    flags: u64,
    mr: *mut *mut FidMr,
) -> c_int {
    status(|| {
        // SAFETY: as guaranteed for this function: null or valid attributes with that many ranges.
        unsafe {
            check_flags(flags, 0)?;
            let attributes = input(attributes)?;
            let ranges = values(attributes.mr_iov, attributes.iov_count)?;
            register(fid, ranges, attributes.access, attributes.requested_key, mr, attributes.context)
        }
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open region.
        let mr = unsafe { object::<_, Mr>(fid) }?;
        mr.domain.device.deregister(&mr.domain.memory, &mr.registration);
        mr.domain.users.remove();
        // SAFETY: made by `register`, and not used again.
        drop(unsafe { Box::from_raw(fid.cast::<Mr>()) });
        Ok(())
    })
}

unsafe extern "C" fn control(_: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    if command == abi::ENABLE { 0 } else { -libc::ENOSYS }
}

pub(crate) static OPS: MrOps = MrOps { size: size_of::<MrOps>(), reg, regv, regattr };
static FID_OPS: FidOps = FidOps { size: size_of::<FidOps>(), close, bind: no_bind, control, ops_open: NO };
