//! Endpoints, and shared receive contexts.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use isolane_verbs::{Access, CompletionQueue, Limits, Queue, QueuePairConfig, Status};
use parking_lot::Mutex;

use crate::abi::{self, CmOps, EpOps, Fid, FidDomain, FidEp, FidOps, FidPep, Info, RxAttr};
use crate::completion_queue::{Cq, SILENT};
use crate::connect::Link;
use crate::counter::Counter;
use crate::event_queue::EventQueue;
use crate::ffi::{
    Errno, NO, Result, UNSUPPORTED_OPS, check, check_flags, count, input, into_raw, object, output,
    refuse_queue_pair, status, values,
};
use crate::info::{DEFAULT_REQUESTS, MAX_INJECT, MAX_IOV, MAX_REQUESTS};
use crate::objects::Domain;
use crate::passive::{address_of, data_size};
use crate::post::{Bindings, Ep, Srx};
use crate::request::ConnectionRequest;
use crate::{address, message, rma};

fn abi(class: usize, context: *mut c_void, fid_ops: &'static FidOps) -> FidEp {
    FidEp {
        fid: Fid { class, context, ops: fid_ops },
        ops: &EP_OPS,
        cm: &CM_OPS,
        msg: &message::OPS,
        rma: &rma::OPS,
        tagged: &UNSUPPORTED_OPS,
        atomic: &UNSUPPORTED_OPS,
        collective: &UNSUPPORTED_OPS,
    }
}

fn size(requested: usize) -> usize {
    if requested == 0 { DEFAULT_REQUESTS } else { requested.min(MAX_REQUESTS) }
}

pub(crate) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    info: *mut Info,
    ep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or an open domain, an offer of `getinfo`, and a place for the endpoint.
        let (domain, info, ep) = unsafe { (object::<_, Domain>(domain)?, input(info)?, output(ep)?) };
        // SAFETY: as above: attributes are null or valid, and the address has its length.
        let (tx, rx, local) = unsafe {
            let named = address::read_with_len(info.src_addr, info.src_addrlen);
            (info.tx_attr.as_ref(), info.rx_attr.as_ref(), address_of(info.handle).or(named))
        };
        let link = Link::new(local)?;
        domain.shared.users.add();
        let made = into_raw(Ep {
            abi: abi(abi::CLASS_EP, context, &FID_OPS),
            domain: Arc::clone(&domain.shared),
            link: Arc::clone(&link),
            bindings: Mutex::default(),
            request: ConnectionRequest::find(info.handle),
            caps: info.caps,
            sends: size(tx.map_or(0, |tx| tx.size)),
            receives: size(rx.map_or(0, |rx| rx.size)),
            send_flags: AtomicU64::new(tx.map_or(0, |tx| tx.op_flags)),
            receive_flags: AtomicU64::new(rx.map_or(0, |rx| rx.op_flags)),
            counts_requests: AtomicBool::new(false),
            selects_sends: AtomicBool::new(false),
            selects_receives: AtomicBool::new(false),
        });
        link.set_fid(made.expose_provenance());
        *ep = made.cast();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn open_shared(
    domain: *mut FidDomain,
    attributes: *mut RxAttr,
    srx: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or an open domain, attributes or null, and a place for the context.
        let (domain, attributes, srx) =
            unsafe { (object::<_, Domain>(domain)?, attributes.as_ref(), output(srx)?) };
        let domain = Arc::clone(&domain.shared);
        let receives = size(attributes.map_or(0, |attributes| attributes.size));
        let queue = domain.device.shared_receive_queue(Arc::clone(&domain.memory), receives, MAX_IOV);
        domain.users.add();
        let abi = abi(abi::CLASS_SRX_CTX, context, &SRX_FID_OPS);
        *srx = into_raw(Srx { abi, domain, queue, users: Arc::default(), bound: OnceLock::new() }).cast();
        Ok(())
    })
}

