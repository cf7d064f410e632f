//! Event queues: connections, and events of the program.
//!
//! Invariant: the descriptor is readable if and only if the queue has an event.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::ptr::null_mut;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi::{self, EqAttr, EqCmEntry, EqErrEntry, EqOps, Fid, FidEq, FidFabric, FidOps};
use crate::error::copy_error_text;
use crate::ffi::{
    Errno, NO, Result, Users, check, count, input, into_raw, no_bind, object, output, status, values,
};
use crate::host::OwnedInfo;
use crate::objects::Fabric;
use crate::request::drop_request;
use crate::wait::{Signal, deadline, wait_object};

/// An event queue.
#[repr(C)]
pub(crate) struct EventQueue {
    abi: FidEq,
    pub(crate) events: Arc<Events>,
    fabric: Arc<Users>,
    wait_obj: c_int,
    is_writable: bool,
}

/// The part that endpoints use.
pub(crate) struct Events {
    state: Mutex<State>,
    signal: Signal,
    pub(crate) users: Arc<Users>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Event>,
    /// Data of the last error, which the program can read until the next call.
    error_data: Vec<u8>,
}

/// An event. Objects are named by their address.
pub(crate) enum Event {
    Connection { event: u32, fid: usize, info: Option<OwnedInfo>, data: Vec<u8> },
    Failure { fid: usize, context: usize, error: c_int, data: Vec<u8> },
    Written { event: u32, bytes: Vec<u8> },
}

impl Event {
    fn fid(&self) -> usize {
        match self {
            Event::Connection { fid, .. } | Event::Failure { fid, .. } => *fid,
            Event::Written { .. } => 0,
        }
    }

    /// Rejects the request that an unread event reports.
    fn on_drop(&self) {
        if let Event::Connection { info: Some(info), .. } = self {
            drop_request(info);
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.state.get_mut().queue.iter().for_each(Event::on_drop);
    }
}

impl Events {
    pub(crate) fn push(&self, event: Event) {
        let mut state = self.state.lock();
        state.queue.push_back(event);
        self.signal.set();
    }

    /// Number of events of an object.
    pub(crate) fn count(&self, fid: usize) -> usize {
        self.state.lock().queue.iter().filter(|event| event.fid() == fid).count()
    }

    /// Drops the events of an object.
    pub(crate) fn forget(&self, fid: usize) {
        let mut state = self.state.lock();
        let queue = std::mem::take(&mut state.queue);
        let (dropped, kept): (VecDeque<_>, _) = queue.into_iter().partition(|event| event.fid() == fid);
        state.queue = kept;
        self.settle(&state);
        drop(state);
        dropped.iter().for_each(Event::on_drop);
    }

    fn settle(&self, state: &State) {
        if state.queue.is_empty() {
            self.signal.clear();
        }
    }

    /// Whether the program can wait.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().queue.is_empty()
    }

    /// Copies the next event to `buffer`, and returns its length.
    ///
    /// # Safety
    /// `buffer` has `len` bytes.
    unsafe fn read(&self, event: &mut u32, buffer: *mut c_void, len: usize, is_peek: bool) -> Result<usize> {
        let mut state = self.state.lock();
        let (kind, entry, data) = match state.queue.front() {
            None => return Err(Errno::AGAIN),
            Some(Event::Failure { .. }) => return Err(Errno(abi::EAVAIL)),
            Some(Event::Written { event, bytes }) => (*event, None, bytes),
            Some(Event::Connection { event, fid, info, data }) => {
                let info = info.as_ref().map_or(null_mut(), |info| std::ptr::from_ref(info.get()).cast_mut());
                let fid = std::ptr::with_exposed_provenance_mut(*fid);
                (*event, Some(EqCmEntry { fid, info }), data)
            }
        };
        let header = entry.map_or(0, |_| size_of::<EqCmEntry>());
        if len < header {
            return Err(Errno(abi::ETOOSMALL));
        }
        let copied = data.len().min(len - header);
        // SAFETY: guaranteed by the caller: `header + copied` is at most `len`. The buffer need not be aligned.
        unsafe {
            if let Some(entry) = entry {
                buffer.cast::<EqCmEntry>().write_unaligned(entry);
            }
            std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.cast::<u8>().add(header), copied);
        }
        *event = kind;
        if !is_peek {
            // The program owns the information of a request now.
            if let Some(Event::Connection { info: Some(info), .. }) = state.queue.pop_front() {
                let _ = info.into_raw();
            }
            self.settle(&state);
        }
        Ok(header + copied)
    }

    /// Copies the next error.
    ///
    /// # Safety
    /// If the entry names a buffer for data, it is valid.
    unsafe fn read_error(&self, entry: &mut EqErrEntry, is_peek: bool) -> Result<()> {
        let mut state = self.state.lock();
        let Some(Event::Failure { fid, context, error, data }) = state.queue.front() else {
            return Err(Errno::AGAIN);
        };
        let (fid, context, error, data) = (*fid, *context, *error, data.clone());
        entry.fid = std::ptr::with_exposed_provenance_mut(fid);
        entry.context = std::ptr::with_exposed_provenance_mut(context);
        (entry.data, entry.err, entry.prov_errno) = (0, error, -error);
        if entry.err_data_size > 0 && !entry.err_data.is_null() {
            let len = data.len().min(entry.err_data_size);
            // SAFETY: guaranteed by the caller.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), entry.err_data.cast(), len) };
            entry.err_data_size = len;
        } else {
            entry.err_data_size = data.len();
            state.error_data = data;
            let has_data = !state.error_data.is_empty();
            entry.err_data = if has_data { state.error_data.as_mut_ptr().cast() } else { null_mut() };
        }
        if !is_peek {
            state.queue.pop_front();
            self.settle(&state);
        }
        Ok(())
    }
}

