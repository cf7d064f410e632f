//! `epoll_create`, `epoll_ctl`, and `epoll_wait`.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{EINVAL, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLEXCLUSIVE, epoll_event, sigset_t, timespec};

use super::{exported, fail, kernel, last_error};
use crate::epoll::{LiveEngine, Set, Step};
use crate::stats::Reason;
use crate::{sockets, table};

fn created(fd: c_int) -> c_int {
    if fd >= 0 {
        table::insert_set(fd);
    }
    fd
}

/// Changes the membership of a TCP socket of this process. `None`: the kernel does it.
fn control(set_fd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> Option<Result<(), c_int>> {
    loop {
        if let Some(result) = try_control(set_fd, operation, fd, event)? {
            return Some(result);
        }
        // It is a candidate again once no other process has the set.
        table::release(fd, Reason::Epoll, table::CANDIDATE);
    }
}

/// Returns `None` if the kernel does it, and `Some(None)` if the socket must return first.
fn try_control(
    set_fd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> Option<Option<Result<(), c_int>>> {
    let slot = table::socket(fd)?;
    // SAFETY: the program passes an event, or null.
    let event = unsafe { event.as_ref() }.copied();
    if event.is_none() && operation != EPOLL_CTL_DEL {
        return None;
    }
    let exclusive = event.is_some_and(|event| event.events & EPOLLEXCLUSIVE as u32 != 0);
    let set = table::slot(set_fd).and_then(table::Slot::set).filter(|_| !exclusive);
    let Some(set) = set else {
        // A set that this process has not created, or shares.
        if operation == EPOLL_CTL_ADD {
            table::release(fd, Reason::Epoll, table::PINNED);
        }
        return None;
    };
    Some(slot.with_entry(|state, entry| {
        let is_member = entry.sets.iter().any(|other| Arc::ptr_eq(other, &set));
        let result = match &entry.adopted {
            Some(adopted) if state == table::ADOPTED => set.control_adopted(operation, fd, event, adopted),
            _ => Some(set.control_kernel(operation, fd, event)),
        };
        if matches!(result, Some(Ok(()))) {
            match operation {
                EPOLL_CTL_ADD if !is_member => entry.sets.push(Arc::clone(&set)),
                EPOLL_CTL_DEL => entry.sets.retain(|other| !Arc::ptr_eq(other, &set)),
                _ => {}
            }
        }
        result
    }))
}

/// Returns a set of this process.
fn own(fd: c_int) -> Option<Arc<Set>> {
    table::slot(fd)?.set()
}

/// Waits as `epoll_pwait` does. Returns the number of events, or of an error.
fn wait(
    fd: c_int,
    set: &Set,
    events: &mut [epoll_event],
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Result<usize, c_int> {
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    // Only `epoll_pwait2` has such times.
    let is_exact = timeout.is_some_and(|timeout| timeout.subsec_nanos() % 1_000_000 != 0);
    loop {
        if !set.is_mixed() {
            set.start_sleep();
            let result = sleep(fd, events, until, is_exact, mask);
            set.end_sleep();
            let count = result?;
            // It may have been mixed in the meantime.
            let kept = set.remove_own(None, &mut events[..count]);
            set.set_checked(kept > 0);
            if kept > 0 || count == 0 {
                return Ok(kept);
            }
        }
        let engine = set.engine();
        let engine = engine.as_ref().map(|engine| LiveEngine(engine, table::abandon));
        if set.set_kernel_first(false) {
            let count = call(fd, events, 0, mask)?;
            let kept = set.remove_own(engine.as_ref(), &mut events[..count]);
            if kept > 0 {
                return Ok(kept);
            }
        }
        match set.before_sleep(engine.as_ref(), events) {
            Step::Ready(count) if count == events.len() => {
                set.set_kernel_first(true);
                return Ok(count);
            }
            Step::Ready(0) => {}
            Step::Ready(count) if set.was_checked() => return Ok(count),
            Step::Ready(count) => {
                let more = call(fd, &mut events[count..], 0, mask).unwrap_or(0);
                let more = set.remove_own(engine.as_ref(), &mut events[count..count + more]);
                set.set_checked(more > 0);
                return Ok(count + more);
            }
            Step::Sleep => {
                let is_over = until.is_some_and(|until| Instant::now() >= until);
                let result = sleep(fd, events, until, is_exact, mask);
                let slept = *result.as_ref().unwrap_or(&0);
                let count = set.after_sleep(engine.as_ref(), &mut events[..slept]);
                result?;
                set.set_checked(count > 0);
                if count > 0 {
                    return Ok(count);
                }
                if is_over {
                    set.queue_unfetched();
                    return Ok(set.after_timeout(engine.as_ref(), events));
                }
            }
        }
    }
}

/// Waits in the kernel's set, in milliseconds unless the time `is_exact`.
fn sleep(
    fd: c_int,
    events: &mut [epoll_event],
    until: Option<Instant>,
    is_exact: bool,
    mask: *const sigset_t,
) -> Result<usize, c_int> {
    let Some(until) = until.filter(|_| is_exact) else {
        return call(fd, events, milliseconds(until), mask);
    };
    let remaining = until.saturating_duration_since(Instant::now());
    let time = timespec {
        tv_sec: remaining.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: remaining.subsec_nanos().into(),
    };
    match kernel!(epoll_pwait2(fd, events.as_mut_ptr(), events.len() as c_int, &raw const time, mask)) {
        -1 => Err(last_error()),
        count => Ok(count as usize),
    }
}

/// Returns the remaining time, rounded up.
fn milliseconds(until: Option<Instant>) -> c_int {
    let remaining = until.map(|until| until.saturating_duration_since(Instant::now()));
    remaining.map_or(-1, |time| time.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(c_int::MAX))
}

fn call(
    fd: c_int,
    events: &mut [epoll_event],
    timeout: c_int,
    mask: *const sigset_t,
) -> Result<usize, c_int> {
    match kernel!(epoll_pwait(fd, events.as_mut_ptr(), events.len() as c_int, timeout, mask)) {
        -1 => Err(last_error()),
        count => Ok(count as usize),
    }
}

/// Returns the buffer of the program. `None`: the kernel reports the error.
fn buffer<'a>(events: *mut epoll_event, count: c_int) -> Option<&'a mut [epoll_event]> {
    let count = usize::try_from(count).ok().filter(|count| *count > 0 && !events.is_null())?;
    // SAFETY: the program passes a buffer of this length.
    Some(unsafe { std::slice::from_raw_parts_mut(events, count) })
}

fn result(result: Result<usize, c_int>) -> c_int {
    result.map_or_else(fail, |count| count as c_int)
}

exported! {
    fn epoll_create(size: c_int) -> c_int {
        created(kernel!(epoll_create(size)))
    }

    fn epoll_create1(flags: c_int) -> c_int {
        created(kernel!(epoll_create1(flags)))
    }

    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        // A set in another one, which reports its events.
        table::demote(fd);
        match control(set, operation, fd, event) {
            None => kernel!(epoll_ctl(set, operation, fd, event)),
            Some(Ok(())) => 0,
            Some(Err(error)) => fail(error),
        }
    }

    fn epoll_wait(fd: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int {
        match own(fd).zip(buffer(events, count)) {
            None => kernel!(epoll_wait(fd, events, count, timeout)),
            Some((set, events)) => {
                let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
                result(wait(fd, &set, events, timeout, std::ptr::null()))
            }
        }
    }

    fn epoll_pwait(
        fd: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int {
        match own(fd).zip(buffer(events, count)) {
            None => kernel!(epoll_pwait(fd, events, count, timeout, mask)),
            Some((set, events)) => {
                let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
                result(wait(fd, &set, events, timeout, mask))
            }
        }
    }

    fn epoll_pwait2(
        fd: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        match own(fd).zip(buffer(events, count)) {
            None => kernel!(epoll_pwait2(fd, events, count, timeout, mask)),
            // SAFETY: the program passes a time, or null.
            Some((set, events)) => match unsafe { timeout.as_ref() }.map(sockets::duration) {
                Some(None) => fail(EINVAL),
                timeout => result(wait(fd, &set, events, timeout.flatten(), mask)),
            },
        }
    }
}
