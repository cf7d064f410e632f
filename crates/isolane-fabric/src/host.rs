//! The libfabric that has loaded this library.
//!
//! Its functions are found at run time: their symbol versions differ between releases, and a program can load libfabric
//! without adding it to the global symbols.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::null;
use std::sync::OnceLock;

use crate::abi::{FabricAttr, Info};
use crate::ffi::{Errno, Result};

/// Functions of libfabric.
pub(crate) struct Host {
    version: extern "C" fn() -> u32,
    dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    freeinfo: unsafe extern "C" fn(*mut Info),
}

/// Returns the functions of libfabric, if a library of the process has them.
pub(crate) fn host() -> Option<&'static Host> {
    static HOST: OnceLock<Option<Host>> = OnceLock::new();
    HOST.get_or_init(find).as_ref()
}

fn find() -> Option<Host> {
    let mut names: Vec<CString> = Vec::new();
    // SAFETY: the callback has the type of the function, and `names` lives during the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut names).cast()) };
    names.iter().find_map(|name| look_up(name))
}

/// Copies the name of one library of the process. The loader holds a lock, so this must not call it.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, names: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid structure, whose name is a text or null.
    let name = unsafe { (*info).dlpi_name };
    // SAFETY: as above.
    let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
    // SAFETY: the list of `find`.
    unsafe { (*names.cast::<Vec<CString>>()).push(name.to_owned()) };
    0
}

/// Looks the functions up in one library of the process, or in the program, which has no name.
fn look_up(name: &CStr) -> Option<Host> {
    let name = if name.is_empty() { null() } else { name.as_ptr() };
    // SAFETY: the name is null, which stands for the program, or the one of a library, which is not loaded again.
    let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: the handle is valid. It is not closed: libfabric stays as long as this library.
    let symbol = |name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
    let (version, dupinfo, freeinfo) = (symbol(c"fi_version"), symbol(c"fi_dupinfo"), symbol(c"fi_freeinfo"));
    if version.is_null() || dupinfo.is_null() || freeinfo.is_null() {
        // SAFETY: the handle is valid, and not used again.
        unsafe { libc::dlclose(handle) };
        return None;
    }
    // SAFETY: functions of libfabric with these types in all versions.
    unsafe {
        Some(Host {
            version: std::mem::transmute::<*mut c_void, extern "C" fn() -> u32>(version),
            dupinfo: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const Info) -> *mut Info>(
                dupinfo,
            ),
            freeinfo: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Info)>(freeinfo),
        })
    }
}

/// An `fi_info` of libfabric, with all attributes.
pub(crate) struct OwnedInfo(*mut Info);

// SAFETY: the structure is not tied to a thread.
unsafe impl Send for OwnedInfo {}
// SAFETY: it is not changed while it is shared.
unsafe impl Sync for OwnedInfo {}

impl OwnedInfo {
    /// Returns a copy.
    ///
    /// # Safety
    /// `info` is null, for one whose fields are 0, or valid.
    pub(crate) unsafe fn copy(info: *const Info) -> Result<OwnedInfo> {
        let host = host().ok_or(Errno::NO_FUNCTION)?;
        // SAFETY: guaranteed by the caller.
        let copied = OwnedInfo(unsafe { (host.dupinfo)(info) });
        // SAFETY: null, or a structure of libfabric.
        let has_all = unsafe { copied.0.as_ref() }.is_some_and(|info| {
            !info.tx_attr.is_null()
                && !info.rx_attr.is_null()
                && !info.ep_attr.is_null()
                && !info.domain_attr.is_null()
                && !info.fabric_attr.is_null()
        });
        if has_all { Ok(copied) } else { Err(Errno::NO_MEMORY) }
    }

    /// Returns a structure whose fields are 0.
    pub(crate) fn new() -> Result<OwnedInfo> {
        // SAFETY: null is allowed.
        unsafe { OwnedInfo::copy(null()) }
    }

    pub(crate) fn get(&self) -> &Info {
        // SAFETY: valid, and owned by this value.
        unsafe { &*self.0 }
    }

    pub(crate) fn get_mut(&mut self) -> &mut Info {
        // SAFETY: valid, and owned by this value, which is borrowed exclusively.
        unsafe { &mut *self.0 }
    }

    /// Passes it to the program, which frees it with `fi_freeinfo`.
    pub(crate) fn into_raw(self) -> *mut Info {
        let info = self.0;
        std::mem::forget(self);
        info
    }
}

impl Drop for OwnedInfo {
    fn drop(&mut self) {
        if let Some(host) = host().filter(|_| !self.0.is_null()) {
            // SAFETY: owned by this value, and made by libfabric.
            unsafe { (host.freeinfo)(self.0) };
        }
    }
}

/// Returns the version of libfabric, or 0 if it is not found.
pub(crate) fn version() -> u32 {
    host().map_or(0, |host| (host.version)())
}

/// Returns memory of the C library with these bytes, which libfabric frees.
pub(crate) fn allocate(bytes: &[u8]) -> Result<*mut c_void> {
    // SAFETY: the memory has the length that is copied.
    unsafe {
        let memory = libc::malloc(bytes.len());
        if memory.is_null() {
            return Err(Errno::NO_MEMORY);
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.cast(), bytes.len());
        Ok(memory)
    }
}

/// Whether an attribute names the fabric, or none.
///
/// # Safety
/// `attributes` is null or valid.
pub(crate) unsafe fn names_fabric(attributes: *const FabricAttr, fabric: &CStr) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { attributes.as_ref() }.is_none_or(|attributes| {
        // SAFETY: null or a text of the program.
        attributes.name.is_null() || unsafe { CStr::from_ptr(attributes.name) } == fabric
    })
}
