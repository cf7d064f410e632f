//! Programs that break the rules of verbs, or use all of their freedom: both ends in one process, over loopback.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::abi;
use crate::completion_queue::{ibv_destroy_cq, poll_cq};
use crate::context::ibv_close_device;
use crate::create_cq::ibv_create_cq;
use crate::create_qp::ibv_create_qp;
use crate::device::devices;
use crate::memory::{ibv_alloc_pd, ibv_dealloc_pd, ibv_dereg_mr, ibv_reg_mr};
use crate::modify::ibv_modify_qp;
use crate::open::ibv_open_device;
use crate::post::{post_recv, post_send};
use crate::queue_pair::{ibv_destroy_qp, ibv_query_qp};

#[path = "../../isolane-cuda/tests/driver/mod.rs"]
mod driver;
mod gpu;
mod memory;
mod objects;
mod posting;
mod queries;
mod traffic;

/// Longer than any step takes on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const MEMORY_BYTES: usize = 1 << 16;
/// Bytes before and after the memory of an end, which nothing may change.
const CANARY_BYTES: usize = 4096;
const CANARY: u8 = 0xc5;
const DEPTH: u32 = 256;
const REMOTE_ACCESS: c_int = abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_ATOMIC;

/// Changes attributes or a request.
type Change<T> = fn(&mut T);

/// One end, with its own mapping of memory.
#[derive(Clone, Copy)]
struct End {
    context: *mut abi::Context,
    pd: *mut abi::Pd,
    cq: *mut abi::Cq,
    qp: *mut abi::Qp,
    mr: *mut abi::Mr,
    memory: *mut c_void,
}

// SAFETY: verbs can be called by any thread.
unsafe impl Send for End {}
// SAFETY: as above.
unsafe impl Sync for End {}

impl End {
    fn new() -> End {
        End::with(|_| ())
    }

