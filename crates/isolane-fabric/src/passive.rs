//! Passive endpoints: listeners.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use isolane_verbs::connection_manager::{self, Answer, Bound, Handler, HandlerRef};
use isolane_verbs::wire::connection_manager::{Kind, Message};
use parking_lot::Mutex;

use crate::abi::{self, CmOps, EpOps, Fid, FidEp, FidFabric, FidOps, FidPep, Info};
use crate::address;
use crate::event_queue::{Event, EventQueue, Events};
use crate::ffi::{
    Errno, NO, Result, Users, check, input, into_raw, no_bind, no_cancel, no_control, object, output, status,
    values,
};
use crate::host::{OwnedInfo, allocate};
use crate::objects::{Fabric, shared_key};
use crate::request::{ConnectionRequest, MAX_DATA, agent};

/// A passive endpoint.
#[repr(C)]
pub(crate) struct Pep {
    abi: FidPep,
    fabric: Arc<Users>,
    shared: Arc<Shared>,
}

/// The part that the agent uses.
struct Shared {
    weak: Weak<Shared>,
    fid: AtomicUsize,
    /// The endpoint is open. The agent holds the lock while it uses it.
    is_open: Mutex<bool>,
    state: Mutex<State>,
    /// The offer that the program has made it of.
    info: OwnedInfo,
}

struct State {
    events: Option<Arc<Events>>,
    /// Address that the program knows; its port is 0 until it is bound.
    local: SocketAddr,
    bound: Option<Bound>,
    is_bound: bool,
    backlog: c_int,
    /// Number of the listener at the agent.
    number: Option<u64>,
    /// Maximum number of requests that the program has not read.
    max_waiting: usize,
}

impl Shared {
    /// Binds the port, unless it is bound.
    fn bind(state: &mut State) -> Result<()> {
        if !state.is_bound {
            let (bound, local) = connection_manager::bind(state.local, None, false)?;
            (state.bound, state.local, state.is_bound) = (Some(bound), local, true);
        }
        Ok(())
    }

    fn listen(&self) -> Result<()> {
        let (agent, key) = (agent()?, shared_key()?);
        let mut state = self.state.lock();
        if state.events.is_none() {
            return Err(Errno(abi::ENOEQ));
        }
        check(state.number.is_none())?;
        Shared::bind(&mut state)?;
        let bound = state.bound.take().ok_or(Errno::INVALID)?;
        let handler: HandlerRef = Weak::<Shared>::clone(&self.weak);
        let port = (state.local.port(), false);
        let listener = bound.listen(state.backlog, port, key, handler)?;
        state.max_waiting = listener.backlog();
        let number = agent.number();
        state.number = Some(number);
        agent.listen(number, listener)?;
        Ok(())
    }

    /// Reports a request to the program.
    fn report(&self, connection: u64, local: SocketAddr, peer: SocketAddr, request: Message) -> Result<()> {
        let state = self.state.lock();
        let events = state.events.as_ref().ok_or(Errno(abi::ENOEQ))?;
        check(request.kind == Kind::Request && !request.is_datagram && request.spares_receives)?;
        check(request.port == state.local.port())?;
        let local = SocketAddr::new(local.ip().to_canonical(), state.local.port());
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        // SAFETY: an offer of libfabric, which this value owns.
        let mut info = unsafe { OwnedInfo::copy(self.info.get()) }?;
        let fields = info.get_mut();
        fields.addr_format = address::format(local);
        replace(&mut fields.src_addr, &mut fields.src_addrlen, local)?;
        replace(&mut fields.dest_addr, &mut fields.dest_addrlen, peer)?;
        let data = request.private_data.clone();
        fields.handle = ConnectionRequest::add(connection, local, peer, request, &REQUEST_OPS);
        let fid = self.fid.load(Ordering::Acquire);
        events.push(Event::Connection { event: abi::CONNREQ, fid, info: Some(info), data });
        Ok(())
    }
}

/// Replaces an address of libfabric.
fn replace(place: &mut *mut c_void, len: &mut usize, address: SocketAddr) -> Result<()> {
    let bytes = address::bytes(address);
    let new = allocate(&bytes)?;
    // SAFETY: null, or memory of the C library that the structure owns.
    unsafe { libc::free(*place) };
    (*place, *len) = (new, bytes.len());
    Ok(())
}