unsafe extern "C" fn close_shared(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open shared receive context.
        let srx = unsafe { object::<_, Srx>(fid) }?;
        srx.users.check_none()?;
        srx.domain.users.remove();
        if let Some((_, users)) = srx.bound.get() {
            users.remove();
        }
        // SAFETY: made by `open_shared`, and not used again.
        drop(unsafe { Box::from_raw(fid.cast::<Srx>()) });
        Ok(())
    })
}

/// Binds the queue where canceled receives are reported. All others complete in the queues of their endpoints.
unsafe extern "C" fn bind_shared(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: the program passes null or open objects.
        let (srx, class) = unsafe { (object::<_, Srx>(fid)?, input(other)?.class) };
        check(class == abi::CLASS_CQ && flags == abi::RECV)?;
        // SAFETY: the class is the one of the type.
        let cq = unsafe { object::<_, Cq>(other) }?;
        if !Arc::ptr_eq(&cq.domain, &srx.domain) {
            return Err(Errno(abi::EDOMAIN));
        }
        let bound = (Arc::clone(&cq.errors), Arc::clone(&cq.users));
        srx.bound.set(bound).map_err(|_| Errno::INVALID)?;
        cq.users.add();
        Ok(())
    })
}

/// Cancels a receive, if the peer cannot use it. Otherwise it completes as if it was not canceled.
unsafe extern "C" fn cancel(fid: *mut Fid, context: *mut c_void) -> isize {
    count(|| {
        let id = context.expose_provenance() as u64;
        // SAFETY: the program passes null, or an open endpoint or shared receive context.
        unsafe {
            if input(fid)?.class == abi::CLASS_SRX_CTX {
                let srx = object::<_, Srx>(fid)?;
                let (errors, _) = srx.bound.get().ok_or(Errno(abi::ENOCQ))?;
                if srx.queue.cancel(id) {
                    errors.report_canceled(id);
                }
            } else {
                Ep::from_abi(fid.cast())?.cancel(id)?;
            }
        }
        Ok(0)
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open endpoint.
        let ep = unsafe { object::<_, Ep>(fid) }?;
        ep.link.close();
        ep.bindings.lock().users.drain(..).for_each(|users| users.remove());
        ep.domain.users.remove();
        // SAFETY: made by `open`, and not used again.
        drop(unsafe { Box::from_raw(fid.cast::<Ep>()) });
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: the program passes null or open objects.
        let (ep, class) = unsafe { (object::<_, Ep>(fid)?, input(other)?.class) };
        check(ep.link.pair.get().is_none())?;
        let mut bindings = ep.bindings.lock();
        // SAFETY: the class is the one of the type.
        let users = unsafe {
            match class {
                abi::CLASS_EQ => {
                    let eq = object::<_, EventQueue>(other)?;
                    ep.link.events.set(Arc::clone(&eq.events)).map_err(|_| Errno::INVALID)?;
                    &eq.events.users
                }
                abi::CLASS_CQ => {
                    let cq = object::<_, Cq>(other)?;
                    if !Arc::ptr_eq(&cq.domain, &ep.domain) {
                        return Err(Errno(abi::EDOMAIN));
                    }
                    bind_queue(ep, &mut bindings, cq, flags)?;
                    &cq.users
                }
                abi::CLASS_CNTR => {
                    let counter = object::<_, Counter>(other)?;
                    if !Arc::ptr_eq(&counter.domain, &ep.domain) {
                        return Err(Errno(abi::EDOMAIN));
                    }
                    bindings.counters.bind(&counter.count, flags)?;
                    &counter.users
                }
                abi::CLASS_SRX_CTX => {
                    let srx = object::<_, Srx>(other)?;
                    if !Arc::ptr_eq(&srx.domain, &ep.domain) {
                        return Err(Errno(abi::EDOMAIN));
                    }
                    check(bindings.shared.is_none())?;
                    bindings.shared = Some(Arc::clone(&srx.queue));
                    &srx.users
                }
                _ => return Err(Errno::INVALID),
            }
        };
        users.add();
        bindings.users.push(Arc::clone(users));
        Ok(())
    })
}

