//! Options of sockets.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, socklen_t};

use super::{exported, kernel};
use crate::stats::Reason;
use crate::{sockets, table};

/// Returns `true` for options that do not affect transfers through the engine.
fn is_harmless(level: c_int, name: c_int) -> bool {
    match level {
        SOL_SOCKET => matches!(
            name,
            libc::SO_KEEPALIVE
                | libc::SO_REUSEADDR
                | libc::SO_REUSEPORT
                | libc::SO_RCVBUF
                | libc::SO_RCVTIMEO
                | libc::SO_SNDTIMEO
                | libc::SO_PRIORITY
                | libc::SO_MARK
                | libc::SO_DONTROUTE
        ),
        IPPROTO_TCP => matches!(
            name,
            libc::TCP_NODELAY
                | libc::TCP_CORK
                | libc::TCP_KEEPIDLE
                | libc::TCP_KEEPINTVL
                | libc::TCP_KEEPCNT
                | libc::TCP_USER_TIMEOUT
                | libc::TCP_QUICKACK
                | libc::TCP_CONGESTION
        ),
        IPPROTO_IP => matches!(name, libc::IP_TOS | libc::IP_TTL),
        IPPROTO_IPV6 => matches!(name, libc::IPV6_TCLASS | libc::IPV6_V6ONLY),
        _ => false,
    }
}

exported! {
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int {
        let Some(slot) = table::socket(fd) else { return kernel!(setsockopt(fd, level, name, value, length)) };
        if !is_harmless(level, name) {
            // These can be changed again before the next adoption, which checks them.
            let is_checked = level == SOL_SOCKET && matches!(name, libc::SO_LINGER | libc::SO_SNDBUF);
            let next = if is_checked { table::CANDIDATE } else { table::PINNED };
            table::release(fd, Reason::Option, next);
        }
        let result = kernel!(setsockopt(fd, level, name, value, length));
        if level == SOL_SOCKET && result == 0 {
            slot.update(|adopted| match name {
                libc::SO_RCVTIMEO => {
                    adopted.receive_timeout.store(sockets::timeout(fd, name), Ordering::Relaxed);
                }
                libc::SO_SNDTIMEO => adopted.send_timeout.store(sockets::timeout(fd, name), Ordering::Relaxed),
                _ => {}
            });
        }
        result
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int {
        if let Some(adopted) = table::socket(fd).and_then(table::Slot::adopted) {
            let changed = level == IPPROTO_TCP
                && matches!(name, libc::TCP_NOTSENT_LOWAT | libc::TCP_ZEROCOPY_RECEIVE);
            if changed || (level == SOL_SOCKET && matches!(name, libc::SO_OOBINLINE | libc::SO_PEEK_OFF)) {
                table::release(fd, Reason::Option, table::CANDIDATE);
            } else if (level, name) == (SOL_SOCKET, libc::SO_ERROR)
                && let Some(error) = adopted.error()
                && !value.is_null()
                && !length.is_null()
            {
                table::release(fd, Reason::Error, table::PINNED);
                // SAFETY: the program passes the place of the result, and its length.
                unsafe {
                    let count = (*length as usize).min(size_of::<c_int>());
                    std::ptr::copy_nonoverlapping((&raw const error).cast::<u8>(), value.cast(), count);
                    *length = count as socklen_t;
                }
                return 0;
            }
        }
        kernel!(getsockopt(fd, level, name, value, length))
    }
}
