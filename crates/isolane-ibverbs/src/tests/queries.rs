//! Queries of devices, ports, and names, with right and with wrong arguments.

use std::ffi::{CStr, c_char};
use std::mem::zeroed;

use super::*;
use crate::address::ibv_resolve_eth_l2_from_gid;
use crate::completion_queue::ibv_ack_cq_events;
use crate::context::{
    _ibv_query_gid_ex, _ibv_query_gid_table, ibv_get_pkey_index, ibv_query_device, ibv_query_gid,
    ibv_query_gid_type, ibv_query_pkey, ibv_query_port, ibv_query_port_speed, ibv_read_ibdev_sysfs_file,
    query_device_ex, query_port,
};
use crate::device::{ibv_fork_init, ibv_is_fork_initialized};
use crate::paths::sysfs::{ibv_get_sysfs_path, ibv_read_sysfs_file};
use crate::queue_pair::{ibv_qp_to_qp_ex, ibv_query_ece, ibv_query_qp_data_in_order, ibv_set_ece};
use crate::strings::{
    ibv_event_type_str, ibv_node_type_str, ibv_port_state_str, ibv_rate_to_mbps, ibv_rate_to_mult,
    ibv_wc_status_str, mbps_to_ibv_rate, mult_to_ibv_rate,
};
use crate::unsupported::{
    ibv_attach_mcast, ibv_copy_ah_attr_from_kern, ibv_copy_path_rec_from_kern, ibv_copy_path_rec_to_kern,
    ibv_copy_qp_attr_from_kern, ibv_detach_mcast, ibv_dofork_range, ibv_dontfork_range, ibv_import_device,
    ibv_import_dm, ibv_import_mr, ibv_import_pd, ibv_register_driver, ibv_unimport_dm, ibv_unimport_mr,
    ibv_unimport_pd,
};

const INVALID: c_int = libc::EINVAL;
const UNSUPPORTED: c_int = libc::EOPNOTSUPP;

#[test]
fn queries_device_and_port() {
    let end = End::new();
    let context = end.context;
    // SAFETY: the context lives.
    unsafe {
        let mut device: abi::DeviceAttr = zeroed();
        assert_eq!((ibv_query_device(context, &mut device), device.phys_port_cnt), (0, 1));
        assert_eq!(
            (ibv_query_device(null_mut(), &mut device), ibv_query_device(context, null_mut())),
            (INVALID, INVALID)
        );
        let mut extended: abi::DeviceAttrEx = zeroed();
        let size = size_of::<abi::DeviceAttrEx>();
        let mask: *const u32 = &1;
        assert_eq!(query_device_ex(context, std::ptr::null(), &mut extended, size), 0);
        assert_eq!((extended.phys_port_cnt_ex, extended.orig_attr.max_qp), (1, device.max_qp));
        for refused in [
            query_device_ex(null_mut(), std::ptr::null(), &mut extended, size),
            query_device_ex(context, mask.cast(), &mut extended, size),
            query_device_ex(context, std::ptr::null(), null_mut(), size),
            query_device_ex(context, std::ptr::null(), &mut extended, 8),
        ] {
            assert_eq!(refused, INVALID);
        }
        let (mut port, mut compat) = (abi::PortAttr::default(), [0; 48]);
        let size = size_of::<abi::PortAttr>();
        assert_eq!((query_port(context, 1, &mut port, size), port.state), (0, abi::PORT_ACTIVE));
        assert_eq!((ibv_query_port(context, 1, &mut compat), compat[0]), (0, abi::PORT_ACTIVE as u8));
        let mut speed = 0;
        assert_eq!((ibv_query_port_speed(context, 1, &mut speed), speed), (0, 1000));
        for refused in [
            ibv_query_port_speed(context, 2, &mut speed),
            ibv_query_port_speed(null_mut(), 1, &mut speed),
            ibv_query_port_speed(context, 1, null_mut()),
            query_port(context, 0, &mut port, size),
            query_port(context, 2, &mut port, size),
            query_port(null_mut(), 1, &mut port, size),
            ibv_query_port(context, 2, &mut compat),
            ibv_query_port(context, 1, null_mut()),
        ] {
            assert_eq!(refused, INVALID);
        }
    }
    finish([end]);
}

