//! Shared receive queues.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use isolane_verbs::SharedReceiveQueue;
use parking_lot::Mutex;

use crate::abi;
use crate::channel::Unacknowledged;
use crate::context::{MAX_REQUESTS, MAX_SGE};
use crate::ffi::{Errno, Result, Users, check, input, into_raw, object, output, pointer, status};
use crate::memory::Pd;

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    abi: abi::Srq,
    pub(crate) receives: Arc<SharedReceiveQueue>,
    attributes: Mutex<abi::SrqAttr>,
    pub(crate) users: Users,
    async_events: Unacknowledged,
}

impl Srq {
    /// Returns the context in which the queue was made.
    pub(crate) fn context(&self) -> *mut abi::Context {
        self.abi.context
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut abi::Pd,
    attributes: *mut abi::SrqInitAttr,
) -> *mut abi::Srq {
    pointer(|| {
        // SAFETY: the program passes null, or attributes that no other thread uses during the call.
        let attributes = unsafe { output(attributes) }?;
        // SAFETY: the program passes null, or a domain that it has not deallocated.
        unsafe { create(pd, attributes.srq_context, &mut attributes.attr) }
    })
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut abi::Context,
    attributes: *mut abi::SrqInitAttrEx,
) -> *mut abi::Srq {
    pointer(|| {
        // SAFETY: the program passes null, or attributes that no other thread uses during the call.
        let attributes = unsafe { output(attributes) }?;
        let has_type = attributes.comp_mask & abi::SRQ_INIT_ATTR_TYPE != 0;
        let is_basic = !has_type || attributes.srq_type == abi::SRQT_BASIC;
        if !is_basic || attributes.comp_mask & !(abi::SRQ_INIT_ATTR_TYPE | abi::SRQ_INIT_ATTR_PD) != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        check(attributes.comp_mask & abi::SRQ_INIT_ATTR_PD != 0)?;
        // SAFETY: the domain is null, or one that the program has not deallocated.
        unsafe { object::<_, Pd>(attributes.pd)?.context()?.check_owns(context) }?;
        // SAFETY: as above.
        unsafe { create(attributes.pd.cast(), attributes.srq_context, &mut attributes.attr) }
    })
}

/// Creates a queue.
///
/// # Safety
/// `pd` is null, or a domain that is not deallocated.
unsafe fn create(
    pd: *mut abi::Pd,
    srq_context: *mut c_void,
    attributes: &mut abi::SrqAttr,
) -> Result<*mut abi::Srq> {
    check((1..=MAX_REQUESTS).contains(&attributes.max_wr) && attributes.max_sge <= MAX_SGE)?;
    attributes.max_sge = attributes.max_sge.max(1);
    // SAFETY: guaranteed by the caller.
    let domain = unsafe { object::<_, Pd>(pd) }?;
    // SAFETY: the context lives as long as the domain.
    let context = unsafe { domain.context() }?;
    let (max_receives, max_sge) = (attributes.max_wr as usize, attributes.max_sge as usize);
    let receives = context.verbs.shared_receive_queue(Arc::clone(&domain.domain), max_receives, max_sge);
    domain.users.add();
    let abi = abi::Srq {
        context: context.as_abi(),
        srq_context,
        pd,
        handle: 0,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    // The limit is armed by `ibv_modify_srq`.
    let attributes = Mutex::new(abi::SrqAttr { srq_limit: 0, ..*attributes });
    let (users, async_events) = (Users::default(), Unacknowledged::default());
    Ok(into_raw(Srq { abi, receives, attributes, users, async_events }).cast())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut abi::Srq,
    attributes: *mut abi::SrqAttr,
    mask: c_int,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null or a live queue, and null or attributes that no thread changes during the
        // call.
        let (found, new) = unsafe { (object::<_, Srq>(srq)?, input(attributes)?) };
        if mask & !abi::SRQ_LIMIT != 0 {
            return Err(if mask & abi::SRQ_MAX_WR != 0 { Errno::UNSUPPORTED } else { Errno::INVALID });
        }
        let mut attributes = found.attributes.lock();
        if mask & abi::SRQ_LIMIT != 0 {
            check(new.srq_limit <= attributes.max_wr)?;
            attributes.srq_limit = new.srq_limit;
            found.receives.arm(new.srq_limit as usize);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut abi::Srq, attributes: *mut abi::SrqAttr) -> c_int {
    status(|| {
        // SAFETY: the program passes null or a live queue, and null or attributes that no other thread uses during
        // the call.
        let (found, attributes) = unsafe { (object::<_, Srq>(srq)?, output(attributes)?) };
        let srq_limit = found.receives.limit() as u32;
        *attributes = abi::SrqAttr { srq_limit, ..*found.attributes.lock() };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut abi::Srq) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or a queue that it has not destroyed.
        let found = unsafe { object::<_, Srq>(srq) }?;
        found.users.check_none()?;
        // SAFETY: the domain and the context live as long as their objects.
        unsafe {
            let domain = object::<_, Pd>(found.abi.pd)?;
            domain.context()?.events.remove(|event| {
                event.event_type == abi::EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq.cast()
            });
            found.async_events.wait();
            domain.users.remove();
        }
        // SAFETY: made by `create`, and no queue pair uses it.
        drop(unsafe { Box::from_raw(srq.cast::<Srq>()) });
        Ok(())
    })
}

/// Only queues of extended connections have a number.
pub(crate) unsafe extern "C" fn get_srq_num(_srq: *mut abi::Srq, _number: *mut u32) -> c_int {
    status(|| Err(Errno::UNSUPPORTED))
}

/// Returns the counter of asynchronous events.
///
/// # Safety
/// `srq` is null, or a queue that is not destroyed before its events are acknowledged.
pub(crate) unsafe fn async_events<'a>(srq: *mut abi::Srq) -> Option<&'a Unacknowledged> {
    // SAFETY: guaranteed by the caller.
    unsafe { object::<_, Srq>(srq) }.ok().map(|srq| &srq.async_events)
}
