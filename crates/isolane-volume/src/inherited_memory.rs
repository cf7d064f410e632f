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

/// Calls `open`, which opens a part with `count` memory volumes. If it fails, the parts after it do not get its images.
///
/// # Errors
/// That of `open`.
pub fn open_part<T, E>(count: usize, open: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let left = IMAGES.with_borrow(VecDeque::len).saturating_sub(count);
    open().inspect_err(|_| {
        IMAGES.with_borrow_mut(|images| drop(images.drain(..images.len().saturating_sub(left))));
    })
}

/// Takes the data of the next memory volume, if it has some.
pub(crate) fn take() -> Option<MemoryImage> {
    IMAGES.with_borrow_mut(VecDeque::pop_front)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{MemoryCopy, OpenError, open, spec};

    fn image(number: u128) -> MemoryImage {
        let file = MemoryCopy::new(65_536).unwrap().file().try_clone().unwrap();
        MemoryImage::new(file, 65_536, Uuid::from_u128(number), Uuid::nil()).unwrap()
    }

    fn open_one() -> Result<u128, OpenError> {
        let volume = open(&spec::parse("mem:64k").unwrap())?;
        Ok(volume.identity().uuid.as_u128())
    }

    #[test]
    fn images_of_failed_part_go_to_no_other() {
        open_with(&[1, 2, 3, 4, 5, 6].map(image), || {
            assert_eq!(open_part(1, open_one).unwrap(), 1);
            assert_eq!(
                open_part(1, || Err::<(), _>("before it took its image")),
                Err("before it took its image")
            );
            assert_eq!(open_part(1, open_one).unwrap(), 3);
            let half = || open_one().map_err(|_| "none").and(Err::<(), _>("after the first of two"));
            assert_eq!(open_part(2, half), Err("after the first of two"));
            assert_eq!(open_part(1, open_one).unwrap(), 6);
            assert_eq!(open_part(3, || Err::<(), _>("without images")), Err("without images"));
        });
    }
}
