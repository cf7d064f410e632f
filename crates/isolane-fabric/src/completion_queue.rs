//! Completion queues.
//!
//! Invariant: after a successful `fi_trywait`, each completion makes the descriptor readable.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isolane_verbs::{CompletedOperation, Completion, CompletionQueue, Status};
use parking_lot::Mutex;

use crate::abi::{self, CqAttr, CqErrEntry, CqOps, CqTaggedEntry, Fid, FidCq, FidDomain, FidOps};
use crate::error::copy_error_text;
use crate::ffi::{Errno, NO, Result, Users, check, count, input, into_raw, no_bind, object, output, status};
use crate::objects::{Domain, DomainShared};
use crate::wait::{Signal, deadline, wait_object};

/// Identifier of a request whose success the program does not want to know.
pub(crate) const SILENT: u64 = u64::MAX;

/// Errors that the program reads before completions.
pub(crate) struct Errors {
    queue: Mutex<VecDeque<Completion>>,
    signal: Signal,
}

impl Errors {
    /// Reports that a receive is canceled.
    pub(crate) fn report_canceled(&self, id: u64) {
        self.queue.lock().push_back(Completion {
            id,
            status: Status::Flushed,
            operation: CompletedOperation::Receive,
            length: 0,
            immediate: None,
            solicited: false,
            source: None,
        });
        self.signal.set();
    }

    fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }
}

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    abi: FidCq,
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) domain: Arc<DomainShared>,
    pub(crate) users: Arc<Users>,
    pub(crate) errors: Arc<Errors>,
    wait_obj: c_int,
    entry_bytes: usize,
    /// One thread at a time waits for the descriptor.
    sleeper: Mutex<()>,
    is_signaled: AtomicBool,
    /// The last read has found nothing.
    was_empty: AtomicBool,
}

impl Cq {
    /// Requests that the next completion makes the descriptor readable. Returns `false` if there are some already.
    pub(crate) fn prepare_wait(&self) -> bool {
        self.errors.signal.clear();
        self.queue.request_notice(false);
        let is_empty = self.queue.is_empty() && self.errors.is_empty();
        if !is_empty {
            // Another thread can sleep because of the notice that is cleared.
            self.errors.signal.set();
        }
        is_empty
    }

    /// Copies up to `count` completions.
    ///
    /// # Safety
    /// The buffer has `count` entries of the format.
    unsafe fn read(&self, buffer: *mut c_void, count: usize) -> Result<usize> {
        let mut errors = self.errors.queue.lock();
        if !errors.is_empty() {
            return Err(Errno(abi::EAVAIL));
        }
        // A program that has read a completion mostly tries once more before it continues, so that it must not sleep.
        let was_empty = self.was_empty.swap(false, Ordering::Relaxed);
        let first = if was_empty { self.queue.poll() } else { self.queue.poll_without_sleep() };
        self.was_empty.store(first.is_none(), Ordering::Relaxed);
        let (mut read, mut next) = (0, first);
        while let Some(found) = next {
            if found.completion.status != Status::Success {
                errors.push_back(found.completion);
                break;
            }
            let entry = entry(&found.completion);
            // SAFETY: guaranteed by the caller; an entry is at least as long as its format.
            unsafe {
                let place = buffer.cast::<u8>().add(read * self.entry_bytes);
                std::ptr::copy_nonoverlapping((&raw const entry).cast(), place, self.entry_bytes);
            }
            read += 1;
            next = if read < count { self.queue.take() } else { None };
        }
        match (read, !errors.is_empty()) {
            (0, true) => Err(Errno(abi::EAVAIL)),
            (0, false) if self.queue.has_overrun() => Err(Errno(abi::EOVERRUN)),
            (0, false) => Err(Errno::AGAIN),
            _ => Ok(read),
        }
    }

    /// Reads as [`Cq::read`], and waits for the first completion.
    ///
    /// # Safety
    /// As for [`Cq::read`].
    unsafe fn wait(&self, buffer: *mut c_void, count: usize, end: Option<Instant>) -> Result<usize> {
        let start = Instant::now();
        let mut turn = None;
        loop {
            // SAFETY: guaranteed by the caller.
            let result = unsafe { self.read(buffer, count) };
            let now = Instant::now();
            if result != Err(Errno::AGAIN) || end.is_some_and(|end| end <= now) {
                return result;
            }
            if self.is_signaled.swap(false, Ordering::SeqCst) {
                return Err(Errno::AGAIN);
            }
            if now - start < SPIN {
                std::hint::spin_loop();
                continue;
            }
            if turn.is_none() {
                turn = match end {
                    Some(end) => self.sleeper.try_lock_until(end),
                    None => Some(self.sleeper.lock()),
                };
                continue;
            }
            if self.prepare_wait() && !self.is_signaled.load(Ordering::SeqCst) {
                self.errors.signal.wait(end);
            }
        }
    }
}

