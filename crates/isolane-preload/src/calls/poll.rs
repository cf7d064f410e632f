//! `poll`, and the wait that `select` shares.
//!
//! The kernel's call gets a copy of the array without adopted sockets, but with the engine's bell and an eventfd by which
//! another thread passes on events that it has fetched.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{EINVAL, POLLERR, POLLHUP, POLLIN, POLLRDNORM, nfds_t, pollfd, sigset_t, timespec};

use super::{exported, fail, kernel, last_error};
use crate::adopted::{self, Adopted};
use crate::policy::now_ns;
use crate::stats::Reason;
use crate::{own, real, sockets, table};

/// Returns `true` if a descriptor needs this library. Sets of epoll that are polled become the kernel's.
#[inline]
pub(crate) fn is_special(fd: c_int) -> bool {
    let Some(slot) = table::slot(fd) else { return false };
    match slot.state() {
        table::SET => {
            table::demote(fd);
            false
        }
        state => state >= table::ADOPTING,
    }
}

/// Sets the events of all descriptors if adopted ones have events. Returns their number. `None`: the kernel must be
/// asked, or the engine has ended.
///
/// The kernel's descriptors count as not ready if that was so in the last [`CHECK_INTERVAL`].
pub(crate) fn ready_now(fds: &mut [pollfd]) -> Option<c_int> {
    fds.iter_mut().for_each(|polled| polled.revents = 0);
    let (mut ready, mut others) = (0, Others::NONE);
    for polled in fds {
        let fd = polled.fd;
        let Some(events) =
            table::slot(fd).and_then(|slot| slot.with_adopted(|adopted| adopted.events(false)))
        else {
            others.add(fd, polled.events);
            continue;
        };
        let events = events? as i16;
        if events & POLLERR != 0 {
            return None;
        }
        polled.revents = events & (polled.events | POLLHUP);
        ready += c_int::from(polled.revents != 0);
    }
    (ready > 0 && others.were_checked()).then_some(ready)
}

/// Descriptors of the kernel in a poll.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Others(u64);

thread_local! {
    /// Descriptors of the kernel that this thread has found not ready, and when.
    static CHECKED: Cell<(Others, u64)> = const { Cell::new((Others::NONE, 0)) };
}

impl Others {
    const NONE: Others = Others(0);