impl Handler for Shared {
    fn requested(&self, connection: u64, local: SocketAddr, peer: SocketAddr, request: Message) -> Answer {
        let is_open = self.is_open.lock();
        if !*is_open {
            return Answer::Refused;
        }
        let (waiting, max_waiting) = {
            let state = self.state.lock();
            let fid = self.fid.load(Ordering::Acquire);
            (state.events.as_ref().map_or(0, |events| events.count(fid)), state.max_waiting)
        };
        if waiting >= max_waiting {
            return Answer::Busy;
        }
        match self.report(connection, local, peer, request) {
            Ok(()) => Answer::Taken,
            Err(_) => Answer::Refused,
        }
    }

    fn received(&self, _: Message) {}

    fn failed(&self, _: bool) {}

    fn closed(&self) {}
}

pub(crate) unsafe extern "C" fn open(
    fabric: *mut FidFabric,
    info: *mut Info,
    pep: *mut *mut FidPep,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or an open fabric, an offer of `getinfo`, and a place for the endpoint.
        let (fabric, found, pep) = unsafe { (object::<_, Fabric>(fabric)?, input(info)?, output(pep)?) };
        // SAFETY: as above; the address has its length.
        let (source, info) =
            unsafe { (address::read_with_len(found.src_addr, found.src_addrlen), OwnedInfo::copy(info)?) };
        let state = State {
            events: None,
            local: source.unwrap_or(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0)),
            bound: None,
            is_bound: false,
            backlog: 0,
            number: None,
            max_waiting: 0,
        };
        let shared = Arc::new_cyclic(|weak| Shared {
            weak: Weak::clone(weak),
            fid: AtomicUsize::new(0),
            is_open: Mutex::new(true),
            state: Mutex::new(state),
            info,
        });
        fabric.users.add();
        let made = into_raw(Pep {
            abi: FidPep {
                fid: Fid { class: abi::CLASS_PEP, context, ops: &FID_OPS },
                ops: &EP_OPS,
                cm: &CM_OPS,
            },
            fabric: Arc::clone(&fabric.users),
            shared: Arc::clone(&shared),
        });
        shared.fid.store(made.expose_provenance(), Ordering::Release);
        *pep = made.cast();
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open passive endpoint.
        let pep = unsafe { object::<_, Pep>(fid) }?;
        *pep.shared.is_open.lock() = false;
        let (number, events) = {
            let mut state = pep.shared.state.lock();
            (state.number.take(), state.events.take())
        };
        if let Some(number) = number {
            agent()?.close(number);
        }
        if let Some(events) = events {
            events.forget(fid.addr());
            events.users.remove();
        }
        pep.fabric.remove();
        // SAFETY: made by `open`, and not used again.
        drop(unsafe { Box::from_raw(fid.cast::<Pep>()) });
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, _flags: u64) -> c_int {
    status(|| {
        // SAFETY: the program passes null or open objects.
        let (pep, other_fid) = unsafe { (object::<_, Pep>(fid)?, input(other)?) };
        check(other_fid.class == abi::CLASS_EQ)?;
        // SAFETY: the class is the one of the type.
        let eq = unsafe { object::<_, EventQueue>(other) }?;
        let mut state = pep.shared.state.lock();
        check(state.events.is_none())?;
        eq.events.users.add();
        state.events = Some(Arc::clone(&eq.events));
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open passive endpoint.
        let pep = unsafe { object::<_, Pep>(fid) }?;
        if command != abi::BACKLOG {
            return Err(Errno::NO_FUNCTION);
        }
        // SAFETY: the argument of this command is a number.
        pep.shared.state.lock().backlog = *unsafe { input(argument.cast::<c_int>()) }?;
        Ok(())
    })
}

unsafe extern "C" fn setname(fid: *mut Fid, name: *mut c_void, len: usize) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or an open passive endpoint and an address of `len` bytes.
        let (pep, name) = unsafe { (object::<_, Pep>(fid)?, address::read_with_len(name, len)) };
        let mut state = pep.shared.state.lock();
        check(state.number.is_none())?;
        let local = name.ok_or(Errno::INVALID)?;
        (state.local, state.bound, state.is_bound) = (local, None, false);
        Shared::bind(&mut state)
    })
}

