//! Descriptors: their end, duplicates, and flags.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::{
    F_DUPFD, F_DUPFD_CLOEXEC, F_SETFD, F_SETFL, F_SETOWN, FD_CLOEXEC, FIONBIO, FIONREAD, O_ASYNC, TIOCOUTQ,
};

use super::{exported, kernel};
use crate::adopted::Adopted;
use crate::process::{report_duplicate, share};
use crate::stats::Reason;
use crate::{sockets, table};

/// Reads O_NONBLOCK, which a call has changed; another thread may have changed it again.
fn update_nonblocking(fd: c_int) {
    if let Some(slot) = table::slot(fd) {
        slot.update(|adopted| {
            if let Some(nonblocking) = sockets::is_nonblocking(fd) {
                adopted.nonblocking.store(nonblocking, Ordering::Relaxed);
            }
        });
    }
}

/// Handles `fcntl`, which has an argument of any type.
fn control(fd: c_int, command: c_int, argument: usize, call: impl FnOnce() -> c_int) -> c_int {
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => share(fd),
        F_SETFD if argument as c_int & FD_CLOEXEC == 0 => report_duplicate(fd),
        F_SETOWN | F_SETSIG | F_SETOWN_EX => table::release(fd, Reason::Option, table::PINNED),
        F_SETFL if argument as c_int & O_ASYNC != 0 => table::release(fd, Reason::Option, table::PINNED),
        _ => {}
    }
    let result = call();
    if command == F_SETFL && result == 0 {
        update_nonblocking(fd);
    }
    result
}

exported! {
    fn close = __close(fd: c_int) -> c_int {
        let Some(slot) = table::slot(fd).filter(|slot| slot.state() != table::OTHER) else {
            return kernel!(close(fd));
        };
        if let Some(adopted) = slot.adopted()
            && adopted.engine().is_lost()
        {
            table::abandon(adopted.engine());
        }
        if table::close_adopted(fd) {
            return 0;
        }
        table::forget(fd, Reason::Call);
        kernel!(close(fd))
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        let end = c_int::try_from(last).unwrap_or(c_int::MAX);
        if flags == 0 {
            table::used().map(|(fd, _)| fd).filter(|fd| *fd >= first as c_int && *fd <= end).for_each(|fd| {
                table::forget(fd, Reason::Call);
            });
        } else {
            // The table of descriptors may become another thread's.
            crate::process::share_everything();
        }
        kernel!(close_range(first, last, flags))
    }

    fn closefrom(first: c_int) -> () {
        table::used().map(|(fd, _)| fd).filter(|fd| *fd >= first).for_each(|fd| table::forget(fd, Reason::Call));
        kernel!(closefrom(first));
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        table::release(fd, Reason::Shutdown, table::PINNED);
        kernel!(shutdown(fd, how))
    }

    fn dup(fd: c_int) -> c_int {
        share(fd);
        kernel!(dup(fd))
    }

    fn dup2 = __dup2(fd: c_int, to: c_int) -> c_int {
        share(fd);
        if fd != to {
            table::forget(to, Reason::Duplicate);
        }
        kernel!(dup2(fd, to))
    }

    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        share(fd);
        if fd != to {
            table::forget(to, Reason::Duplicate);
        }
        kernel!(dup3(fd, to, flags))
    }

    fn fcntl = __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        control(fd, command, argument, || kernel!(fcntl(fd, command, argument)))
    }

    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        control(fd, command, argument, || kernel!(fcntl(fd, command, argument)))
    }

    fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int {
        if request as u64 == FIONCLEX {
            report_duplicate(fd);
        }
        let Some(slot) = table::socket(fd) else { return kernel!(ioctl(fd, request, argument)) };
        let target = argument as *mut c_int;
        match request as u64 {
            FIONREAD if !target.is_null() => {
                let unread = |adopted: Arc<Adopted>| {
                    adopted.catch_up();
                    adopted.queued()
                };
                if let Some((unread, _)) = slot.adopted().and_then(unread) {
                    // SAFETY: the program passes the place of the result.
                    unsafe { target.write(unread as c_int) };
                    return 0;
                }
            }
            TIOCOUTQ if !target.is_null() => {
                let unsent = slot.adopted().and_then(|adopted| adopted.queued()).map_or(0, |(_, unsent)| unsent);
                let result = kernel!(ioctl(fd, request, argument));
                if result == 0 {
                    // SAFETY: the program passes the place of the result.
                    unsafe { target.write(target.read().saturating_add(unsent as c_int)) };
                }
                return result;
            }
            FIONBIO if !target.is_null() => {
                let result = kernel!(ioctl(fd, request, argument));
                if result == 0 {
                    update_nonblocking(fd);
                }
                return result;
            }
            libc::FIOCLEX | FIONCLEX => {}
            _ => table::release(fd, Reason::Option, table::PINNED),
        }
        kernel!(ioctl(fd, request, argument))
    }
}

/// Not in `libc`.
const FIONCLEX: u64 = 0x5450;
const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;
