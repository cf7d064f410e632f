//! Operations: one list from the opcodes of requests, and one to the opcodes of completions.

use std::ffi::c_int;

use isolane_verbs::{CompletedOperation, SendOperation};

use crate::abi;
use crate::ffi::{Errno, Result, check};

/// Returns the operation of a request to a queue pair of a type.
///
/// # Safety
/// The fields that the opcode selects are valid.
pub(crate) unsafe fn from_abi(kind: c_int, request: &abi::SendWr) -> Result<SendOperation> {
    // SAFETY: all variants are numbers and pointers, which are not followed.
    let (rdma, atomic) = unsafe { (request.wr.rdma, request.wr.atomic) };
    let immediate = Some(u32::from_be(request.imm_data));
    let (address, rkey) = (rdma.remote_addr, rdma.rkey);
    let operation = match request.opcode {
        abi::WR_SEND => SendOperation::Send { immediate: None },
        abi::WR_SEND_WITH_IMM => SendOperation::Send { immediate },
        abi::WR_RDMA_WRITE => SendOperation::Write { address, rkey, immediate: None },
        abi::WR_RDMA_WRITE_WITH_IMM => SendOperation::Write { address, rkey, immediate },
        abi::WR_RDMA_READ => SendOperation::Read { address, rkey },
        abi::WR_ATOMIC_CMP_AND_SWP => SendOperation::CompareSwap {
            address: atomic.remote_addr,
            rkey: atomic.rkey,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        abi::WR_ATOMIC_FETCH_AND_ADD => SendOperation::FetchAdd {
            address: atomic.remote_addr,
            rkey: atomic.rkey,
            add: atomic.compare_add,
        },
        _ => return Err(Errno::INVALID),
    };
    check(is_possible(&operation, kind))?;
    Ok(operation)
}

/// Whether queue pairs of a type have an operation.
pub(crate) fn is_possible(operation: &SendOperation, kind: c_int) -> bool {
    match operation {
        SendOperation::Send { .. } => true,
        SendOperation::Write { .. } => kind != abi::QPT_UD,
        SendOperation::Read { .. } | SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. } => {
            kind == abi::QPT_RC
        }
    }
}

/// Returns the opcode of a completion.
pub(crate) fn completed(operation: CompletedOperation) -> c_int {
    match operation {
        CompletedOperation::Send => abi::WC_SEND,
        CompletedOperation::Write => abi::WC_RDMA_WRITE,
        CompletedOperation::Read => abi::WC_RDMA_READ,
        CompletedOperation::CompareSwap => abi::WC_COMP_SWAP,
        CompletedOperation::FetchAdd => abi::WC_FETCH_ADD,
        CompletedOperation::Receive => abi::WC_RECV,
        CompletedOperation::ReceiveWrite => abi::WC_RECV_RDMA_WITH_IMM,
    }
}
