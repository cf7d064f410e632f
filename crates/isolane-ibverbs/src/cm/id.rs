//! Identifiers: the sockets of the connection manager.

use std::ffi::{c_int, c_void};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

use isolane_verbs::connection_manager::{Bound, bind};
use libc::{sockaddr, sockaddr_storage};
use parking_lot::Mutex;

use super::agent::agent;
use super::event::{self, Content, EventChannel, EventPointer};
use super::message::{CONSUMER_DEFINED, Kind, Message};
use crate::abi;
use crate::channel::{Channel, Unacknowledged};
use crate::device::{Device, devices};
use crate::ffi::{Errno, Result, check, into_raw, object, output, value};
use crate::memory::ibv_alloc_pd;
use crate::open::ibv_open_device;

/// An identifier.
#[repr(C)]
pub(super) struct Id {
    pub(super) abi: abi::CmId,
    pub(super) shared: Arc<Shared>,
    /// Its operations wait for their event.
    pub(super) is_synchronous: bool,
    /// Attributes of the queue pairs that a listener makes for its requests.
    pub(super) qp_attributes: Option<abi::QpInitAttr>,
}

/// The part of an identifier that the agent uses.
pub(super) struct Shared {
    pub(super) id: AtomicPtr<abi::CmId>,
    pub(super) channel: Mutex<Arc<Channel<EventPointer>>>,
    pub(super) state: Mutex<State>,
    pub(super) unacknowledged: Arc<Unacknowledged>,
    pub(super) is_datagram: bool,
    /// The identifier of the program lives. The agent holds the lock while it uses it.
    pub(super) is_alive: Mutex<bool>,
    /// This identifier, for the agent.
    pub(super) weak: Weak<Shared>,
    /// The listener that has made it.
    pub(super) listener: Weak<Shared>,
}

#[derive(Default)]
pub(super) struct State {
    /// Number of its listener, attempt, or connection at the agent.
    pub(super) number: Option<u64>,
    /// Whether `[::]` excludes addresses of version 4, if the program has set it.
    pub(super) is_v6_only: Option<bool>,
    /// A bound port that does not listen yet.
    pub(super) bound: Option<Bound>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    /// Request or reply of the peer.
    pub(super) offer: Option<Message>,
    /// Number of the first message of this end.
    pub(super) first_message: u32,
    /// READs and atomic operations that this end sends at a time, and executes at a time.
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    /// Code of the time after which requests without an answer fail.
    pub(super) timeout: Option<u8>,
    pub(super) stage: Stage,
    /// Maximum number of requests to a listener that the program has not taken.
    pub(super) backlog: usize,
}

/// Progress of a connection, which decides what a peer can send and a program can call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is no connection yet; a listener never has one.
    #[default]
    Idle,
    /// This end waits for an answer to its request.
    Requesting,
    /// The peer has accepted the request of this end.
    Answered,
    /// The peer waits for an answer to its request.
    Requested,
    /// This end has accepted the request of the peer.
    Accepted,
    Established,
    Ended,
}

impl State {
    /// Moves from one stage to another one. Returns `false` if the connection is not at that stage.
    pub(super) fn step(&mut self, from: Stage, to: Stage) -> bool {
        let is_there = self.stage == from;
        if is_there {
            self.stage = to;
        }
        is_there
    }
}

impl Shared {
    /// Returns the number of requests to a listener that the program has not taken.
    pub(super) fn waiting_requests(&self) -> usize {
        let listener = self.id.load(Ordering::Acquire);
        self.channel.lock().count(|event| event.request_to(listener).is_some())
    }

    /// Adds an event for the program.
    pub(super) fn push(&self, event: c_int, status: c_int) {
        self.push_with(event, status, None, &[], 0);
    }

