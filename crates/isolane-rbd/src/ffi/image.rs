//! An open image.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::cluster::Cluster;
use super::library::{ConfigOption, Handle, Library};
use super::{Errno, c_string, check, text_of};

/// A pool and a namespace of it.
pub(crate) struct Pool {
    library: &'static Library,
    handle: Handle,
}

/// An open image. When the last reference is dropped, a thread closes it, because that blocks and the reference can be
/// in a callback.
pub(crate) struct Image {
    opened: Option<Opened>,
}

struct Opened {
    library: &'static Library,
    handle: Handle,
    /// Closed after the image.
    pool: Option<Pool>,
    /// Keeps the cluster of the pool connected.
    connection: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: librados allows calls of all threads on the same handle.
unsafe impl Send for Pool {}
// SAFETY: librbd allows calls of all threads on the same handle; it is closed when no reference is left.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Pool {
    /// Opens a pool of a connected cluster.
    pub fn open(cluster: &Cluster, name: &str, namespace: &str) -> Result<Pool, Errno> {
        let (library, rados) = (cluster.library, &cluster.library.rados);
        let (name, namespace, mut handle) = (c_string(name)?, c_string(namespace)?, ptr::null_mut());
        // SAFETY: all pointers are valid during the call.
        check(unsafe { (rados.rados_ioctx_create)(cluster.handle, name.as_ptr(), &mut handle) })?;
        // SAFETY: the handle was just created, and the namespace is a C string.
        unsafe { (rados.rados_ioctx_set_namespace)(handle, namespace.as_ptr()) };
        Ok(Pool { library, handle })
    }

    /// Returns the ID of the pool.
    pub fn id(&self) -> i64 {
        // SAFETY: the handle is valid.
        unsafe { (self.library.rados.rados_ioctx_get_id)(self.handle) }
    }

    /// Opens an image. `connection` is kept until it is closed.
    pub fn open_image(
        self,
        name: &str,
        snapshot: Option<&str>,
        read_only: bool,
        connection: Arc<dyn Any + Send + Sync>,
    ) -> Result<Image, Errno> {
        let (library, rbd) = (self.library, &self.library.rbd);
        let (name, snapshot) = (c_string(name)?, snapshot.map(c_string).transpose()?);
        let snapshot = snapshot.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        let open = if read_only { rbd.rbd_open_read_only } else { rbd.rbd_open };
        let mut handle = ptr::null_mut();
        // SAFETY: the pool is open, and the names are C strings or null.
        check(unsafe { open(self.handle, name.as_ptr(), &mut handle, snapshot) })?;
        let opened = Opened { library, handle, pool: Some(self), connection: Some(connection) };
        Ok(Image { opened: Some(opened) })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the handle is valid, and not used later.
        unsafe { (self.library.rados.rados_ioctx_destroy)(self.handle) }
    }
}

impl Image {
    /// Returns the library and the handle.
    pub(super) fn raw(&self) -> (&'static Library, Handle) {
        let opened = self.opened.as_ref().unwrap_or_else(|| unreachable!("only a dropped image is closed"));
        (opened.library, opened.handle)
    }

    /// Returns the size in bytes. Blocks if the image has changed.
    pub fn bytes(&self) -> Result<u64, Errno> {
        let ((library, handle), mut bytes) = (self.raw(), 0);
        // SAFETY: both pointers are valid during the call.
        check(unsafe { (library.rbd.rbd_get_size)(handle, &mut bytes) }).map(|_| bytes)
    }

    /// Returns the ID of the image in its pool.
    pub fn id(&self) -> Result<String, Errno> {
        let ((library, handle), mut id) = (self.raw(), [0_u8; 256]);
        // SAFETY: `id` has its length.
        check(unsafe { (library.rbd.rbd_get_id)(handle, id.as_mut_ptr().cast(), id.len()) })?;
        Ok(text_of(&id))
    }

    /// Returns the ID of the pool that has the data.
    pub fn data_pool_id(&self) -> i64 {
        let (library, handle) = self.raw();
        // SAFETY: the handle is valid.
        unsafe { (library.rbd.rbd_get_data_pool_id)(handle) }
    }

    /// Whether clients can lock the image.
    pub fn has_exclusive_lock(&self) -> Result<bool, Errno> {
        let ((library, handle), mut features) = (self.raw(), 0_u64);
        // SAFETY: both pointers are valid during the call.
        check(unsafe { (library.rbd.rbd_get_features)(handle, &mut features) })?;
        Ok(features & FEATURE_EXCLUSIVE_LOCK != 0)
    }

    /// Takes the lock, and keeps it if other clients request it. Blocks.
    pub fn lock(&self) -> Result<(), Errno> {
        let (library, handle) = self.raw();
        // SAFETY: the handle is valid.
        check(unsafe { (library.rbd.rbd_lock_acquire)(handle, LOCK_MODE_EXCLUSIVE) }).map(drop)
    }

    /// Whether this client has the lock. Blocks.
    pub fn is_locked(&self) -> Result<bool, Errno> {
        let ((library, handle), mut is_owner) = (self.raw(), 0);
        // SAFETY: both pointers are valid during the call.
        check(unsafe { (library.rbd.rbd_is_exclusive_lock_owner)(handle, &mut is_owner) })?;
        Ok(is_owner != 0)
    }