unsafe extern "C" fn getname(fid: *mut Fid, name: *mut c_void, len: *mut usize) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open passive endpoint.
        let pep = unsafe { object::<_, Pep>(fid) }?;
        let local = {
            let mut state = pep.shared.state.lock();
            Shared::bind(&mut state)?;
            state.local
        };
        // SAFETY: the program passes null, or a buffer and its length.
        unsafe { address::write(local, name, len) }
    })
}

/// Returns the address of a passive endpoint, which an endpoint takes over. `None` if it is another object.
///
/// # Safety
/// `handle` is null or an open object.
pub(crate) unsafe fn address_of(handle: *mut Fid) -> Option<SocketAddr> {
    // SAFETY: guaranteed by the caller; the class is the one of the type.
    unsafe {
        let is_pep = handle.as_ref().is_some_and(|fid| fid.class == abi::CLASS_PEP);
        let pep: &Pep = object(handle).ok().filter(|_| is_pep)?;
        let local = pep.shared.state.lock().local;
        Some(local)
    }
}

unsafe extern "C" fn listen(pep: *mut FidPep) -> c_int {
    // SAFETY: the program passes null or an open passive endpoint.
    status(|| unsafe { object::<_, Pep>(pep) }?.shared.listen())
}

unsafe extern "C" fn reject(_: *mut FidPep, handle: *mut Fid, data: *const c_void, len: usize) -> c_int {
    status(|| {
        let request = ConnectionRequest::find(handle).ok_or(Errno::INVALID)?;
        // SAFETY: the program passes null or `len` bytes.
        request.reject(unsafe { values(data.cast::<u8>(), len) }?)
    })
}

unsafe extern "C" fn getopt(
    _: *mut Fid,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: as guaranteed for this function.
    status(|| unsafe { data_size(level, option, value, len) })
}

/// Returns the only option: the maximum length of private data.
///
/// # Safety
/// `len` is null or valid, and `value` null or has `*len` bytes.
pub(crate) unsafe fn data_size(
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> Result<()> {
    if (level, option) != (abi::OPT_ENDPOINT, abi::OPT_CM_DATA_SIZE) {
        return Err(Errno(libc::ENOPROTOOPT));
    }
    // SAFETY: guaranteed by the caller.
    let (value, len) = unsafe { (output(value.cast::<usize>())?, output(len)?) };
    if *len < size_of::<usize>() {
        *len = size_of::<usize>();
        return Err(Errno(abi::ETOOSMALL));
    }
    (*value, *len) = (MAX_DATA, size_of::<usize>());
    Ok(())
}

unsafe extern "C" fn setopt(_: *mut Fid, _: c_int, _: c_int, _: *const c_void, _: usize) -> c_int {
    -libc::ENOPROTOOPT
}

unsafe extern "C" fn getpeer(_: *mut FidEp, _: *mut c_void, _: *mut usize) -> c_int {
    -libc::ENOTCONN
}

unsafe extern "C" fn connect(_: *mut FidEp, _: *const c_void, _: *const c_void, _: usize) -> c_int {
    -libc::EINVAL
}

unsafe extern "C" fn accept(_: *mut FidEp, _: *const c_void, _: usize) -> c_int {
    -libc::EINVAL
}

unsafe extern "C" fn shutdown(_: *mut FidEp, _: u64) -> c_int {
    -libc::EINVAL
}

unsafe extern "C" fn close_request(handle: *mut Fid) -> c_int {
    status(|| ConnectionRequest::find(handle).ok_or(Errno::INVALID)?.reject(&[]))
}

static FID_OPS: FidOps = FidOps { size: size_of::<FidOps>(), close, bind, control, ops_open: NO };
static REQUEST_OPS: FidOps = FidOps {
    size: size_of::<FidOps>(),
    close: close_request,
    bind: no_bind,
    control: no_control,
    ops_open: NO,
};
static EP_OPS: EpOps = EpOps {
    size: size_of::<EpOps>(),
    cancel: no_cancel,
    getopt,
    setopt,
    tx_ctx: NO,
    rx_ctx: NO,
    rx_size_left: NO,
    tx_size_left: NO,
};
static CM_OPS: CmOps = CmOps {
    size: size_of::<CmOps>(),
    setname,
    getname,
    getpeer,
    connect,
    listen,
    accept,
    reject,
    shutdown,
    join: NO,
};
