//! Creation of completion queues, and the functions with which programs read one completion at a time.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use isolane_verbs::{CompletionNotice, WorkCompletion};
use parking_lot::Mutex;

use crate::abi;
use crate::channel::Unacknowledged;
use crate::completion_queue::{CompletionChannel, Cq, Event, capacity, from_abi, to_abi};
use crate::context::{Context, MAX_COMPLETIONS};
use crate::ffi::{Errno, Result, Users, check, input, into_raw, object, pointer, status};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut abi::Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut abi::CompChannel,
    vector: c_int,
) -> *mut abi::Cq {
    pointer(|| {
        check(cqe > 0 && vector == 0)?;
        // SAFETY: the program passes an open context and a live channel, or null.
        unsafe { create(context, cqe as u32, cq_context, channel) }
    })
}

/// Creates a queue.
///
/// # Safety
/// The context is open and the channel is not destroyed; either can be null.
unsafe fn create(
    context: *mut abi::Context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut abi::CompChannel,
) -> Result<*mut abi::Cq> {
    check((1..=MAX_COMPLETIONS).contains(&cqe))?;
    // SAFETY: guaranteed by the caller.
    let found = unsafe { Context::from_abi(context) }?;
    let events = if channel.is_null() {
        None
    } else {
        // SAFETY: not null, so the caller guarantees a live channel.
        let (events, context) = unsafe { (object::<_, CompletionChannel>(channel)?, (*channel).context) };
        found.check_owns(context)?;
        Some(events)
    };
    let this: Arc<AtomicPtr<abi::Cq>> = Arc::default();
    let queue = {
        let (this, events) = (Arc::clone(&this), events.map(|channel| Arc::clone(&channel.events)));
        // Notices need the context, which lives as long as the queue.
        let context = AtomicPtr::new(context);
        let on_notice = move |notice| {
            let cq = this.load(Ordering::Acquire);
            match (notice, &events) {
                (CompletionNotice::Arrived, Some(events)) => events.push(Event(cq)),
                (CompletionNotice::Arrived, None) => {}
                (CompletionNotice::Overrun, _) => {
                    let element = abi::EventElement { cq: cq.cast() };
                    // SAFETY: notices end with the queue, and the context lives as long as its queues.
                    if let Ok(context) = unsafe { Context::from_abi(context.load(Ordering::Relaxed)) } {
                        context.events.push(abi::AsyncEvent { element, event_type: abi::EVENT_CQ_ERR });
                    }
                }
            }
        };
        found.verbs.completion_queue_with_notices(capacity(cqe), Box::new(on_notice))
    };
    let base = abi::Cq {
        context,
        channel,
        cq_context,
        handle: 0,
        cqe: cqe as c_int,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let created = into_raw(Cq {
        abi: functions(base),
        queue,
        users: Users::default(),
        completion_events: Unacknowledged::default(),
        async_events: Unacknowledged::default(),
        current: Mutex::default(),
    });
    this.store(created.cast(), Ordering::Release);
    found.users.add();
    if let Some(channel) = events {
        channel.users.add();
    }
    Ok(created.cast())
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut abi::Context,
    attributes: *mut abi::CqInitAttrEx,
) -> *mut abi::CqEx {
    pointer(|| {
        // SAFETY: the program passes null, or attributes that no thread changes during the call.
        let attributes = unsafe { input(attributes) }?;
        check(attributes.comp_vector == 0 && attributes.comp_mask & !abi::CQ_INIT_ATTR_KNOWN == 0)?;
        if attributes.wc_flags & !abi::WC_EX_SUPPORTED != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        let abi::CqInitAttrEx { cqe, cq_context, channel, .. } = *attributes;
        // SAFETY: the program passes an open context, and attributes with a live channel or null.
        Ok(unsafe { create(context, cqe, cq_context, channel.cast()) }?.cast())
    })
}

/// Returns a queue with its functions.
pub(crate) fn functions(base: abi::Cq) -> abi::CqEx {
    abi::CqEx {
        base,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll,
        next_poll,
        end_poll,
        read_opcode,
        read_vendor_err,
        read_byte_len,
        read_imm_data,
        read_qp_num,
        read_src_qp,
        read_wc_flags,
        read_slid,
        read_sl,
        read_dlid_path_bits,
        read_completion_ts: None,
        read_cvlan: None,
        read_flow_tag: None,
        read_tm_info: None,
        read_completion_wallclock_ns: None,
    }
}

unsafe extern "C" fn start_poll(cq: *mut abi::CqEx, attributes: *mut abi::PollCqAttr) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or attributes that no thread changes during the call.
        check(unsafe { input(attributes) }?.comp_mask == 0)?;
        // SAFETY: the program passes null, or a queue that it has not destroyed.
        let found = unsafe { from_abi(cq.cast()) }?;
        let next = found.queue.poll();
        // SAFETY: the program polls a queue in this way in one thread at a time, and `from_abi` has accepted the
        // pointer.
        unsafe { show(cq, &found.current, next) }
    })
}

