//! Endpoints, and how they post requests.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use isolane_verbs::{
    CompletionQueue, LocalData, PostError, QueuePair, ReceiveRequest, SendOperation, SendRequest, Sge,
    SgeList, SharedReceiveQueue,
};
use parking_lot::Mutex;

use crate::abi::{self, FidEp, Iovec};
use crate::completion_queue::{Errors, SILENT};
use crate::connect::Link;
use crate::counter::Counters;
use crate::ffi::{Errno, Result, Users, check, object, values};
use crate::info::{MAX_INJECT, MAX_IOV};
use crate::objects::{DomainShared, LOCAL_KEY};
use crate::request::ConnectionRequest;

/// An endpoint.
#[repr(C)]
pub(crate) struct Ep {
    pub(crate) abi: FidEp,
    pub(crate) domain: Arc<DomainShared>,
    pub(crate) link: Arc<Link>,
    pub(crate) bindings: Mutex<Bindings>,
    /// The request of a peer that it accepts.
    pub(crate) request: Option<ConnectionRequest>,
    pub(crate) caps: u64,
    /// Maximum numbers of requests.
    pub(crate) sends: usize,
    pub(crate) receives: usize,
    /// Flags of operations without flags.
    pub(crate) send_flags: AtomicU64,
    pub(crate) receive_flags: AtomicU64,
    /// Requests of which the program reads no completion are counted.
    pub(crate) counts_requests: AtomicBool,
    /// Only operations with the flag `FI_COMPLETION` report their success.
    pub(crate) selects_sends: AtomicBool,
    pub(crate) selects_receives: AtomicBool,
}

/// Objects that an endpoint uses.
#[derive(Default)]
pub(crate) struct Bindings {
    pub(crate) send: Option<Arc<CompletionQueue>>,
    pub(crate) receive: Option<Arc<CompletionQueue>>,
    /// Where canceled receives are reported.
    pub(crate) receive_errors: Option<Arc<Errors>>,
    pub(crate) counters: Counters,
    pub(crate) shared: Option<Arc<SharedReceiveQueue>>,
    pub(crate) users: Vec<Arc<Users>>,
}

/// A shared receive context.
#[repr(C)]
pub(crate) struct Srx {
    pub(crate) abi: FidEp,
    pub(crate) domain: Arc<DomainShared>,
    pub(crate) queue: Arc<SharedReceiveQueue>,
    pub(crate) users: Arc<Users>,
    /// The queue of canceled receives, and its users.
    pub(crate) bound: OnceLock<(Arc<Errors>, Arc<Users>)>,
}

/// A request as the functions of libfabric have it.
pub(crate) struct Operation {
    pub(crate) operation: SendOperation,
    pub(crate) context: *mut c_void,
    pub(crate) flags: u64,
}

impl Ep {
    /// Borrows an endpoint.
    ///
    /// # Safety
    /// `ep` is null, or an open endpoint or shared receive context.
    pub(crate) unsafe fn from_abi<'a>(ep: *mut FidEp) -> Result<&'a Ep> {
        // SAFETY: guaranteed by the caller.
        match unsafe { ep.as_ref() } {
            // SAFETY: the class is the one of the type.
            Some(found) if found.fid.class == abi::CLASS_EP => unsafe { object::<_, Ep>(ep) },
            Some(_) => Err(Errno::NO_FUNCTION),
            None => Err(Errno::INVALID),
        }
    }

    fn pair(&self) -> Result<&QueuePair> {
        self.link.pair.get().ok_or(Errno(abi::EOPBADSTATE))
    }

    /// Cancels a receive, unless the peer can use it.
    pub(crate) fn cancel(&self, id: u64) -> Result<()> {
        let pair = self.pair()?;
        if id != SILENT && pair.cancel_receive(id) {
            let bindings = self.bindings.lock();
            if let Some(errors) = &bindings.receive_errors {
                errors.report_canceled(id);
            }
            if let Some(counter) = &bindings.counters.receives {
                counter.add(false);
            }
        }
        Ok(())
    }

    pub(crate) fn default_flags(&self) -> u64 {
        self.send_flags.load(Ordering::Relaxed)
    }

