//! Functions of libibverbs that read files of a device.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::ffi::{Errno, text, value};

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    text(c"/sys")
}

/// Reads a file of a directory, without the end of its line. Returns its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    text: *mut c_char,
    size: usize,
) -> c_int {
    value(|| {
        if dir.is_null() || file.is_null() || text.is_null() || size == 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: not null; the program passes two strings that end with a zero, and keeps them during the call.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let path = Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
        let found = super::read(&path).ok_or(Errno(libc::ENOENT))?;
        let line = found.strip_suffix(b"\n").unwrap_or(&found);
        let len = line.len().min(size - 1);
        // SAFETY: `text` is not null and has `size` bytes, of which `len` and a zero are written.
        unsafe {
            std::ptr::copy_nonoverlapping(line.as_ptr(), text.cast(), len);
            *text.add(len) = 0;
        }
        Ok(len as c_int)
    })
}
