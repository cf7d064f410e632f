//! Queues: many requests of one thread to a volume.
//!
//! Invariant: a queue is not freed while a request refers to memory of the program.

use std::collections::VecDeque;
use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Instant;

use isolane_memory::Buffer;

use crate::backend::{MAX_REQUEST_BYTES, OpenVolume, Operation, Port};
use crate::entry::call;
use crate::error::Failure;
use crate::ffi::{as_mut, as_ref, from_raw, into_raw, slice, slice_mut, timeout};
use crate::fork::Busy;
use crate::memory::{self, Allocation};
use crate::volume::{ISOLANE_DURABLE, Volume};

const ISOLANE_OP_READ: c_int = 1;
const ISOLANE_OP_WRITE: c_int = 2;
const ISOLANE_OP_FLUSH: c_int = 3;
const ISOLANE_OP_DISCARD: c_int = 4;
const ISOLANE_OP_WRITE_ZEROES: c_int = 5;

/// A request, as in the header.
#[repr(C)]
pub struct Request {
    operation: c_int,
    flags: c_int,
    offset: u64,
    length: u64,
    buffer: *mut c_void,
    user_data: u64,
}

/// A completion, as in the header.
#[repr(C)]
pub struct Completion {
    user_data: u64,
    error: c_int,
    reserved: c_int,
    text: *const c_char,
}

/// A queue of one thread at a time.
pub struct Queue {
    port: Port,
    /// Requests in flight, by their tags.
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Tags of requests for which there was nothing to do.
    done: VecDeque<u32>,
    /// Texts of the errors of the last completions.
    texts: Vec<CString>,
    /// After the port.
    volume: Arc<OpenVolume>,
}