    /// Adds an event with parameters and private data, which has `len` bytes.
    pub(super) fn push_with(
        &self,
        event: c_int,
        status: c_int,
        param: Option<abi::CmParam>,
        private_data: &[u8],
        len: usize,
    ) {
        // SAFETY: all fields are numbers and pointers.
        let param = param.unwrap_or_else(|| unsafe { std::mem::zeroed() });
        let mut private_data = private_data.to_vec();
        private_data.resize(len.max(private_data.len()), 0);
        let listener = self.listener.upgrade();
        let is_request = event == abi::CM_CONNECT_REQUEST;
        let listener = listener.filter(|_| is_request);
        let counters = listener.iter().map(|listener| Arc::clone(&listener.unacknowledged));
        let unacknowledged =
            counters.chain((!is_request).then(|| Arc::clone(&self.unacknowledged))).collect();
        let channel = match &listener {
            Some(listener) => Arc::clone(&listener.channel.lock()),
            None => Arc::clone(&self.channel.lock()),
        };
        channel.push(EventPointer::new(Content {
            id: self.id.load(Ordering::Acquire),
            listener: listener.map_or(null_mut(), |listener| listener.id.load(Ordering::Acquire)),
            event,
            status,
            param,
            private_data,
            is_datagram: self.is_datagram,
            unacknowledged,
        }));
    }
}

/// Creates an identifier.
///
/// # Safety
/// `channel` is null, or a channel that is not destroyed during the call.
pub(super) unsafe fn create(
    channel: *mut abi::CmEventChannel,
    context: *mut c_void,
    port_space: c_int,
    listener: Weak<Shared>,
) -> Result<*mut abi::CmId> {
    check(matches!(port_space, abi::PS_TCP | abi::PS_UDP | abi::PS_IB))?;
    let is_synchronous = channel.is_null();
    let channel = if is_synchronous { event::create()? } else { channel };
    // SAFETY: just made, or guaranteed by the caller to live during the call.
    let events = Arc::clone(&unsafe { object::<_, EventChannel>(channel) }?.events);
    let is_datagram = port_space == abi::PS_UDP;
    let shared = Arc::new_cyclic(|weak| Shared {
        id: AtomicPtr::default(),
        channel: Mutex::new(events),
        state: Mutex::new(State { first_message: random_first_message(), ..State::default() }),
        unacknowledged: Arc::default(),
        is_datagram,
        is_alive: Mutex::new(true),
        weak: Weak::clone(weak),
        listener,
    });
    // SAFETY: all fields are numbers and pointers.
    let empty: abi::CmId = unsafe { std::mem::zeroed() };
    let qp_type = if is_datagram { abi::QPT_UD } else { abi::QPT_RC };
    let abi = abi::CmId { channel, context, ps: port_space, qp_type, ..empty };
    let id = into_raw(Id { abi, shared: Arc::clone(&shared), is_synchronous, qp_attributes: None }).cast();
    shared.id.store(id, Ordering::Release);
    Ok(id)
}

/// Returns a random packet sequence number.
fn random_first_message() -> u32 {
    RandomState::new().build_hasher().finish() as u32 & 0xff_ffff
}

/// Borrows an identifier for changes.
///
/// # Safety
/// `id` is null, or an identifier that is not destroyed and that no other thread reads or changes while it is borrowed.
pub(super) unsafe fn from_abi<'a>(id: *mut abi::CmId) -> Result<&'a mut Id> {
    // SAFETY: guaranteed by the caller, and `create` makes each identifier as an `Id`.
    unsafe { id.cast::<Id>().as_mut() }.ok_or(Errno::INVALID)
}

