//! Functions before which sockets return to the kernel, and that continue in the C library.
//!
//! Each takes descriptors that the C library or another process will use by itself.

use std::ffi::c_int;

use libc::{CLONE_NEWUSER, CLONE_SIGHAND, CLONE_THREAD, CLONE_VM, LM_ID_BASE, Lmid_t, RTLD_DEEPBIND, c_long};

use crate::stats::Reason;
use crate::trampoline::hooked;
use crate::{engine, gate, process, rings, table};

hooked! {
    // A child with its own memory, or with this one.
    clone => before_clone;
    __clone => before_clone;
    _Fork => before_unwatched_fork;
    posix_spawn => before_spawn;
    posix_spawnp => before_spawn;
    popen => before_spawn;
    _IO_popen => before_spawn;
    system => before_spawn;
    posix_spawn_file_actions_adddup2 => before_spawned_duplicate;
    execl => before_exec;
    execlp => before_exec;
    execle => before_exec;
    // Transfers inside the C library or the kernel.
    sendfile64 => before_sendfile;
    splice => before_splice;
    vmsplice => before_transfer;
    preadv => before_transfer;
    preadv64 => before_transfer;
    preadv2 => before_transfer;
    preadv64v2 => before_transfer;
    pwritev => before_transfer;
    pwritev64 => before_transfer;
    pwritev2 => before_transfer;
    pwritev64v2 => before_transfer;
    aio_read => before_aio;
    aio_read64 => before_aio;
    aio_write => before_aio;
    aio_write64 => before_aio;
    lio_listio => before_aio_list;
    lio_listio64 => before_aio_list;
    dprintf => before_transfer;
    __dprintf_chk => before_transfer;
    vdprintf => before_transfer;
    __vdprintf_chk => before_transfer;
    fdopen => before_stdio;
    _IO_fdopen => before_stdio;
    sockatmark => before_stdio;
    // Calls past the C library's functions.
    syscall => before_syscall;
    prctl => before_prctl;
    unshare => before_unshare;
    setns => before_setns;
    // Objects that call the C library without this one.
    dlopen => before_open_object;
    dlmopen => before_open_namespace;
    pthread_cancel => before_cancel;
    pthread_exit => before_thread_exit;
    mlockall => before_lock;
}

fn pin(fd: usize) {
    table::release(fd as c_int, Reason::Call, table::PINNED);
}

fn pin_all() {
    table::release_all(Reason::Call, |_| table::PINNED);
}

fn before_clone([_, _, flags, ..]: [usize; 6]) {
    if flags as c_int & CLONE_VM == 0 || flags as c_int & libc::CLONE_VFORK != 0 {
        process::share_everything();
    }
}

/// The child runs no handler, so it must not find this process's state: it keeps the table, whose sockets are pinned.
fn before_unwatched_fork(_: [usize; 6]) {
    process::share_everything();
}

fn before_spawn(_: [usize; 6]) {
    process::share_inherited();
}

/// The program will have the socket under another number.
fn before_spawned_duplicate([_, fd, ..]: [usize; 6]) {
    process::share(fd as c_int);
}

/// If the call fails, no socket is adopted any longer: this thread cannot tell.
fn before_exec(_: [usize; 6]) {
    gate::close();
    process::share_inherited();
}

fn before_transfer([fd, ..]: [usize; 6]) {
    pin(fd);
}

fn before_sendfile([to, from, ..]: [usize; 6]) {
    pin(to);
    pin(from);
}

fn before_splice([from, _, to, ..]: [usize; 6]) {
    pin(from);
    pin(to);
}

/// The request names the descriptor, at its start.
fn before_aio([request, ..]: [usize; 6]) {
    if let Some(request) = std::ptr::NonNull::new(request as *mut c_int) {
        // SAFETY: the program passes a valid request.
        pin(unsafe { request.read() } as usize);
    }
}

fn before_aio_list(_: [usize; 6]) {
    pin_all();
}

/// Streams of the C library call the kernel by themselves.
fn before_stdio([fd, ..]: [usize; 6]) {
    pin(fd);
}

fn before_syscall([number, first, second, third, ..]: [usize; 6]) {
    match number as c_long {
        libc::SYS_clone if first as c_int & CLONE_VM == 0 => process::share_everything(),
        libc::SYS_clone3 => process::share_everything(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork | libc::SYS_vfork => process::share_everything(),
        libc::SYS_execve | libc::SYS_execveat => {
            gate::close();
            process::share_inherited();
        }
        libc::SYS_seccomp => table::stop_adoption(),
        libc::SYS_unshare => before_unshare([first, 0, 0, 0, 0, 0]),
        libc::SYS_setns => before_setns([0; 6]),
        libc::SYS_io_uring_setup if rings::are_possible() => table::stop_adoption(),
        libc::SYS_close => table::forget(first as c_int, Reason::Call),
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_recvfrom
        | libc::SYS_sendto
        | libc::SYS_recvmsg
        | libc::SYS_sendmsg
        | libc::SYS_recvmmsg
        | libc::SYS_sendmmsg
        | libc::SYS_connect
        | libc::SYS_shutdown
        | libc::SYS_dup
        | libc::SYS_dup3
        | libc::SYS_fcntl
        | libc::SYS_ioctl
        | libc::SYS_getsockopt
        | libc::SYS_setsockopt
        | libc::SYS_vmsplice => pin(first),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => pin(first),
        libc::SYS_sendfile => [first, second].into_iter().for_each(pin),
        libc::SYS_splice => [first, third].into_iter().for_each(pin),
        libc::SYS_epoll_ctl => {
            pin(third);
            table::demote(first as c_int);
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => table::demote(first as c_int),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => table::demote(first as c_int),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll | libc::SYS_select => pin_all(),
        libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_close_range | libc::SYS_io_submit => pin_all(),
        _ => {}
    }
}

/// A filter of system calls may forbid those of this library.
fn before_prctl([option, ..]: [usize; 6]) {
    if option as c_int == libc::PR_SET_SECCOMP {
        table::stop_adoption();
    }
}

/// Namespaces of users are for processes with one thread only.
fn before_unshare([flags, ..]: [usize; 6]) {
    if flags as c_int & (CLONE_NEWUSER | CLONE_VM | CLONE_SIGHAND | CLONE_THREAD) != 0 {
        stop_threads();
    }
}

fn before_setns(_: [usize; 6]) {
    stop_threads();
}

fn stop_threads() {
    table::stop_adoption();
    engine::detach();
    engine::wait_for_threads();
}

/// Names of such an object lead to the C library first.
fn before_open_object([_, mode, ..]: [usize; 6]) {
    if mode as c_int & RTLD_DEEPBIND != 0 {
        table::stop_adoption();
    }
}

/// Other namespaces have their own C library.
fn before_open_namespace([namespace, _, mode, ..]: [usize; 6]) {
    if namespace as Lmid_t != LM_ID_BASE || mode as c_int & RTLD_DEEPBIND != 0 {
        table::stop_adoption();
    }
}

/// The process ends with its last thread, which must not be one of this library.
fn before_thread_exit(_: [usize; 6]) {
    if rustix::thread::gettid() == rustix::process::getpid() {
        table::stop_adoption();
        engine::detach();
    }
}

/// All memory of a session would be locked, with pages that are never used.
fn before_lock(_: [usize; 6]) {
    table::stop_adoption();
}

/// A thread that waits in this library cannot be canceled.
fn before_cancel(_: [usize; 6]) {
    table::stop_adoption();
}