    /// Returns an end whose queue pair has changed attributes.
    fn with(change: impl FnOnce(&mut abi::QpInitAttr)) -> End {
        let device = devices().iter().find(|device| device.address.is_loopback()).unwrap();
        // SAFETY: the calls have valid arguments.
        unsafe {
            let context = ibv_open_device(device.as_abi());
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, 4 * DEPTH as c_int, null_mut(), null_mut(), 0);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let mapped = libc::mmap(null_mut(), MEMORY_BYTES + 2 * CANARY_BYTES, protection, flags, -1, 0);
            let memory = mapped.byte_add(CANARY_BYTES);
            for canary in [mapped, memory.byte_add(MEMORY_BYTES)] {
                libc::memset(canary, CANARY.into(), CANARY_BYTES);
            }
            let access = abi::ACCESS_LOCAL_WRITE | REMOTE_ACCESS;
            let mr = ibv_reg_mr(pd, memory, MEMORY_BYTES, access);
            let cap = abi::QpCap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 64,
            };
            let mut attributes = abi::QpInitAttr {
                qp_context: null_mut(),
                send_cq: cq.cast(),
                recv_cq: cq.cast(),
                srq: null_mut(),
                cap,
                qp_type: abi::QPT_RC,
                sq_sig_all: 1,
            };
            change(&mut attributes);
            let qp = ibv_create_qp(pd, &mut attributes);
            assert!(!context.is_null() && !cq.is_null() && !mr.is_null() && !qp.is_null());
            End { context, pd, cq, qp, mr, memory }
        }
    }

    fn modify(&self, attributes: abi::QpAttr, mask: c_int) -> c_int {
        let mut attributes = attributes;
        // SAFETY: the queue pair lives.
        unsafe { ibv_modify_qp(self.qp, &mut attributes, mask | abi::QP_STATE) }
    }

    fn connect(&self, peer: &End) {
        let access = REMOTE_ACCESS;
        let init = abi::QpAttr {
            qp_state: abi::QPS_INIT,
            port_num: 1,
            qp_access_flags: access as u32,
            ..Default::default()
        };
        assert_eq!(self.modify(init, abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS), 0);
        // SAFETY: the queue pair lives.
        let dest_qp_num = unsafe { (*peer.qp).qp_num };
        let device = devices().iter().find(|device| device.address.is_loopback()).unwrap();
        let grh = abi::GlobalRoute { dgid: abi::GidBytes(device.gid()), ..Default::default() };
        let ah_attr = abi::AhAttr { grh, is_global: 1, port_num: 1, ..Default::default() };
        let receive = abi::QpAttr {
            qp_state: abi::QPS_RTR,
            path_mtu: abi::MTU_4096,
            dest_qp_num,
            ah_attr,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ..Default::default()
        };
        let path = abi::QP_AV | abi::QP_PATH_MTU | abi::QP_DEST_QPN | abi::QP_RQ_PSN;
        assert_eq!(self.modify(receive, path | abi::QP_MAX_DEST_RD_ATOMIC | abi::QP_MIN_RNR_TIMER), 0);
        let send = abi::QpAttr {
            qp_state: abi::QPS_RTS,
            timeout: 20,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            ..Default::default()
        };
        let retries = abi::QP_TIMEOUT | abi::QP_RETRY_CNT | abi::QP_RNR_RETRY | abi::QP_MAX_QP_RD_ATOMIC;
        assert_eq!(self.modify(send, retries | abi::QP_SQ_PSN), 0);
    }

    /// Posts a WRITE of `length` bytes to the start of the peer's memory.
    fn write(&self, peer: &End, id: u64, length: u32) -> c_int {
        // SAFETY: the region lives until it is deregistered; its keys are numbers.
        let (lkey, rkey) = unsafe { ((*self.mr).lkey, (*peer.mr).rkey) };
        self.write_with(lkey, rkey, peer.memory, id, length)
    }

    fn write_with(&self, lkey: u32, rkey: u32, target: *mut c_void, id: u64, length: u32) -> c_int {
        let sge = abi::Sge { addr: self.memory.addr() as u64, length, lkey };
        self.post(abi::WR_RDMA_WRITE, id, sge, target.addr() as u64, rkey)
    }

    /// Posts a request with one SGE.
    fn post(&self, opcode: c_int, id: u64, sge: abi::Sge, remote_addr: u64, rkey: u32) -> c_int {
        let mut sge = sge;
        let atomic = abi::Atomic { remote_addr, compare_add: 1, swap: 0, rkey };
        let rdma = abi::Rdma { remote_addr, rkey };
        let is_atomic = opcode == abi::WR_ATOMIC_FETCH_AND_ADD;
        let wr = if is_atomic { abi::Arguments { atomic } } else { abi::Arguments { rdma } };
        // SAFETY: all fields are numbers and pointers.
        let empty: abi::SendWr = unsafe { std::mem::zeroed() };
        let mut request = abi::SendWr { wr_id: id, sg_list: &raw mut sge, num_sge: 1, opcode, wr, ..empty };
        // SAFETY: the queue pair lives, and the request is valid.
        unsafe { post_send(self.qp, &mut request, null_mut()) }
    }

    /// Posts a receive with one SGE.
    fn receive(&self, id: u64, sge: abi::Sge) -> c_int {
        let mut sge = sge;
        let sg_list = &raw mut sge;
        let mut request = abi::RecvWr { wr_id: id, next: null_mut(), sg_list, num_sge: 1 };
        // SAFETY: the queue pair lives, and the request is valid.
        unsafe { post_recv(self.qp, &mut request, null_mut()) }
    }

    /// Returns an SGE at the start of the memory.
    fn sge(&self, length: u32) -> abi::Sge {
        // SAFETY: the region lives.
        abi::Sge { addr: self.memory.addr() as u64, length, lkey: unsafe { (*self.mr).lkey } }
    }

    fn poll(&self) -> Option<abi::Wc> {
        let mut completion = abi::Wc::default();
        // SAFETY: the queue lives.
        let count = unsafe { poll_cq(self.cq, 1, &mut completion) };
        assert!(count >= 0);
        (count == 1).then_some(completion)
    }

    fn next(&self) -> abi::Wc {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            assert!(Instant::now() < deadline, "no completion arrives");
            if let Some(completion) = self.poll() {
                return completion;
            }
        }
    }

    fn state(&self) -> c_int {
        // SAFETY: all fields are numbers and pointers, and the queue pair lives.
        unsafe {
            let (mut attributes, mut init) = (abi::QpAttr::default(), std::mem::zeroed());
            assert_eq!(ibv_query_qp(self.qp, &mut attributes, 0, &mut init), 0);
            attributes.qp_state
        }
    }

    /// Destroys everything but the region and its memory.
    fn destroy(&self) {
        // SAFETY: nothing uses the objects.
        unsafe {
            assert_eq!(ibv_destroy_qp(self.qp), 0);
            assert_eq!(ibv_destroy_cq(self.cq), 0);
        }
        self.close();
    }

    fn close(&self) {
        // SAFETY: nothing uses the objects.
        unsafe {
            assert_eq!(ibv_dealloc_pd(self.pd), 0);
            assert_eq!(ibv_close_device(self.context), 0);
        }
    }

    fn deregister(&self) {
        // SAFETY: the region lives.
        assert_eq!(unsafe { ibv_dereg_mr(self.mr) }, 0);
    }

    /// Unmaps the memory, and checks the bytes before and after it.
    fn unmap(&self) {
        // SAFETY: the library uses the memory no longer.
        unsafe {
            let mapped = self.memory.byte_sub(CANARY_BYTES);
            for canary in [mapped, self.memory.byte_add(MEMORY_BYTES)] {
                let bytes = std::slice::from_raw_parts(canary.cast::<u8>(), CANARY_BYTES);
                assert!(bytes.iter().all(|byte| *byte == CANARY), "bytes beside the region have changed");
            }
            assert_eq!(libc::munmap(mapped, MEMORY_BYTES + 2 * CANARY_BYTES), 0);
        }
    }
}