#[test]
fn queries_gid_and_key() {
    let end = End::new();
    let context = end.context;
    // SAFETY: the context lives.
    unsafe {
        let (mut gid, mut entry, mut kind, mut key) =
            (abi::GidBytes::default(), abi::GidEntry::default(), 0, 0);
        let size = size_of::<abi::GidEntry>();
        assert_eq!(ibv_query_gid(context, 1, 0, &mut gid), 0);
        assert_eq!(_ibv_query_gid_ex(context, 1, 0, &mut entry, 0, size), 0);
        assert_eq!((entry.gid.0, entry.gid_type), (gid.0, abi::GID_TYPE_ROCE_V2));
        let mut table = [abi::GidEntry::default(); 3];
        assert_eq!(_ibv_query_gid_table(context, table.as_mut_ptr(), 3, 0, size), 1);
        assert_eq!(table[0].gid.0, gid.0);
        assert_eq!((ibv_query_gid_type(context, 1, 0, &mut kind), kind), (0, abi::GID_TYPE_SYSFS_ROCE_V2));
        assert_eq!((ibv_query_pkey(context, 1, 0, &mut key), key), (0, u16::MAX));
        assert_eq!(ibv_get_pkey_index(context, 1, u16::MAX), 0);
        for (refused, expected) in [
            (_ibv_query_gid_ex(context, 1, 0, &mut entry, 1, size), INVALID),
            (_ibv_query_gid_ex(context, 2, 0, &mut entry, 0, size), INVALID),
            (_ibv_query_gid_ex(context, 1, 1, &mut entry, 0, size), libc::ENODATA),
            (_ibv_query_gid_ex(context, 1, 0, null_mut(), 0, size), INVALID),
            (_ibv_query_gid_ex(null_mut(), 1, 0, &mut entry, 0, size), INVALID),
        ] {
            assert_eq!(refused, expected);
        }
        for refused in [
            _ibv_query_gid_table(context, table.as_mut_ptr(), 3, 1, size),
            _ibv_query_gid_table(context, table.as_mut_ptr(), 0, 0, size),
            _ibv_query_gid_table(context, null_mut(), 3, 0, size),
            _ibv_query_gid_table(null_mut(), table.as_mut_ptr(), 3, 0, size),
        ] {
            assert_eq!(refused, -(INVALID as isize));
        }
        for refused in [
            ibv_query_gid(context, 2, 0, &mut gid),
            ibv_query_gid(context, 1, 1, &mut gid),
            ibv_query_gid(context, 1, -1, &mut gid),
            ibv_query_gid(context, 1, 0, null_mut()),
            ibv_query_gid(null_mut(), 1, 0, &mut gid),
            ibv_query_gid_type(context, 2, 0, &mut kind),
            ibv_query_gid_type(context, 1, 1, &mut kind),
            ibv_query_gid_type(context, 1, 0, null_mut()),
            ibv_query_pkey(context, 2, 0, &mut key),
            ibv_query_pkey(context, 1, 1, &mut key),
            ibv_query_pkey(context, 1, 0, null_mut()),
            ibv_get_pkey_index(context, 1, 7),
            ibv_get_pkey_index(context, 2, u16::MAX),
            ibv_get_pkey_index(null_mut(), 1, u16::MAX),
        ] {
            assert_eq!((refused, errno()), (-1, INVALID));
        }
    }
    finish([end]);
}

#[test]
fn queries_queue_pair() {
    let end = End::new();
    // SAFETY: the queue pair lives.
    unsafe {
        let (mut attributes, mut init, mut options) = (abi::QpAttr::default(), zeroed(), [7; 3]);
        assert_eq!(
            (ibv_query_qp(end.qp, &mut attributes, 0, &mut init), attributes.qp_state),
            (0, abi::QPS_RESET)
        );
        for refused in [
            ibv_query_qp(null_mut(), &mut attributes, 0, &mut init),
            ibv_query_qp(end.qp, null_mut(), 0, &mut init),
            ibv_query_qp(end.qp, &mut attributes, 0, null_mut()),
            ibv_query_ece(end.qp, null_mut()),
        ] {
            assert_eq!(refused, INVALID);
        }
        assert_eq!((ibv_query_ece(end.qp, &mut options), options), (0, [0; 3]));
        assert_eq!(ibv_set_ece(end.qp, options.as_mut_ptr().cast()), UNSUPPORTED);
        assert!(ibv_qp_to_qp_ex(null_mut()).is_null() && !ibv_qp_to_qp_ex(end.qp).is_null());
        let in_order = |opcode, flags| ibv_query_qp_data_in_order(end.qp, opcode, flags);
        // A test of GPU memory can load the driver at any time.
        let can_be = !isolane_cuda::is_driver_loaded();
        let is_in_order = in_order(abi::WR_RDMA_WRITE, 0) == 1;
        assert!(if is_in_order { can_be } else { isolane_cuda::is_driver_loaded() });
        assert_eq!(in_order(abi::WR_RDMA_WRITE, 1), 0);
        assert_eq!((in_order(abi::WR_SEND, 0), ibv_query_qp_data_in_order(null_mut(), 0, 0)), (0, 0));
        ibv_ack_cq_events(end.cq, 0);
        ibv_ack_cq_events(null_mut(), 1);
    }
    finish([end]);
}

