//! Memory of GPUs, and memory that a descriptor names.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::driver::{Driver, ILLEGAL_ADDRESS, OUT_OF_MEMORY, Place};
use super::*;
use crate::memory::{ibv_reg_dmabuf_mr, ibv_reg_mr_iova2, ibv_rereg_mr};
use crate::queue_pair::ibv_query_qp_data_in_order;

const GPU: Place = Place::Primary(0);
const ACCESS: c_int = abi::ACCESS_LOCAL_WRITE | REMOTE_ACCESS;

/// Two connected ends with registered memory of a GPU next to their own.
struct Gpus {
    driver: Driver,
    host: [End; 2],
    gpu: [End; 2],
}

impl Gpus {
    fn new() -> Gpus {
        let driver = Driver::load();
        let host: [End; 2] = pair().into();
        let gpu = host.map(|end| {
            let memory = pointer(driver.allocate(&[(MEMORY_BYTES, GPU)]));
            // SAFETY: the memory is registered until `finish`.
            let mr = unsafe { ibv_reg_mr(end.pd, memory, MEMORY_BYTES, ACCESS) };
            assert_eq!(error_of(mr), 0);
            End { mr, memory, ..end }
        });
        Gpus { driver, host, gpu }
    }

    fn address(&self, index: usize) -> u64 {
        self.gpu[index].memory.addr() as u64
    }

    fn finish(self) {
        self.gpu.iter().for_each(End::deregister);
        finish(self.host);
        self.driver.assert_idle();
    }
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 | 1).collect()
}

#[test]
fn operations_use_memory_of_a_gpu() {
    let gpus = Gpus::new();
    let ([near, far], driver) = (gpus.gpu, &gpus.driver);
    // SAFETY: the region and the queue pair live.
    let rkey = unsafe {
        assert_eq!(ibv_query_qp_data_in_order(near.qp, abi::WR_RDMA_WRITE, 0), 0);
        (*far.mr).rkey
    };
    for length in [8, 1000, 1025, 5000, MEMORY_BYTES as u32] {
        let bytes = pattern(length as usize);
        for opcode in [abi::WR_RDMA_WRITE, abi::WR_SEND, abi::WR_RDMA_READ] {
            let (from, to) = if opcode == abi::WR_RDMA_READ { (1, 0) } else { (0, 1) };
            driver.put(gpus.address(from), &bytes);
            driver.put(gpus.address(to), &vec![0; bytes.len()]);
            if opcode == abi::WR_SEND {
                assert_eq!(far.receive(1, far.sge(length)), 0);
            }
            assert_eq!(near.post(opcode, 2, near.sge(length), gpus.address(1), rkey), 0);
            assert_eq!(near.next().status, 0, "opcode {opcode}, {length} bytes");
            assert!(driver.bytes(gpus.address(to), bytes.len()) == bytes, "opcode {opcode}, {length} bytes");
            if opcode == abi::WR_SEND {
                let received = far.next();
                assert_eq!((received.status, received.byte_len), (0, length));
            }
        }
    }
    driver.put(gpus.address(1), &41_u64.to_ne_bytes());
    assert_eq!(near.post(abi::WR_ATOMIC_FETCH_AND_ADD, 3, near.sge(8), gpus.address(1), rkey), 0);
    assert_eq!(near.next().status, 0);
    assert_eq!(driver.bytes(gpus.address(1), 8), 42_u64.to_ne_bytes());
    assert_eq!(driver.bytes(gpus.address(0), 8), 41_u64.to_ne_bytes());
    gpus.finish();
}