fn pair() -> (End, End) {
    let (near, far) = (End::new(), End::new());
    near.connect(&far);
    far.connect(&near);
    (near, far)
}

/// Returns the error of the last call.
fn errno() -> c_int {
    // SAFETY: the location is valid.
    unsafe { *libc::__errno_location() }
}

/// Returns the error of a call that returns a pointer, and 0 if the pointer is not null.
fn error_of<T>(pointer: *mut T) -> c_int {
    if pointer.is_null() { errno() } else { 0 }
}

fn finish<const N: usize>(ends: [End; N]) {
    for end in ends {
        end.deregister();
        end.destroy();
        end.unmap();
    }
}

#[test]
fn eight_threads_share_a_queue_pair() {
    const THREADS: usize = 8;
    const EACH: usize = 500;
    let (near, far) = pair();
    let completed = AtomicUsize::new(0);
    let deadline = Instant::now() + TEST_TIMEOUT;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (near, far, completed) = (&near, &far, &completed);
            scope.spawn(move || {
                let mut posted = 0;
                while completed.load(Ordering::Relaxed) < THREADS * EACH {
                    assert!(Instant::now() < deadline, "requests are missing");
                    // A full queue is the only reason to refuse a request.
                    if posted < EACH {
                        match near.write(far, thread as u64, 64) {
                            0 => posted += 1,
                            error => assert_eq!(error, libc::ENOMEM),
                        }
                    }
                    if let Some(done) = near.poll() {
                        assert_eq!(done.status, 0);
                        completed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!((near.poll().is_none(), near.state()), (true, abi::QPS_RTS));
    finish([near, far]);
}

#[test]
fn memory_can_be_unmapped_after_it_is_deregistered() {
    for is_source in [true, false] {
        let (near, far) = pair();
        let (lkey, rkey, target) =
            // SAFETY: the regions live.
            unsafe { ((*near.mr).lkey, (*far.mr).rkey, far.memory) };
        // More than the sockets take, so that requests wait in every part of the library.
        for id in 0..u64::from(DEPTH) {
            assert_eq!(near.write_with(lkey, rkey, target, id, MEMORY_BYTES as u32), 0);
        }
        let revoked = if is_source { near } else { far };
        revoked.deregister();
        revoked.unmap();
        let mut is_failed = false;
        for _ in 0..DEPTH {
            let done = near.next();
            // Each request ends once; after the first error, all others are flushed.
            assert!(done.status == 0 || is_failed == (done.status == 5), "{}", done.status);
            is_failed |= done.status != 0;
        }
        assert!(near.poll().is_none());
        let other = if is_source { far } else { near };
        other.deregister();
        near.destroy();
        far.destroy();
        other.unmap();
    }
}

#[test]
fn queue_pairs_are_destroyed_and_reset_under_traffic() {
    for round in 0..4 {
        let (near, far) = pair();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (near, is_over) = (&near, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    near.poll();
                }
            });
            for id in 0..u64::from(DEPTH / 2) {
                assert_eq!(near.write(&far, id, MEMORY_BYTES as u32), 0);
            }
            match round % 2 {
                0 => assert_eq!(
                    near.modify(abi::QpAttr { qp_state: abi::QPS_ERR, ..Default::default() }, 0),
                    0
                ),
                _ => assert_eq!(near.modify(abi::QpAttr::default(), 0), 0),
            }
            // SAFETY: no thread uses the queue pair; the completion queue is still polled.
            assert_eq!(unsafe { ibv_destroy_qp(near.qp) }, 0);
            is_over.store(true, Ordering::Relaxed);
        });
        // The other end lives, and its own requests fail.
        assert!(matches!(far.state(), abi::QPS_RTS | abi::QPS_ERR));
        assert!(near.poll().is_none(), "completions of a destroyed queue pair are gone");
        near.deregister();
        // SAFETY: nothing uses the queue.
        assert_eq!(unsafe { ibv_destroy_cq(near.cq) }, 0);
        near.close();
        near.unmap();
        far.deregister();
        far.destroy();
        far.unmap();
    }
}

