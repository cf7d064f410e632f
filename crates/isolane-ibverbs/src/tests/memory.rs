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

/// How memory is lost while it is registered.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// Nothing is accessible there. Unmapped memory can be mapped again by another test.
    Protected,
    /// The file of the mapping is truncated.
    Truncated,
}

/// Maps a file at the memory of an end, where its region stays registered, so that it can be truncated.
fn lose(end: &End, loss: Loss) {
    // SAFETY: no reference to the memory is in use.
    unsafe {
        match loss {
            Loss::Protected => assert_eq!(libc::mprotect(end.memory, MEMORY_BYTES, libc::PROT_NONE), 0),
            Loss::Truncated => {
                let file = libc::memfd_create(c"lost".as_ptr(), libc::MFD_CLOEXEC);
                let (protection, flags) =
                    (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
                assert_eq!(libc::mmap(end.memory, MEMORY_BYTES, protection, flags, file, 0), end.memory);
                libc::close(file);
            }
        }
    }
}

const SIZES: [u32; 3] = [8, 3000, MEMORY_BYTES as u32];

#[test]
fn fails_request_to_lost_memory_of_the_peer() {
    let operations = [
        abi::WR_RDMA_WRITE,
        abi::WR_RDMA_READ,
        abi::WR_SEND,
        abi::WR_RDMA_WRITE_WITH_IMM,
        abi::WR_ATOMIC_FETCH_AND_ADD,
    ];
    for loss in [Loss::Protected, Loss::Truncated] {
        for (opcode, length) in operations.into_iter().flat_map(|opcode| SIZES.map(|size| (opcode, size))) {
            if opcode == abi::WR_ATOMIC_FETCH_AND_ADD && length != 8 {
                continue;
            }
            let (near, far) = pair();
            assert_eq!(far.receive(1, far.sge(length)), 0);
            lose(&far, loss);
            // SAFETY: the region lives.
            let rkey = unsafe { (*far.mr).rkey };
            assert_eq!(near.post(opcode, 2, near.sge(length), far.memory.addr() as u64, rkey), 0);
            let (sent, received) = (near.next(), far.next());
            let context = format!("{loss:?}, opcode {opcode}, {length} bytes");
            assert!(
                [REMOTE_ACCESS_ERROR, REMOTE_OPERATION_ERROR].contains(&sent.status),
                "{context}: {}",
                sent.status
            );
            let expected = if opcode == abi::WR_SEND { LOCAL_PROTECTION_ERROR } else { FLUSHED };
            assert_eq!((received.wr_id, received.status), (1, expected), "{context}");
            assert_eq!((near.state(), far.state()), (abi::QPS_ERR, abi::QPS_ERR), "{context}");
            finish([near, far]);
        }
    }
}

#[test]
fn fails_request_with_lost_memory_of_its_own() {
    for (opcode, length) in [abi::WR_RDMA_WRITE, abi::WR_RDMA_READ]
        .into_iter()
        .flat_map(|opcode| SIZES.map(|size| (opcode, size)))
    {
        let (near, far) = pair();
        // SAFETY: the region lives.
        let rkey = unsafe { (*far.mr).rkey };
        lose(&near, Loss::Protected);
        for id in 0..2 {
            assert_eq!(near.post(opcode, id, near.sge(length), far.memory.addr() as u64, rkey), 0);
        }
        let statuses = [near.next().status, near.next().status];
        assert_eq!(statuses, [LOCAL_PROTECTION_ERROR, FLUSHED], "opcode {opcode}, {length} bytes");
        finish([near, far]);
    }
}

#[test]
fn survives_memory_lost_under_traffic() {
    for (opcode, length) in [(abi::WR_RDMA_WRITE, 64), (abi::WR_RDMA_READ, MEMORY_BYTES as u32)] {
        let (near, far) = pair();
        // SAFETY: the region lives.
        let rkey = unsafe { (*far.mr).rkey };
        let mut completed = 0;
        let status = loop {
            near.post(opcode, 1, near.sge(length), far.memory.addr() as u64, rkey);
            let done = near.next();
            completed += 1;
            if done.status != 0 {
                break done.status;
            }
            if completed == 50 {
                lose(&far, Loss::Protected);
            }
        };
        assert!(
            completed > 50 && [REMOTE_ACCESS_ERROR, REMOTE_OPERATION_ERROR].contains(&status),
            "{status}"
        );
        // What waits to be sent is not read again when the region is deregistered.
        far.deregister();
        far.destroy();
        far.unmap();
        finish([near]);
    }
}

const LOCAL_PROTECTION_ERROR: c_int = 4;
const FLUSHED: c_int = 5;
const REMOTE_ACCESS_ERROR: c_int = 10;
const REMOTE_OPERATION_ERROR: c_int = 11;
