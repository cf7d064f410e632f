//! Registered memory that is missing, too much, or gone.

use super::*;

#[test]
fn memory_that_is_not_there_cannot_be_registered() {
    let end = End::new();
    // SAFETY: an unmapped range is not accessed; constants are only read.
    unsafe {
        let mapped =
            libc::mmap(null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        assert!(ibv_reg_mr(end.pd, mapped, 4096, abi::ACCESS_LOCAL_WRITE).is_null());
        assert_eq!(*libc::__errno_location(), libc::EFAULT);
        libc::munmap(mapped, 4096);
        assert!(ibv_reg_mr(end.pd, mapped, 4096, 0).is_null());
        assert_eq!(*libc::__errno_location(), libc::EFAULT);
        assert!(ibv_reg_mr(end.pd, end.memory, 0, 0).is_null());
        // A peer can only write where this end can.
        assert!(ibv_reg_mr(end.pd, end.memory, 8, abi::ACCESS_REMOTE_WRITE).is_null());
        assert_eq!(*libc::__errno_location(), libc::EINVAL);
    }
    end.deregister();
    end.destroy();
    end.unmap();
}

#[test]
fn refuses_more_memory_than_is_available() {
    let end = End::new();
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    let total: usize = total.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    let length = 2 * total * 1024;
    // SAFETY: the new mapping has no pages, and none is made.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mapped = libc::mmap(null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(mapped, libc::MAP_FAILED);
        assert_eq!(error_of(ibv_reg_mr(end.pd, mapped, length, abi::ACCESS_LOCAL_WRITE)), libc::ENOMEM);
        // A part that fits is registered.
        let part = ibv_reg_mr(end.pd, mapped, 4 << 20, abi::ACCESS_LOCAL_WRITE);
        assert_eq!((error_of(part), ibv_dereg_mr(part)), (0, 0));
        libc::munmap(mapped, length);
    }
    finish([end]);
}

#[test]
fn refuses_registration_on_demand() {
    let end = End::new();
    let access = abi::ACCESS_LOCAL_WRITE | abi::ACCESS_ON_DEMAND;
    // SAFETY: the memory is mapped.
    assert_eq!(error_of(unsafe { ibv_reg_mr(end.pd, end.memory, 4096, access) }), libc::EOPNOTSUPP);
    finish([end]);
}
