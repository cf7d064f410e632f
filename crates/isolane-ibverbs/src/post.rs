//! Work requests as linked lists.

use std::ffi::{c_int, c_uint};
use std::ptr::NonNull;

use isolane_verbs::{
    DatagramRequest, Destination, LocalData, PostError, ReceiveRequest, SendOperation, SendRequest, Sge,
    SgeList,
};

use crate::address::Ah;
use crate::ffi::{Errno, Result, check, object, status, values};
use crate::queue_pair::{Pair, Qp, Request};
use crate::shared_receive_queue::Srq;
use crate::{abi, operation};

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut abi::Qp,
    first: *mut abi::SendWr,
    failed: *mut *mut abi::SendWr,
) -> c_int {
    let mut current = first;
    let posted = status(|| {
        // SAFETY: the program passes null, or a queue pair that it has not destroyed.
        let qp = unsafe { object::<_, Qp>(qp) }?;
        // SAFETY: each request, up to a null pointer, belongs to this call until it returns.
        while let Some(request) = unsafe { current.as_ref() } {
            // SAFETY: the request names its data and its address handle as its opcode and the type of the queue pair
            // demand.
            let converted = unsafe { send_request(qp, request) }?;
            qp.pair.post_send(converted).map_err(errno)?;
            current = request.next;
        }
        Ok(())
    });
    report(posted, failed, current)
}

/// Reports the first request that was not posted.
fn report<T>(posted: c_int, failed: *mut *mut T, current: *mut T) -> c_int {
    if posted != 0 && !failed.is_null() {
        // SAFETY: not null, and the program passes a place for the first request that was not posted.
        unsafe { *failed = current };
    }
    posted
}

/// Converts a request.
///
/// # Safety
/// The fields of the request that its opcode and the type of the queue pair select are valid: data and address
/// handle.
unsafe fn send_request(qp: &Qp, request: &abi::SendWr) -> Result<Request> {
    // SAFETY: the opcode selects the fields.
    let operation = unsafe { operation::from_abi(qp.kind(), request) }?;
    // SAFETY: guaranteed by the caller: the list has `num_sge` entries.
    let sges = unsafe { values(request.sg_list, count(request.num_sge)?) }?;
    let destination = match qp.pair {
        Pair::Connected(_) => None,
        Pair::Datagrams(_) => {
            // SAFETY: requests of this queue pair have a destination.
            let ud = unsafe { request.wr.ud };
            // SAFETY: guaranteed by the caller: the address handle is null or not destroyed.
            Some(unsafe { destination(ud.ah.cast(), ud.remote_qpn, ud.remote_qkey) }?)
        }
    };
    let is_inline = request.send_flags & abi::SEND_INLINE != 0;
    let data = if is_inline {
        let parts = sges.iter().map(|sge| (sge.addr as usize, sge.length as usize));
        // SAFETY: the program provides the memory of inline data.
        LocalData::Inline(unsafe { inline(parts) }?)
    } else {
        LocalData::Sges(sge_list(sges))
    };
    Ok(new_request(qp, request.wr_id, request.send_flags, operation, data, destination))
}

/// Returns the destination of a datagram.
///
/// # Safety
/// `ah` is null, or a handle that is not destroyed.
pub(crate) unsafe fn destination(ah: *mut abi::Ah, number: u32, q_key: u32) -> Result<Destination> {
    // SAFETY: guaranteed by the caller, and `ibv_create_ah` makes each handle as an `Ah`.
    Ok(Destination { address: unsafe { object::<_, Ah>(ah) }?.address, number, q_key })
}

/// Returns a request with its flags.
pub(crate) fn new_request(
    qp: &Qp,
    id: u64,
    flags: c_uint,
    operation: SendOperation,
    data: LocalData,
    destination: Option<Destination>,
) -> Request {
    let signaled = qp.signals_all() || flags & abi::SEND_SIGNALED != 0;
    let solicited = flags & abi::SEND_SOLICITED != 0;
    match (destination, operation) {
        (Some(destination), SendOperation::Send { immediate }) => {
            Request::Datagram(DatagramRequest { id, data, destination, immediate, signaled, solicited })
        }
        _ => {
            let fenced = flags & abi::SEND_FENCE != 0;
            Request::Connected(SendRequest { id, operation, data, signaled, solicited, fenced })
        }
    }
}

