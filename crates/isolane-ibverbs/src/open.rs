//! Opening of devices, and their events.

use std::ffi::c_int;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use isolane_ffi::{install_logger, refuse};
use isolane_shm::with_only_faults_unblocked;
use isolane_verbs::{DeviceConfig, SharedKey};

use crate::channel::{Channel, Unacknowledged};
use crate::context::{self, Context};
use crate::device::Device;
use crate::ffi::{Result, Users, into_raw, object, output, pointer, report, value};
use crate::{
    abi, completion_queue, control, create_cq, create_qp, memory, post, queue_pair, shared_receive_queue,
};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut abi::Device) -> *mut abi::Context {
    pointer(|| {
        // SAFETY: null, or a device of `devices`, which lives forever.
        let device: &'static Device = unsafe { object(device) }?;
        let verbs = open_verbs(device)?;
        let events = Channel::new()?;
        let command = OwnedFd::from(std::fs::File::open("/dev/null")?);
        let abi = abi(device, command.as_raw_fd(), events.fd());
        let context = into_raw(Context {
            abi,
            device,
            verbs,
            events,
            users: Users::default(),
            process: std::process::id(),
            _command: command,
        });
        // SAFETY: just made, so the pointer is valid, and no field is read.
        Ok(unsafe { &raw mut (*context).abi.context })
    })
}

/// Opens the device of the library, whose threads take no signals.
fn open_verbs(device: &Device) -> Result<isolane_verbs::Device> {
    // A peer with another key, or without one, causes a warning.
    install_logger();
    let config = DeviceConfig::from_environment().map_err(refuse)?;
    let config = DeviceConfig { address: device.address, observed: control::open(), ..config };
    let opened = with_only_faults_unblocked(|| isolane_verbs::Device::open(config));
    Ok(opened.inspect_err(|error| report(&format!("cannot open a device: {error}")))?)
}

/// Returns the key that all peers have, if the environment names its file.
pub(crate) fn shared_key() -> Result<Option<Arc<SharedKey>>> {
    install_logger();
    SharedKey::of_program().map_err(refuse)
}

fn abi(device: &Device, cmd_fd: c_int, async_fd: c_int) -> abi::VerbsContext {
    let ops = abi::ContextOps {
        query_device: Some(context::ibv_query_device),
        query_port: Some(context::ibv_query_port),
        compat_memory: [0; 5],
        alloc_mw: 0,
        bind_mw: 0,
        dealloc_mw: 0,
        compat_create_cq: 0,
        poll_cq: Some(completion_queue::poll_cq),
        req_notify_cq: Some(completion_queue::req_notify_cq),
        compat_cq: [0; 3],
        compat_srq: [0; 4],
        post_srq_recv: Some(post::post_srq_recv),
        compat_qp: [0; 4],
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        compat_ah: [0; 5],
    };
    let context = abi::Context {
        device: device.as_abi(),
        ops,
        cmd_fd,
        async_fd,
        num_comp_vectors: 1,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        // The mark of the structure with later functions.
        abi_compat: std::ptr::without_provenance_mut(usize::MAX),
    };
    abi::VerbsContext {
        query_port: Some(context::query_port),
        advise_mr: Some(memory::advise_mr),
        alloc_null_mr: 0,
        counters: [0; 4],
        device_memory: [0; 3],
        flow_actions: [0; 3],
        modify_qp_rate_limit: 0,
        alloc_parent_domain: Some(memory::alloc_parent_domain),
        dealloc_td: Some(memory::dealloc_td),
        alloc_td: Some(memory::alloc_td),
        modify_cq: 0,
        post_srq_ops: 0,
        work_queues: [0; 5],
        query_rt_values: 0,
        create_cq_ex: Some(create_cq::create_cq_ex),
        private: std::ptr::null_mut(),
        query_device_ex: Some(context::query_device_ex),
        destroy_flow: 0,
        placeholder2: 0,
        create_flow: 0,
        placeholder1: 0,
        open_qp: 0,
        create_qp_ex: Some(create_qp::create_qp_ex),
        get_srq_num: Some(shared_receive_queue::get_srq_num),
        create_srq_ex: Some(shared_receive_queue::create_srq_ex),
        open_xrcd: 0,
        close_xrcd: 0,
        placeholder3: 0,
        sz: size_of::<abi::VerbsContext>(),
        context,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut abi::Context,
    event: *mut abi::AsyncEvent,
) -> c_int {
    value(|| {
        // SAFETY: the program passes null or an open context, and null or an event that no other thread uses during
        // the call.
        let (context, event) = unsafe { (Context::from_abi(context)?, output(event)?) };
        *event = context.events.next()?;
        // SAFETY: the object of an event lives until its events are acknowledged.
        if let Some(unacknowledged) = unsafe { unacknowledged(event) } {
            unacknowledged.add();
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut abi::AsyncEvent) {
    // SAFETY: the program passes null, or an event of `ibv_get_async_event` that no other thread uses during the
    // call.
    if let Ok(event) = unsafe { output(event) }
        // SAFETY: the object lives, because this event is not acknowledged.
        && let Some(unacknowledged) = unsafe { unacknowledged(event) }
    {
        unacknowledged.acknowledge(1);
    }
}

/// Returns the counter of the object of an event.
///
/// # Safety
/// The object of the event lives: it is not destroyed before its events are acknowledged.
unsafe fn unacknowledged<'a>(event: &abi::AsyncEvent) -> Option<&'a Unacknowledged> {
    // SAFETY: guaranteed by the caller; each type of event sets the member of the union that is read here.
    unsafe {
        match event.event_type {
            abi::EVENT_CQ_ERR => completion_queue::async_events(event.element.cq.cast()),
            abi::EVENT_SRQ_LIMIT_REACHED => shared_receive_queue::async_events(event.element.srq.cast()),
            _ => queue_pair::async_events(event.element.qp.cast()),
        }
    }
}