    /// Posts a request whose local data are these ranges.
    ///
    /// # Safety
    /// The program keeps the memory until the request completes, or with `FI_INJECT` during the call.
    pub(crate) unsafe fn send(&self, ranges: &[Iovec], operation: Operation) -> Result<()> {
        let Operation { operation, context, flags } = operation;
        let data = if flags & abi::INJECT != 0 {
            // SAFETY: guaranteed by the caller.
            unsafe { inline(ranges) }?
        } else {
            LocalData::Sges(sges(ranges)?)
        };
        let is_silent = self.selects_sends.load(Ordering::Relaxed) && flags & abi::COMPLETION == 0;
        self.post(operation, data, (!is_silent).then_some(context), flags & abi::FENCE != 0)
    }

    /// Posts a request whose data is copied, and whose success is not reported.
    ///
    /// # Safety
    /// The range can be read.
    pub(crate) unsafe fn inject(&self, range: Iovec, operation: SendOperation) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        let data = unsafe { inline(&[range]) }?;
        self.post(operation, data, None, false)
    }

    fn post(
        &self,
        operation: SendOperation,
        data: LocalData,
        context: Option<*mut c_void>,
        fenced: bool,
    ) -> Result<()> {
        let id = context.map_or(SILENT, |context| context.expose_provenance() as u64);
        let signaled = context.is_some() || self.counts_requests.load(Ordering::Relaxed);
        let request = SendRequest { id, operation, data, signaled, solicited: false, fenced };
        self.pair()?.post_send(request).map_err(errno)
    }
}

/// Posts a receive to an endpoint or a shared receive context.
///
/// # Safety
/// `ep` is null or an open object of the two kinds; the program keeps the memory until the receive completes.
pub(crate) unsafe fn receive(
    ep: *mut FidEp,
    ranges: &[Iovec],
    context: *mut c_void,
    flags: Option<u64>,
) -> Result<()> {
    let data = sges(ranges)?;
    let mut id = context.expose_provenance() as u64;
    // SAFETY: guaranteed by the caller.
    let class = unsafe { ep.as_ref() }.ok_or(Errno::INVALID)?.fid.class;
    if class == abi::CLASS_SRX_CTX {
        // SAFETY: the class is the one of the type.
        let srx = unsafe { object::<_, Srx>(ep) }?;
        return srx.queue.post(ReceiveRequest { id, data }).map_err(errno);
    }
    // SAFETY: guaranteed by the caller.
    let ep = unsafe { Ep::from_abi(ep) }?;
    let flags = flags.unwrap_or_else(|| ep.receive_flags.load(Ordering::Relaxed));
    if ep.selects_receives.load(Ordering::Relaxed) && flags & abi::COMPLETION == 0 {
        id = SILENT;
    }
    ep.pair()?.post_receive(ReceiveRequest { id, data }).map_err(errno)
}

fn sges(ranges: &[Iovec]) -> Result<SgeList> {
    check(ranges.len() <= MAX_IOV)?;
    let sge = |range: &Iovec| {
        let length = u32::try_from(range.iov_len).map_err(|_| Errno(libc::EMSGSIZE))?;
        Ok(Sge { address: range.iov_base.expose_provenance() as u64, length, lkey: LOCAL_KEY })
    };
    ranges.iter().map(sge).collect()
}

/// Copies the bytes of ranges.
///
/// # Safety
/// The ranges can be read.
unsafe fn inline(ranges: &[Iovec]) -> Result<LocalData> {
    let total = ranges.iter().try_fold(0_usize, |total, range| total.checked_add(range.iov_len));
    let total = total.filter(|total| *total <= MAX_INJECT).ok_or(Errno(libc::EMSGSIZE))?;
    let mut bytes = Vec::with_capacity(total);
    for range in ranges {
        // SAFETY: guaranteed by the caller.
        bytes.extend_from_slice(unsafe { values(range.iov_base.cast::<u8>(), range.iov_len) }?);
    }
    Ok(LocalData::Inline(bytes))
}

fn errno(error: PostError) -> Errno {
    match error {
        PostError::Full(_) => Errno::AGAIN,
        PostError::State(_) => Errno(abi::EOPBADSTATE),
        PostError::Length(_) => Errno(libc::EMSGSIZE),
        PostError::SharedReceiveQueue | PostError::Sges { .. } | PostError::Inline { .. } => Errno::INVALID,
    }
}
