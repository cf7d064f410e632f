//! Data of the memory volumes of the program before, after an upgrade in place.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::memory::MemoryImage;

thread_local! {
    static IMAGES: RefCell<VecDeque<MemoryImage>> = const { RefCell::new(VecDeque::new()) };
}

/// Calls `open`, in which each memory volume that this thread opens has the data of the next image.
pub fn open_with<T>(images: &[MemoryImage], open: impl FnOnce() -> T) -> T {
    IMAGES.set(images.iter().cloned().collect());
    let opened = open();
    IMAGES.set(VecDeque::new());
    opened
}

/// Takes the data of the next memory volume, if it has some.
pub(crate) fn take() -> Option<MemoryImage> {
    IMAGES.with_borrow_mut(VecDeque::pop_front)
}
