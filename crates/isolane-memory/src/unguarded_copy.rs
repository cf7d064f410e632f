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
pub(crate) unsafe fn copy(_from: *const u8, _to: *mut u8, _len: usize, _shared: *const u8) -> Option<bool> {
    None
}

/// Returns `None`: the access would not be guarded.
///
/// # Safety
/// None.
pub(crate) unsafe fn compare_swap(_word: *mut u8, _expected: u64, _new: u64) -> Option<Option<u64>> {
    None
}

/// Returns `None`: the access would not be guarded.
///
/// # Safety
/// None.
pub(crate) unsafe fn fetch_add(_word: *mut u8, _add: u64) -> Option<Option<u64>> {
    None
}
