//! The C library's functions of the names that this library takes.
//!
//! They are declared with the ABI `C-unwind`, because a thread can be canceled in them. Callers have nothing to drop.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, sockaddr, socklen_t,
    timespec, timeval,
};

/// A function of the C library, found at its first call.
pub(crate) struct Function {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Function {
    pub(crate) const fn new(name: &'static CStr) -> Function {
        Function { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.find() } else { address }
    }

    #[cold]
    #[inline(never)]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name is a C string.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if address.is_null() {
            // A program that calls the function does not start without it.
            std::process::abort();
        }
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[inline(always)]
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            static FUNCTION: Function = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => Function { name, address: AtomicPtr::new(find_and_call as *mut c_void) },
                Err(_) => panic!(),
            };
            type Signature = unsafe extern "C-unwind" fn($($type),*) -> $result;
            /// The first call, so that others check nothing.
            #[cold]
            unsafe extern "C-unwind" fn find_and_call($($argument: $type),*) -> $result {
                // SAFETY: as below.
                let function = unsafe { std::mem::transmute::<*mut c_void, Signature>(FUNCTION.find()) };
                // SAFETY: as below.
                unsafe { function($($argument),*) }
            }
            let address = FUNCTION.address.load(Ordering::Relaxed);
            // SAFETY: the C library declares the function with this type, which `find_and_call` has as well.
            let function = unsafe { std::mem::transmute::<*mut c_void, Signature>(address) };
            // SAFETY: the caller passes the arguments of the program on.
            unsafe { function($($argument),*) }
        }
    )*};
}

functions! {
    read(fd: c_int, buffer: *mut c_void, count: usize) -> isize;
    readv(fd: c_int, vector: *const iovec, count: c_int) -> isize;
    recv(fd: c_int, buffer: *mut c_void, count: usize, flags: c_int) -> isize;
    recvfrom(fd: c_int, buffer: *mut c_void, count: usize, flags: c_int, from: *mut sockaddr, length: *mut socklen_t) -> isize;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    write(fd: c_int, buffer: *const c_void, count: usize) -> isize;
    writev(fd: c_int, vector: *const iovec, count: c_int) -> isize;
    send(fd: c_int, buffer: *const c_void, count: usize, flags: c_int) -> isize;
    sendto(fd: c_int, buffer: *const c_void, count: usize, flags: c_int, to: *const sockaddr, length: socklen_t) -> isize;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom(first: c_int) -> ();
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, request: usize, argument: usize) -> c_int;
    getsockopt(fd: c_int, level: c_int, option: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, option: c_int, value: *const c_void, length: socklen_t) -> c_int;
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, reads: *mut fd_set, writes: *mut fd_set, excepts: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, reads: *mut fd_set, writes: *mut fd_set, excepts: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(set: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int;
    epoll_pwait(set: c_int, events: *mut epoll_event, count: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(set: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    execvp(file: *const c_char, arguments: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execveat(directory: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char, flags: c_int) -> c_int;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: usize) -> isize;
    fork() -> c_int;
    syscall(number: c_long, first: usize, second: usize) -> c_long;
}
