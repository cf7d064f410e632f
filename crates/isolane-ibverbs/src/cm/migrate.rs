//! Identifiers that move to other event channels.

use std::ffi::c_int;
use std::sync::Arc;

use super::event::{self, EventChannel};
use super::id::{from_abi, release_event, shared};
use crate::abi;
use crate::ffi::{Result, object, value};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut abi::CmId, channel: *mut abi::CmEventChannel) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed.
        let shared = unsafe { shared(id) }?;
        let is_synchronous = channel.is_null();
        let channel = if is_synchronous { event::create()? } else { channel };
        let (old, was_synchronous) = {
            let _guard = shared.is_alive.lock();
            // SAFETY: as above; the program uses the identifier in one thread, and the lock keeps the agent from it.
            let found = unsafe { from_abi(id) }?;
            let was_synchronous = std::mem::replace(&mut found.is_synchronous, is_synchronous);
            (found.abi.channel, was_synchronous)
        };
        // SAFETY: the identifier lives; the channel is new, or one that the program has not destroyed.
        unsafe { move_to(id, channel) }?;
        if was_synchronous {
            // SAFETY: the identifier was synchronous, so it owned its channel and its last event.
            unsafe {
                release_event(id);
                event::rdma_destroy_event_channel(old);
            }
        }
        Ok(0)
    })
}

/// Moves an identifier to another channel, with its events and with the requests to it that the program has not taken.
///
/// # Safety
/// `id` is a live identifier that no thread but the agent uses, and `channel` a live channel.
unsafe fn move_to(id: *mut abi::CmId, channel: *mut abi::CmEventChannel) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let (own, events) = unsafe { (shared(id)?, Arc::clone(&object::<_, EventChannel>(channel)?.events)) };
    // The agent adds no request, and no event of one, while this has the locks.
    let _guard = own.is_alive.lock();
    let old = Arc::clone(&own.channel.lock());
    let mut ids = vec![id];
    old.count(|event| {
        ids.extend(event.request_to(id));
        false
    });
    // SAFETY: the program does not have these identifiers yet: only their events name them.
    let requests = ids[1..].iter().map(|request| unsafe { shared(*request) });
    let requests = requests.collect::<Result<Vec<_>>>()?;
    let _guards: Vec<_> = requests.iter().map(|request| request.is_alive.lock()).collect();
    let mut moved = Vec::new();
    old.remove(|event| {
        let is_own = ids.iter().any(|id| event.names(*id));
        moved.extend(is_own.then_some(*event));
        is_own
    });
    for (id, shared) in ids.iter().zip([&own].into_iter().chain(&requests)) {
        // SAFETY: as above, and the locks keep the agent from the identifiers.
        unsafe { (**id).channel = channel };
        *shared.channel.lock() = Arc::clone(&events);
    }
    moved.into_iter().for_each(|event| events.push(event));
    Ok(())
}