    /// Returns the client that has the lock, with its address. Blocks.
    pub fn lock_owner(&self) -> Result<Option<String>, Errno> {
        let (library, handle) = self.raw();
        let (mut tag, mut clients, mut cookies, mut addresses) =
            ([0_u8; 512], [0_u8; 512], [0_u8; 512], [0_u8; 512]);
        let (mut lens, mut exclusive) = ([512_usize; 4], 0);
        let [tag_len, clients_len, cookies_len, addresses_len] = &mut lens;
        // SAFETY: each buffer has the length that is passed with it.
        let count = unsafe {
            (library.rbd.rbd_list_lockers)(
                handle,
                &mut exclusive,
                tag.as_mut_ptr().cast(),
                tag_len,
                clients.as_mut_ptr().cast(),
                clients_len,
                cookies.as_mut_ptr().cast(),
                cookies_len,
                addresses.as_mut_ptr().cast(),
                addresses_len,
            )
        };
        match check(count as i32)? {
            0 => Ok(None),
            _ => Ok(Some(format!("{} at {}", text_of(&clients), text_of(&addresses)))),
        }
    }

    /// Whether librbd can complete writes from a cache, as settings of the image, its pool, or its cluster demand.
    pub fn has_cache(&self) -> Result<bool, Errno> {
        let (library, handle) = self.raw();
        let empty = ConfigOption { name: ptr::null_mut(), value: ptr::null_mut(), source: 0 };
        let (mut options, mut count) = (Vec::new(), 0 as c_int);
        loop {
            options.resize(count as usize, empty);
            // SAFETY: `options` has `count` entries. The call sets `count` to the number that there are.
            let result =
                unsafe { (library.rbd.rbd_config_image_list)(handle, options.as_mut_ptr(), &mut count) };
            match check(result) {
                Err(Errno(libc::ERANGE)) if (0..=MAX_OPTIONS).contains(&count) => {}
                Err(error) => return Err(error),
                Ok(_) => break,
            }
        }
        let enables_cache =
            |option: &ConfigOption| enables_cache(&c_text(option.name), &c_text(option.value));
        let has_cache = options.iter().take(count as usize).any(enables_cache);
        // SAFETY: the call above filled `count` entries, which are not used later.
        unsafe { (library.rbd.rbd_config_image_list_cleanup)(options.as_mut_ptr(), count) };
        Ok(has_cache)
    }
}

/// Whether a setting enables a cache for writes. The values of images and pools are as their user wrote them.
fn enables_cache(name: &str, value: &str) -> bool {
    let off: &[&str] = match name {
        "rbd_cache" => &["false", "0"],
        "rbd_persistent_cache_mode" => &["disabled"],
        _ => return false,
    };
    !off.iter().any(|off| value.eq_ignore_ascii_case(off))
}

fn c_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: librbd returns C strings.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Drop for Image {
    fn drop(&mut self) {
        let Some(opened) = self.opened.take() else { return };
        let closing = Closing::new();
        let thread = thread::Builder::new().name("isolane-rbd".to_owned());
        let spawned = thread.spawn(move || {
            drop(opened);
            drop(closing);
        });
        if let Err(error) = spawned {
            log::error!("no thread to close an RBD image: {error}");
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: no other reference exists, and the handle is not used later.
        let result = check(unsafe { (self.library.rbd.rbd_close)(self.handle) });
        if let Err(error) = result {
            log::warn!("closing an RBD image failed: {error}");
        }
        self.pool = None;
        self.connection = None;
    }
}

/// An image that a thread closes.
pub(crate) struct Closing;

static CLOSING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

impl Closing {
    pub fn new() -> Closing {
        *CLOSING.0.lock() += 1;
        Closing
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        *CLOSING.0.lock() -= 1;
        CLOSING.1.notify_all();
    }
}

/// Waits until all images without references are closed. Returns the number of those that are not after `timeout`: their
/// cluster does not respond, and their memory stays allocated.
pub(crate) fn wait_for_closed(timeout: Duration) -> usize {
    let (deadline, mut count) = (Instant::now() + timeout, CLOSING.0.lock());
    while *count > 0 && !CLOSING.1.wait_until(&mut count, deadline).timed_out() {}
    *count
}

const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
const LOCK_MODE_EXCLUSIVE: c_int = 0;
/// More settings than an image has.
const MAX_OPTIONS: c_int = 4096;

#[cfg(test)]
mod tests {
    use super::enables_cache;

    #[test]
    fn unknown_values_count_as_cache() {
        for value in ["true", "TRUE", "1", "yes", "2", ""] {
            assert!(enables_cache("rbd_cache", value), "{value}");
        }
        for value in ["false", "False", "0"] {
            assert!(!enables_cache("rbd_cache", value), "{value}");
        }
        assert!(enables_cache("rbd_persistent_cache_mode", "rwl"));
        assert!(!enables_cache("rbd_persistent_cache_mode", "disabled"));
        assert!(!enables_cache("rbd_cache_size", "33554432"));
    }
}
