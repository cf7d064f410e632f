//! Paths of the devices: files that programs expect in `/sys/class` and `/dev`.
//!
//! The functions of the C library that take a path pass all others on. Paths of devices lead to a tree in a private
//! directory, which the first use writes and the end of the process removes.
//!
//! Invariant: a path that does not belong to a device costs one comparison, and allocates nothing.

mod functions;
pub(crate) mod sysfs;
mod tree;

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The paths of devices. A slash or the end follows.
const PREFIXES: [&[u8]; 3] = [b"/sys/class/infiniband", b"/sys/class/infiniband_verbs", b"/dev/infiniband"];
const DEVICES: &[u8] = b"/dev/infiniband/";

/// Where a path leads.
struct Redirected {
    path: CString,
    /// It names a device, which must look like one.
    is_device: bool,
}

/// Returns where a path of a device leads, and `None` for all other paths.
///
/// # Safety
/// The path is null or a string.
unsafe fn redirect(path: *const c_char) -> Option<Redirected> {
    // SAFETY: a character is read only if all before it are not the end.
    let is_candidate = PREFIXES.iter().any(|prefix| unsafe { starts_with(path, prefix) });
    if !is_candidate {
        return None;
    }
    // SAFETY: not null, because it has characters.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let root = tree::root()?;
    let is_device = path.strip_prefix(DEVICES).is_some_and(|name| name.starts_with(b"uverbs"));
    let path = CString::new([root.as_os_str().as_bytes(), path].concat()).ok()?;
    Some(Redirected { path, is_device })
}

/// Whether a path is the prefix or is below it.
///
/// # Safety
/// The path is null or a string.
unsafe fn starts_with(path: *const c_char, prefix: &[u8]) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: a character is read only if all before it are equal, so the string has not ended.
    let at = |index: usize| unsafe { *path.add(index) } as u8;
    (0..prefix.len()).all(|index| at(index) == prefix[index]) && matches!(at(prefix.len()), 0 | b'/')
}

/// Reads a file of a device.
fn read(path: &Path) -> Option<Vec<u8>> {
    let path = path.strip_prefix("/").ok()?;
    std::fs::read(tree::root()?.join(path)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirected(path: &CStr) -> Option<(String, bool)> {
        // SAFETY: a string.
        let found = unsafe { redirect(path.as_ptr()) }?;
        Some((found.path.into_string().unwrap(), found.is_device))
    }

    #[test]
    fn only_paths_of_devices_are_redirected() {
        let root = tree::root().unwrap().to_str().unwrap();
        for path in
            [c"/sys/class/infiniband", c"/sys/class/infiniband/isolane0/node_type", c"/dev/infiniband"]
        {
            let expected = (format!("{root}{}", path.to_str().unwrap()), false);
            assert_eq!(redirected(path), Some(expected));
        }
        assert!(redirected(c"/dev/infiniband/uverbs0").is_some_and(|(_, is_device)| is_device));
        for path in
            [c"", c"/", c"/sys/class/infiniband2", c"/sys/class/net", c"/etc/passwd", c"/dev/infinibandx"]
        {
            assert_eq!(redirected(path), None);
        }
        // SAFETY: null is allowed.
        assert!(unsafe { redirect(std::ptr::null()) }.is_none());
    }

    #[test]
    fn tree_has_the_attributes_of_each_device() {
        let text = |path: &str| String::from_utf8(read(Path::new(path)).unwrap()).unwrap();
        for (index, device) in crate::device::devices().iter().enumerate() {
            let dir = format!("/sys/class/infiniband/isolane{index}");
            assert_eq!(text(&format!("{dir}/node_type")), "1: CA\n");
            assert_eq!(text(&format!("{dir}/ports/1/gids/0")).len(), 40);
            assert_eq!(
                text(&format!("/sys/class/infiniband_verbs/uverbs{index}/ibdev")),
                format!("isolane{index}\n")
            );
            let net = tree::root().unwrap().join(&dir[1..]).join("device/net");
            let names: Vec<_> =
                std::fs::read_dir(net).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names, [device.name.as_str()]);
        }
    }
}
