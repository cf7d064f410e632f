//! A filter of system calls without io_uring, and the number of filters.

use std::fs::File;
use std::io::{self, Read};

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, c_ulong,
    sock_filter, sock_fprog,
};

/// Makes io_uring fail as on a kernel without it, for this thread and the programs that it starts, permanently. They
/// gain no rights from set-user-ID programs.
///
/// # Errors
/// The kernel's.
pub fn deny_io_uring() -> io::Result<()> {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let is_setup = sock_filter {
        code: (BPF_JMP | BPF_JEQ | BPF_K) as u16,
        jt: 0,
        jf: 1,
        // The same number on all architectures.
        k: libc::SYS_io_uring_setup as u32,
    };
    let mut filter = [
        // The number of the call is first.
        statement(BPF_LD | BPF_W | BPF_ABS, 0),
        is_setup,
        statement(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    ];
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the calls read the filter, which is valid until they return.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as c_ulong, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER as c_ulong, &raw const program)
                != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Returns the number of filters of this process's first thread, or `None` if the system does not tell.
///
/// It makes only calls that the loader of a program has made before: a filter can end the process for others.
pub fn seccomp_filters() -> Option<u32> {
    let mut file = File::open("/proc/self/status").ok()?;
    let (mut status, mut length) = ([0; MAX_STATUS_BYTES], 0);
    while length < status.len()
        && let count @ 1.. = file.read(&mut status[length..]).ok()?
    {
        length += count;
    }
    let mut lines = status[..length].split(|byte| *byte == b'\n');
    let count = lines.find_map(|line| line.strip_prefix(b"Seccomp_filters:"))?;
    std::str::from_utf8(count).ok()?.trim().parse().ok()
}

const MAX_STATUS_BYTES: usize = 8 << 10;

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn io_uring_is_missing_in_child() {
        let denied = crate::testing::finishes_in_child(|| {
            let filters = seccomp_filters().unwrap();
            deny_io_uring().unwrap();
            assert_eq!(seccomp_filters(), Some(filters + 1));
            // SAFETY: an address that is not mapped is an error.
            let result = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 0) };
            assert_eq!((result, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOSYS)));
        });
        assert!(denied, "the call has another result");
    }
}
