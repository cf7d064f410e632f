//! Counters of completed operations.
//!
//! Invariant: an operation is counted when it completes, whether or not the program reads a completion queue.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use isolane_verbs::{CompletedOperation, Completion, CompletionQueue, Status};
use parking_lot::{Condvar, Mutex};

use crate::abi::{self, CntrAttr, CntrOps, Fid, FidCntr, FidDomain, FidOps};
use crate::ffi::{
    Errno, NO, Result, Users, check, check_flags, input, into_raw, no_bind, object, output, status,
};
use crate::objects::{Domain, DomainShared};
use crate::wait::{Signal, deadline, wait_object};

/// A counter.
#[repr(C)]
pub(crate) struct Counter {
    abi: FidCntr,
    pub(crate) count: Arc<Count>,
    pub(crate) domain: Arc<DomainShared>,
    pub(crate) users: Arc<Users>,
    wait_obj: c_int,
    /// Stays empty: polling it drives the connections.
    queue: Arc<CompletionQueue>,
    /// Changes that the program has seen.
    seen: AtomicU64,
}

/// The part of a counter that endpoints use.
pub(crate) struct Count {
    successes: AtomicU64,
    errors: AtomicU64,
    /// Number of changes.
    changes: AtomicU64,
    /// Number of callers of `fi_cntr_wait` that sleep.
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
    signal: Signal,
    /// The next change sets the signal.
    is_armed: AtomicBool,
}

/// The counters of an endpoint.
#[derive(Clone, Default)]
pub(crate) struct Counters {
    pub(crate) sends: Option<Arc<Count>>,
    pub(crate) receives: Option<Arc<Count>>,
    pub(crate) reads: Option<Arc<Count>>,
    pub(crate) writes: Option<Arc<Count>>,
}

impl Counters {
    /// Counts a completed operation.
    pub(crate) fn count(&self, completion: &Completion) {
        let counter = match completion.operation {
            CompletedOperation::Send => &self.sends,
            CompletedOperation::Receive => &self.receives,
            CompletedOperation::Read => &self.reads,
            CompletedOperation::Write => &self.writes,
            // The operation of a peer. Endpoints have no atomic operations.
            CompletedOperation::ReceiveWrite
            | CompletedOperation::CompareSwap
            | CompletedOperation::FetchAdd => return,
        };
        if let Some(counter) = counter {
            counter.add(completion.status == Status::Success);
        }
    }

    /// Whether requests of the endpoint are counted.
    pub(crate) fn count_requests(&self) -> bool {
        self.sends.is_some() || self.reads.is_some() || self.writes.is_some()
    }

    /// Adds a counter of the operations that the flags name.
    pub(crate) fn bind(&mut self, count: &Arc<Count>, flags: u64) -> Result<()> {
        // The provider does not report operations of peers to counters.
        let remote = abi::REMOTE_READ | abi::REMOTE_WRITE;
        if flags & remote != 0 {
            return Err(Errno::NO_FUNCTION);
        }
        check_flags(flags, abi::SEND | abi::RECV | abi::READ | abi::WRITE)?;
        check(flags != 0)?;
        let places = [
            (abi::SEND, &mut self.sends),
            (abi::RECV, &mut self.receives),
            (abi::READ, &mut self.reads),
            (abi::WRITE, &mut self.writes),
        ];
        let named = || places.iter().filter(|(flag, _)| flags & flag != 0);
        check(named().all(|(_, place)| place.is_none()))?;
        for (flag, place) in places {
            if flags & flag != 0 {
                *place = Some(Arc::clone(count));
            }
        }
        Ok(())
    }
}

impl Count {
    /// Counts an operation.
    pub(crate) fn add(&self, is_success: bool) {
        let place = if is_success { &self.successes } else { &self.errors };
        self.change(|| {
            place.fetch_add(1, Ordering::SeqCst);
        });
    }

