//! Devices: one for each local address.

use std::ffi::{c_char, c_int};
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::OnceLock;

use isolane_verbs::LocalAddress;

use crate::abi;
use crate::ffi::{copy_text, object, output, pointer};

/// A device. It lives as long as the process.
#[repr(C)]
pub(crate) struct Device {
    abi: abi::Device,
    pub(crate) address: IpAddr,
    /// Place in the list of devices.
    pub(crate) index: usize,
    /// Name and index of the network interface of the address.
    pub(crate) name: String,
    pub(crate) interface: u32,
}

// SAFETY: a device never changes.
unsafe impl Send for Device {}
// SAFETY: a device never changes.
unsafe impl Sync for Device {}

impl Device {
    fn new(index: usize, LocalAddress { address, name, interface }: LocalAddress) -> Device {
        let mut abi = abi::Device {
            ops: [0; 2],
            node_type: abi::NODE_CA,
            transport_type: abi::TRANSPORT_IB,
            name: [0; 64],
            dev_name: [0; 64],
            dev_path: [0; 256],
            ibdev_path: [0; 256],
        };
        copy_text(&mut abi.name, &isolane_verbs::device_name(index));
        copy_text(&mut abi.dev_name, &format!("uverbs{index}"));
        copy_text(&mut abi.dev_path, &format!("/sys/class/infiniband_verbs/uverbs{index}"));
        copy_text(
            &mut abi.ibdev_path,
            &format!("/sys/class/infiniband/{}", isolane_verbs::device_name(index)),
        );
        Device { abi, address, index, name, interface }
    }

    pub(crate) fn as_abi(&self) -> *mut abi::Device {
        std::ptr::from_ref(&self.abi).cast_mut()
    }

    /// Returns the GID, which is the address.
    pub(crate) fn gid(&self) -> abi::Gid {
        isolane_verbs::gid(self.address)
    }

    /// Returns the GUID, in network byte order: the last 8 bytes of the GID, marked as local.
    pub(crate) fn guid(&self) -> u64 {
        let gid = self.gid();
        let mut guid = [0; 8];
        guid.copy_from_slice(&gid[8..]);
        guid[0] |= 2;
        u64::from_ne_bytes(guid)
    }
}

/// Returns the devices, in the order of the interfaces.
pub(crate) fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let addresses = isolane_verbs::local_addresses().unwrap_or_default();
        let numbered = addresses.into_iter().enumerate();
        numbered.map(|(index, local)| Device::new(index, local)).collect()
    })
}

/// Returns the devices and a null pointer, for [`ibv_free_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut abi::Device {
    pointer(|| {
        let pointers = devices().iter().map(Device::as_abi).chain([null_mut()]);
        let list: Box<[*mut abi::Device]> = pointers.collect();
        // SAFETY: the program passes null, or a number that no other thread uses during the call.
        if let Ok(count) = unsafe { output(count) } {
            *count = (list.len() - 1) as c_int;
        }
        Ok(Box::into_raw(list).cast())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut abi::Device) {
    if !list.is_null() {
        let list = std::ptr::slice_from_raw_parts_mut(list, devices().len() + 1);
        // SAFETY: the list is from `ibv_get_device_list`, which makes it with this length.
        drop(unsafe { Box::from_raw(list) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut abi::Device) -> *const c_char {
    // SAFETY: null, or a device of `devices`, which lives forever.
    match unsafe { object::<_, Device>(device) } {
        Ok(device) => device.abi.name.as_ptr(),
        Err(_) => null_mut(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut abi::Device) -> u64 {
    // SAFETY: null, or a device of `devices`, which lives forever.
    unsafe { object::<_, Device>(device) }.map_or(0, Device::guid)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(device: *mut abi::Device) -> c_int {
    // SAFETY: null, or a device of `devices`, which lives forever.
    unsafe { object::<_, Device>(device) }.map_or(-1, |device| device.index as c_int)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    // Memory is not pinned, so a child has its own copy of everything.
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    const FORK_UNNEEDED: c_int = 2;
    FORK_UNNEEDED
}
