//! Protection domains, thread domains, and memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, OnceLock};

use isolane_cuda::CudaError;
use isolane_memory::{MemoryRegion, guard_copies};
use isolane_verbs::{Access, ProtectionDomain, Registration};
use parking_lot::Mutex;
use rustix::mm::{Advice, madvise};

use crate::abi;
use crate::available;
use crate::context::Context;
use crate::dmabuf::Mapping;
use crate::ffi::{Errno, Result, Users, check, input, into_raw, object, pointer, report, status, values};

/// A protection domain, or a parent domain of one.
#[repr(C)]
pub(crate) struct Pd {
    abi: abi::Pd,
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) users: Users,
    /// The domain that it is the parent domain of.
    of: *mut Pd,
}

impl Pd {
    /// Borrows the context.
    ///
    /// # Safety
    /// The domain is not deallocated: its context lives as long.
    pub(crate) unsafe fn context<'a>(&self) -> Result<&'a Context> {
        // SAFETY: the context lives as long as its objects.
        unsafe { Context::from_abi(self.abi.context) }
    }
}

/// A memory region.
#[repr(C)]
struct Mr {
    abi: abi::Mr,
    registration: Mutex<Arc<Registration>>,
    /// The memory, if the library has mapped it.
    mapping: Option<Mapping>,
}

#[repr(C)]
struct Td {
    abi: abi::Td,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut abi::Context) -> *mut abi::Pd {
    pointer(|| {
        // SAFETY: the program passes null, or a context that it has not closed.
        unsafe { Context::from_abi(context) }?.users.add();
        Ok(new_domain(context, Arc::default(), null_mut()))
    })
}

