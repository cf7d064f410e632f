//! Creation of queue pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use isolane_verbs::{AsyncEvent, Limits, OnEvent, QueuePairConfig, SharedReceiveQueue};
use parking_lot::Mutex;

use crate::abi;
use crate::builder;
use crate::channel::Unacknowledged;
use crate::completion_queue;
use crate::context::{Context, MAX_INLINE_BYTES, MAX_REQUESTS, MAX_SGE};
use crate::control;
use crate::ffi::{Errno, Result, check, into_raw, object, output, pointer, refuse_queue_pair};
use crate::memory::Pd;
use crate::queue_pair::{Builder, Pair, Qp};
use crate::shared_receive_queue::Srq;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut abi::Pd, attributes: *mut abi::QpInitAttr) -> *mut abi::Qp {
    pointer(|| {
        // SAFETY: the program passes null, or attributes that no other thread uses during the call.
        let attributes = unsafe { output(attributes) }?;
        // SAFETY: the program passes null or live objects, here and in the attributes.
        unsafe { create(pd, attributes) }
    })
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut abi::Context,
    attributes: *mut abi::QpInitAttrEx,
) -> *mut abi::Qp {
    pointer(|| {
        // SAFETY: the program passes null, or attributes that no other thread uses during the call.
        let attributes = unsafe { output(attributes) }?;
        let known = abi::QP_INIT_ATTR_PD | abi::QP_INIT_ATTR_SEND_OPS_FLAGS;
        let has_operations = attributes.comp_mask & abi::QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let has_others = has_operations && attributes.send_ops_flags & !abi::QP_EX_SUPPORTED != 0;
        if attributes.comp_mask & !known != 0 || has_others {
            return Err(Errno::UNSUPPORTED);
        }
        check(attributes.comp_mask & abi::QP_INIT_ATTR_PD != 0)?;
        // SAFETY: the domain is null, or one that the program has not deallocated.
        unsafe { object::<_, Pd>(attributes.pd)?.context()?.check_owns(context) }?;
        let abi::QpInitAttrEx { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, .. } =
            *attributes;
        let mut base = abi::QpInitAttr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
        // SAFETY: the attributes name live objects of the program, or null.
        let created = unsafe { create(attributes.pd.cast(), &mut base) }?;
        attributes.cap = base.cap;
        Ok(created)
    })
}

/// Creates a queue pair, and stores the inline data that it grants in the attributes.
///
/// # Safety
/// The domain, and the queues that the attributes name, are null or live.
unsafe fn create(pd: *mut abi::Pd, attributes: &mut abi::QpInitAttr) -> Result<*mut abi::Qp> {
    if !matches!(attributes.qp_type, abi::QPT_RC | abi::QPT_UC | abi::QPT_UD) {
        return Err(Errno::UNSUPPORTED);
    }
    let cap = &mut attributes.cap;
    check(cap.max_send_wr <= MAX_REQUESTS && cap.max_recv_wr <= MAX_REQUESTS)?;
    check(cap.max_send_sge <= MAX_SGE && cap.max_recv_sge <= MAX_SGE)?;
    check(cap.max_inline_data <= MAX_INLINE_BYTES)?;
    // As on hardware, the space of the SGEs can have inline data.
    let sge_bytes = cap.max_send_sge.max(1) * size_of::<abi::Sge>() as u32;
    let inline_bytes = cap.max_inline_data.max(sge_bytes);
    // SAFETY: guaranteed by the caller.
    let (domain, send, receive) = unsafe {
        let send = completion_queue::from_abi(attributes.send_cq.cast())?;
        (object::<_, Pd>(pd)?, send, completion_queue::from_abi(attributes.recv_cq.cast())?)
    };
    // SAFETY: the context lives as long as the domain; the shared receive queue is guaranteed by the caller.
    let (context, shared) = unsafe { (domain.context()?, object::<_, Srq>(attributes.srq).ok()) };
    context.check_owns(send.abi.base.context)?;
    context.check_owns(receive.abi.base.context)?;
    shared.map_or(Ok(()), |shared| context.check_owns(shared.context()))?;
    let limits = Limits {
        send_requests: cap.max_send_wr as usize,
        receives: cap.max_recv_wr as usize,
        sges: cap.max_send_sge.max(cap.max_recv_sge).max(1) as usize,
        inline_bytes: inline_bytes as usize,
    };
    cap.max_inline_data = inline_bytes;
    let this: Arc<AtomicPtr<abi::Qp>> = Arc::default();
    let config = QueuePairConfig {
        send_queue: Arc::clone(&send.queue),
        receive_queue: Arc::clone(&receive.queue),
        shared_receive_queue: shared.map(|shared: &Srq| Arc::<SharedReceiveQueue>::clone(&shared.receives)),
        limits,
        outlives_peer: true,
        on_event: Some(on_event(context, attributes.srq.cast(), Arc::clone(&this))),
        ..QueuePairConfig::new(Arc::clone(&domain.domain), Arc::clone(&send.queue))
    };
    let pair = match attributes.qp_type {
        abi::QPT_UD => context.verbs.create_datagram_queue_pair(&config).map(Pair::Datagrams),
        _ => context.verbs.create_queue_pair(&config).map(Pair::Connected),
    };
    let pair = pair.map_err(refuse_queue_pair)?;
    if let Pair::Connected(pair) = &pair {
        control::add(pair);
    }
    let base = abi::Qp {
        context: context.as_abi(),
        qp_context: attributes.qp_context,
        pd,
        send_cq: attributes.send_cq.cast(),
        recv_cq: attributes.recv_cq.cast(),
        srq: attributes.srq.cast(),
        handle: 0,
        qp_num: pair.number(),
        state: abi::QPS_RESET,
        qp_type: attributes.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    domain.users.add();
    send.users.add();
    receive.users.add();
    if let Some(shared) = shared {
        shared.users.add();
    }
    let created = into_raw(Qp {
        abi: builder::functions(base),
        pair,
        init: *attributes,
        attributes: Mutex::new(abi::QpAttr { cap: attributes.cap, ..abi::QpAttr::default() }),
        async_events: Unacknowledged::default(),
        builder: Builder::default(),
    });
    this.store(created.cast(), Ordering::Release);
    Ok(created.cast())
}

/// Returns the function that passes the events of a queue pair to the program.
fn on_event(context: &Context, srq: *mut abi::Srq, this: Arc<AtomicPtr<abi::Qp>>) -> OnEvent {
    let (context, srq) = (AtomicPtr::new(context.as_abi()), AtomicPtr::new(srq));
    Arc::new(move |_, event| {
        let qp = abi::EventElement { qp: this.load(Ordering::Acquire).cast() };
        let (element, event_type) = match event {
            AsyncEvent::InvalidRequest => (qp, abi::EVENT_QP_REQ_ERR),
            AsyncEvent::AccessViolation => (qp, abi::EVENT_QP_ACCESS_ERR),
            AsyncEvent::Fatal => (qp, abi::EVENT_QP_FATAL),
            AsyncEvent::LimitReached => {
                (abi::EventElement { srq: srq.load(Ordering::Relaxed).cast() }, abi::EVENT_SRQ_LIMIT_REACHED)
            }
            AsyncEvent::LastReceive => (qp, abi::EVENT_QP_LAST_WQE_REACHED),
        };
        // SAFETY: events end with the queue pair, and the context lives as long as its objects.
        if let Ok(context) = unsafe { Context::from_abi(context.load(Ordering::Relaxed)) } {
            context.events.push(abi::AsyncEvent { element, event_type });
        }
    })
}