fn bind_queue(ep: &Ep, bindings: &mut Bindings, cq: &Cq, flags: u64) -> Result<()> {
    check_flags(flags, abi::SEND | abi::RECV | abi::SELECTIVE_COMPLETION)?;
    check(flags & (abi::SEND | abi::RECV) != 0)?;
    let selects = flags & abi::SELECTIVE_COMPLETION != 0;
    if flags & abi::SEND != 0 {
        check(bindings.send.is_none())?;
        bindings.send = Some(Arc::clone(&cq.queue));
        ep.selects_sends.store(selects, Ordering::Relaxed);
    }
    if flags & abi::RECV != 0 {
        check(bindings.receive.is_none())?;
        bindings.receive = Some(Arc::clone(&cq.queue));
        bindings.receive_errors = Some(Arc::clone(&cq.errors));
        ep.selects_receives.store(selects, Ordering::Relaxed);
    }
    Ok(())
}

/// Creates the queue pair.
fn enable(ep: &Ep) -> Result<()> {
    check(ep.link.pair.get().is_none())?;
    if ep.link.events.get().is_none() {
        return Err(Errno(abi::ENOEQ));
    }
    let bindings = ep.bindings.lock();
    let counters = bindings.counters.clone();
    let queue = |bound: &Option<Arc<CompletionQueue>>, needed, is_counted: bool| match bound {
        Some(queue) => Ok(Arc::clone(queue)),
        None if ep.caps & needed != 0 && !is_counted => Err(Errno(abi::ENOCQ)),
        // It stays empty.
        None => Ok(ep.domain.device.completion_queue(1)),
    };
    let requests = abi::SEND | abi::READ | abi::WRITE;
    let send_queue = queue(&bindings.send, requests, counters.count_requests())?;
    let receive_queue = queue(&bindings.receive, abi::RECV, counters.receives.is_some())?;
    ep.counts_requests.store(counters.count_requests(), Ordering::Relaxed);
    let has_queues = (bindings.send.is_some(), bindings.receive.is_some());
    let link = Arc::downgrade(&ep.link);
    let limits =
        Limits { send_requests: ep.sends, receives: ep.receives, sges: MAX_IOV, inline_bytes: MAX_INJECT };
    let config = QueuePairConfig {
        send_queue,
        shared_receive_queue: bindings.shared.clone(),
        limits,
        // rxm closes an endpoint after the end of its peer, and then reads the completions.
        keeps_completions: true,
        // A WRITE with immediate data consumes no receive, and has no context.
        write_id: Some(0),
        on_completion: Some(Arc::new(move |queue, completion| {
            counters.count(completion);
            let has_queue = match queue {
                Queue::Send => has_queues.0,
                Queue::Receive => has_queues.1,
            };
            let is_silent = completion.id == SILENT;
            has_queue && !(is_silent && matches!(completion.status, Status::Success | Status::Flushed))
        })),
        on_end: Some(Arc::new(move || {
            if let Some(link) = link.upgrade() {
                link.on_end();
            }
        })),
        ..QueuePairConfig::new(Arc::clone(&ep.domain.memory), receive_queue)
    };
    let pair = ep.domain.device.create_queue_pair(&config).map_err(refuse_queue_pair)?;
    pair.initialize(Access::ALL).map_err(|_| Errno(abi::EOPBADSTATE))?;
    ep.link.pair.set(pair).map_err(|_| Errno::INVALID)
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open endpoint.
        let ep = unsafe { object::<_, Ep>(fid) }?;
        match command {
            abi::ENABLE => enable(ep),
            abi::GETOPSFLAG | abi::SETOPSFLAG => {
                // SAFETY: the argument of these commands is a set of flags.
                let flags = unsafe { output(argument.cast::<u64>()) }?;
                let place = match *flags & (abi::SEND | abi::RECV) {
                    abi::SEND => &ep.send_flags,
                    abi::RECV => &ep.receive_flags,
                    _ => return Err(Errno::INVALID),
                };
                if command == abi::GETOPSFLAG {
                    *flags = place.load(Ordering::Relaxed);
                } else {
                    place.store(*flags & !(abi::SEND | abi::RECV), Ordering::Relaxed);
                }
                Ok(())
            }
            _ => Err(Errno::NO_FUNCTION),
        }
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

unsafe extern "C" fn setopt(_: *mut Fid, _: c_int, _: c_int, _: *const c_void, _: usize) -> c_int {
    -libc::ENOPROTOOPT
}

unsafe extern "C" fn setname(fid: *mut Fid, name: *mut c_void, len: usize) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or an open endpoint and an address of `len` bytes.
        let (ep, name) = unsafe { (Ep::from_abi(fid.cast())?, address::read_with_len(name, len)) };
        ep.link.set_local(name.ok_or(Errno::INVALID)?);
        Ok(())
    })
}