unsafe extern "C" fn next_poll(cq: *mut abi::CqEx) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or a queue that it has not destroyed.
        let found = unsafe { from_abi(cq.cast()) }?;
        let next = found.queue.take();
        // SAFETY: the program polls a queue in this way in one thread at a time, and `from_abi` has accepted the
        // pointer.
        unsafe { show(cq, &found.current, next) }
    })
}

unsafe extern "C" fn end_poll(_cq: *mut abi::CqEx) {}

/// Shows a completion to the program.
///
/// # Safety
/// `cq` is a live queue, which one thread at a time polls in this way.
unsafe fn show(cq: *mut abi::CqEx, current: &Mutex<abi::Wc>, next: Option<WorkCompletion>) -> Result<()> {
    let completion = to_abi(&next.ok_or(Errno(libc::ENOENT))?);
    // SAFETY: guaranteed by the caller.
    unsafe { ((*cq).wr_id, (*cq).status) = (completion.wr_id, completion.status) };
    *current.lock() = completion;
    Ok(())
}

/// Returns a field of the completion that is shown.
fn field<T: Default>(cq: *mut abi::CqEx, read: impl FnOnce(&abi::Wc) -> T) -> T {
    // SAFETY: the program reads fields of a queue that it has not destroyed.
    unsafe { from_abi(cq.cast()) }.map_or_else(|_| T::default(), |found| read(&found.current.lock()))
}

unsafe extern "C" fn read_opcode(cq: *mut abi::CqEx) -> c_int {
    field(cq, |completion| completion.opcode)
}

unsafe extern "C" fn read_vendor_err(cq: *mut abi::CqEx) -> u32 {
    field(cq, |completion| completion.vendor_err)
}

unsafe extern "C" fn read_byte_len(cq: *mut abi::CqEx) -> u32 {
    field(cq, |completion| completion.byte_len)
}

unsafe extern "C" fn read_imm_data(cq: *mut abi::CqEx) -> u32 {
    field(cq, |completion| completion.imm_data)
}

unsafe extern "C" fn read_qp_num(cq: *mut abi::CqEx) -> u32 {
    field(cq, |completion| completion.qp_num)
}

unsafe extern "C" fn read_src_qp(cq: *mut abi::CqEx) -> u32 {
    field(cq, |completion| completion.src_qp)
}

unsafe extern "C" fn read_wc_flags(cq: *mut abi::CqEx) -> c_uint {
    field(cq, |completion| completion.wc_flags)
}

unsafe extern "C" fn read_slid(cq: *mut abi::CqEx) -> u32 {
    field(cq, |completion| completion.slid.into())
}

unsafe extern "C" fn read_sl(cq: *mut abi::CqEx) -> u8 {
    field(cq, |completion| completion.sl)
}

unsafe extern "C" fn read_dlid_path_bits(cq: *mut abi::CqEx) -> u8 {
    field(cq, |completion| completion.dlid_path_bits)
}
