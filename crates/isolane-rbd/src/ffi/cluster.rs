//! A connection to a cluster.

use std::ffi::{c_char, c_int};
use std::ptr;

use super::library::{Handle, Library};
use super::{Errno, c_string, check, text_of};

/// A client of a cluster. Dropping it may block, so it must not happen in a callback.
pub(crate) struct Cluster {
    pub(super) library: &'static Library,
    pub(super) handle: Handle,
}

// SAFETY: librados allows calls of all threads on the same handle.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// Creates a client of the user `client.ID`, without a connection.
    pub fn new(library: &'static Library, id: &str) -> Result<Cluster, Errno> {
        let (id, mut handle) = (c_string(id)?, ptr::null_mut());
        // SAFETY: both pointers are valid during the call.
        check(unsafe { (library.rados.rados_create)(&mut handle, id.as_ptr()) })?;
        Ok(Cluster { library, handle })
    }

    /// Reads a configuration file, or those of the default places.
    pub fn read_file(&self, path: Option<&str>) -> Result<(), Errno> {
        let path = path.map(c_string).transpose()?;
        let path = path.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        // SAFETY: the path is null or a C string.
        check(unsafe { (self.library.rados.rados_conf_read_file)(self.handle, path) }).map(drop)
    }

    /// Changes a setting.
    pub fn set(&self, option: &str, value: &str) -> Result<(), Errno> {
        let (option, value) = (c_string(option)?, c_string(value)?);
        // SAFETY: both are C strings.
        let result =
            unsafe { (self.library.rados.rados_conf_set)(self.handle, option.as_ptr(), value.as_ptr()) };
        check(result).map(drop)
    }

    /// Returns a setting.
    pub fn setting(&self, option: &str) -> Result<String, Errno> {
        let (option, mut value) = (c_string(option)?, vec![0_u8; MAX_SETTING]);
        let (start, len) = (value.as_mut_ptr().cast(), value.len());
        // SAFETY: `value` has `len` bytes.
        check(unsafe { (self.library.rados.rados_conf_get)(self.handle, option.as_ptr(), start, len) })?;
        Ok(text_of(&value))
    }

    /// Connects. Blocks for at most `client_mount_timeout`.
    pub fn connect(&self) -> Result<(), Errno> {
        // SAFETY: the handle is valid.
        check(unsafe { (self.library.rados.rados_connect)(self.handle) }).map(drop)
    }

    /// Returns the ID of the cluster.
    pub fn fsid(&self) -> Result<String, Errno> {
        let mut id = [0_u8; 64];
        // SAFETY: `id` has its length.
        let result =
            unsafe { (self.library.rados.rados_cluster_fsid)(self.handle, id.as_mut_ptr().cast(), id.len()) };
        check(result)?;
        Ok(text_of(&id))
    }

    /// Returns the name of a pool.
    pub fn pool_name(&self, id: i64) -> Result<String, Errno> {
        let mut name = [0_u8; 256];
        let (start, len) = (name.as_mut_ptr().cast(), name.len());
        // SAFETY: `name` has `len` bytes.
        check(unsafe { (self.library.rados.rados_pool_reverse_lookup)(self.handle, id, start, len) })?;
        Ok(text_of(&name))
    }

    /// Sends a command in JSON to the monitors, and returns its output.
    pub fn monitor_command(&self, command: &str) -> Result<Vec<u8>, Errno> {
        let command = c_string(command)?;
        let mut commands = [command.as_ptr()];
        let (mut output, mut len): (*mut c_char, usize) = (ptr::null_mut(), 0);
        let rados = &self.library.rados;
        // SAFETY: `commands` has one C string, the command has no input, and the status text is not requested.
        let result: c_int = unsafe {
            (rados.rados_mon_command)(
                self.handle,
                commands.as_mut_ptr(),
                commands.len(),
                ptr::null(),
                0,
                &mut output,
                &mut len,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let mut bytes = Vec::new();
        if !output.is_null() {
            // SAFETY: librados returned `len` bytes there, which are freed after they were copied.
            unsafe {
                bytes.extend_from_slice(std::slice::from_raw_parts(output.cast(), len));
                (rados.rados_buffer_free)(output);
            }
        }
        check(result).map(|_| bytes)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: the handle is valid, and not used later.
        unsafe { (self.library.rados.rados_shutdown)(self.handle) }
    }
}

/// Longest setting that is read, in bytes: addresses of monitors.
const MAX_SETTING: usize = 4096;