    fn add(&mut self, fd: c_int, events: i16) {
        if fd >= 0 {
            // Different for most other lists: a check that is omitted is late by the interval.
            let one = (fd as u64) << 16 | u64::from(events as u16);
            self.0 = (self.0 ^ (one + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        }
    }

    /// Returns `true` if there are none, or if they were not ready a moment ago.
    fn were_checked(self) -> bool {
        let is_recent = |(others, at)| others == self && now_ns().wrapping_sub(at) < CHECK_INTERVAL;
        self == Others::NONE || is_recent(CHECKED.get())
    }

    /// Records the result of a check.
    fn set_checked(self, are_ready: bool) {
        CHECKED.set(if are_ready { (Others::NONE, 0) } else { (self, now_ns()) });
    }
}

/// Waits as `ppoll` does. Returns the number of descriptors with events, or of an error.
pub(crate) fn wait(
    fds: &mut [pollfd],
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Result<c_int, c_int> {
    if let Some(ready) = ready_now(fds) {
        return Ok(ready);
    }
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let streams: Vec<_> = fds
            .iter()
            .enumerate()
            .filter_map(|(index, polled)| Some((index, table::slot(polled.fd)?.adopted()?)))
            .collect();
        if streams.is_empty() {
            return call(fds, remaining(until), mask);
        }
        let Some(ready) = check(fds, &streams, false) else { continue };
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        if ready == 0 && is_over && catch_up(fds, &streams) {
            continue;
        }
        if ready > 0 || is_over {
            return Ok(ready + call_without(fds, &streams, &[], Some(Duration::ZERO), mask)?.0);
        }
        let Some(event) = own::take_event(own::Wait::of_frame(&until)) else {
            // Without a descriptor, only the kernel can wait.
            streams
                .iter()
                .for_each(|(index, _)| table::release(fds[*index].fd, Reason::Call, table::CANDIDATE));
            continue;
        };
        streams.iter().for_each(|(_, adopted)| adopted.watch_poll(event));
        let slept = sleep(fds, &streams, event, until, mask);
        streams.iter().for_each(|(_, adopted)| adopted.unwatch_poll(event));
        own::put_event(event);
        if let Some(count) = slept? {
            return Ok(count);
        }
    }
}

/// Sleeps until an event. Returns `None` if streams must be checked again, else the result.
fn sleep(
    fds: &mut [pollfd],
    streams: &[(usize, Arc<Adopted>)],
    event: c_int,
    until: Option<Instant>,
    mask: *const sigset_t,
) -> Result<Option<c_int>, c_int> {
    match check(fds, streams, true) {
        Some(0) => {}
        _ => return Ok(None),
    }
    let engine = Arc::clone(streams[0].1.engine());
    if !engine.arm() {
        table::abandon(&engine);
        return Ok(None);
    }
    let own = [engine.bell(), event].map(|fd| pollfd { fd, events: POLLIN, revents: 0 });
    let (count, own) = call_without(fds, streams, &own, remaining(until), mask)?;
    if own[0] != 0 && !engine.clear() {
        table::abandon(&engine);
    }
    match check(fds, streams, false) {
        // Others have events, before which a peer may have sent data.
        Some(0) if count > 0 && catch_up(fds, streams) => Ok(None),
        Some(ready) if ready + count > 0 => Ok(Some(ready + count)),
        _ => Ok(None),
    }
}

/// Waits until the engine has fetched data that is requested, and that the kernel has. Returns `true` if there is any.
fn catch_up(fds: &[pollfd], streams: &[(usize, Arc<Adopted>)]) -> bool {
    let is_requested = |index: usize| fds[index].events & (POLLIN | POLLRDNORM) != 0;
    let streams = streams.iter().filter(|(index, _)| is_requested(*index));
    !adopted::catch_up(streams.map(|(_, adopted)| adopted)).is_empty()
}

/// Sets the events of adopted sockets. Returns their number, or `None` if one was returned to the kernel.
fn check(fds: &mut [pollfd], streams: &[(usize, Arc<Adopted>)], arm: bool) -> Option<c_int> {
    let mut ready = 0;
    for (index, adopted) in streams {
        let polled = &mut fds[*index];
        let events = adopted.events(arm)? as i16;
        if events & POLLERR != 0 && adopted.engine().is_lost() {
            // Not of the connection, which returns to the kernel.
            table::abandon(adopted.engine());
            return None;
        }
        polled.revents = events & (polled.events | POLLERR | POLLHUP);
        ready += c_int::from(polled.revents != 0);
    }
    Some(ready)
}

/// Polls all other descriptors, and up to two of this library. Returns the number of the former, and the events of the
/// latter.
fn call_without(
    fds: &mut [pollfd],
    streams: &[(usize, Arc<Adopted>)],
    own: &[pollfd],
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Result<(c_int, [i16; 2]), c_int> {
    let mut others: Vec<pollfd> = fds.to_vec();
    for (index, _) in streams {
        others[*index].fd = -1;
    }
    let mut checked = Others::NONE;
    others.iter().for_each(|polled| checked.add(polled.fd, polled.events));
    others.extend_from_slice(own);
    if checked == Others::NONE && own.is_empty() && mask.is_null() {
        return Ok((0, [0; 2]));
    }
    call(&mut others, timeout, mask)?;
    for (index, polled) in fds.iter_mut().enumerate().filter(|(index, _)| others[*index].fd != -1) {
        polled.revents = others[index].revents;
    }
    let count = others[..fds.len()].iter().filter(|polled| polled.fd >= 0 && polled.revents != 0).count();
    checked.set_checked(count > 0);
    let mut events = [0; 2];
    events.iter_mut().zip(&others[fds.len()..]).for_each(|(event, polled)| *event = polled.revents);
    Ok((count as c_int, events))
}

fn call(fds: &mut [pollfd], timeout: Option<Duration>, mask: *const sigset_t) -> Result<c_int, c_int> {
    let timeout = timeout.map(to_timespec);
    let timeout = timeout.as_ref().map_or(std::ptr::null(), |timeout| &raw const *timeout);
    // SAFETY: the array and the time are valid, and the mask is the program's.
    match unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, timeout, mask) } {
        -1 => Err(last_error()),
        count => Ok(count),
    }
}

fn remaining(until: Option<Instant>) -> Option<Duration> {
    until.map(|until| until.saturating_duration_since(Instant::now()))
}

fn to_timespec(time: Duration) -> timespec {
    timespec { tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}

/// Returns the array of the program if a descriptor in it needs this library.
fn special<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if fds.is_null() || count == 0 || count > MAX_POLLED {
        return None;
    }
    // SAFETY: the program passes so many elements.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    // All, because each set of epoll becomes the kernel's.
    let specials = fds.iter().filter(|polled| is_special(polled.fd)).count();
    (specials > 0).then_some(fds)
}

fn result(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(fail)
}

exported! {
    fn poll = __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        let Some(fds) = special(fds, count) else { return kernel!(poll(fds, count, timeout)) };
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        result(wait(fds, timeout, std::ptr::null()))
    }

    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, size: usize) -> c_int {
        if size / size_of::<pollfd>() < count as usize {
            std::process::abort();
        }
        // SAFETY: as for `poll`.
        unsafe { poll(fds, count, timeout) }
    }

    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        let Some(fds) = special(fds, count) else { return kernel!(ppoll(fds, count, timeout, mask)) };
        // SAFETY: the program passes a time, or null.
        match unsafe { timeout.as_ref() }.map(sockets::duration) {
            Some(None) => fail(EINVAL),
            timeout => result(wait(fds, timeout.flatten(), mask)),
        }
    }

    fn __ppoll_chk(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
        size: usize,
    ) -> c_int {
        if size / size_of::<pollfd>() < count as usize {
            std::process::abort();
        }
        // SAFETY: as for `ppoll`.
        unsafe { ppoll(fds, count, timeout, mask) }
    }
}

/// Time in nanoseconds after which the kernel's descriptors are checked although adopted ones are ready.
const CHECK_INTERVAL: u64 = 50_000;
/// More descriptors than any limit allows.
const MAX_POLLED: nfds_t = 1 << 24;