fn new_domain(context: *mut abi::Context, domain: Arc<ProtectionDomain>, of: *mut Pd) -> *mut abi::Pd {
    into_raw(Pd { abi: abi::Pd { context, handle: 0 }, domain, users: Users::default(), of }).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut abi::Pd) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or a domain that it has not deallocated.
        let found = unsafe { object::<_, Pd>(pd) }?;
        found.users.check_none()?;
        // SAFETY: the domain is a user of `of` or of its context, which lives as long.
        unsafe {
            match object::<_, Pd>(found.of) {
                Ok(of) => of.users.remove(),
                Err(_) => found.context()?.users.remove(),
            }
        }
        // SAFETY: made by `new_domain`, and no object uses it.
        drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut abi::Context,
    _: *mut abi::TdInitAttr,
) -> *mut abi::Td {
    pointer(|| {
        // SAFETY: the program passes null, or a context that it has not closed.
        unsafe { Context::from_abi(context) }?.users.add();
        Ok(into_raw(Td { abi: abi::Td { context } }).cast())
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut abi::Td) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or a thread domain from `alloc_td` that it has not deallocated.
        let found = unsafe { object::<_, Td>(td) }?;
        // SAFETY: the context lives as long as its objects.
        unsafe { Context::from_abi(found.abi.context) }?.users.remove();
        // SAFETY: made by `alloc_td`.
        drop(unsafe { Box::from_raw(td.cast::<Td>()) });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut abi::Context,
    attributes: *mut abi::ParentDomainInitAttr,
) -> *mut abi::Pd {
    pointer(|| {
        // SAFETY: the program passes null, or attributes that no thread changes during the call.
        let attributes = unsafe { input(attributes) }?;
        let (of, td) = (attributes.pd.cast::<Pd>(), attributes.td.cast::<Td>());
        // SAFETY: the program passes null or live objects: a domain from `new_domain`, and a context from
        // `ibv_open_device`.
        let (found, owner) = unsafe { (object::<_, Pd>(of)?, Context::from_abi(context)?) };
        owner.check_owns(found.abi.context)?;
        // SAFETY: null, or a thread domain from `alloc_td` that the program has not deallocated.
        unsafe { td.as_ref() }.map_or(Ok(()), |td| owner.check_owns(td.abi.context))?;
        found.users.add();
        Ok(new_domain(context, Arc::clone(&found.domain), of))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: the program keeps the contract of `ibv_reg_mr`, which is the one of this function.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr.addr() as u64, access as c_uint) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: the program keeps the contract of `ibv_reg_mr_iova`, which is the one of this function.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut abi::Mr {
    pointer(|| {
        // SAFETY: the program passes null, or a domain that it has not deallocated.
        let domain = unsafe { object::<_, Pd>(pd) }?;
        // SAFETY: the program keeps the memory until the region is deregistered.
        let registration = unsafe { register(&domain.domain, addr, length, iova, access as c_int, None) }?;
        Ok(new_region(domain, pd, addr, length, registration, None))
    })
}

/// Registers `length` bytes from `offset` on of the memory that a descriptor names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut abi::Pd,
    offset: u64,
    length: usize,
    iova: u64,
    descriptor: c_int,
    access: c_int,
) -> *mut abi::Mr {
    pointer(|| {
        // SAFETY: the program passes null, or a domain that it has not deallocated.
        let domain = unsafe { object::<_, Pd>(pd) }?;
        check_access(access)?;
        let mapping = Mapping::new(descriptor, offset, length, access)?;
        guard_copies();
        // SAFETY: the mapping lives until the region is deregistered. If its memory ends before, accesses fail.
        let region = unsafe { MemoryRegion::from_raw(mapping.start(), length) };
        let registration = add(&domain.domain, region, iova, access, None)?;
        // As libibverbs does.
        let addr = std::ptr::without_provenance_mut(offset as usize);
        Ok(new_region(domain, pd, addr, length, registration, Some(mapping)))
    })
}

fn new_region(
    domain: &Pd,
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    registration: Arc<Registration>,
    mapping: Option<Mapping>,
) -> *mut abi::Mr {
    domain.users.add();
    let key = registration.key();
    let abi = abi::Mr { context: domain.abi.context, pd, addr, length, handle: 0, lkey: key, rkey: key };
    into_raw(Mr { abi, registration: Mutex::new(registration), mapping }).cast()
}

/// Registers memory of the program.
///
/// # Safety
/// The program keeps the memory until the region is deregistered.
unsafe fn register(
    domain: &ProtectionDomain,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
    key: Option<u32>,
) -> Result<Arc<Registration>> {
    check_access(access)?;
    check(length > 0)?;
    let start = NonNull::new(addr.cast::<u8>()).ok_or(Errno(libc::EFAULT))?;
    // SAFETY: the program keeps the memory.
    let on_gpu = unsafe { isolane_cuda::find(start, length) }.map_err(|error| {
        report(&format!("cannot register GPU memory: {error}"));
        match error {
            CudaError::Range { .. } => Errno(libc::EFAULT),
            error if error.is_out_of_memory() => Errno::NO_MEMORY,
            _ => Errno::INVALID,
        }
    })?;
    let region = match on_gpu {
        Some(region) => region,
        None => {
            populate(start, length, access & abi::ACCESS_LOCAL_WRITE != 0)?;
            guard_copies();
            // SAFETY: the program keeps the memory. If it does not, accesses fail.
            unsafe { MemoryRegion::from_raw(start, length) }
        }
    };
    add(domain, region, iova, access, key)
}

fn check_access(access: c_int) -> Result<()> {
    let known = abi::ACCESS_LOCAL_WRITE
        | abi::ACCESS_REMOTE_WRITE
        | abi::ACCESS_REMOTE_READ
        | abi::ACCESS_REMOTE_ATOMIC
        | abi::ACCESS_MW_BIND
        | abi::ACCESS_ZERO_BASED
        | abi::ACCESS_ON_DEMAND
        | abi::ACCESS_HUGETLB
        | abi::ACCESS_OPTIONAL;
    let is_remote_change = access & (abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_ATOMIC) != 0;
    check(access & !known == 0 && (!is_remote_change || access & abi::ACCESS_LOCAL_WRITE != 0))?;
    if access & abi::ACCESS_ON_DEMAND != 0 { Err(Errno::UNSUPPORTED) } else { Ok(()) }
}

/// Adds a region to a domain.
fn add(
    domain: &ProtectionDomain,
    region: MemoryRegion,
    iova: u64,
    access: c_int,
    key: Option<u32>,
) -> Result<Arc<Registration>> {
    let iova = if access & abi::ACCESS_ZERO_BASED != 0 { 0 } else { iova };
    let access = Access(access as u32 & Access::ALL.0);
    domain.register_as(key, Arc::new(region), iova, access).map_err(|_| Errno::INVALID)
}

/// Finds memory that is not mapped, or is read-only.
fn populate(start: NonNull<u8>, length: usize, is_written: bool) -> Result<()> {
    let page = rustix::param::page_size();
    let address = start.addr().get();
    let first = address & !(page - 1);
    let end = address.checked_add(length).and_then(|end| end.checked_next_multiple_of(page));
    let len = end.ok_or(Errno(libc::EFAULT))? - first;
    let advice = if is_written { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    let start = start.as_ptr().wrapping_sub(address - first).cast();
    if is_written {
        available::check(start, len)?;
    }
    // SAFETY: populating changes no content.
    let populated = unsafe { madvise(start, len, advice) };
    match populated {
        Ok(()) => Ok(()),
        // Kernels before 5.14 cannot tell.
        Err(rustix::io::Errno::INVAL) if !can_populate() => Ok(()),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOMEM) => Err(Errno(libc::EFAULT)),
        Err(error) => Err(error.into()),
    }
}

/// Whether the kernel knows the advice of [`populate`].
fn can_populate() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        // SAFETY: an empty range.
        unsafe { madvise(null_mut(), 0, Advice::LinuxPopulateRead) }.is_ok()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut abi::Mr) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or a region that it has not deregistered.
        let found = unsafe { object::<_, Mr>(mr) }?;
        // SAFETY: the domain and the context live as long as their objects.
        unsafe {
            let domain = object::<_, Pd>(found.abi.pd)?;
            domain.context()?.verbs.deregister(&domain.domain, &found.registration.lock());
            domain.users.remove();
        }
        // SAFETY: made by `new_region`.
        drop(unsafe { Box::from_raw(mr.cast::<Mr>()) });
        Ok(())
    })
}

