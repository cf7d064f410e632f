//! Event channels of the connection manager.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use crate::abi;
use crate::channel::{Channel, Unacknowledged};
use crate::ffi::{Result, into_raw, object, output, pointer, text, value};

/// An event channel.
#[repr(C)]
pub(super) struct EventChannel {
    pub(super) abi: abi::CmEventChannel,
    pub(super) events: Arc<Channel<EventPointer>>,
}

/// An event of the program.
#[repr(C)]
pub(super) struct Event {
    pub(super) abi: abi::CmEvent,
    private_data: [u8; 256],
    /// Counters of the identifiers that it names.
    unacknowledged: Vec<Arc<Unacknowledged>>,
}

/// An event that the program has not taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct EventPointer(*mut Event);

// SAFETY: the event is owned by the channel, and then by the program.
unsafe impl Send for EventPointer {}

/// Content of an event.
pub(super) struct Content {
    pub(super) id: *mut abi::CmId,
    pub(super) listener: *mut abi::CmId,
    pub(super) event: c_int,
    pub(super) status: c_int,
    pub(super) param: abi::CmParam,
    /// With the length that programs expect.
    pub(super) private_data: Vec<u8>,
    pub(super) is_datagram: bool,
    pub(super) unacknowledged: Vec<Arc<Unacknowledged>>,
}

impl EventPointer {
    pub(super) fn new(content: Content) -> EventPointer {
        let Content { id, listener, event, status, param, private_data, is_datagram, unacknowledged } =
            content;
        let abi = abi::CmEvent { id, listen_id: listener, event, status, param };
        let made = into_raw(Event { abi, private_data: [0; 256], unacknowledged });
        // SAFETY: just made, so this is the only pointer to it.
        let fields = unsafe { &mut *made };
        let len = private_data.len().min(255);
        fields.private_data[..len].copy_from_slice(&private_data[..len]);
        let start = if len > 0 { fields.private_data.as_ptr().cast() } else { std::ptr::null() };
        let len = len as u8;
        if is_datagram {
            (fields.abi.param.ud.private_data, fields.abi.param.ud.private_data_len) = (start, len);
        } else {
            (fields.abi.param.conn.private_data, fields.abi.param.conn.private_data_len) = (start, len);
        }
        EventPointer(made)
    }

    pub(super) fn names(&self, id: *mut abi::CmId) -> bool {
        // SAFETY: the event lives: the caller holds the lock of its channel, or has removed it from there.
        unsafe { (*self.0).abi.id == id || (*self.0).abi.listen_id == id }
    }

    /// Returns the identifier of a request to a listener.
    pub(super) fn request_to(&self, listener: *mut abi::CmId) -> Option<*mut abi::CmId> {
        // SAFETY: the event lives: the caller holds the lock of its channel, or has removed it from there.
        unsafe { ((*self.0).abi.listen_id == listener).then_some((*self.0).abi.id) }
    }

    /// Drops an event that the program has not taken.
    pub(super) fn discard(self) {
        // SAFETY: removed from its channel before the program has seen it, so this is the only pointer to it.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Creates a channel.
pub(super) fn create() -> Result<*mut abi::CmEventChannel> {
    let events = Arc::new(Channel::new()?);
    Ok(into_raw(EventChannel { abi: abi::CmEventChannel { fd: events.fd() }, events }).cast())
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut abi::CmEventChannel {
    pointer(create)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut abi::CmEventChannel) {
    if !channel.is_null() {
        // SAFETY: made by `create`, and not used again: the program has destroyed or migrated its identifiers, or it is
        // the own channel of a synchronous identifier, which ends or has another one.
        drop(unsafe { Box::from_raw(channel.cast::<EventChannel>()) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut abi::CmEventChannel,
    event: *mut *mut abi::CmEvent,
) -> c_int {
    value(|| {
        // SAFETY: the program passes null or a live channel, and null or a pointer that no other thread uses during
        // the call.
        let (channel, event) = unsafe { (object::<_, EventChannel>(channel)?, output(event)?) };
        let EventPointer(next) = channel.events.next()?;
        // SAFETY: removed from its channel, so only this thread has it.
        unsafe { &*next }.unacknowledged.iter().for_each(|counter| counter.add());
        *event = next.cast();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut abi::CmEvent) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an event of `rdma_get_cm_event` that it has not acknowledged.
        unsafe { object::<_, Event>(event) }?;
        // SAFETY: made by `EventPointer::new`, and the program does not use it again.
        let event = unsafe { Box::from_raw(event.cast::<Event>()) };
        event.unacknowledged.iter().for_each(|counter| counter.acknowledge(1));
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_event_str(number: c_int) -> *const c_char {
    text(match number {
        abi::CM_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        abi::CM_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        abi::CM_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        3 => c"RDMA_CM_EVENT_ROUTE_ERROR",
        abi::CM_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        abi::CM_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        abi::CM_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        abi::CM_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        abi::CM_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        abi::CM_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        abi::CM_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        11 => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        12 => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        13 => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        14 => c"RDMA_CM_EVENT_ADDR_CHANGE",
        15 => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    })
}
