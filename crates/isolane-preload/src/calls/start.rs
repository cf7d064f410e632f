//! Starts of connections, and of other programs and processes.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use libc::{
    AF_INET, AF_INET6, EADDRINUSE, EINPROGRESS, EINTR, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, off_t,
    sockaddr, socklen_t,
};

use super::{exported, kernel, last_error};
use crate::stats::Reason;
use crate::{adopted, gate, process, table};

/// Runs a call of exec, which returns only if it fails.
fn exec(call: impl FnOnce() -> c_int) -> c_int {
    gate::close();
    process::share_inherited();
    let result = call();
    gate::open();
    result
}

/// Records a socket that a call has returned, and keeps the call's error.
fn accepted(fd: c_int) -> c_int {
    if fd >= 0 {
        table::insert_socket(fd, table::CANDIDATE);
    }
    fd
}

exported! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let fd = kernel!(socket(domain, kind, protocol));
        if fd >= 0 && matches!(domain, AF_INET | AF_INET6) && kind & KIND == SOCK_STREAM {
            table::insert_socket(fd, table::NEW);
        }
        fd
    }

    fn connect = __connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
        table::release(fd, Reason::Call, table::CANDIDATE);
        let result = kernel!(connect(fd, address, length));
        if result == 0 || matches!(last_error(), EINPROGRESS | EINTR) {
            let error = last_error();
            table::set_connected(fd);
            if result != 0 {
                return super::fail(error);
            }
        }
        result
    }

    fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
        loop {
            let result = kernel!(bind(fd, address, length));
            if result == 0 || last_error() != EADDRINUSE || !adopted::is_closing() {
                return result;
            }
            std::thread::sleep(BIND_INTERVAL);
        }
    }

    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        accepted(kernel!(accept(fd, address, length)))
    }

    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
        accepted(kernel!(accept4(fd, address, length, flags)))
    }

    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: usize) -> isize {
        table::release(to, Reason::Call, table::PINNED);
        table::release(from, Reason::Call, table::PINNED);
        kernel!(sendfile(to, from, offset, count))
    }

    fn vfork = __vfork() -> c_int {
        kernel!(fork())
    }

    fn execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        exec(|| kernel!(execve(path, arguments, environment)))
    }

    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
        exec(|| kernel!(execv(path, arguments)))
    }

    fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
        exec(|| kernel!(execvp(file, arguments)))
    }

    fn execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        exec(|| kernel!(execvpe(file, arguments, environment)))
    }

    fn execveat(
        directory: c_int,
        path: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
        flags: c_int,
    ) -> c_int {
        exec(|| kernel!(execveat(directory, path, arguments, environment, flags)))
    }

    fn fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        exec(|| kernel!(fexecve(fd, arguments, environment)))
    }
}

const BIND_INTERVAL: Duration = Duration::from_micros(100);
/// Bits of the kind without flags.
const KIND: c_int = !(SOCK_CLOEXEC | SOCK_NONBLOCK);