pub(crate) unsafe extern "C" fn open(
    fabric: *mut FidFabric,
    attributes: *mut EqAttr,
    eq: *mut *mut FidEq,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or an open fabric, attributes, and a place for the queue.
        let (fabric, attributes, eq) =
            unsafe { (object::<_, Fabric>(fabric)?, input(attributes)?, output(eq)?) };
        let wait_obj = wait_object(attributes.wait_obj)?;
        let events = Events { state: Mutex::default(), signal: Signal::new()?, users: Arc::default() };
        fabric.users.add();
        let made = into_raw(EventQueue {
            abi: FidEq { fid: Fid { class: abi::CLASS_EQ, context, ops: &FID_OPS }, ops: &OPS },
            events: Arc::new(events),
            fabric: Arc::clone(&fabric.users),
            wait_obj,
            is_writable: attributes.flags & abi::WRITE != 0,
        });
        *eq = made.cast();
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open event queue.
        let eq = unsafe { object::<_, EventQueue>(fid) }?;
        eq.events.users.check_none()?;
        eq.fabric.remove();
        // SAFETY: made by `open`, and not used again.
        drop(unsafe { Box::from_raw(fid.cast::<EventQueue>()) });
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open event queue, and an argument for the command.
        unsafe {
            let eq = object::<_, EventQueue>(fid)?;
            eq.events.signal.control(eq.wait_obj, command, argument)
        }
    })
}

unsafe extern "C" fn read(
    eq: *mut FidEq,
    event: *mut u32,
    buffer: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    count(|| {
        // SAFETY: the program passes null, or an open event queue and a place for the number.
        let (eq, event) = unsafe { (object::<_, EventQueue>(eq)?, output(event)?) };
        check(flags & !abi::PEEK == 0 && (len == 0 || !buffer.is_null()))?;
        // SAFETY: the buffer has `len` bytes.
        unsafe { eq.events.read(event, buffer, len, flags & abi::PEEK != 0) }
    })
}

unsafe extern "C" fn sread(
    eq: *mut FidEq,
    event: *mut u32,
    buffer: *mut c_void,
    len: usize,
    timeout_ms: c_int,
    flags: u64,
) -> isize {
    let end = deadline(timeout_ms);
    loop {
        // SAFETY: as guaranteed for this function.
        let result = unsafe { read(eq, event, buffer, len, flags) };
        let is_over = end.is_some_and(|end| end <= std::time::Instant::now());
        if result != -(libc::EAGAIN as isize) || is_over {
            return result;
        }
        // SAFETY: the call above has checked that the queue is not null.
        match unsafe { object::<_, EventQueue>(eq) } {
            Ok(eq) if eq.wait_obj != abi::WAIT_NONE => eq.events.signal.wait(end),
            _ => return -(libc::ENOSYS as isize),
        }
    }
}

unsafe extern "C" fn readerr(eq: *mut FidEq, entry: *mut EqErrEntry, flags: u64) -> isize {
    count(|| {
        // SAFETY: the program passes null, or an open event queue and an entry, whose buffer for data is valid.
        unsafe {
            let (eq, entry) = (object::<_, EventQueue>(eq)?, output(entry)?);
            eq.events.read_error(entry, flags & abi::PEEK != 0)?;
        }
        Ok(size_of::<EqErrEntry>())
    })
}

unsafe extern "C" fn write(
    eq: *mut FidEq,
    event: u32,
    buffer: *const c_void,
    len: usize,
    _flags: u64,
) -> isize {
    count(|| {
        // SAFETY: the program passes null, or an open event queue and `len` bytes.
        let (eq, bytes) = unsafe { (object::<_, EventQueue>(eq)?, values(buffer.cast::<u8>(), len)?) };
        check(eq.is_writable && len <= MAX_WRITTEN_BYTES)?;
        if eq.events.count(0) >= MAX_WRITTEN {
            return Err(Errno::AGAIN);
        }
        eq.events.push(Event::Written { event, bytes: bytes.to_vec() });
        Ok(len)
    })
}

unsafe extern "C" fn strerror(
    _: *mut FidEq,
    error: c_int,
    _: *const c_void,
    buffer: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the program passes null or `len` bytes.
    unsafe { copy_error_text(error, buffer, len) }
}

static FID_OPS: FidOps = FidOps { size: size_of::<FidOps>(), close, bind: no_bind, control, ops_open: NO };
static OPS: EqOps = EqOps { size: size_of::<EqOps>(), read, readerr, write, sread, strerror };
/// Limits of events that the program writes.
const MAX_WRITTEN: usize = 1 << 16;
const MAX_WRITTEN_BYTES: usize = 4096;
