//! Work requests that programs build field by field, between `wr_start` and `wr_complete`.

use std::ffi::{c_int, c_void};
use std::net::Ipv4Addr;

use isolane_verbs::{Destination, LocalData, SendOperation};
use lock_api::RawMutex as _;
use smallvec::SmallVec;

use crate::abi;
use crate::ffi::{Errno, Result, check, object, status, values};
use crate::operation;
use crate::post::{destination, errno, inline, new_request, sge_list};
use crate::queue_pair::{Building, Qp, Request};

/// Returns a queue pair with its functions.
pub(crate) fn functions(base: abi::Qp) -> abi::QpEx {
    abi::QpEx {
        base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp,
        wr_atomic_fetch_add,
        wr_bind_mw: 0,
        wr_local_inv: 0,
        wr_rdma_read,
        wr_rdma_write,
        wr_rdma_write_imm,
        wr_send,
        wr_send_imm,
        wr_send_inv: 0,
        wr_send_tso: 0,
        wr_set_ud_addr,
        wr_set_xrc_srqn: 0,
        wr_set_inline_data,
        wr_set_inline_data_list,
        wr_set_sge,
        wr_set_sge_list,
        wr_start,
        wr_complete,
        wr_abort,
        wr_atomic_write: 0,
    }
}

/// Changes the requests. An error is reported by `wr_complete`.
///
/// # Safety
/// `qp` is null, or a live queue pair for which the calling thread has called `wr_start`.
unsafe fn build(qp: *mut abi::QpEx, change: impl FnOnce(&Qp, &mut Building) -> Result<()>) {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let qp = unsafe { object::<_, Qp>(qp) }?;
        // SAFETY: this thread holds the lock since `wr_start`.
        let building = unsafe { &mut *qp.builder.building.get() };
        if let Err(error) = change(qp, building) {
            building.error.get_or_insert(error);
        }
        Ok(())
    });
}

/// Begins a request, with the fields `wr_id` and `wr_flags` of the queue pair.
///
/// # Safety
/// As [`build`].
unsafe fn begin(qp: *mut abi::QpEx, operation: SendOperation) {
    // SAFETY: guaranteed by the caller. The program sets `wr_id` and `wr_flags` in the thread that holds the lock.
    unsafe {
        build(qp, |found, building| {
            check(operation::is_possible(&operation, found.kind()))?;
            // `wr_set_ud_addr` follows.
            let nowhere = Destination { address: Ipv4Addr::UNSPECIFIED.into(), number: 0, q_key: 0 };
            let destination = (found.kind() == abi::QPT_UD).then_some(nowhere);
            let (id, flags) = ((*qp).wr_id, (*qp).wr_flags);
            let data = LocalData::Sges(SmallVec::new());
            building.requests.push(new_request(found, id, flags, operation, data, destination));
            Ok(())
        });
    }
}

/// Sets the data of the last request.
///
/// # Safety
/// As [`build`]; `data` can read the memory that the program has passed.
unsafe fn set_data(qp: *mut abi::QpEx, data: impl FnOnce() -> Result<LocalData>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        build(qp, |_, building| {
            *match building.requests.last_mut().ok_or(Errno::INVALID)? {
                Request::Connected(request) => &mut request.data,
                Request::Datagram(request) => &mut request.data,
            } = data()?;
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_start(qp: *mut abi::QpEx) {
    // SAFETY: the program passes null, or a queue pair that it has not destroyed.
    if let Ok(found) = unsafe { object::<_, Qp>(qp) } {
        found.builder.lock.lock();
        // SAFETY: this thread holds the lock now.
        unsafe { *found.builder.building.get() = Building::default() };
    }
}

unsafe extern "C" fn wr_complete(qp: *mut abi::QpEx) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or a queue pair that it has not destroyed.
        let found = unsafe { object::<_, Qp>(qp) }?;
        // SAFETY: this thread holds the lock since `wr_start`.
        let built = unsafe { std::mem::take(&mut *found.builder.building.get()) };
        // SAFETY: this thread holds the lock since `wr_start`, and no longer uses the requests.
        unsafe { found.builder.lock.unlock() };
        match built.error {
            Some(error) => Err(error),
            None => built
                .requests
                .into_iter()
                .try_for_each(|request| found.pair.post_send(request).map_err(errno)),
        }
    })
}

