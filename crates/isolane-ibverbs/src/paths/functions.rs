//! The functions of the C library that take a path.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{dirent, mode_t, size_t, ssize_t};

use super::redirect;

/// Defines functions whose argument in brackets is redirected. A function of C with optional arguments has the same calling
/// convention as one with all of them.
macro_rules! redirected {
    ($(fn $name:ident[$path:ident]($($argument:ident: $kind:ty),*) -> $result:ty $(, then $change:expr)?;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let next = next(&NEXT, concat!(stringify!($name), "\0"));
            if next.is_null() {
                return missing();
            }
            // SAFETY: the function of the C library with this name has this type.
            let next: unsafe extern "C" fn($($kind),*) -> $result = unsafe { std::mem::transmute(next) };
            // SAFETY: the program passes null, or a string that ends with a zero.
            let Some(redirected) = (unsafe { redirect($path) }) else {
                // SAFETY: the program keeps the contract of this function of the C library.
                return unsafe { next($($argument),*) };
            };
            let $path = redirected.path.as_ptr();
            // SAFETY: the arguments of the program, with a path that lives until the function returns.
            let result = unsafe { next($($argument),*) };
            $(
                if redirected.is_device && result == 0 {
                    // SAFETY: the function has succeeded, so the structure is filled.
                    unsafe { $change };
                }
            )?
            result
        }
    )*};
}

/// Returns the function of the next library, which is looked up once.
fn next(cache: &AtomicPtr<c_void>, name: &'static str) -> *mut c_void {
    let cached = cache.load(Ordering::Relaxed);
    if !cached.is_null() {
        return cached;
    }
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
    cache.store(found, Ordering::Relaxed);
    found
}

/// Result of a function that the C library does not have.
fn missing<T: Missing>() -> T {
    crate::ffi::Errno(libc::ENOSYS).set();
    T::MISSING
}

trait Missing {
    const MISSING: Self;
}

impl Missing for c_int {
    const MISSING: c_int = -1;
}

impl Missing for ssize_t {
    const MISSING: ssize_t = -1;
}

impl<T> Missing for *mut T {
    const MISSING: *mut T = std::ptr::null_mut();
}

redirected! {
    fn open[path](path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn open64[path](path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __open_2[path](path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2[path](path: *const c_char, flags: c_int) -> c_int;
    fn openat[path](dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat64[path](dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __openat_2[path](dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2[path](dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn fopen[path](path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    fn fopen64[path](path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    fn opendir[path](path: *const c_char) -> *mut libc::DIR;
    fn scandir[path](
        path: *const c_char,
        list: *mut *mut *mut dirent,
        filter: *const c_void,
        compare: *const c_void
    ) -> c_int;
    fn access[path](path: *const c_char, mode: c_int) -> c_int;
    fn eaccess[path](path: *const c_char, mode: c_int) -> c_int;
    fn euidaccess[path](path: *const c_char, mode: c_int) -> c_int;
    fn faccessat[path](dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int;
    fn readlink[path](path: *const c_char, text: *mut c_char, size: size_t) -> ssize_t;
    fn __readlink_chk[path](path: *const c_char, text: *mut c_char, size: size_t, limit: size_t) -> ssize_t;
    fn readlinkat[path](dir: c_int, path: *const c_char, text: *mut c_char, size: size_t) -> ssize_t;
    fn realpath[path](path: *const c_char, resolved: *mut c_char) -> *mut c_char;
    fn __realpath_chk[path](path: *const c_char, resolved: *mut c_char, limit: size_t) -> *mut c_char;
    fn canonicalize_file_name[path](path: *const c_char) -> *mut c_char;
    fn stat[path](path: *const c_char, found: *mut libc::stat) -> c_int, then show(found);
    fn stat64[path](path: *const c_char, found: *mut libc::stat) -> c_int, then show(found);
    fn lstat[path](path: *const c_char, found: *mut libc::stat) -> c_int, then show(found);
    fn lstat64[path](path: *const c_char, found: *mut libc::stat) -> c_int, then show(found);
    fn fstatat[path](dir: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int) -> c_int, then show(found);
    fn fstatat64[path](dir: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int) -> c_int, then show(found);
    fn __xstat[path](version: c_int, path: *const c_char, found: *mut libc::stat) -> c_int, then show(found);
    fn __xstat64[path](version: c_int, path: *const c_char, found: *mut libc::stat) -> c_int, then show(found);
    fn __lxstat[path](version: c_int, path: *const c_char, found: *mut libc::stat) -> c_int, then show(found);
    fn __lxstat64[path](version: c_int, path: *const c_char, found: *mut libc::stat) -> c_int, then show(found);
    fn statx[path](
        dir: c_int,
        path: *const c_char,
        flags: c_int,
        mask: u32,
        found: *mut libc::statx
    ) -> c_int, then show_extended(found);
}

/// Makes a file look like a device.
///
/// # Safety
/// The structure is filled.
unsafe fn show(found: *mut libc::stat) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        (*found).st_mode = DEVICE_MODE;
        (*found).st_rdev = libc::makedev(MAJOR, MINOR);
    }
}

/// As [`show`].
///
/// # Safety
/// The structure is filled.
unsafe fn show_extended(found: *mut libc::statx) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        (*found).stx_mode = DEVICE_MODE as u16;
        ((*found).stx_rdev_major, (*found).stx_rdev_minor) = (MAJOR, MINOR);
    }
}

/// A character device that every user can read and write.
const DEVICE_MODE: mode_t = libc::S_IFCHR | 0o666;
/// Numbers of the first verbs device of the kernel.
const MAJOR: u32 = 231;
const MINOR: u32 = 192;
