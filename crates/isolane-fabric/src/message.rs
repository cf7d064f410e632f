//! Messages.

use std::ffi::c_void;
use std::mem::size_of;

use isolane_verbs::SendOperation;

use crate::abi::{self, FidEp, Iovec, Msg, MsgOps};
use crate::ffi::{check_flags, count, input, values};
use crate::info::{RX_FLAGS, TX_FLAGS};
use crate::post::{Ep, Operation, receive};

type Void = *mut c_void;

/// Returns the operation with the immediate data that flags announce.
fn message(flags: u64, data: u64) -> SendOperation {
    SendOperation::Send { immediate: (flags & abi::REMOTE_CQ_DATA != 0).then_some(data as u32) }
}

pub(crate) fn range(buffer: Void, len: usize) -> Iovec {
    Iovec { iov_base: buffer, iov_len: len }
}

unsafe extern "C" fn recv(ep: *mut FidEp, buffer: Void, len: usize, _: Void, _: u64, context: Void) -> isize {
    // SAFETY: as guaranteed for this function.
    count(|| unsafe { receive(ep, &[range(buffer, len)], context, None) }.map(|()| 0))
}

unsafe extern "C" fn recvv(
    ep: *mut FidEp,
    ranges: *const Iovec,
    _: *mut Void,
    number: usize,
    _: u64,
    context: Void,
) -> isize {
    // SAFETY: as guaranteed for this function: there are that many ranges.
    count(|| unsafe { receive(ep, values(ranges, number)?, context, None) }.map(|()| 0))
}

unsafe extern "C" fn recvmsg(ep: *mut FidEp, message: *const Msg, flags: u64) -> isize {
    // SAFETY: as guaranteed for this function: the message has that many ranges.
    count(|| unsafe {
        let message = input(message)?;
        check_flags(flags, RX_FLAGS)?;
        receive(ep, values(message.msg_iov, message.iov_count)?, message.context, Some(flags)).map(|()| 0)
    })
}

unsafe extern "C" fn send(ep: *mut FidEp, buffer: Void, len: usize, _: Void, _: u64, context: Void) -> isize {
    // SAFETY: as guaranteed for this function.
    unsafe { send_ranges(ep, &[range(buffer, len)], message(0, 0), context) }
}

unsafe extern "C" fn sendv(
    ep: *mut FidEp,
    ranges: *const Iovec,
    _: *mut Void,
    number: usize,
    _: u64,
    context: Void,
) -> isize {
    // SAFETY: as guaranteed for this function: there are that many ranges.
    match unsafe { values(ranges, number) } {
        // SAFETY: as above.
        Ok(ranges) => unsafe { send_ranges(ep, ranges, message(0, 0), context) },
        Err(error) => -(error.0 as isize),
    }
}

unsafe extern "C" fn senddata(
    ep: *mut FidEp,
    buffer: Void,
    len: usize,
    _: Void,
    data: u64,
    _: u64,
    context: Void,
) -> isize {
    // SAFETY: as guaranteed for this function.
    unsafe { send_ranges(ep, &[range(buffer, len)], message(abi::REMOTE_CQ_DATA, data), context) }
}

/// Posts an operation with the flags of the endpoint.
///
/// # Safety
/// `ep` is null or an open endpoint; the program keeps the memory until the operation completes.
pub(crate) unsafe fn send_ranges(
    ep: *mut FidEp,
    ranges: &[Iovec],
    operation: SendOperation,
    context: Void,
) -> isize {
    // SAFETY: guaranteed by the caller.
    count(|| unsafe {
        let ep = Ep::from_abi(ep)?;
        ep.send(ranges, Operation { operation, context, flags: ep.default_flags() }).map(|()| 0)
    })
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, found: *const Msg, flags: u64) -> isize {
    // SAFETY: as guaranteed for this function: the message has that many ranges.
    count(|| unsafe {
        let (ep, found) = (Ep::from_abi(ep)?, input(found)?);
        check_flags(flags, TX_FLAGS)?;
        let (operation, context) = (message(flags, found.data), found.context);
        ep.send(values(found.msg_iov, found.iov_count)?, Operation { operation, context, flags }).map(|()| 0)
    })
}

unsafe extern "C" fn inject(ep: *mut FidEp, buffer: Void, len: usize, _: u64) -> isize {
    // SAFETY: as guaranteed for this function.
    count(|| unsafe { Ep::from_abi(ep)?.inject(range(buffer, len), message(0, 0)) }.map(|()| 0))
}

unsafe extern "C" fn injectdata(ep: *mut FidEp, buffer: Void, len: usize, data: u64, _: u64) -> isize {
    let operation = message(abi::REMOTE_CQ_DATA, data);
    // SAFETY: as guaranteed for this function.
    count(|| unsafe { Ep::from_abi(ep)?.inject(range(buffer, len), operation) }.map(|()| 0))
}

pub(crate) static OPS: MsgOps = MsgOps {
    size: size_of::<MsgOps>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};
