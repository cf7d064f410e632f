//! Functions that fail, as on hardware without them.

use std::ffi::{c_int, c_void};
use std::sync::Once;

use crate::ffi::{Errno, pointer, report, status, value};

macro_rules! fail {
    ($($name:ident),* $(,)?) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> c_int {
                status(|| Err(Errno::UNSUPPORTED))
            }
        )*
    };
}

macro_rules! fail_with_null {
    ($($name:ident),* $(,)?) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> *mut c_void {
                pointer(|| Err(Errno::UNSUPPORTED))
            }
        )*
    };
}

macro_rules! ignore {
    ($($name:ident),* $(,)?) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() {}
        )*
    };
}

// Multicast.
fail!(ibv_attach_mcast, ibv_detach_mcast);
// Objects of another process.
fail_with_null!(ibv_import_device, ibv_import_pd, ibv_import_mr, ibv_import_dm);
ignore!(ibv_unimport_pd, ibv_unimport_mr, ibv_unimport_dm);
// Drivers of devices of the kernel, and structures of its interface.
ignore!(
    ibv_register_driver,
    ibv_copy_ah_attr_from_kern,
    ibv_copy_qp_attr_from_kern,
    ibv_copy_path_rec_from_kern,
    ibv_copy_path_rec_to_kern,
);

/// Memory is not pinned, so it can be copied to a child.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_start: *mut c_void, _size: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_start: *mut c_void, _size: usize) -> c_int {
    0
}

/// The sockets of librdmacm use its internal functions, which do not know the objects of this library. All other functions
/// of them need a socket.
#[unsafe(no_mangle)]
pub extern "C" fn rsocket(_domain: c_int, _type: c_int, _protocol: c_int) -> c_int {
    static REPORTED: Once = Once::new();
    REPORTED.call_once(|| {
        report("rsocket: rsockets are not supported; use TCP sockets, which rsockets imitate");
    });
    value(|| Err(Errno::UNSUPPORTED))
}

// Multicast and enhanced connection establishment of librdmacm, which reports errors as -1.
macro_rules! fail_with_minus_one {
    ($($name:ident),* $(,)?) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> c_int {
                value(|| Err(Errno::UNSUPPORTED))
            }
        )*
    };
}

fail_with_minus_one!(
    rdma_join_multicast,
    rdma_join_multicast_ex,
    rdma_leave_multicast,
    rdma_set_local_ece,
    rdma_get_remote_ece,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_rsockets_with_an_error() {
        assert_eq!(rsocket(libc::AF_INET, libc::SOCK_STREAM, 0), -1);
        // SAFETY: the location of this thread's error is valid.
        assert_eq!(unsafe { *libc::__errno_location() }, libc::EOPNOTSUPP);
    }
}
