//! `select`, as a `poll` if an adopted socket is in its sets.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use libc::{
    EBADF, EINVAL, FD_SETSIZE, POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDBAND, POLLRDNORM,
    POLLWRBAND, POLLWRNORM, fd_set, pollfd, sigset_t, timespec, timeval,
};

use super::poll::{is_special, ready_now, wait};
use super::{exported, fail, kernel};
use crate::{own, sockets};

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
        self.word(set, fd as usize / WORD) >> (fd as usize % WORD) & 1 == 1
    }

    /// Returns the number of descriptors below `count` in the sets if one of them needs this library.
    fn special(&self, count: usize) -> Option<usize> {
        let (mut found, mut special) = (0, false);
        self.for_each(count, |fd, _| {
            // All, because each set of epoll becomes the kernel's.
            special |= is_special(fd);
            found += 1;
        });
        special.then_some(found)
    }

    /// Writes the descriptors below `count` to `space`. Returns their number.
    fn fill(&self, count: usize, space: &mut [pollfd]) -> usize {
        let mut found = 0;
        self.for_each(count, |fd, events| {
            // Another thread may have added more in the meantime.
            if let Some(polled) = space.get_mut(found) {
                *polled = pollfd { fd, events, revents: 0 };
                found += 1;
            }
        });
        found
    }

    /// Calls `visit` for each descriptor below `count` with its requested events.
    #[inline]
    fn for_each(&self, count: usize, mut visit: impl FnMut(c_int, i16)) {
        for word in 0..count.div_ceil(WORD) {
            let words = [0, 1, 2].map(|set| self.word(set, word) & valid(count, word));
            let mut left = words[0] | words[1] | words[2];
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                let events = |set: usize| if words[set] >> bit & 1 == 1 { EVENTS[set].0 } else { 0 };
                visit((word * WORD) as c_int + bit as c_int, events(0) | events(1) | events(2));
            }
        }
    }

    /// Returns the bits of 64 descriptors.
    fn word(&self, set: usize, index: usize) -> u64 {
        // SAFETY: a set is null or the program's, and has so many words.
        if self.0[set].is_null() { 0 } else { unsafe { self.0[set].cast::<u64>().add(index).read() } }
    }

    /// Removes bits from a word of a set that is not null.
    fn clear(&self, set: usize, index: usize, bits: u64) {
        // SAFETY: the set is the program's, and has so many words.
        unsafe { *self.0[set].cast::<u64>().add(index) &= !bits };
    }

    /// Ends a call: leaves the descriptors with events in the sets, and none from `count` on, as the kernel does, which
    /// writes whole words.
    fn leave_all(&self, count: usize, fds: &[pollfd]) {
        fds.iter().for_each(|polled| self.leave(polled));
        let last = count.div_ceil(WORD).saturating_sub(1);
        for set in (0..3).filter(|set| count > 0 && !self.0[*set].is_null()) {
            self.clear(set, last, !valid(count, last));
        }
    }

    /// Ends a call if an adopted descriptor is ready. Returns the number of descriptors with events in all sets.
    fn take_ready(&self, limit: usize, fds: &mut [pollfd]) -> Option<c_int> {
        ready_now(fds)?;
        let count = self.count(fds);
        if count > 0 {
            self.leave_all(limit, fds);
        }
        (count > 0).then_some(count)
    }

    /// Waits, and leaves the descriptors with events in the sets. Returns their number in all sets.
    fn wait(
        &self,
        limit: usize,
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
                self.leave_all(limit, fds);
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
            self.clear(set, fd as usize / WORD, 1 << (fd as usize % WORD));
        }
    }
}

/// Returns the bits of descriptors below `count` in a word.
fn valid(count: usize, word: usize) -> u64 {
    u64::MAX >> (WORD - (count - word * WORD).min(WORD))
}

/// Returns the number of descriptors that the sets may have. Natively, the kernel reads no further than its table of
/// descriptors, which this library's enlarge.
fn limited(count: c_int) -> c_int {
    if count > FD_SETSIZE as c_int {
        count.min(own::end_of_programs().max(FD_SETSIZE as c_int))
    } else {
        count
    }
}

/// Calls `work` with the descriptors of the sets.
fn with_descriptors<T>(sets: &Sets, count: usize, found: usize, work: impl FnOnce(&mut [pollfd]) -> T) -> T {
    const NONE: pollfd = pollfd { fd: -1, events: 0, revents: 0 };
    let (mut few, mut many) = ([NONE; FEW], Vec::new());
    let space = if found <= FEW {
        &mut few[..found]
    } else {
        many.resize(found, NONE);
        &mut many[..]
    };
    let found = sets.fill(count, space);
    work(&mut space[..found])
}

/// [`select`] with a descriptor that needs this library. Separate, because other programs do not have the space on their
/// stacks.
#[inline(never)]
fn select_special(sets: &Sets, count: usize, found: usize, timeout: *mut timeval) -> c_int {
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
    with_descriptors(sets, count, found, |fds| {
        if let Some(ready) = sets.take_ready(count, fds) {
            return ready;
        }
        let (limit, start) = (limit.flatten(), Instant::now());
        let result = sets.wait(count, fds, limit, std::ptr::null());
        if let (Some(time), Some(limit)) = (time, limit) {
            // As the kernel does.
            let left = limit.saturating_sub(start.elapsed());
            time.tv_sec = left.as_secs() as i64;
            time.tv_usec = left.subsec_micros().into();
        }
        result.unwrap_or_else(fail)
    })
}

/// [`pselect`] with a descriptor that needs this library.
#[inline(never)]
fn pselect_special(
    sets: &Sets,
    count: usize,
    found: usize,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program passes a time, or null.
    match unsafe { timeout.as_ref() }.map(sockets::duration) {
        Some(None) => fail(EINVAL),
        timeout => with_descriptors(sets, count, found, |fds| {
            sets.wait(count, fds, timeout.flatten(), mask).unwrap_or_else(fail)
        }),
    }
}

/// Descriptors of a call that are stored on the stack.
const FEW: usize = 64;
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
        let (sets, count) = (Sets([reads, writes, excepts]), limited(count));
        let size = usize::try_from(count).unwrap_or(0);
        match sets.special(size) {
            Some(found) => select_special(&sets, size, found, timeout),
            None => kernel!(select(count, reads, writes, excepts, timeout)),
        }
    }

    fn pselect(
        count: c_int,
        reads: *mut fd_set,
        writes: *mut fd_set,
        excepts: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let (sets, count) = (Sets([reads, writes, excepts]), limited(count));
        let size = usize::try_from(count).unwrap_or(0);
        match sets.special(size) {
            Some(found) => pselect_special(&sets, size, found, timeout, mask),
            None => kernel!(pselect(count, reads, writes, excepts, timeout, mask)),
        }
    }
}