/// Registers the region again with other memory, another domain, or other rights.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut abi::Mr,
    flags: c_int,
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    const INVALID_INPUT: c_int = -1;
    let registered = status(|| {
        let known = abi::REREG_MR_CHANGE_TRANSLATION | abi::REREG_MR_CHANGE_PD | abi::REREG_MR_CHANGE_ACCESS;
        check(flags != 0 && flags & !known == 0)?;
        // SAFETY: the program passes null, or a region that it has not deregistered.
        let found = unsafe { object::<_, Mr>(mr) }?;
        if found.mapping.is_some() {
            return Err(Errno::UNSUPPORTED);
        }
        let mut registration = found.registration.lock();
        let is_moved = flags & abi::REREG_MR_CHANGE_TRANSLATION != 0;
        let (addr, length) = if is_moved { (addr, length) } else { (found.abi.addr, found.abi.length) };
        let new_pd = if flags & abi::REREG_MR_CHANGE_PD != 0 { pd } else { found.abi.pd };
        let access = match flags & abi::REREG_MR_CHANGE_ACCESS {
            0 => registration.access().0 as c_int,
            _ => access,
        };
        // SAFETY: the domain of a region lives, because the region is one of its users; the program passes null or a
        // live new one.
        let (old, new) = unsafe { (object::<_, Pd>(found.abi.pd)?, object::<_, Pd>(new_pd)?) };
        // SAFETY: the context lives as long as its objects.
        let context = unsafe { old.context() }?;
        context.check_owns(new.abi.context)?;
        context.verbs.deregister(&old.domain, &registration);
        // SAFETY: the program keeps the memory.
        let register = |domain: &Pd, addr, length, iova, access| unsafe {
            register(&domain.domain, addr, length, iova, access, Some(registration.key()))
        };
        let next = match register(new, addr, length, addr.addr() as u64, access) {
            Ok(next) => next,
            Err(error) => {
                let access = registration.access().0 as c_int;
                let old_addr = found.abi.addr;
                let restored = register(old, old_addr, found.abi.length, registration.address(), access);
                *registration = restored?;
                return Err(error);
            }
        };
        new.users.add();
        old.users.remove();
        // SAFETY: no other thread uses the region during this call.
        let fields = unsafe { &mut *mr };
        (fields.pd, fields.addr, fields.length) = (new_pd, addr, length);
        (fields.lkey, fields.rkey) = (next.key(), next.key());
        *registration = next;
        Ok(())
    });
    if registered == 0 { 0 } else { INVALID_INPUT }
}

/// Memory is in place already: it is not registered on demand.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut abi::Pd,
    _advice: c_int,
    _flags: u32,
    sges: *mut abi::Sge,
    count: u32,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null or a live domain, and null or `count` entries that no thread changes
        // during the call.
        let (domain, sges) = unsafe { (object::<_, Pd>(pd)?, values(sges, count as usize)?) };
        let is_known = |sge: &abi::Sge| domain.domain.covers(sge.lkey, sge.addr, sge.length.into());
        if sges.iter().all(is_known) { Ok(()) } else { Err(Errno(libc::EFAULT)) }
    })
}