/// Returns the part of an identifier that the agent uses.
///
/// # Safety
/// `id` is null, or an identifier that is not destroyed.
pub(super) unsafe fn shared(id: *mut abi::CmId) -> Result<Arc<Shared>> {
    // SAFETY: guaranteed by the caller, and `create` makes each identifier as an `Id`.
    Ok(Arc::clone(&unsafe { object::<_, Id>(id) }?.shared))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut abi::CmEventChannel,
    id: *mut *mut abi::CmId,
    context: *mut c_void,
    port_space: c_int,
) -> c_int {
    value(|| {
        // SAFETY: the program passes null or a pointer that no other thread uses during the call, and null or a channel
        // that it has not destroyed.
        unsafe { *output(id)? = create(channel, context, port_space, Weak::new())? };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut abi::CmId) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed.
        let shared = unsafe { shared(id) }?;
        close(&shared);
        *shared.is_alive.lock() = false;
        // SAFETY: as above. No thread of the program uses it again, and the agent finds `is_alive` unset; the last event
        // of a synchronous operation is owned by the identifier.
        unsafe { release_event(id) };
        discard_events(&shared, id);
        shared.unacknowledged.wait();
        // SAFETY: made by `create`; the program does not use it again, and the agent finds `is_alive` unset.
        let found = unsafe { Box::from_raw(id.cast::<Id>()) };
        if !found.abi.route.path_rec.is_null() {
            // SAFETY: made by `rdma_resolve_route` for this identifier, which owns it.
            drop(unsafe { Box::from_raw(found.abi.route.path_rec) });
        }
        if found.is_synchronous {
            // SAFETY: `create` or `rdma_migrate_id` has made the channel for this identifier alone.
            unsafe { event::rdma_destroy_event_channel(found.abi.channel) };
        }
        Ok(0)
    })
}

/// Ends what the agent does for an identifier. Returns the stage of its connection.
pub(super) fn close(shared: &Shared) -> Stage {
    let (number, stage) = {
        let mut state = shared.state.lock();
        (state.number.take(), std::mem::replace(&mut state.stage, Stage::Ended))
    };
    if let (Some(number), Ok(agent)) = (number, agent()) {
        if stage == Stage::Requested {
            let rejection = Message { reason: CONSUMER_DEFINED, ..Message::new(Kind::Reject) };
            let _ = agent.send(number, &rejection);
        }
        agent.close(number);
    }
    stage
}

fn discard_events(shared: &Shared, id: *mut abi::CmId) {
    let mut found = Vec::new();
    shared.channel.lock().remove(|event| {
        let is_own = event.names(id);
        found.extend(is_own.then_some(*event));
        is_own
    });
    for event in found {
        let request = event.request_to(id);
        event.discard();
        if let Some(request) = request {
            // SAFETY: the program never had this identifier: only its event named it, which is discarded.
            unsafe { rdma_destroy_id(request) };
        }
    }
}

/// Acknowledges the last event of a synchronous operation.
///
/// # Safety
/// `id` is a live identifier whose last event no other thread uses, and which is from its channel.
pub(super) unsafe fn release_event(id: *mut abi::CmId) {
    // SAFETY: guaranteed by the caller.
    let event = unsafe { std::mem::replace(&mut (*id).event, null_mut()) };
    if !event.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { event::rdma_ack_cm_event(event) };
    }
}

/// Waits for the event of an operation, if the identifier is synchronous. Nothing here borrows the whole identifier,
/// because the agent does.
///
/// # Safety
/// `id` is a live identifier that no other thread changes, and no reference of this thread to it is in use.
pub(super) unsafe fn complete(id: *mut abi::CmId) -> Result<c_int> {
    // SAFETY: guaranteed by the caller, and `create` makes each identifier as an `Id`.
    let (is_synchronous, channel) = unsafe { ((*id.cast::<Id>()).is_synchronous, (*id).channel) };
    if !is_synchronous {
        return Ok(0);
    }
    let mut event = null_mut();
    // SAFETY: the identifier is synchronous, so it owns its channel and its last event.
    unsafe {
        release_event(id);
        if event::rdma_get_cm_event(channel, &mut event) != 0 {
            return Err(Errno::last());
        }
        (*id).event = event;
        match ((*event).event, (*event).status) {
            (_, 0) => Ok(0),
            (abi::CM_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
            (_, status) => Err(Errno(status.abs())),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut abi::CmId, address: *mut sockaddr) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed and uses in one thread, and
        // null or an address of its family.
        let (found, address) = unsafe { (from_abi(id)?, read_address(address)?) };
        let mut state = found.shared.state.lock();
        check(state.local.is_none())?;
        let (bound, local) = bind(address, state.is_v6_only, found.shared.is_datagram)?;
        (state.bound, state.local) = (Some(bound), Some(local));
        drop(state);
        set_local(found, local);
        Ok(0)
    })
}

