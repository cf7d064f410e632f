//! Queue pairs: state, query, and destruction.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

use isolane_verbs::{
    DatagramQueuePair, DatagramRequest, PostError, QueuePair, QueuePairState, ReceiveRequest, SendRequest,
};
use lock_api::RawMutex as _;
use parking_lot::{Mutex, RawMutex};

use crate::abi;
use crate::channel::Unacknowledged;
use crate::completion_queue;
use crate::ffi::{Errno, object, output, status};
use crate::memory::Pd;
use crate::shared_receive_queue::Srq;

/// The queue pair of the library.
pub(crate) enum Pair {
    Connected(QueuePair),
    Datagrams(DatagramQueuePair),
}

impl Pair {
    pub(crate) fn number(&self) -> u32 {
        match self {
            Pair::Connected(pair) => pair.number(),
            Pair::Datagrams(pair) => pair.number(),
        }
    }

    fn state(&self) -> QueuePairState {
        match self {
            Pair::Connected(pair) => pair.state(),
            Pair::Datagrams(pair) => pair.state(),
        }
    }

    pub(crate) fn reset(&self) {
        match self {
            Pair::Connected(pair) => pair.reset(),
            Pair::Datagrams(pair) => pair.reset(),
        }
    }

    pub(crate) fn fail(&self) {
        match self {
            Pair::Connected(pair) => pair.fail(),
            Pair::Datagrams(pair) => pair.fail(),
        }
    }

    pub(crate) fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        match self {
            Pair::Connected(pair) => pair.post_receive(request),
            Pair::Datagrams(pair) => pair.post_receive(request),
        }
    }

    pub(crate) fn post_send(&self, request: Request) -> Result<(), PostError> {
        match (self, request) {
            (Pair::Connected(pair), Request::Connected(request)) => pair.post_send(request),
            (Pair::Datagrams(pair), Request::Datagram(request)) => pair.post_send(&request),
            _ => unreachable!("a request is made for its queue pair"),
        }
    }
}

/// A request for the send queue.
pub(crate) enum Request {
    Connected(SendRequest),
    Datagram(DatagramRequest),
}

/// A queue pair.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) abi: abi::QpEx,
    pub(crate) pair: Pair,
    pub(crate) init: abi::QpInitAttr,
    /// Attributes that the program has set; the lock covers changes of the state.
    pub(crate) attributes: Mutex<abi::QpAttr>,
    pub(crate) async_events: Unacknowledged,
    pub(crate) builder: Builder,
}

impl Qp {
    pub(crate) fn kind(&self) -> c_int {
        self.init.qp_type
    }

    pub(crate) fn signals_all(&self) -> bool {
        self.init.sq_sig_all != 0
    }

    /// Returns the state as the headers number it.
    pub(crate) fn state(&self) -> c_int {
        match self.pair.state() {
            QueuePairState::Reset => abi::QPS_RESET,
            QueuePairState::Init => abi::QPS_INIT,
            QueuePairState::ReadyToReceive => abi::QPS_RTR,
            QueuePairState::ReadyToSend => abi::QPS_RTS,
            QueuePairState::Error => abi::QPS_ERR,
        }
    }
}

/// The requests that a program builds. `wr_start` locks it.
pub(crate) struct Builder {
    pub(crate) lock: RawMutex,
    pub(crate) building: UnsafeCell<Building>,
}

// SAFETY: only the thread that holds the lock uses the requests.
unsafe impl Sync for Builder {}

impl Default for Builder {
    fn default() -> Builder {
        Builder { lock: RawMutex::INIT, building: UnsafeCell::default() }
    }
}

#[derive(Default)]
pub(crate) struct Building {
    pub(crate) requests: Vec<Request>,
    pub(crate) error: Option<Errno>,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut abi::Qp) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or a queue pair that it has not destroyed.
        let found = unsafe { object::<_, Qp>(qp) }?;
        // No event follows.
        found.pair.reset();
        let abi::QpInitAttr { send_cq, recv_cq, srq, .. } = found.init;
        // SAFETY: domain, context, and queues live: the queue pair is one of their users until it is removed from each.
        unsafe {
            let is_own = |event: &abi::AsyncEvent| {
                let is_other = matches!(event.event_type, abi::EVENT_CQ_ERR | abi::EVENT_SRQ_LIMIT_REACHED);
                !is_other && event.element.qp == qp.cast()
            };
            let domain = object::<_, Pd>(found.abi.base.pd)?;
            domain.context()?.events.remove(is_own);
            found.async_events.wait();
            // It uses its queues, and its requests use memory of the domain, until it is gone.
            drop(Box::from_raw(qp.cast::<Qp>()));
            completion_queue::from_abi(send_cq.cast())?.users.remove();
            completion_queue::from_abi(recv_cq.cast())?.users.remove();
            if let Ok(shared) = object::<_, Srq>(srq) {
                shared.users.remove();
            }
            domain.users.remove();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut abi::Qp,
    attributes: *mut abi::QpAttr,
    _mask: c_int,
    init: *mut abi::QpInitAttr,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null or a live queue pair, and null or structures that no other thread uses
        // during the call.
        let (found, attributes, init) = unsafe { (object::<_, Qp>(qp)?, output(attributes)?, output(init)?) };
        let state = found.state();
        *attributes = abi::QpAttr { qp_state: state, cur_qp_state: state, ..*found.attributes.lock() };
        *init = found.init;
        // SAFETY: the program changes the state in one thread at a time.
        unsafe { (*qp).state = state };
        Ok(())
    })
}

/// The bytes of a WRITE arrive in ascending order on one lane, except in the memory of a GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(qp: *mut abi::Qp, opcode: c_int, flags: u32) -> c_int {
    let is_write = matches!(opcode, abi::WR_RDMA_WRITE | abi::WR_RDMA_WRITE_WITH_IMM);
    // SAFETY: the program passes null, or a queue pair that it has not destroyed.
    let found = unsafe { object::<_, Qp>(qp) };
    let is_in_order = found.is_ok_and(|found| match &found.pair {
        Pair::Connected(pair) => pair.max_lanes() == 1 && !isolane_cuda::is_driver_loaded(),
        Pair::Datagrams(_) => false,
    });
    c_int::from(is_write && flags == 0 && is_in_order)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut abi::Qp) -> *mut abi::QpEx {
    qp.cast()
}

/// Returns the counter of asynchronous events.
///
/// # Safety
/// `qp` is null, or a queue pair that is not destroyed before its events are acknowledged.
pub(crate) unsafe fn async_events<'a>(qp: *mut abi::Qp) -> Option<&'a Unacknowledged> {
    // SAFETY: guaranteed by the caller.
    unsafe { object::<_, Qp>(qp) }.ok().map(|qp| &qp.async_events)
}

/// The enhanced connection establishment has no options here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_ece(_qp: *mut abi::Qp, _options: *mut c_void) -> c_int {
    status(|| Err(Errno::UNSUPPORTED))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_ece(_qp: *mut abi::Qp, options: *mut [u32; 3]) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or options that no other thread uses during the call.
        *unsafe { output(options) }? = [0; 3];
        Ok(())
    })
}
