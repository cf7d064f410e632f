//! `guarded_copy` for systems without it: the kernel makes all copies.

/// Has no effect.
pub fn guard_copies() {}

/// Returns `false`.
pub(crate) fn is_guarded() -> bool {
    false
}

/// Returns `None`: the copy would not be guarded.
///
/// # Safety
/// None.
pub(crate) unsafe fn copy(_from: *const u8, _to: *mut u8, _len: usize) -> Option<bool> {
    None
}
