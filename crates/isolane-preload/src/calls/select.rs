//! `select`, as a `poll` if an adopted socket is in its sets.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use libc::{
    EBADF, EINVAL, FD_CLR, FD_ISSET, FD_SETSIZE, POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI,
    POLLRDBAND, POLLRDNORM, POLLWRBAND, POLLWRNORM, fd_set, pollfd, sigset_t, timespec, timeval,
};

use super::poll::{is_special, wait};
use super::{exported, fail, kernel};
use crate::sockets;

/// Sets of the program; each can be absent.
struct Sets([*mut fd_set; 3]);

/// Requested and reported events of each set, as the kernel maps them.
const EVENTS: [(i16, i16); 3] = [
    (POLLIN | POLLRDNORM | POLLRDBAND, POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR),
    (POLLOUT | POLLWRNORM | POLLWRBAND, POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR),
    (POLLPRI, POLLPRI),
];

impl Sets {
    fn has(&self, set: usize, fd: c_int) -> bool {
        // SAFETY: a set is null or the program's, and the descriptor is below its size.
        !self.0[set].is_null() && unsafe { FD_ISSET(fd, self.0[set]) }
    }

    /// Returns the descriptors of the sets if one of them needs this library.
    fn special(&self, count: c_int) -> Option<Vec<pollfd>> {
        let count = usize::try_from(count).ok().filter(|count| *count <= FD_SETSIZE)?;
        let (mut fds, mut special) = (Vec::new(), false);
        for fd in 0..count as c_int {
            let sets = (0..3).filter(|set| self.has(*set, fd));
            let events = sets.fold(0, |events, set| events | EVENTS[set].0);
            if events != 0 {
                // All, because each set of epoll becomes the kernel's.
                special |= is_special(fd);
                fds.push(pollfd { fd, events, revents: 0 });
            }
        }
        special.then_some(fds)
    }

    /// Waits, and leaves the descriptors with events in the sets. Returns their number in all sets.
    fn wait(
        &self,
        mut fds: Vec<pollfd>,
        timeout: Option<Duration>,
        mask: *const sigset_t,
    ) -> Result<c_int, c_int> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let is_over = until.is_some_and(|until| Instant::now() >= until);
            wait(&mut fds, until.map(|until| until.saturating_duration_since(Instant::now())), mask)?;
            if fds.iter().any(|polled| polled.revents & POLLNVAL != 0) {
                return Err(EBADF);
            }
            let count = fds.iter().map(|polled| self.found(polled).count() as c_int).sum();
            if count > 0 || is_over || fds.iter().all(|polled| polled.revents == 0) {
                fds.iter().for_each(|polled| self.leave(polled));
                return Ok(count);
            }
            // An error or a hangup that no set asks for lasts, and does not end the wait.
            fds.iter_mut().filter(|polled| polled.revents != 0).for_each(|polled| polled.fd = !polled.fd);
        }
    }

    /// Returns the sets that ask for an event that has occurred.
    fn found(&self, polled: &pollfd) -> impl Iterator<Item = usize> {
        let events = polled.revents;
        (0..3).filter(move |set| polled.fd >= 0 && self.has(*set, polled.fd) && events & EVENTS[*set].1 != 0)
    }

    /// Leaves a descriptor in these sets only.
    fn leave(&self, polled: &pollfd) {
        let found: [bool; 3] = std::array::from_fn(|set| self.found(polled).any(|other| other == set));
        let fd = if polled.fd < 0 { !polled.fd } else { polled.fd };
        for set in (0..3).filter(|set| self.has(*set, fd) && !found[*set]) {
            // SAFETY: the set is the program's, and has the descriptor.
            unsafe { FD_CLR(fd, self.0[set]) };
        }
    }
}

exported! {
    fn select = __select(
        count: c_int,
        reads: *mut fd_set,
        writes: *mut fd_set,
        excepts: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int {
        let sets = Sets([reads, writes, excepts]);
        let Some(fds) = sets.special(count) else { return kernel!(select(count, reads, writes, excepts, timeout)) };
        // SAFETY: the program passes a time, or null.
        let time = unsafe { timeout.as_mut() };
        let limit = time.as_ref().map(|time| {
            let seconds = u64::try_from(time.tv_sec).ok()?;
            let micros = u64::try_from(time.tv_usec).ok()?;
            Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
        });
        if limit == Some(None) {
            return fail(EINVAL);
        }
        let (limit, start) = (limit.flatten(), Instant::now());
        let result = sets.wait(fds, limit, std::ptr::null());
        if let (Some(time), Some(limit)) = (time, limit) {
            // As the kernel does.
            let left = limit.saturating_sub(start.elapsed());
            time.tv_sec = left.as_secs() as i64;
            time.tv_usec = left.subsec_micros().into();
        }
        result.unwrap_or_else(fail)
    }

    fn pselect(
        count: c_int,
        reads: *mut fd_set,
        writes: *mut fd_set,
        excepts: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let sets = Sets([reads, writes, excepts]);
        let Some(fds) = sets.special(count) else {
            return kernel!(pselect(count, reads, writes, excepts, timeout, mask));
        };
        // SAFETY: the program passes a time, or null.
        match unsafe { timeout.as_ref() }.map(sockets::duration) {
            Some(None) => fail(EINVAL),
            timeout => sets.wait(fds, timeout.flatten(), mask).unwrap_or_else(fail),
        }
    }
}