unsafe extern "C" fn getname(fid: *mut Fid, name: *mut c_void, len: *mut usize) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open endpoint.
        let local = unsafe { Ep::from_abi(fid.cast()) }?.link.local();
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        // SAFETY: the program passes null, or a buffer and its length.
        unsafe { address::write(local.unwrap_or(any), name, len) }
    })
}

unsafe extern "C" fn getpeer(ep: *mut FidEp, name: *mut c_void, len: *mut usize) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open endpoint.
        let peer = unsafe { Ep::from_abi(ep) }?.link.peer().ok_or(Errno(libc::ENOTCONN))?;
        // SAFETY: the program passes null, or a buffer and its length.
        unsafe { address::write(peer, name, len) }
    })
}

unsafe extern "C" fn connect(
    ep: *mut FidEp,
    destination: *const c_void,
    data: *const c_void,
    len: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or an open endpoint, an address of its family, and `len` bytes.
        let (ep, peer, data) =
            unsafe { (Ep::from_abi(ep)?, address::read(destination), values(data.cast::<u8>(), len)?) };
        let mut peer = peer.ok_or(Errno::INVALID)?;
        if peer.ip().is_unspecified() {
            let loopback: IpAddr =
                if peer.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            peer.set_ip(loopback);
        }
        let named = ep.link.local().filter(|local| !local.ip().is_unspecified());
        let local = match named {
            Some(local) => local,
            None => SocketAddr::new(address::source_for(peer)?, 0),
        };
        let is_shared = ep.bindings.lock().shared.is_some();
        ep.link.connect(local, peer, data, is_shared)
    })
}

unsafe extern "C" fn accept(ep: *mut FidEp, data: *const c_void, len: usize) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or an open endpoint and `len` bytes.
        let (ep, data) = unsafe { (Ep::from_abi(ep)?, values(data.cast::<u8>(), len)?) };
        let request = ep.request.clone().ok_or(Errno::INVALID)?;
        if ep.link.pair.get().is_none() {
            enable(ep)?;
        }
        let is_shared = ep.bindings.lock().shared.is_some();
        ep.link.accept(request, data, is_shared)
    })
}

unsafe extern "C" fn shutdown(ep: *mut FidEp, _flags: u64) -> c_int {
    // SAFETY: the program passes null or an open endpoint.
    status(|| unsafe { Ep::from_abi(ep) }?.link.shutdown())
}

unsafe extern "C" fn listen(_: *mut FidPep) -> c_int {
    -libc::EINVAL
}

unsafe extern "C" fn reject(_: *mut FidPep, _: *mut Fid, _: *const c_void, _: usize) -> c_int {
    -libc::EINVAL
}

static FID_OPS: FidOps = FidOps { size: size_of::<FidOps>(), close, bind, control, ops_open: NO };
static SRX_FID_OPS: FidOps = FidOps {
    size: size_of::<FidOps>(),
    close: close_shared,
    bind: bind_shared,
    control: enable_shared,
    ops_open: NO,
};
static EP_OPS: EpOps = EpOps {
    size: size_of::<EpOps>(),
    cancel,
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

/// A shared receive context needs no enabling.
unsafe extern "C" fn enable_shared(_: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    if command == abi::ENABLE { 0 } else { -libc::ENOSYS }
}
