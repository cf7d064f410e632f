//! Remote memory access.

use std::ffi::c_void;
use std::mem::size_of;

use isolane_verbs::SendOperation;

use crate::abi::{self, FidEp, Iovec, MsgRma, RmaOps};
use crate::ffi::{Errno, Result, check_flags, count, input, values};
use crate::info::TX_FLAGS;
use crate::memory::wire_key;
use crate::message::{range, send_ranges};
use crate::post::{Ep, Operation};

type Void = *mut c_void;

/// # Errors
/// `FI_ENOKEY` if no region can have the key.
fn read_at(address: u64, key: u64) -> Result<SendOperation> {
    Ok(SendOperation::Read { address, rkey: wire_key(key).ok_or(Errno(abi::ENOKEY))? })
}

/// # Errors
/// As for [`read_at`].
fn write_at(address: u64, key: u64, data: Option<u64>) -> Result<SendOperation> {
    let rkey = wire_key(key).ok_or(Errno(abi::ENOKEY))?;
    Ok(SendOperation::Write { address, rkey, immediate: data.map(|data| data as u32) })
}

/// Posts an operation with the flags of the endpoint.
///
/// # Safety
/// As for [`send_ranges`], with `number` ranges.
unsafe fn post(
    ep: *mut FidEp,
    ranges: *const Iovec,
    number: usize,
    operation: Result<SendOperation>,
    context: Void,
) -> isize {
    // SAFETY: guaranteed by the caller.
    match (unsafe { values(ranges, number) }, operation) {
        // SAFETY: guaranteed by the caller.
        (Ok(ranges), Ok(operation)) => unsafe { send_ranges(ep, ranges, operation, context) },
        (Err(error), _) | (_, Err(error)) => -(error.0 as isize),
    }
}

unsafe extern "C" fn read(
    ep: *mut FidEp,
    buffer: Void,
    len: usize,
    _: Void,
    _: u64,
    address: u64,
    key: u64,
    context: Void,
) -> isize {
    // SAFETY: as guaranteed for this function; there is one range.
    unsafe { post(ep, &range(buffer, len), 1, read_at(address, key), context) }
}

unsafe extern "C" fn readv(
    ep: *mut FidEp,
    ranges: *const Iovec,
    _: *mut Void,
    number: usize,
    _: u64,
    address: u64,
    key: u64,
    context: Void,
) -> isize {
    // SAFETY: as guaranteed for this function: there are that many ranges.
    unsafe { post(ep, ranges, number, read_at(address, key), context) }
}

unsafe extern "C" fn write(
    ep: *mut FidEp,
    buffer: Void,
    len: usize,
    _: Void,
    _: u64,
    address: u64,
    key: u64,
    context: Void,
) -> isize {
    // SAFETY: as guaranteed for this function; there is one range.
    unsafe { post(ep, &range(buffer, len), 1, write_at(address, key, None), context) }
}

unsafe extern "C" fn writev(
    ep: *mut FidEp,
    ranges: *const Iovec,
    _: *mut Void,
    number: usize,
    _: u64,
    address: u64,
    key: u64,
    context: Void,
) -> isize {
    // SAFETY: as guaranteed for this function: there are that many ranges.
    unsafe { post(ep, ranges, number, write_at(address, key, None), context) }
}

unsafe extern "C" fn writedata(
    ep: *mut FidEp,
    buffer: Void,
    len: usize,
    _: Void,
    data: u64,
    _: u64,
    address: u64,
    key: u64,
    context: Void,
) -> isize {
    // SAFETY: as guaranteed for this function; there is one range.
    unsafe { post(ep, &range(buffer, len), 1, write_at(address, key, Some(data)), context) }
}

/// Posts an operation with flags.
///
/// # Safety
/// `ep` is null or an open endpoint, and the message null, or one with the ranges that it counts.
unsafe fn post_message(
    ep: *mut FidEp,
    message: *const MsgRma,
    mut flags: u64,
    operation: impl FnOnce(u64, u64, Option<u64>) -> Result<SendOperation>,
) -> isize {
    // SAFETY: guaranteed by the caller.
    count(|| unsafe {
        let (ep, message) = (Ep::from_abi(ep)?, input(message)?);
        check_flags(flags, TX_FLAGS)?;
        let [remote] = values(message.rma_iov, message.rma_iov_count)? else { return Err(Errno::INVALID) };
        let data = (flags & abi::REMOTE_CQ_DATA != 0).then_some(message.data);
        let operation = operation(remote.addr, remote.key, data)?;
        if matches!(operation, SendOperation::Read { .. }) {
            // A read has a destination.
            flags &= !abi::INJECT;
        }
        let ranges = values(message.msg_iov, message.iov_count)?;
        ep.send(ranges, Operation { operation, context: message.context, flags }).map(|()| 0)
    })
}

unsafe extern "C" fn readmsg(ep: *mut FidEp, message: *const MsgRma, flags: u64) -> isize {
    // SAFETY: as guaranteed for this function.
    unsafe { post_message(ep, message, flags, |address, key, _| read_at(address, key)) }
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, message: *const MsgRma, flags: u64) -> isize {
    // SAFETY: as guaranteed for this function.
    unsafe { post_message(ep, message, flags, write_at) }
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buffer: Void,
    len: usize,
    _: u64,
    address: u64,
    key: u64,
) -> isize {
    // SAFETY: as guaranteed for this function.
    count(|| unsafe {
        Ep::from_abi(ep)?.inject(range(buffer, len), write_at(address, key, None)?)?;
        Ok(0)
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    buffer: Void,
    len: usize,
    data: u64,
    _: u64,
    address: u64,
    key: u64,
) -> isize {
    // SAFETY: as guaranteed for this function.
    count(|| unsafe {
        Ep::from_abi(ep)?.inject(range(buffer, len), write_at(address, key, Some(data))?).map(|()| 0)
    })
}

pub(crate) static OPS: RmaOps = RmaOps {
    size: size_of::<RmaOps>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};