/// Copies inline data.
///
/// # Safety
/// The program provides the memory of each part: address and length.
pub(crate) unsafe fn inline(parts: impl Iterator<Item = (usize, usize)> + Clone) -> Result<Vec<u8>> {
    let total = parts.clone().try_fold(0_usize, |total, (_, len)| total.checked_add(len));
    let mut bytes = Vec::with_capacity(total.filter(|total| *total <= MAX_COPY).ok_or(Errno::INVALID)?);
    for (address, len) in parts.filter(|(_, len)| *len > 0) {
        if isolane_cuda::is_in_use() && copy_from_gpu(address, len, &mut bytes)? {
            continue;
        }
        // SAFETY: guaranteed by the caller: the part is `len` bytes that can be read.
        bytes.extend_from_slice(unsafe { values(std::ptr::with_exposed_provenance::<u8>(address), len) }?);
    }
    Ok(bytes)
}

/// Appends bytes that are in the memory of a GPU. Returns `false` if they are not.
#[cold]
fn copy_from_gpu(address: usize, len: usize, bytes: &mut Vec<u8>) -> Result<bool> {
    let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address)).ok_or(Errno::INVALID)?;
    // SAFETY: the region is dropped before the call returns, in which the program keeps the memory.
    let Some(region) = unsafe { isolane_cuda::find(start, len) }.map_err(|_| Errno::INVALID)? else {
        return Ok(false);
    };
    let end = bytes.len();
    bytes.resize(end + len, 0);
    if region.try_copy_out(0, &mut bytes[end..]) { Ok(true) } else { Err(Errno::INVALID) }
}

pub(crate) fn sge_list(sges: &[abi::Sge]) -> SgeList {
    sges.iter().map(|sge| Sge { address: sge.addr, length: sge.length, lkey: sge.lkey }).collect()
}

fn count(count: c_int) -> Result<usize> {
    usize::try_from(count).map_err(|_| Errno::INVALID)
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut abi::Qp,
    first: *mut abi::RecvWr,
    failed: *mut *mut abi::RecvWr,
) -> c_int {
    // SAFETY: the list belongs to this call, and the queue pair is null or not destroyed.
    unsafe {
        post_receives(first, failed, |request| object::<_, Qp>(qp)?.pair.post_receive(request).map_err(errno))
    }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut abi::Srq,
    first: *mut abi::RecvWr,
    failed: *mut *mut abi::RecvWr,
) -> c_int {
    // SAFETY: the list belongs to this call, and the queue is null or not destroyed.
    unsafe {
        post_receives(first, failed, |request| object::<_, Srq>(srq)?.receives.post(request).map_err(errno))
    }
}

/// Posts a list of receives.
///
/// # Safety
/// `first` is a list that ends with a null pointer, and `failed` null or a place for one of its requests. No other
/// thread uses them.
unsafe fn post_receives(
    first: *mut abi::RecvWr,
    failed: *mut *mut abi::RecvWr,
    post: impl Fn(ReceiveRequest) -> Result<()>,
) -> c_int {
    let mut current = first;
    let posted = status(|| {
        // SAFETY: guaranteed by the caller: each request lives, up to a null pointer.
        while let Some(request) = unsafe { current.as_ref() } {
            // SAFETY: guaranteed by the caller: the list has `num_sge` entries.
            let sges = unsafe { values(request.sg_list, count(request.num_sge)?) }?;
            post(ReceiveRequest { id: request.wr_id, data: sge_list(sges) })?;
            current = request.next;
        }
        check(!first.is_null())
    });
    report(posted, failed, current)
}

/// Returns the error that libibverbs has for a refused request.
pub(crate) fn errno(error: PostError) -> Errno {
    match error {
        PostError::Full(_) => Errno::NO_MEMORY,
        _ => Errno::INVALID,
    }
}

/// Longest inline data in bytes that is copied before the queue pair checks its limit.
const MAX_COPY: usize = 1 << 20;
