//! `select`, as a `poll` if an adopted socket is in its sets.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::slice;
use std::time::{Duration, Instant};

use libc::{
    EBADF, EINVAL, FD_CLR, FD_ISSET, FD_SETSIZE, POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI,
    POLLRDBAND, POLLRDNORM, POLLWRBAND, POLLWRNORM, fd_set, pollfd, sigset_t, timespec, timeval,
};

use super::poll::{is_special, ready_now, wait};
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

    /// Returns the descriptors of the sets, stored in `space`, if one of them needs this library.
    fn special<'a>(&self, count: c_int, space: &'a mut Space) -> Option<&'a mut [pollfd]> {
        let count = usize::try_from(count).ok().filter(|count| *count <= FD_SETSIZE)?;
        let (mut found, mut special) = (0, false);
        for word in 0..count.div_ceil(WORD) {
            let valid = u64::MAX >> (WORD - (count - word * WORD).min(WORD));
            let words = [0, 1, 2].map(|set| self.word(set, word) & valid);
            let mut left = words[0] | words[1] | words[2];
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                let fd = (word * WORD) as c_int + bit as c_int;
                let events = |set: usize| if words[set] >> bit & 1 == 1 { EVENTS[set].0 } else { 0 };
                // All, because each set of epoll becomes the kernel's.
                special |= is_special(fd);
                space[found].write(pollfd { fd, events: events(0) | events(1) | events(2), revents: 0 });
                found += 1;
            }
        }
        // SAFETY: the first `found` elements are written.
        special.then(|| unsafe { slice::from_raw_parts_mut(space.as_mut_ptr().cast(), found) })
    }

    /// Returns the bits of 64 descriptors.
    fn word(&self, set: usize, index: usize) -> u64 {
        // SAFETY: a set is null or the program's, and has so many words.
        if self.0[set].is_null() { 0 } else { unsafe { self.0[set].cast::<u64>().add(index).read() } }
    }

    /// Ends a call if an adopted descriptor is ready. Returns the number of descriptors with events in all sets.
    fn take_ready(&self, fds: &mut [pollfd]) -> Option<c_int> {
        ready_now(fds)?;
        let count = self.count(fds);
        if count > 0 {
            fds.iter().for_each(|polled| self.leave(polled));
        }
        (count > 0).then_some(count)
    }

    /// Waits, and leaves the descriptors with events in the sets. Returns their number in all sets.
    fn wait(
        &self,
        fds: &mut [pollfd],
        timeout: Option<Duration>,
        mask: *const sigset_t,
    ) -> Result<c_int, c_int> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let is_over = until.is_some_and(|until| Instant::now() >= until);
            wait(fds, until.map(|until| until.saturating_duration_since(Instant::now())), mask)?;
            if fds.iter().any(|polled| polled.revents & POLLNVAL != 0) {
                return Err(EBADF);
            }
            let count = self.count(fds);
            if count > 0 || is_over || fds.iter().all(|polled| polled.revents == 0) {
                fds.iter().for_each(|polled| self.leave(polled));
                return Ok(count);
            }
            // An error or a hangup that no set asks for lasts, and does not end the wait.
            fds.iter_mut().filter(|polled| polled.revents != 0).for_each(|polled| polled.fd = !polled.fd);
        }
    }

    /// Returns the number of descriptors with events in all sets.
    fn count(&self, fds: &[pollfd]) -> c_int {
        let found = fds.iter().map(|polled| (0..3).filter(|set| self.has_event(*set, polled)).count());
        found.sum::<usize>() as c_int
    }

    /// Returns `true` if the set asks for an event that has occurred.
    fn has_event(&self, set: usize, polled: &pollfd) -> bool {
        polled.revents & EVENTS[set].1 != 0 && polled.fd >= 0 && self.has(set, polled.fd)
    }

    /// Leaves a descriptor only in the sets that ask for an event that has occurred.
    fn leave(&self, polled: &pollfd) {
        let fd = if polled.fd < 0 { !polled.fd } else { polled.fd };
        for set in (0..3).filter(|set| !self.has_event(*set, polled) && self.has(*set, fd)) {
            // SAFETY: the set is the program's, and has the descriptor.
            unsafe { FD_CLR(fd, self.0[set]) };
        }
    }
}

/// Descriptors of a call, on the stack.
type Space = [MaybeUninit<pollfd>; FD_SETSIZE];
/// Descriptors in a word of a set.
const WORD: usize = 64;
const _: () = assert!(size_of::<fd_set>() == FD_SETSIZE / 8 && align_of::<fd_set>() == align_of::<u64>());

exported! {
    fn select = __select(
        count: c_int,
        reads: *mut fd_set,
        writes: *mut fd_set,
        excepts: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int {
        let sets = Sets([reads, writes, excepts]);
        let mut space = [MaybeUninit::uninit(); FD_SETSIZE];
        let Some(fds) = sets.special(count, &mut space) else { return kernel!(select(count, reads, writes, excepts, timeout)) };
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
        if let Some(count) = sets.take_ready(fds) {
            return count;
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
        let mut space = [MaybeUninit::uninit(); FD_SETSIZE];
        let Some(fds) = sets.special(count, &mut space) else {
            return kernel!(pselect(count, reads, writes, excepts, timeout, mask));
        };
        // SAFETY: the program passes a time, or null.
        match unsafe { timeout.as_ref() }.map(sockets::duration) {
            Some(None) => fail(EINVAL),
            timeout => sets.wait(fds, timeout.flatten(), mask).unwrap_or_else(fail),
        }
    }
}