#[test]
fn inline_data_is_copied_from_a_gpu() {
    let gpus = Gpus::new();
    let (near, far) = (&gpus.gpu[0], &gpus.gpu[1]);
    gpus.driver.put(gpus.address(0), b"inline of a GPU");
    // SAFETY: the region lives, and the request is valid.
    unsafe {
        let rdma = abi::Rdma { remote_addr: gpus.address(1) + 3, rkey: (*far.mr).rkey };
        let mut sge = near.sge(15);
        let mut request = abi::SendWr {
            wr_id: 1,
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: abi::WR_RDMA_WRITE,
            send_flags: abi::SEND_INLINE,
            wr: abi::Arguments { rdma },
            ..std::mem::zeroed()
        };
        assert_eq!(post_send(near.qp, &mut request, null_mut()), 0);
        // The bytes are the program's again.
        gpus.driver.put(gpus.address(0), &[0; 15]);
        assert_eq!(near.next().status, 0);
        assert_eq!(gpus.driver.bytes(gpus.address(1) + 3, 15), b"inline of a GPU");
        // Memory that ends before, and memory of the host.
        (*request.sg_list).addr = gpus.address(0) + MEMORY_BYTES as u64 - 14;
        assert_eq!(post_send(near.qp, &mut request, null_mut()), libc::EINVAL);
        (*request.sg_list).addr = gpus.host[0].memory.addr() as u64;
        assert_eq!(post_send(near.qp, &mut request, null_mut()), 0);
        assert_eq!(near.next().status, 0);
        assert_eq!(gpus.driver.bytes(gpus.address(1) + 3, 15), [0; 15]);
        // Memory that the driver cannot tell from memory of the host.
        (*request.sg_list).addr = gpus.address(0);
        for after in 0..3 {
            gpus.driver.fail("cuPointerGetAttribute", after, 1, ILLEGAL_ADDRESS);
            assert_eq!(post_send(near.qp, &mut request, null_mut()), libc::EINVAL);
            assert_eq!(gpus.driver.calls("cuPointerGetAttribute"), after + 1);
        }
        gpus.driver.fail("cuPointerGetAttribute", 0, 0, 0);
        assert_eq!(post_send(near.qp, &mut request, null_mut()), 0);
        assert_eq!(near.next().status, 0);
    }
    gpus.finish();
}

#[test]
fn registers_only_complete_memory_of_a_gpu() {
    let (driver, end) = (Driver::load(), End::new());
    let register = |address, length| {
        // SAFETY: the memory is not used.
        let region = unsafe { ibv_reg_mr_iova2(end.pd, pointer(address), length, 0x1000, ACCESS as u32) };
        let error = error_of(region);
        // SAFETY: the region lives.
        assert!(error != 0 || unsafe { (*region).length == length && ibv_dereg_mr(region) == 0 });
        error
    };
    let address = driver.allocate(&[(4096, GPU), (4096, GPU)]);
    assert_eq!(register(address + 100, 8092), 0);
    assert_eq!(register(address + 100, 8093), libc::EFAULT);
    let mixed = driver.allocate(&[(4096, GPU), (4096, Place::Other)]);
    assert_eq!((register(mixed, 4096), register(mixed + 1, 4096)), (0, libc::EFAULT));
    assert_eq!(register(driver.allocate(&[(4096, Place::Pool)]), 4096), 0);
    driver.destroy(GPU);
    let address = driver.allocate(&[(4096, GPU)]);
    driver.fail("cuStreamCreate", 3, 1, OUT_OF_MEMORY);
    assert_eq!(register(address, 4096), libc::ENOMEM);
    driver.fail("cuStreamCreate", 0, 0, 0);
    for after in 0..3 {
        driver.fail("cuPointerGetAttribute", after, 1, ILLEGAL_ADDRESS);
        assert_eq!(register(address, 4096), libc::EINVAL);
    }
    // Memory that the CPU can access is not copied by a GPU.
    let managed = driver.allocate(&[(4096, GPU)]);
    driver.manage(managed);
    assert_eq!((register(managed, 4096), driver.calls("cuStreamCreate")), (0, 0));
    driver.assert_idle();
    finish([end]);
}

#[test]
fn region_moves_to_a_gpu_and_back() {
    let gpus = Gpus::new();
    let ([near, far], change) = (gpus.gpu, abi::REREG_MR_CHANGE_TRANSLATION);
    // SAFETY: the regions and the memory live.
    unsafe {
        assert_eq!(ibv_rereg_mr(far.mr, change, null_mut(), gpus.host[1].memory, 4096, 0), 0);
        let (lkey, rkey) = ((*near.mr).lkey, (*far.mr).rkey);
        gpus.driver.put(gpus.address(0), b"to the host");
        assert_eq!(near.write_with(lkey, rkey, gpus.host[1].memory, 1, 11), 0);
        assert_eq!(near.next().status, 0);
        assert_eq!(std::slice::from_raw_parts(gpus.host[1].memory.cast::<u8>(), 11), b"to the host");
        assert_eq!(ibv_rereg_mr(far.mr, change, null_mut(), far.memory, 4096, 0), 0);
        assert_eq!(near.write_with(lkey, rkey, far.memory, 2, 11), 0);
        assert_eq!(near.next().status, 0);
        assert_eq!(gpus.driver.bytes(gpus.address(1), 11), b"to the host");
    }
    gpus.finish();
}