    /// Changes the numbers, and wakes all that wait for that.
    fn change(&self, change: impl FnOnce()) {
        change();
        self.changes.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // A sleeper has read the numbers before the change with the lock held, or sees the change.
            drop(self.lock.lock());
            self.changed.notify_all();
        }
        if self.is_armed.load(Ordering::SeqCst) && self.is_armed.swap(false, Ordering::SeqCst) {
            self.signal.set();
        }
    }

    /// Sleeps until `is_over` or until a time.
    fn sleep(&self, end: Option<Instant>, is_over: impl Fn() -> bool) {
        let mut lock = self.lock.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !is_over() {
            let is_late = match end {
                Some(end) => self.changed.wait_until(&mut lock, end).timed_out(),
                None => {
                    self.changed.wait(&mut lock);
                    false
                }
            };
            if is_late {
                break;
            }
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Counter {
    /// Drives the connections. While nothing changes, it can sleep for a moment, as reading a completion queue does.
    fn drive(&self) {
        let changes = self.count.changes.load(Ordering::SeqCst);
        let is_unchanged = self.seen.swap(changes, Ordering::SeqCst) == changes;
        if is_unchanged {
            self.queue.poll();
            self.seen.store(self.count.changes.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }

    /// Requests that the next change makes the descriptor readable. Returns `false` if the program has not seen all changes.
    pub(crate) fn prepare_wait(&self) -> bool {
        self.count.signal.clear();
        self.count.is_armed.store(true, Ordering::SeqCst);
        self.queue.request_notice(false);
        let is_unchanged = self.count.changes.load(Ordering::SeqCst) == self.seen.load(Ordering::SeqCst);
        if !is_unchanged {
            // Another thread can sleep because of the change that is cleared.
            self.count.signal.set();
        }
        is_unchanged
    }

    fn wait(&self, threshold: u64, end: Option<Instant>) -> Result<()> {
        let (start, count) = (Instant::now(), &*self.count);
        let errors = count.errors.load(Ordering::SeqCst);
        let has_failed = || count.errors.load(Ordering::SeqCst) != errors;
        let is_over = || count.successes.load(Ordering::SeqCst) >= threshold || has_failed();
        loop {
            self.drive();
            if count.successes.load(Ordering::SeqCst) >= threshold {
                return Ok(());
            }
            if has_failed() {
                return Err(Errno(abi::EAVAIL));
            }
            let now = Instant::now();
            if end.is_some_and(|end| end <= now) {
                return Err(Errno(libc::ETIMEDOUT));
            }
            if now - start < SPIN {
                std::hint::spin_loop();
            } else {
                // The library's thread drives from now on.
                self.queue.request_notice(false);
                count.sleep(end, is_over);
            }
        }
    }
}

pub(crate) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attributes: *mut CntrAttr,
    counter: *mut *mut FidCntr,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or an open domain, attributes or null, and a place for the counter.
        let (domain, attributes, counter) =
            unsafe { (object::<_, Domain>(domain)?, attributes.as_ref(), output(counter)?) };
        let (events, requested, flags) = attributes
            .map_or((abi::CNTR_EVENTS_COMP, abi::WAIT_UNSPEC, 0), |found| {
                (found.events, found.wait_obj, found.flags)
            });
        if events != abi::CNTR_EVENTS_COMP {
            return Err(Errno::NO_FUNCTION);
        }
        check(flags == 0)?;
        let wait_obj = wait_object(requested)?;
        let count = Arc::new(Count {
            successes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
            signal: Signal::new()?,
            is_armed: AtomicBool::new(false),
        });
        let domain = Arc::clone(&domain.shared);
        domain.users.add();
        let queue = domain.device.completion_queue(1);
        let fid = Fid { class: abi::CLASS_CNTR, context, ops: &FID_OPS };
        let abi = FidCntr { fid, ops: &OPS };
        let (users, seen) = (Arc::default(), AtomicU64::new(0));
        *counter = into_raw(Counter { abi, count, domain, users, wait_obj, queue, seen }).cast();
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open counter.
        let counter = unsafe { object::<_, Counter>(fid) }?;
        counter.users.check_none()?;
        counter.domain.users.remove();
        // SAFETY: made by `open`, and not used again.
        drop(unsafe { Box::from_raw(fid.cast::<Counter>()) });
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open counter, and an argument for the command.
        unsafe {
            let counter = object::<_, Counter>(fid)?;
            counter.count.signal.control(counter.wait_obj, command, argument)
        }
    })
}

/// Returns a number of a counter, or 0 for a null pointer.
///
/// # Safety
/// The program passes null or an open counter.
unsafe fn number(counter: *mut FidCntr, number: impl FnOnce(&Count) -> &AtomicU64) -> u64 {
    let mut found = 0;
    status(|| {
        // SAFETY: guaranteed by the caller.
        let counter = unsafe { object::<_, Counter>(counter) }?;
        counter.drive();
        found = number(&counter.count).load(Ordering::SeqCst);
        Ok(())
    });
    found
}

unsafe extern "C" fn read(counter: *mut FidCntr) -> u64 {
    // SAFETY: as guaranteed for this function.
    unsafe { number(counter, |count| &count.successes) }
}

unsafe extern "C" fn readerr(counter: *mut FidCntr) -> u64 {
    // SAFETY: as guaranteed for this function.
    unsafe { number(counter, |count| &count.errors) }
}

/// Changes a counter on behalf of the program.
///
/// # Safety
/// The program passes null or an open counter.
unsafe fn change(counter: *mut FidCntr, change: impl FnOnce(&Count)) -> c_int {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let counter = unsafe { object::<_, Counter>(counter) }?;
        counter.count.change(|| change(&counter.count));
        Ok(())
    })
}

unsafe extern "C" fn add(counter: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: as guaranteed for this function.
    unsafe { change(counter, |count| _ = count.successes.fetch_add(value, Ordering::SeqCst)) }
}

unsafe extern "C" fn set(counter: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: as guaranteed for this function.
    unsafe { change(counter, |count| count.successes.store(value, Ordering::SeqCst)) }
}

unsafe extern "C" fn adderr(counter: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: as guaranteed for this function.
    unsafe { change(counter, |count| _ = count.errors.fetch_add(value, Ordering::SeqCst)) }
}

unsafe extern "C" fn seterr(counter: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: as guaranteed for this function.
    unsafe { change(counter, |count| count.errors.store(value, Ordering::SeqCst)) }
}

unsafe extern "C" fn wait(counter: *mut FidCntr, threshold: u64, timeout_ms: c_int) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open counter.
        let counter = unsafe { input(counter.cast::<Counter>()) }?;
        if counter.wait_obj == abi::WAIT_NONE {
            return Err(Errno::NO_FUNCTION);
        }
        counter.wait(threshold, deadline(timeout_ms))
    })
}

static FID_OPS: FidOps = FidOps { size: size_of::<FidOps>(), close, bind: no_bind, control, ops_open: NO };
static OPS: CntrOps = CntrOps { size: size_of::<CntrOps>(), read, readerr, add, set, wait, adderr, seterr };
/// How long a waiting caller polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