/// Returns the entry of a successful request.
fn entry(completion: &Completion) -> CqTaggedEntry {
    let flags = flags(completion);
    CqTaggedEntry {
        op_context: std::ptr::with_exposed_provenance_mut(completion.id as usize),
        flags,
        len: completion.length as usize,
        buf: null_mut(),
        data: completion.immediate.unwrap_or(0).into(),
        tag: 0,
    }
}

fn flags(completion: &Completion) -> u64 {
    let flags = match completion.operation {
        CompletedOperation::Send => abi::SEND | abi::MSG,
        CompletedOperation::Write => abi::WRITE | abi::RMA,
        CompletedOperation::Read => abi::READ | abi::RMA,
        CompletedOperation::Receive => abi::RECV | abi::MSG,
        CompletedOperation::ReceiveWrite => abi::REMOTE_WRITE | abi::RMA,
        // Endpoints have no atomic operations.
        CompletedOperation::CompareSwap | CompletedOperation::FetchAdd => 0,
    };
    flags | if completion.immediate.is_some() { abi::REMOTE_CQ_DATA } else { 0 }
}

fn errno(status: Status) -> c_int {
    match status {
        Status::Success => 0,
        Status::LocalLength => abi::ETRUNC,
        Status::LocalProtection => libc::EFAULT,
        Status::Flushed => libc::ECANCELED,
        Status::BadResponse => libc::EIO,
        Status::RemoteInvalidRequest | Status::RemoteOperation => libc::EREMOTEIO,
        Status::RemoteAccess => libc::EACCES,
        Status::RetryExceeded => libc::ECONNRESET,
        Status::RnrRetryExceeded => abi::ENORX,
    }
}

pub(crate) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attributes: *mut CqAttr,
    cq: *mut *mut FidCq,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or an open domain, attributes, and a place for the queue.
        let (domain, attributes, cq) =
            unsafe { (object::<_, Domain>(domain)?, input(attributes)?, output(cq)?) };
        let wait_obj = wait_object(attributes.wait_obj)?;
        check(attributes.wait_cond == 0)?;
        let entry_bytes = match attributes.format {
            abi::CQ_FORMAT_UNSPEC | abi::CQ_FORMAT_CONTEXT => offset_of!(CqTaggedEntry, flags),
            abi::CQ_FORMAT_MSG => offset_of!(CqTaggedEntry, buf),
            abi::CQ_FORMAT_DATA => offset_of!(CqTaggedEntry, tag),
            abi::CQ_FORMAT_TAGGED => size_of::<CqTaggedEntry>(),
            _ => return Err(Errno::NO_FUNCTION),
        };
        let errors = Arc::new(Errors { queue: Mutex::default(), signal: Signal::new()? });
        let notified = Arc::clone(&errors);
        let capacity = attributes.size.clamp(MIN_CAPACITY, MAX_CAPACITY);
        let on_notice = Box::new(move |_| notified.signal.set());
        let domain = Arc::clone(&domain.shared);
        let queue = domain.device.completion_queue_with_notices(capacity, on_notice);
        domain.users.add();
        let made = into_raw(Cq {
            abi: FidCq { fid: Fid { class: abi::CLASS_CQ, context, ops: &FID_OPS }, ops: &OPS },
            queue,
            domain,
            users: Arc::default(),
            errors,
            wait_obj,
            entry_bytes,
            sleeper: Mutex::new(()),
            is_signaled: AtomicBool::new(false),
            was_empty: AtomicBool::new(false),
        });
        *cq = made.cast();
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open completion queue.
        let cq = unsafe { object::<_, Cq>(fid) }?;
        cq.users.check_none()?;
        cq.domain.users.remove();
        // SAFETY: made by `open`, and not used again.
        drop(unsafe { Box::from_raw(fid.cast::<Cq>()) });
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open completion queue, and an argument for the command.
        unsafe {
            let cq = object::<_, Cq>(fid)?;
            cq.errors.signal.control(cq.wait_obj, command, argument)
        }
    })
}

