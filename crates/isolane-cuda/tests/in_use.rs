//! A program that has loaded the driver library, and has no GPU memory at first.

use std::ptr::NonNull;

use isolane_cuda::{find, is_in_use};

mod driver;

use driver::{Driver, Place};

#[test]
fn memory_of_the_host_does_not_count_as_use() {
    let driver = Driver::load();
    let mut host = [0_u8; 64];
    // SAFETY: the region is dropped at once.
    assert!(unsafe { find(NonNull::from(&mut host[0]), 64) }.unwrap().is_none());
    assert!(!is_in_use());
    let address = driver.allocate(&[(4096, Place::Primary(0))]);
    let start = NonNull::new(std::ptr::without_provenance_mut(address as usize)).unwrap();
    // SAFETY: as above.
    drop(unsafe { find(start, 4096) }.unwrap().expect("GPU memory"));
    assert!(is_in_use());
}
