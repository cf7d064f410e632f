//! Contexts: open devices, with the attributes of device and port.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::os::fd::OwnedFd;

use isolane_verbs::Limits;

use crate::abi;
use crate::channel::Channel;
use crate::device::Device;
use crate::ffi::{Errno, Result, Users, check, copy_text, object, output, status, value};

/// An open device.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) abi: abi::VerbsContext,
    pub(crate) device: &'static Device,
    pub(crate) verbs: isolane_verbs::Device,
    pub(crate) events: Channel<abi::AsyncEvent>,
    /// Number of objects that use it.
    pub(crate) users: Users,
    /// The process that has opened it.
    pub(crate) process: u32,
    /// A descriptor for programs that copy it, as they copy the one of a device of the kernel.
    pub(crate) _command: OwnedFd,
}

impl Context {
    /// Borrows the context that a program has a pointer to.
    ///
    /// # Safety
    /// The pointer is null, or the address of the field `context` of an open [`Context`].
    pub(crate) unsafe fn from_abi<'a>(context: *mut abi::Context) -> Result<&'a Context> {
        if context.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the program has the address of this field of a `Context`, which starts with the structure.
        unsafe { object(context.byte_sub(offset_of!(abi::VerbsContext, context))) }
    }

    /// Checks that an object was made in this context.
    pub(crate) fn check_owns(&self, context: *mut abi::Context) -> Result<()> {
        check(context.addr() == self.as_abi().addr())
    }

    pub(crate) fn as_abi(&self) -> *mut abi::Context {
        std::ptr::from_ref(&self.abi.context).cast_mut()
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut abi::Context) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or a context that it has not closed.
        let found = unsafe { Context::from_abi(context) }?;
        // Programs can leave objects behind, which the context must outlive. A child has no threads of the library.
        if found.users.check_none().is_ok() && found.process == std::process::id() {
            // SAFETY: made by `ibv_open_device`, and no object uses it.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(found).cast_mut()) });
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    context: *mut abi::Context,
    attributes: *mut abi::DeviceAttr,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null or an open context, and null or attributes that no other thread uses during
        // the call.
        let (context, attributes) = unsafe { (Context::from_abi(context)?, output(attributes)?) };
        *attributes = device_attributes(context.device);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut abi::Context,
    input: *const c_void,
    attributes: *mut abi::DeviceAttrEx,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or an input that starts with its mask and does not change during the call.
        let mask = unsafe { input.cast::<u32>().as_ref() };
        if mask.is_some_and(|mask| *mask != 0) || size < size_of::<abi::DeviceAttr>() {
            return Err(Errno::INVALID);
        }
        // SAFETY: all fields are numbers.
        let mut found: abi::DeviceAttrEx = unsafe { std::mem::zeroed() };
        // SAFETY: the program passes null, or a context that it has not closed.
        found.orig_attr = device_attributes(unsafe { Context::from_abi(context) }?.device);
        found.phys_port_cnt_ex = 1;
        // SAFETY: the program provides `size` bytes.
        unsafe { copy_prefix(&found, attributes, size) }
    })
}

/// Copies a structure to one of the program, which can be shorter or longer.
///
/// # Safety
/// `to` is null, or has `size` bytes that no other thread uses.
unsafe fn copy_prefix<T>(from: &T, to: *mut T, size: usize) -> Result<()> {
    if to.is_null() {
        return Err(Errno::INVALID);
    }
    let len = size.min(size_of::<T>());
    // SAFETY: `from` has `len` bytes, and `to` has `size`.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(from).cast::<u8>(), to.cast(), len);
        to.cast::<u8>().add(len).write_bytes(0, size - len);
    }
    Ok(())
}

fn device_attributes(device: &Device) -> abi::DeviceAttr {
    // SAFETY: all fields are numbers.
    let mut attributes: abi::DeviceAttr = unsafe { std::mem::zeroed() };
    copy_text(&mut attributes.fw_ver, env!("CARGO_PKG_VERSION"));
    abi::DeviceAttr {
        node_guid: device.guid(),
        sys_image_guid: device.guid(),
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        vendor_id: VENDOR_ID,
        vendor_part_id: 1,
        max_qp: 1 << 16,
        max_qp_wr: MAX_REQUESTS as c_int,
        device_cap_flags: abi::DEVICE_CURR_QP_STATE_MOD
            | abi::DEVICE_SYS_IMAGE_GUID
            | abi::DEVICE_RC_RNR_NAK_GEN
            | abi::DEVICE_N_NOTIFY_CQ,
        max_sge: MAX_SGE as c_int,
        max_sge_rd: MAX_SGE as c_int,
        max_cq: 1 << 16,
        max_cqe: MAX_COMPLETIONS as c_int,
        max_mr: 1 << 20,
        max_pd: 1 << 16,
        max_qp_rd_atom: MAX_READS.into(),
        max_res_rd_atom: c_int::from(MAX_READS) << 16,
        max_qp_init_rd_atom: MAX_READS.into(),
        atomic_cap: abi::ATOMIC_GLOB,
        max_ah: 1 << 16,
        max_srq: 1 << 16,
        max_srq_wr: MAX_REQUESTS as c_int,
        max_srq_sge: MAX_SGE as c_int,
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
        ..attributes
    }
}