unsafe extern "C" fn read(cq: *mut FidCq, buffer: *mut c_void, entries: usize) -> isize {
    count(|| {
        // SAFETY: the program passes null or an open completion queue.
        let cq = unsafe { object::<_, Cq>(cq) }?;
        check(entries == 0 || !buffer.is_null())?;
        if entries == 0 {
            return if cq.prepare_wait() { Err(Errno::AGAIN) } else { Ok(0) };
        }
        // SAFETY: the buffer has that many entries.
        unsafe { cq.read(buffer, entries) }
    })
}

unsafe extern "C" fn readfrom(
    cq: *mut FidCq,
    buffer: *mut c_void,
    entries: usize,
    source: *mut u64,
) -> isize {
    // SAFETY: as guaranteed for this function.
    unsafe { without_source(read(cq, buffer, entries), source) }
}

/// Reports that sources are not known: a connection has one.
///
/// # Safety
/// `source` is null, or has a place for each entry.
unsafe fn without_source(read: isize, source: *mut u64) -> isize {
    if !source.is_null() {
        // SAFETY: guaranteed by the caller.
        (0..read).for_each(|entry| unsafe { *source.offset(entry) = u64::MAX });
    }
    read
}

unsafe extern "C" fn sread(
    cq: *mut FidCq,
    buffer: *mut c_void,
    entries: usize,
    _condition: *const c_void,
    timeout_ms: c_int,
) -> isize {
    count(|| {
        // SAFETY: the program passes null or an open completion queue.
        let cq = unsafe { object::<_, Cq>(cq) }?;
        check(entries > 0 && !buffer.is_null())?;
        if cq.wait_obj == abi::WAIT_NONE {
            return Err(Errno::NO_FUNCTION);
        }
        // SAFETY: the buffer has that many entries.
        unsafe { cq.wait(buffer, entries, deadline(timeout_ms)) }
    })
}

unsafe extern "C" fn sreadfrom(
    cq: *mut FidCq,
    buffer: *mut c_void,
    entries: usize,
    source: *mut u64,
    condition: *const c_void,
    timeout_ms: c_int,
) -> isize {
    // SAFETY: as guaranteed for this function.
    unsafe { without_source(sread(cq, buffer, entries, condition, timeout_ms), source) }
}

unsafe extern "C" fn readerr(cq: *mut FidCq, entry: *mut CqErrEntry, _flags: u64) -> isize {
    count(|| {
        // SAFETY: the program passes null, or an open completion queue and an entry.
        let (cq, entry) = unsafe { (object::<_, Cq>(cq)?, output(entry)?) };
        let found = cq.errors.queue.lock().pop_front().ok_or(Errno::AGAIN)?;
        let error = errno(found.status);
        let context = if found.id == SILENT { 0 } else { found.id as usize };
        entry.op_context = std::ptr::with_exposed_provenance_mut(context);
        (entry.flags, entry.len, entry.buf, entry.data, entry.tag) =
            (flags(&found), 0, null_mut(), found.immediate.unwrap_or(0).into(), 0);
        (entry.olen, entry.err, entry.prov_errno) = (0, error, -error);
        entry.err_data_size = 0;
        Ok(1)
    })
}

/// Ends a wait in `fi_cq_sread`.
unsafe extern "C" fn signal(cq: *mut FidCq) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open completion queue.
        let cq = unsafe { object::<_, Cq>(cq) }?;
        cq.is_signaled.store(true, Ordering::SeqCst);
        cq.errors.signal.set();
        Ok(())
    })
}

unsafe extern "C" fn strerror(
    _: *mut FidCq,
    error: c_int,
    _: *const c_void,
    buffer: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the program passes null or `len` bytes.
    unsafe { copy_error_text(error, buffer, len) }
}

static FID_OPS: FidOps = FidOps { size: size_of::<FidOps>(), close, bind: no_bind, control, ops_open: NO };
static OPS: CqOps =
    CqOps { size: size_of::<CqOps>(), read, readfrom, readerr, sread, sreadfrom, signal, strerror };
/// Limits of the number of completions that the program has not read.
const MIN_CAPACITY: usize = 1 << 17;
const MAX_CAPACITY: usize = 1 << 20;
/// How long a waiting caller polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