/// Returns the device of a local address. A loopback address has the first one, as in the kernel (`cma_bind_loopback`):
/// programs ignore the devices of the interface `lo`.
fn device_of(address: IpAddr) -> Option<&'static Device> {
    if address.is_loopback() {
        devices().first()
    } else {
        devices().iter().find(|device| device.address == address)
    }
}

/// Sets the local address, and its device.
pub(super) fn set_local(id: &mut Id, local: SocketAddr) {
    id.abi.route.addr.src_addr = write_address(local);
    if let Some(device) = device_of(local.ip()) {
        let opened = open(device);
        id.abi.verbs = opened.context;
        if id.abi.pd.is_null() {
            id.abi.pd = opened.pd;
        }
        id.abi.port_num = 1;
        id.abi.route.addr.sgid = abi::GidBytes(device.gid());
        id.abi.route.addr.pkey = u16::MAX;
    }
}

pub(super) fn set_peer(id: &mut Id, peer: SocketAddr) {
    id.abi.route.addr.dst_addr = write_address(peer);
    // The peer also has the first device if its address is a loopback one.
    let address = device_of(peer.ip()).map_or(peer.ip(), |device| device.address);
    id.abi.route.addr.dgid = abi::GidBytes(isolane_verbs::gid(address));
}

/// A device that stays open, with the domain of identifiers without one of the program.
#[derive(Clone, Copy)]
pub(super) struct Opened {
    pub(super) context: *mut abi::Context,
    pub(super) pd: *mut abi::Pd,
}

// SAFETY: any thread can use contexts and domains, and these two are never freed.
unsafe impl Send for Opened {}

/// Opens a device once. The pointers are null if that fails.
pub(super) fn open(device: &Device) -> Opened {
    static OPENED: Mutex<Vec<(usize, Opened)>> = Mutex::new(Vec::new());
    let mut all = OPENED.lock();
    if let Some((_, opened)) = all.iter().find(|(index, _)| *index == device.index) {
        return *opened;
    }
    // SAFETY: a device of `devices`, which lives forever.
    let context = unsafe { ibv_open_device(device.as_abi()) };
    if context.is_null() {
        return Opened { context, pd: null_mut() };
    }
    // SAFETY: just opened, and never closed.
    let opened = Opened { context, pd: unsafe { ibv_alloc_pd(context) } };
    all.push((device.index, opened));
    opened
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut abi::CmId,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed and uses in one thread, and
        // null or an address of its family.
        let (found, destination) = unsafe { (from_abi(id)?, read_address(destination)?) };
        // SAFETY: the program passes an address of its family.
        let source = if source.is_null() { None } else { Some(unsafe { read_address(source) }?) };
        let bound = {
            let state = found.shared.state.lock();
            check(state.peer.is_none() && state.number.is_none())?;
            state.local
        };
        let source = source.or(bound).filter(|source| !source.ip().is_unspecified());
        let destination = match destination.ip() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => {
                SocketAddr::new(Ipv4Addr::LOCALHOST.into(), destination.port())
            }
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
                SocketAddr::new(Ipv6Addr::LOCALHOST.into(), destination.port())
            }
            _ => destination,
        };
        let local = source.map_or_else(|| local_towards(destination), Ok);
        let local = local.ok().filter(|local| device_of(local.ip()).is_some());
        let Some(local) = local else {
            found.shared.push(abi::CM_ADDR_ERROR, -libc::ENODEV);
            // SAFETY: the identifier lives, and `found` is not used again.
            return unsafe { complete(id) };
        };
        {
            let mut state = found.shared.state.lock();
            (state.local, state.peer) = (Some(local), Some(destination));
        }
        set_local(found, local);
        set_peer(found, destination);
        found.shared.push(abi::CM_ADDR_RESOLVED, 0);
        // SAFETY: the identifier lives, and `found` is not used again.
        unsafe { complete(id) }
    })
}