#[derive(Default)]
struct Slot {
    user_data: u64,
    memory: Option<Arc<Allocation>>,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_queue_new(volume: *const Volume, depth: u32) -> *mut Queue {
    call("isolane_queue_new", || {
        // SAFETY: the header states the requirements.
        let Volume(volume) = unsafe { as_ref(volume)? };
        volume.check_process()?;
        if !(1..=MAX_DEPTH).contains(&depth) {
            return Err(Failure::WithErrno(libc::EINVAL, format!("depth {depth}: pass 1 to {MAX_DEPTH}")));
        }
        Ok(into_raw(Queue {
            port: volume.port(depth as usize)?,
            slots: (0..depth).map(|_| Slot::default()).collect(),
            free: (0..depth).rev().collect(),
            done: VecDeque::new(),
            texts: Vec::new(),
            volume: Arc::clone(volume),
        }))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_queue_submit(
    queue: *mut Queue,
    requests: *const Request,
    count: usize,
) -> c_int {
    call("isolane_queue_submit", || {
        // SAFETY: the header states the requirements.
        let (queue, requests) = unsafe { (open(queue)?, slice::<Request>(requests.cast(), count)?) };
        for (index, request) in requests.iter().enumerate() {
            // SAFETY: the header states the requirements.
            match unsafe { queue.submit(request) } {
                Ok(()) => {}
                Err(error) if index == 0 => return Err(error),
                // The next call reports it.
                Err(_) => return Ok(index as c_int),
            }
        }
        Ok(count as c_int)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_queue_send(queue: *mut Queue) -> c_int {
    call("isolane_queue_send", || {
        // SAFETY: the header states the requirements.
        unsafe { open(queue)? }.port.send();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_queue_poll(
    queue: *mut Queue,
    completions: *mut Completion,
    capacity: usize,
) -> c_int {
    call("isolane_queue_poll", || {
        // SAFETY: the header states the requirements.
        let (queue, out) = unsafe { (open(queue)?, slice_mut::<Completion>(completions.cast(), capacity)?) };
        queue.wait(out, 1, Some(Instant::now()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_queue_wait(
    queue: *mut Queue,
    completions: *mut Completion,
    capacity: usize,
    minimum: usize,
    timeout_ns: i64,
) -> c_int {
    call("isolane_queue_wait", || {
        // SAFETY: the header states the requirements.
        let (queue, out) = unsafe { (open(queue)?, slice_mut::<Completion>(completions.cast(), capacity)?) };
        if minimum > capacity {
            return Err(Failure::Argument(
                "minimum exceeds the capacity: pass space for that many completions",
            ));
        }
        let deadline = timeout(timeout_ns).and_then(|timeout| Instant::now().checked_add(timeout));
        queue.wait(out, minimum, deadline)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_queue_arm(queue: *mut Queue) -> c_int {
    // SAFETY: the header states the requirements.
    call("isolane_queue_arm", || Ok((!unsafe { open(queue)? }.arm()?).into()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_queue_disarm(queue: *mut Queue) -> c_int {
    call("isolane_queue_disarm", || {
        // SAFETY: the header states the requirements.
        unsafe { open(queue)? }.port.disarm();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_queue_fd(queue: *const Queue) -> c_int {
    // SAFETY: the header states the requirements.
    call("isolane_queue_fd", || Ok(unsafe { as_ref(queue)? }.port.fd()?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_queue_close(queue: *mut Queue) {
    call("isolane_queue_close", || {
        // SAFETY: the header states the requirements.
        let Some(queue) = (unsafe { from_raw(queue) }) else { return Ok(()) };
        // The threads of a parent are not in its child, and their locks can be held.
        if queue.volume.is_of_this_process() {
            let _busy = Busy::enter();
            drop(queue)
        } else {
            std::mem::forget(queue)
        }
        Ok(())
    });
}

/// Borrows a queue of this process.
///
/// # Safety
/// The requirements of [`as_mut`].
unsafe fn open<'a>(queue: *mut Queue) -> Result<&'a mut Queue, Failure> {
    // SAFETY: this function has the same requirements.
    let queue = unsafe { as_mut(queue)? };
    queue.volume.check_process()?;
    Ok(queue)
}

impl Queue {
    /// # Safety
    /// The memory of the request is valid until its completion, and used by no one else as the header states.
    unsafe fn submit(&mut self, request: &Request) -> Result<(), Failure> {
        let Request { operation, flags, offset, length, buffer, user_data } = *request;
        let operation = match operation {
            ISOLANE_OP_READ => Operation::Read,
            ISOLANE_OP_WRITE => Operation::Write,
            ISOLANE_OP_FLUSH => Operation::Flush,
            ISOLANE_OP_DISCARD => Operation::Discard,
            ISOLANE_OP_WRITE_ZEROES => Operation::WriteZeroes,
            _ => {
                let message =
                    format!("unknown operation {operation}: pass ISOLANE_OP_READ or another of isolane.h");
                return Err(Failure::WithErrno(libc::EINVAL, message));
            }
        };
        let takes_durable = matches!(operation, Operation::Write | Operation::WriteZeroes);
        if flags & !ISOLANE_DURABLE != 0 || (flags != 0 && !takes_durable) {
            return Err(Failure::Argument("unknown flag: pass 0, or ISOLANE_DURABLE for a write"));
        }
        let range = match operation {
            Operation::Flush => self.volume.check(operation, 0, 0)?,
            _ => self.volume.check(operation, offset, length)?,
        };
        let data = match NonNull::new(buffer.cast::<u8>()) {
            _ if !operation.has_data() => None,
            _ if length == 0 => return Err(Failure::Argument("length is 0: pass at least one block")),
            _ if length > MAX_REQUEST_BYTES as u64 => {
                let message =
                    format!("{length} bytes exceed the maximum of {MAX_REQUEST_BYTES}: split the request");
                return Err(Failure::WithErrno(libc::EINVAL, message));
            }
            None => return Err(Failure::Argument("buffer is NULL: pass the memory of the data")),
            Some(start) => Some((start, length as usize)),
        };
        let Some(tag) = self.free.pop() else {
            let message = format!("all {} requests are outstanding: take completions", self.slots.len());
            return Err(Failure::WithErrno(libc::EAGAIN, message));
        };
        let memory = data.and_then(|(start, len)| memory::find(start.as_ptr().cast(), len));
        self.slots[tag as usize] = Slot { user_data, memory };
        // SAFETY: the caller keeps the memory valid and does not use it until the completion; the port drops the buffer
        // before that. `Queue::drop` waits for the completion.
        let buffer = data.map(|(start, len)| unsafe { Buffer::from_raw_parts(start, len) });
        let fua = flags & ISOLANE_DURABLE != 0;
        match self.volume.request(operation, range, buffer.unwrap_or_default(), fua) {
            Some(request) => self.port.submit(tag.into(), request),
            None => self.done.push_back(tag),
        }
        Ok(())
    }

    fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the result of a completed request.
    fn take(&mut self) -> Option<(u64, Result<(), Failure>)> {
        self.done.pop_front().map(|tag| (tag.into(), Ok(()))).or_else(|| self.port.take())
    }

    fn has_completions(&self) -> bool {
        !self.done.is_empty() || self.port.has_completions()
    }

    /// Requests a notification. Returns `false` if there is a completion already.
    fn arm(&mut self) -> io::Result<bool> {
        if self.done.is_empty() {
            return self.port.arm();
        }
        self.port.send();
        Ok(false)
    }

    /// Takes completions, at least `minimum` unless there are fewer requests, or the deadline passes.
    fn wait(
        &mut self,
        out: &mut [Completion],
        minimum: usize,
        deadline: Option<Instant>,
    ) -> Result<c_int, Failure> {
        self.texts.clear();
        let mut count = 0;
        // A deadline in the past still takes completions.
        let mut is_over = false;
        loop {
            while count < out.len()
                && let Some((tag, result)) = self.take()
            {
                out[count] = self.completion(tag, result);
                count += 1;
            }
            if count >= minimum.max(1).min(out.len()) || self.outstanding() == 0 || is_over {
                // Nothing has sent requests if there was no wait. A program that takes one completion at a time, and
                // submits one request for each, still sends many together: with the last of the completions.
                if !self.has_completions() {
                    self.port.send();
                }
                return Ok(count as c_int);
            }
            is_over = minimum == 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline);
            self.port.wait(if minimum == 0 { Some(Instant::now()) } else { deadline });
        }
    }

    fn completion(&mut self, tag: u64, result: Result<(), Failure>) -> Completion {
        let Slot { user_data, memory } = std::mem::take(&mut self.slots[tag as usize]);
        drop(memory);
        self.free.push(tag as u32);
        let (error, text) = match result {
            Ok(()) => (0, ptr::null()),
            Err(failure) => {
                let (number, text) = failure.number_and_text();
                // The address of a text does not change with the list.
                self.texts.push(CString::new(text.replace('\0', "?")).unwrap_or_default());
                (number, self.texts.last().map_or(ptr::null(), |text| text.as_ptr()))
            }
        };
        Completion { user_data, error, reserved: 0, text }
    }
}

impl Drop for Queue {
    /// Waits for all requests, because they use memory of the program, and clears the descriptor, which can stay open for
    /// a moment.
    fn drop(&mut self) {
        while self.outstanding() > 0 {
            self.port.wait(None);
            while let Some((tag, _)) = self.take() {
                self.free.push(tag as u32);
            }
        }
        self.port.disarm();
    }
}

/// Maximum number of requests of a queue.
const MAX_DEPTH: u32 = 4096;

/// A queue can move between threads. Its texts are read by the program only.
const _: fn() = || {
    fn is_sent<T: Send>() {}
    is_sent::<Queue>();
};