#[test]
fn objects_in_use_are_not_destroyed() {
    let end = End::new();
    // SAFETY: the objects live, because they are in use.
    unsafe {
        assert_eq!(ibv_dealloc_pd(end.pd), libc::EBUSY);
        assert_eq!(ibv_destroy_cq(end.cq), libc::EBUSY);
    }
    end.deregister();
    end.destroy();
    end.unmap();
}

#[test]
fn null_pointers_are_errors() {
    // SAFETY: null pointers are allowed.
    unsafe {
        assert!(ibv_open_device(null_mut()).is_null() && ibv_alloc_pd(null_mut()).is_null());
        assert!(ibv_create_cq(null_mut(), 1, null_mut(), null_mut(), 0).is_null());
        assert!(ibv_create_qp(null_mut(), null_mut()).is_null());
        assert!(ibv_reg_mr(null_mut(), null_mut(), 1, 0).is_null());
        for error in [
            ibv_dereg_mr(null_mut()),
            ibv_destroy_qp(null_mut()),
            ibv_destroy_cq(null_mut()),
            ibv_dealloc_pd(null_mut()),
            ibv_modify_qp(null_mut(), null_mut(), 0),
            post_send(null_mut(), null_mut(), null_mut()),
            post_recv(null_mut(), null_mut(), null_mut()),
        ] {
            assert_eq!(error, libc::EINVAL);
        }
        assert_eq!(poll_cq(null_mut(), 1, null_mut()), -1);
    }
}

#[test]
fn child_closes_the_device_of_its_parent() {
    let end = End::new();
    // SAFETY: the child calls nothing that needs another thread, and ends without running destructors.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let status = ibv_close_device(end.context);
            libc::_exit(status);
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0);
    }
    end.deregister();
    end.destroy();
    end.unmap();
}