#[test]
fn memory_of_a_gpu_can_be_freed_after_it_is_deregistered() {
    for is_source in [true, false] {
        let gpus = Gpus::new();
        let [near, far] = gpus.gpu;
        for id in 0..u64::from(DEPTH) {
            assert_eq!(near.write(&far, id, MEMORY_BYTES as u32), 0);
        }
        let (revoked, other) = if is_source { (near, far) } else { (far, near) };
        revoked.deregister();
        // The driver ends the program if a copy is in progress.
        gpus.driver.free(revoked.memory.addr() as u64);
        let mut is_failed = false;
        for _ in 0..DEPTH {
            let done = near.next();
            assert!(done.status == 0 || is_failed == (done.status == 5), "{}", done.status);
            is_failed |= done.status != 0;
        }
        other.deregister();
        finish(gpus.host);
    }
}

#[test]
fn memory_of_a_gpu_that_is_freed_too_early_fails_its_requests() {
    for opcode in [abi::WR_RDMA_WRITE, abi::WR_RDMA_READ, abi::WR_SEND, abi::WR_ATOMIC_FETCH_AND_ADD] {
        for (is_near, length) in [(true, 8), (false, 8), (true, 60_000), (false, 60_000)] {
            if opcode == abi::WR_ATOMIC_FETCH_AND_ADD && length > 8 {
                continue;
            }
            let gpus = Gpus::new();
            let [near, far] = gpus.gpu;
            assert_eq!(far.receive(1, far.sge(length)), 0);
            gpus.driver.free(gpus.address(usize::from(!is_near)));
            // SAFETY: the region lives.
            let rkey = unsafe { (*far.mr).rkey };
            assert_eq!(near.post(opcode, 2, near.sge(length), gpus.address(1), rkey), 0);
            let status = near.next().status;
            let context = format!("opcode {opcode}, {length} bytes, near {is_near}: {status}");
            assert!(if is_near { status == 4 } else { status == 10 || status == 11 }, "{context}");
            gpus.finish();
        }
    }
}

#[test]
fn errors_of_the_driver_fail_their_requests() {
    for (function, opcode) in
        ["cuMemcpyAsync", "cuStreamSynchronize", "cuCtxPushCurrent_v2"].into_iter().flat_map(|function| {
            [abi::WR_RDMA_WRITE, abi::WR_RDMA_READ, abi::WR_SEND].map(|opcode| (function, opcode))
        })
    {
        for after in 0.. {
            let gpus = Gpus::new();
            let [near, far] = gpus.gpu;
            assert_eq!(far.receive(1, far.sge(60_000)), 0);
            gpus.driver.fail(function, after, i32::MAX, ILLEGAL_ADDRESS);
            // SAFETY: the region lives.
            let rkey = unsafe { (*far.mr).rkey };
            assert_eq!(near.post(opcode, 2, near.sge(60_000), gpus.address(1), rkey), 0);
            let status = near.next().status;
            let is_reached = gpus.driver.calls(function) > after;
            gpus.driver.fail(function, 0, 0, 0);
            let context = format!("{function} after {after} calls, opcode {opcode}: {status}");
            // The end of the last copy needs no context.
            let can_succeed = !is_reached || function == "cuCtxPushCurrent_v2";
            let has_failed = is_reached && [4, 10, 11].contains(&status);
            assert!(has_failed || (can_succeed && status == 0), "{context}");
            gpus.finish();
            if !is_reached {
                break;
            }
        }
    }
}