fn port_attributes() -> abi::PortAttr {
    abi::PortAttr {
        state: abi::PORT_ACTIVE,
        max_mtu: abi::MTU_4096,
        active_mtu: abi::MTU_4096,
        gid_tbl_len: 1,
        max_msg_sz: 1 << 31,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        // 4 lanes of 25 Gb/s, as `PORT_SPEED`, because there must be a value.
        active_width: 2,
        active_speed: 32,
        phys_state: abi::PHYS_STATE_LINK_UP,
        link_layer: abi::LINK_LAYER_ETHERNET,
        flags: abi::QPF_GRH_REQUIRED,
        ..abi::PortAttr::default()
    }
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut abi::Context,
    port: u8,
    attributes: *mut abi::PortAttr,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or a context that it has not closed.
        unsafe { Context::from_abi(context) }?;
        check(port == 1)?;
        // SAFETY: the program provides `size` bytes.
        unsafe { copy_prefix(&port_attributes(), attributes, size) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut abi::Context,
    port: u8,
    attributes: *mut abi::CompatPortAttr,
) -> c_int {
    // SAFETY: an old program provides the first bytes of the structure.
    unsafe { query_port(context, port, attributes.cast(), size_of::<abi::CompatPortAttr>()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(
    context: *mut abi::Context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or a context that it has not closed.
        unsafe { Context::from_abi(context) }?;
        check(port == 1)?;
        // SAFETY: the program passes null, or a number that no other thread uses during the call.
        *unsafe { output(speed) }? = PORT_SPEED;
        Ok(())
    })
}

/// Speed of a port, in units of 100 Mb/s.
const PORT_SPEED: u64 = 1000;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut abi::Context,
    port: u8,
    index: c_int,
    gid: *mut abi::GidBytes,
) -> c_int {
    value(|| {
        // SAFETY: the program passes null or an open context, and null or a GID that no other thread uses during the
        // call.
        let (context, gid) = unsafe { (Context::from_abi(context)?, output(gid)?) };
        check(port == 1 && index == 0)?;
        gid.0 = context.device.gid();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut abi::Context,
    port: u32,
    index: u32,
    entry: *mut abi::GidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes null, or a context that it has not closed.
        let context = unsafe { Context::from_abi(context) }?;
        check(port == 1 && flags == 0)?;
        if index != 0 {
            return Err(Errno(libc::ENODATA));
        }
        // SAFETY: the program provides `size` bytes.
        unsafe { copy_prefix(&gid_entry(context.device), entry, size) }
    })
}

fn gid_entry(device: &Device) -> abi::GidEntry {
    abi::GidEntry {
        gid: abi::GidBytes(device.gid()),
        gid_index: 0,
        port_num: 1,
        gid_type: abi::GID_TYPE_ROCE_V2,
        ndev_ifindex: device.interface,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut abi::Context,
    entries: *mut abi::GidEntry,
    max_entries: usize,
    flags: u32,
    size: usize,
) -> isize {
    let found = status(|| {
        // SAFETY: the program passes null, or a context that it has not closed.
        let context = unsafe { Context::from_abi(context) }?;
        check(flags == 0 && max_entries > 0)?;
        // SAFETY: the program provides entries of `size` bytes.
        unsafe { copy_prefix(&gid_entry(context.device), entries, size) }
    });
    if found == 0 { 1 } else { -(found as isize) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut abi::Context,
    port: u8,
    index: u32,
    gid_type: *mut c_int,
) -> c_int {
    value(|| {
        // SAFETY: the program passes null or an open context, and null or a number that no other thread uses during
        // the call.
        let gid_type = unsafe { (Context::from_abi(context)?, output(gid_type)?) }.1;
        check(port == 1 && index == 0)?;
        *gid_type = abi::GID_TYPE_SYSFS_ROCE_V2;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut abi::Context,
    port: u8,
    index: c_int,
    key: *mut u16,
) -> c_int {
    value(|| {
        // SAFETY: the program passes null or an open context, and null or a key that no other thread uses during the
        // call.
        let key = unsafe { (Context::from_abi(context)?, output(key)?) }.1;
        check(port == 1 && index == 0)?;
        *key = u16::MAX;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut abi::Context, port: u8, key: u16) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or a context that it has not closed.
        unsafe { Context::from_abi(context) }?;
        check(port == 1 && key == u16::MAX)?;
        Ok(0)
    })
}

/// The private function by which tools read attributes of a device: it has none as files.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_read_ibdev_sysfs_file(_text: *mut c_char, _size: usize) -> c_int {
    Errno(libc::ENOENT).set();
    -1
}

/// Largest numbers of requests in a queue, of SGEs of a request, of inline bytes, and of READs and atomic
/// operations at a time.
pub(crate) const MAX_REQUESTS: u32 = Limits::MAX_RECEIVES as u32;
pub(crate) const MAX_SGE: u32 = 32;
pub(crate) const MAX_INLINE_BYTES: u32 = 1024;
pub(crate) const MAX_READS: u8 = 16;
/// Largest number of completions in a queue.
pub(crate) const MAX_COMPLETIONS: u32 = 1 << 22;
/// An identifier from the range for local use.
const VENDOR_ID: u32 = 0x0002_1501;
