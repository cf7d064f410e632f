//! Completion queues and their channels.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use isolane_verbs::{CompletionQueue, WorkCompletion};
use parking_lot::Mutex;

use crate::channel::{Channel, Unacknowledged};
use crate::context::{Context, MAX_COMPLETIONS};
use crate::ffi::{Errno, Result, Users, check, into_raw, object, output, pointer, status, value};
use crate::{abi, operation};

/// A completion channel.
#[repr(C)]
pub(crate) struct CompletionChannel {
    abi: abi::CompChannel,
    pub(crate) events: Arc<Channel<Event>>,
    pub(crate) users: Users,
}

/// A completion queue with a notice. It lives: destroying it removes its events.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event(pub(crate) *mut abi::Cq);

// SAFETY: the pointer is only passed to the program.
unsafe impl Send for Event {}

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) abi: abi::CqEx,
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) users: Users,
    pub(crate) completion_events: Unacknowledged,
    pub(crate) async_events: Unacknowledged,
    /// Completion that an extended poll shows.
    pub(crate) current: Mutex<abi::Wc>,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut abi::Context) -> *mut abi::CompChannel {
    pointer(|| {
        // SAFETY: the program passes null, or a context that it has not closed.
        let found = unsafe { Context::from_abi(context) }?;
        let events = Arc::new(Channel::new()?);
        found.users.add();
        let abi = abi::CompChannel { context, fd: events.fd(), refcnt: 0 };
        Ok(into_raw(CompletionChannel { abi, events, users: Users::default() }).cast())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut abi::CompChannel) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or a channel that it has not destroyed.
        let found = unsafe { object::<_, CompletionChannel>(channel) }?;
        found.users.check_none()?;
        // SAFETY: the context lives as long as its objects.
        unsafe { Context::from_abi(found.abi.context) }?.users.remove();
        // SAFETY: made by `ibv_create_comp_channel`, and no queue uses it.
        drop(unsafe { Box::from_raw(channel.cast::<CompletionChannel>()) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut abi::Cq, cqe: c_int) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or a queue that it has not destroyed.
        let found = unsafe { object::<_, Cq>(cq) }?;
        check(cqe > 0 && cqe as u32 <= MAX_COMPLETIONS && found.queue.len() <= cqe as usize)?;
        check(found.queue.resize(capacity(cqe as u32)))?;
        // SAFETY: the program changes the queue in one thread at a time.
        unsafe { (*cq).cqe = cqe };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut abi::Cq) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or a queue that it has not destroyed.
        let found = unsafe { object::<_, Cq>(cq) }?;
        found.users.check_none()?;
        // SAFETY: the context and the channel live as long as the queue.
        unsafe {
            let context = Context::from_abi(found.abi.base.context)?;
            let is_own = |event: &abi::AsyncEvent| {
                event.event_type == abi::EVENT_CQ_ERR && event.element.cq == cq.cast()
            };
            context.events.remove(is_own);
            if let Ok(channel) = object::<_, CompletionChannel>(found.abi.base.channel) {
                channel.events.remove(|event| *event == Event(cq));
                channel.users.remove();
            }
            found.completion_events.wait();
            found.async_events.wait();
            context.users.remove();
        }
        // SAFETY: made by `create`, and no queue pair uses it.
        drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut abi::CompChannel,
    cq: *mut *mut abi::Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    value(|| {
        // SAFETY: the program passes null or a live channel, and null or pointers that no other thread uses during
        // the call.
        let (channel, cq, cq_context) =
            unsafe { (object::<_, CompletionChannel>(channel)?, output(cq)?, output(cq_context)?) };
        let Event(ready) = channel.events.next()?;
        // SAFETY: the queue lives until its events are acknowledged.
        let found = unsafe { object::<_, Cq>(ready) }?;
        found.completion_events.add();
        (*cq, *cq_context) = (ready, found.abi.base.cq_context);
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut abi::Cq, count: c_uint) {
    // SAFETY: the program passes null, or a queue that it has not destroyed.
    if let Ok(found) = unsafe { object::<_, Cq>(cq) } {
        found.completion_events.acknowledge(count.into());
    }
}

/// Returns the counter of asynchronous events.
///
/// # Safety
/// `cq` is null, or a queue that is not destroyed before its events are acknowledged.
pub(crate) unsafe fn async_events<'a>(cq: *mut abi::Cq) -> Option<&'a Unacknowledged> {
    // SAFETY: guaranteed by the caller.
    unsafe { object::<_, Cq>(cq) }.ok().map(|cq| &cq.async_events)
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut abi::Cq, solicited_only: c_int) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or a queue that it has not destroyed.
        unsafe { object::<_, Cq>(cq) }?.queue.request_notice(solicited_only != 0);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut abi::Cq, count: c_int, completions: *mut abi::Wc) -> c_int {
    let polled = value(|| {
        // SAFETY: the program passes null, or a queue that it has not destroyed.
        let found = unsafe { object::<_, Cq>(cq) }?;
        check(count >= 0 && (count == 0 || !completions.is_null()))?;
        let mut filled = 0;
        while filled < count {
            // Only the first completion is worth a look at the lanes.
            let next = if filled == 0 { found.queue.poll() } else { found.queue.take() };
            let Some(completion) = next else { break };
            // SAFETY: the program provides `count` completions.
            unsafe { completions.add(filled as usize).write(to_abi(&completion)) };
            filled += 1;
        }
        if filled == 0 && found.queue.has_overrun() {
            return Err(Errno(libc::EIO));
        }
        Ok(filled)
    });
    polled.max(-1)
}

/// Converts a completion.
pub(crate) fn to_abi(done: &WorkCompletion) -> abi::Wc {
    let completion = &done.completion;
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    abi::Wc {
        wr_id: completion.id,
        status: completion.status as c_int,
        opcode: operation::completed(completion.operation),
        byte_len: completion.length as u32,
        imm_data: completion.immediate.unwrap_or_default().to_be(),
        qp_num: done.queue_pair,
        src_qp: completion.source.unwrap_or_default(),
        wc_flags: flag(completion.immediate.is_some(), abi::WC_WITH_IMM)
            | flag(completion.source.is_some(), abi::WC_GRH),
        ..abi::Wc::default()
    }
}

/// Returns the number of completions that a queue for `cqe` holds. As on hardware, small queues hold more.
pub(crate) fn capacity(cqe: u32) -> usize {
    (cqe as usize).next_power_of_two().max(64)
}

/// Returns the queue behind a pointer.
///
/// # Safety
/// `cq` is null, or a queue that is not destroyed.
pub(crate) unsafe fn from_abi<'a>(cq: *mut abi::Cq) -> Result<&'a Cq> {
    // SAFETY: guaranteed by the caller, and `ibv_create_cq` makes each queue as a `Cq`.
    unsafe { object(cq) }
}