/// Returns a file in memory with a length.
fn file(len: usize) -> OwnedFd {
    // SAFETY: the name is a string, and the descriptor is new.
    unsafe {
        let file = OwnedFd::from_raw_fd(libc::memfd_create(c"memory".as_ptr(), libc::MFD_CLOEXEC));
        assert_eq!(libc::ftruncate(file.as_raw_fd(), len as i64), 0);
        file
    }
}

fn register_file(end: &End, file: c_int, offset: u64, length: usize, access: c_int) -> *mut abi::Mr {
    // SAFETY: the domain lives.
    unsafe { ibv_reg_dmabuf_mr(end.pd, offset, length, 0x5000, file, access) }
}

#[test]
fn memory_of_a_descriptor_is_written_and_read() {
    let (near, far) = pair();
    let memory = file(3 * 4096);
    let region = register_file(&far, memory.as_raw_fd(), 4090, 8000, ACCESS);
    assert_eq!(error_of(region), 0);
    // SAFETY: the regions and the memory live.
    unsafe {
        assert_eq!(((*region).addr.addr(), (*region).length), (4090, 8000));
        std::slice::from_raw_parts_mut(near.memory.cast::<u8>(), 8000).copy_from_slice(&pattern(8000));
        let (lkey, rkey) = ((*near.mr).lkey, (*region).rkey);
        assert_eq!(near.write_with(lkey, rkey, pointer(0x5000), 1, 8000), 0);
        assert_eq!(near.next().status, 0);
        let mut found = vec![0_u8; 8000];
        let count = libc::pread(memory.as_raw_fd(), found.as_mut_ptr().cast(), 8000, 4090);
        assert!(count == 8000 && found == pattern(8000));
        assert_eq!(near.post(abi::WR_RDMA_READ, 2, near.sge(10), 0x5000 + 7000, rkey), 0);
        assert_eq!(near.next().status, 0);
        let read = std::slice::from_raw_parts(near.memory.cast::<u8>(), 10);
        assert_eq!(read, &pattern(8000)[7000..7010]);
        // It stays where it is.
        let changed = ibv_rereg_mr(region, abi::REREG_MR_CHANGE_ACCESS, null_mut(), null_mut(), 0, ACCESS);
        assert_eq!((changed, errno()), (-1, libc::EOPNOTSUPP));
        // The file becomes shorter.
        assert_eq!(libc::ftruncate(memory.as_raw_fd(), 4096), 0);
        assert_eq!(near.write_with(lkey, rkey, pointer(0x5000 + 6), 3, 4000), 0);
        let lost = near.next().status;
        assert!([10, 11].contains(&lost), "{lost}");
        assert_eq!(ibv_dereg_mr(region), 0);
    }
    finish([near, far]);
}

#[test]
fn memory_of_a_descriptor_that_cannot_be_mapped_is_refused() {
    let end = End::new();
    let memory = file(8192);
    let register = |file, offset, length, access| error_of(register_file(&end, file, offset, length, access));
    let opened = memory.as_raw_fd();
    for (offset, length) in [(0, 8193), (8192, 1), (1, 8192), (u64::MAX, 2), (0, usize::MAX), (0, 0)] {
        assert_eq!(register(opened, offset, length, ACCESS), libc::EINVAL, "{length} bytes at {offset}");
    }
    assert_eq!(register(-1, 0, 4096, ACCESS), libc::EBADF);
    assert_eq!(register(opened, 0, 4096, abi::ACCESS_REMOTE_WRITE), libc::EINVAL);
    // SAFETY: the name is a string; the descriptors are new.
    unsafe {
        let null = OwnedFd::from_raw_fd(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC));
        assert_eq!(register(null.as_raw_fd(), 0, 4096, ACCESS), libc::EOPNOTSUPP);
        let path = std::ffi::CString::new(format!("/proc/self/fd/{opened}")).unwrap();
        let readable = OwnedFd::from_raw_fd(libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC));
        assert_eq!(register(readable.as_raw_fd(), 0, 4096, ACCESS), libc::EOPNOTSUPP);
        let region = register_file(&end, readable.as_raw_fd(), 0, 4096, abi::ACCESS_REMOTE_READ);
        assert_eq!((error_of(region), ibv_dereg_mr(region)), (0, 0));
    }
    finish([end]);
}