unsafe extern "C" fn wr_abort(qp: *mut abi::QpEx) {
    // SAFETY: the program passes null, or a queue pair that it has not destroyed.
    if let Ok(found) = unsafe { object::<_, Qp>(qp) } {
        // SAFETY: this thread holds the lock since `wr_start`.
        unsafe { found.builder.lock.unlock() };
    }
}

unsafe extern "C" fn wr_send(qp: *mut abi::QpEx) {
    // SAFETY: the program holds the lock of this live queue pair since `wr_start`.
    unsafe { begin(qp, SendOperation::Send { immediate: None }) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut abi::QpEx, immediate: u32) {
    // SAFETY: the program holds the lock of this live queue pair since `wr_start`.
    unsafe { begin(qp, SendOperation::Send { immediate: Some(u32::from_be(immediate)) }) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut abi::QpEx, rkey: u32, address: u64) {
    // SAFETY: the program holds the lock of this live queue pair since `wr_start`.
    unsafe { begin(qp, SendOperation::Write { address, rkey, immediate: None }) };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut abi::QpEx, rkey: u32, address: u64, immediate: u32) {
    let immediate = Some(u32::from_be(immediate));
    // SAFETY: the program holds the lock of this live queue pair since `wr_start`.
    unsafe { begin(qp, SendOperation::Write { address, rkey, immediate }) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut abi::QpEx, rkey: u32, address: u64) {
    // SAFETY: the program holds the lock of this live queue pair since `wr_start`.
    unsafe { begin(qp, SendOperation::Read { address, rkey }) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut abi::QpEx, rkey: u32, address: u64, compare: u64, swap: u64) {
    // SAFETY: the program holds the lock of this live queue pair since `wr_start`.
    unsafe { begin(qp, SendOperation::CompareSwap { address, rkey, compare, swap }) };
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut abi::QpEx, rkey: u32, address: u64, add: u64) {
    // SAFETY: the program holds the lock of this live queue pair since `wr_start`.
    unsafe { begin(qp, SendOperation::FetchAdd { address, rkey, add }) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut abi::QpEx, ah: *mut abi::Ah, number: u32, key: u32) {
    // SAFETY: the program holds the lock of this live queue pair since `wr_start`, and passes a live address handle.
    unsafe {
        build(qp, |_, building| match building.requests.last_mut() {
            Some(Request::Datagram(request)) => {
                request.destination = destination(ah, number, key)?;
                Ok(())
            }
            _ => Err(Errno::INVALID),
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut abi::QpEx, address: *mut c_void, length: usize) {
    let part = (address.expose_provenance(), length);
    // SAFETY: the program holds the lock of this live queue pair since `wr_start`, and passes `length` readable bytes.
    unsafe { set_data(qp, || Ok(LocalData::Inline(inline([part].into_iter())?))) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut abi::QpEx, count: usize, list: *const abi::DataBuf) {
    // SAFETY: the program holds the lock of this live queue pair since `wr_start`, and passes `count` readable parts.
    unsafe {
        set_data(qp, || {
            let parts = values(list, count)?.iter().map(|part| (part.addr.expose_provenance(), part.length));
            Ok(LocalData::Inline(inline(parts)?))
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut abi::QpEx, lkey: u32, addr: u64, length: u32) {
    let sge = abi::Sge { addr, length, lkey };
    // SAFETY: the program holds the lock of this live queue pair since `wr_start`.
    unsafe { set_data(qp, || Ok(LocalData::Sges(sge_list(&[sge])))) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut abi::QpEx, count: usize, list: *const abi::Sge) {
    // SAFETY: the program holds the lock of this live queue pair since `wr_start`, and passes `count` entries.
    unsafe { set_data(qp, || Ok(LocalData::Sges(sge_list(values(list, count)?)))) };
}
