//! Requests of peers that the program has not answered.
//!
//! Invariant: a handle of the program is used only while its request waits.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use isolane_shm::with_only_faults_unblocked;
use isolane_verbs::connection_manager::{self, Agent};
use isolane_verbs::wire::connection_manager::{CONSUMER_DEFINED, Kind, Message};
use parking_lot::Mutex;

use crate::abi;
use crate::ffi::{Result, check};
use crate::host::OwnedInfo;

/// Maximum length of private data in bytes.
pub(crate) const MAX_DATA: usize = 255;

pub(crate) fn agent() -> io::Result<&'static Arc<Agent>> {
    with_only_faults_unblocked(connection_manager::agent)
}

/// A request of a peer that the program has not answered.
#[derive(Clone)]
pub(crate) struct ConnectionRequest {
    handle: usize,
    pub(crate) number: u64,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) offer: Message,
}

/// Requests by the address of their handle. The memory of a handle is not used for another one while it is here.
static REQUESTS: LazyLock<Mutex<HashMap<usize, (ConnectionRequest, Handle)>>> = LazyLock::new(Mutex::default);

/// A `fid` that stands for a request.
struct Handle(Box<abi::Fid>);

// SAFETY: it never changes, and only its address is used.
unsafe impl Send for Handle {}

impl ConnectionRequest {
    /// Adds a request, and returns the address of its handle.
    pub(crate) fn add(
        number: u64,
        local: SocketAddr,
        peer: SocketAddr,
        offer: Message,
        ops: &'static abi::FidOps,
    ) -> *mut abi::Fid {
        let fid = abi::Fid { class: abi::CLASS_CONNREQ, context: std::ptr::null_mut(), ops };
        let handle = Handle(Box::new(fid));
        let pointer = std::ptr::from_ref(&*handle.0).cast_mut();
        let request = ConnectionRequest { handle: pointer.expose_provenance(), number, local, peer, offer };
        REQUESTS.lock().insert(pointer.addr(), (request, handle));
        pointer
    }

    /// Finds the request of a handle.
    pub(crate) fn find(handle: *mut abi::Fid) -> Option<ConnectionRequest> {
        REQUESTS.lock().get(&handle.addr()).map(|(request, _)| request.clone())
    }

    /// Removes the request, and returns the number of its connection.
    pub(crate) fn take(&self) -> u64 {
        REQUESTS.lock().remove(&self.handle);
        self.number
    }

    pub(crate) fn reject(&self, data: &[u8]) -> Result<()> {
        check(data.len() <= MAX_DATA)?;
        let private_data = data.to_vec();
        let rejection = Message { reason: CONSUMER_DEFINED, private_data, ..Message::new(Kind::Reject) };
        let (number, agent) = (self.take(), agent()?);
        // The peer can have gone.
        let _ = agent.send(number, &rejection);
        agent.close(number);
        Ok(())
    }
}

/// Rejects the request that an unread event reports.
pub(crate) fn drop_request(info: &OwnedInfo) {
    if let Some(request) = ConnectionRequest::find(info.get().handle) {
        let _ = request.reject(&[]);
    }
}