#[test]
fn reads_files_of_devices() {
    let device = "/sys/class/infiniband/isolane0\0";
    // SAFETY: strings with a zero at the end.
    let read = |dir: *const c_char, file: &CStr, size: usize| unsafe {
        let mut text = [b'x'; 64];
        let len = ibv_read_sysfs_file(dir, file.as_ptr(), text.as_mut_ptr().cast(), size);
        (len, String::from_utf8_lossy(&text[..len.max(0) as usize]).into_owned())
    };
    let (len, text) = read(device.as_ptr().cast(), c"node_type", 64);
    assert_eq!((len as usize, text.as_str()), (text.len(), "1: CA"));
    assert_eq!(read(device.as_ptr().cast(), c"node_type", 3), (2, "1:".into()));
    assert_eq!((read(device.as_ptr().cast(), c"nothing", 64).0, errno()), (-1, libc::ENOENT));
    assert_eq!((read(device.as_ptr().cast(), c"node_type", 0).0, errno()), (-1, INVALID));
    assert_eq!((read(std::ptr::null(), c"node_type", 64).0, errno()), (-1, INVALID));
    // SAFETY: a constant.
    assert_eq!(unsafe { CStr::from_ptr(ibv_get_sysfs_path()) }, c"/sys");
    assert_eq!((ibv_read_ibdev_sysfs_file(null_mut(), 0), errno()), (-1, libc::ENOENT));
}

#[test]
fn names_every_number() {
    let names: [(extern "C" fn(c_int) -> *const c_char, c_int, &str); 4] = [
        (ibv_node_type_str, 1, "InfiniBand channel adapter"),
        (ibv_port_state_str, 4, "PORT_ACTIVE"),
        (ibv_event_type_str, 1, "local work queue catastrophic error"),
        (ibv_wc_status_str, 13, "RNR retry counter exceeded"),
    ];
    for (name_of, number, expected) in names {
        // SAFETY: a constant.
        let name = |number| unsafe { CStr::from_ptr(name_of(number)) }.to_str().unwrap();
        assert_eq!((name(number), name(-1), name(99)), (expected, "unknown", "unknown"));
    }
    assert_eq!((ibv_rate_to_mult(3), mult_to_ibv_rate(4), ibv_rate_to_mult(-1)), (4, 3, -1));
    assert_eq!((ibv_rate_to_mbps(3), mbps_to_ibv_rate(10_000), ibv_rate_to_mbps(-1)), (10_000, 3, -1));
}

#[test]
fn refuses_functions_that_devices_lack() {
    for refused in [ibv_attach_mcast(), ibv_detach_mcast()] {
        assert_eq!(refused, UNSUPPORTED);
    }
    for refused in [ibv_import_device(), ibv_import_pd(), ibv_import_mr(), ibv_import_dm()] {
        assert_eq!(error_of(refused), UNSUPPORTED);
    }
    ibv_unimport_pd();
    ibv_unimport_mr();
    ibv_unimport_dm();
    ibv_register_driver();
    ibv_copy_ah_attr_from_kern();
    ibv_copy_qp_attr_from_kern();
    ibv_copy_path_rec_from_kern();
    ibv_copy_path_rec_to_kern();
    // SAFETY: null pointers are allowed.
    let resolved = unsafe { ibv_resolve_eth_l2_from_gid(null_mut(), null_mut(), null_mut(), null_mut()) };
    assert_eq!((resolved, errno()), (-1, UNSUPPORTED));
    assert_eq!((ibv_dontfork_range(null_mut(), 1), ibv_dofork_range(null_mut(), 1)), (0, 0));
    assert_eq!((ibv_fork_init(), ibv_is_fork_initialized()), (0, 2));
}

/// Each exported function is called by a test.
#[test]
fn calls_each_function() {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
    let files = |directory: &str| -> Vec<_> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
    };
    let tests: String = files(&format!("{sources}/tests")).iter().map(|path| read(path)).collect();
    let tests = tests + include_str!("../tests.rs");
    let mut count = 0;
    for path in files(sources).iter().filter(|path| !path.ends_with("tests.rs")) {
        let source = read(path);
        let functions = source.split("extern \"C\" fn ").skip(1).filter_map(|text| text.split('(').next());
        for name in functions.filter(|name| name.contains("ibv_")) {
            let is_whole = |(at, _): &(usize, &str)| {
                !tests[at + name.len()..].starts_with(|next: char| next.is_alphanumeric() || next == '_')
            };
            // A test imports it, and calls it.
            let uses = tests.match_indices(name).filter(is_whole).count();
            assert!(uses > 1, "no test calls {name} of {}", path.display());
            count += 1;
        }
    }
    assert!(count > 60, "{count} functions");
}