/// Returns the local address from which the system reaches another one.
fn local_towards(destination: SocketAddr) -> io::Result<SocketAddr> {
    let any: IpAddr = match destination {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(destination)?;
    socket.local_addr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut abi::CmId, _timeout_ms: c_int) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed and uses in one thread.
        let found = unsafe { from_abi(id) }?;
        let route = &mut found.abi.route;
        {
            let state = found.shared.state.lock();
            let is_new = route.path_rec.is_null() && !found.abi.verbs.is_null();
            check(state.peer.is_some() && state.number.is_none() && is_new)?;
        }
        let path = abi::SaPathRec {
            dgid: route.addr.dgid,
            sgid: route.addr.sgid,
            mtu: abi::MTU_4096 as u8,
            reversible: 1,
            hop_limit: 64,
            pkey: u16::MAX,
            ..Default::default()
        };
        (route.path_rec, route.num_paths) = (into_raw(path), 1);
        found.shared.push(abi::CM_ROUTE_RESOLVED, 0);
        // SAFETY: the identifier lives, and `found` is not used again.
        unsafe { complete(id) }
    })
}

/// Reads an address of the program.
///
/// # Safety
/// `address` is null, or a structure of the type that its family names.
pub(super) unsafe fn read_address(address: *const sockaddr) -> Result<SocketAddr> {
    if address.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: not null, and guaranteed by the caller to have the type that its family names.
    unsafe {
        match c_int::from((*address).sa_family) {
            libc::AF_INET => {
                let found = &*address.cast::<libc::sockaddr_in>();
                let ip = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
                Ok(SocketAddr::new(ip.into(), u16::from_be(found.sin_port)))
            }
            libc::AF_INET6 => {
                let found = &*address.cast::<libc::sockaddr_in6>();
                let ip = IpAddr::from(found.sin6_addr.s6_addr).to_canonical();
                Ok(SocketAddr::new(ip, u16::from_be(found.sin6_port)))
            }
            // As librdmacm, which has no length for it.
            _ => Err(Errno::INVALID),
        }
    }
}

/// Returns an address for the program.
pub(super) fn write_address(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: all fields are numbers.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let start = &raw mut storage;
    // SAFETY: the storage has space for each type of address.
    unsafe {
        match address {
            SocketAddr::V4(address) => {
                let found = &mut *start.cast::<libc::sockaddr_in>();
                found.sin_family = libc::AF_INET as u16;
                found.sin_port = address.port().to_be();
                found.sin_addr.s_addr = u32::from(*address.ip()).to_be();
            }
            SocketAddr::V6(address) => {
                let found = &mut *start.cast::<libc::sockaddr_in6>();
                found.sin6_family = libc::AF_INET6 as u16;
                found.sin6_port = address.port().to_be();
                found.sin6_addr.s6_addr = address.ip().octets();
            }
        }
    }
    storage
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut abi::CmId) -> u16 {
    // SAFETY: the program passes null, or an identifier that it has not destroyed.
    unsafe { object::<_, Id>(id) }
        .ok()
        .and_then(|found| found.shared.state.lock().local)
        .map_or(0, |local| local.port().to_be())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut abi::CmId) -> u16 {
    // SAFETY: the program passes null, or an identifier that it has not destroyed.
    unsafe { object::<_, Id>(id) }
        .ok()
        .and_then(|found| found.shared.state.lock().peer)
        .map_or(0, |peer| peer.port().to_be())
}
