//! librados and librbd, loaded at run time, so that a program without RBD volumes does not need them.
//!
//! Invariant: a loaded library is never unloaded, because its threads can outlive every volume.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use libc::{iovec, size_t, ssize_t};

/// The functions of both libraries.
pub(crate) struct Library {
    pub rados: Rados,
    pub rbd: Rbd,
}

/// Handles of the libraries. Null is none.
pub(crate) type Handle = *mut c_void;
/// Called by a thread of librbd when a request has completed.
pub(crate) type Callback = extern "C" fn(completion: Handle, argument: *mut c_void);

/// An effective setting of an image.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConfigOption {
    pub name: *mut c_char,
    pub value: *mut c_char,
    pub source: c_int,
}

/// Defines a table of functions, and how it is loaded.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($name:ident($($argument:ty),*) $(-> $result:ty)?;)* }) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            fn load(library: &Loaded) -> Result<$table, String> {
                Ok($table {
                    $($name: {
                        let function = library.function(concat!(stringify!($name), "\0"))?;
                        // SAFETY: the header of the library declares the function with this type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(function)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    /// Functions of librados.
    Rados {
        rados_create(*mut Handle, *const c_char) -> c_int;
        rados_conf_read_file(Handle, *const c_char) -> c_int;
        rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
        rados_conf_get(Handle, *const c_char, *mut c_char, size_t) -> c_int;
        rados_connect(Handle) -> c_int;
        rados_shutdown(Handle);
        rados_cluster_fsid(Handle, *mut c_char, size_t) -> c_int;
        rados_pool_reverse_lookup(Handle, i64, *mut c_char, size_t) -> c_int;
        rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
        rados_ioctx_destroy(Handle);
        rados_ioctx_set_namespace(Handle, *const c_char);
        rados_ioctx_get_id(Handle) -> i64;
        rados_mon_command(
            Handle, *mut *const c_char, size_t, *const c_char, size_t,
            *mut *mut c_char, *mut size_t, *mut *mut c_char, *mut size_t
        ) -> c_int;
        rados_buffer_free(*mut c_char);
    }
}

functions! {
    /// Functions of librbd.
    Rbd {
        rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        rbd_close(Handle) -> c_int;
        rbd_get_size(Handle, *mut u64) -> c_int;
        rbd_get_features(Handle, *mut u64) -> c_int;
        rbd_get_id(Handle, *mut c_char, size_t) -> c_int;
        rbd_get_data_pool_id(Handle) -> i64;
        rbd_config_image_list(Handle, *mut ConfigOption, *mut c_int) -> c_int;
        rbd_config_image_list_cleanup(*mut ConfigOption, c_int);
        rbd_lock_acquire(Handle, c_int) -> c_int;
        rbd_is_exclusive_lock_owner(Handle, *mut c_int) -> c_int;
        rbd_list_lockers(
            Handle, *mut c_int, *mut c_char, *mut size_t, *mut c_char, *mut size_t,
            *mut c_char, *mut size_t, *mut c_char, *mut size_t
        ) -> ssize_t;
        rbd_aio_create_completion(*mut c_void, Callback, *mut Handle) -> c_int;
        rbd_aio_get_return_value(Handle) -> ssize_t;
        rbd_aio_release(Handle);
        rbd_aio_readv(Handle, *const iovec, c_int, u64, Handle) -> c_int;
        rbd_aio_writev(Handle, *const iovec, c_int, u64, Handle) -> c_int;
        rbd_aio_discard(Handle, u64, u64, Handle) -> c_int;
        rbd_aio_write_zeroes(Handle, u64, size_t, Handle, c_int, c_int) -> c_int;
        rbd_aio_flush(Handle, Handle) -> c_int;
    }
}

impl Library {
    /// Returns the libraries, which the first call loads.
    ///
    /// # Errors
    /// What is missing, and the remedy.
    pub fn get() -> Result<&'static Library, String> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let library = LIBRARY.get_or_init(|| {
            let rados = Rados::load(&Loaded::open("librados.so.2")?)?;
            Ok(Library { rados, rbd: Rbd::load(&Loaded::open("librbd.so.1")?)? })
        });
        library.as_ref().map_err(Clone::clone)
    }
}

/// A loaded library.
struct Loaded {
    name: &'static str,
    handle: *mut c_void,
}

impl Loaded {
    fn open(name: &'static str) -> Result<Loaded, String> {
        let path = CString::new(name).unwrap_or_default();
        // SAFETY: the path is a C string. The constructors of these libraries need nothing of this program.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(format!("cannot load {name}: {}; install the Debian package `librbd1`", dl_error()));
        }
        Ok(Loaded { name, handle })
    }

    /// Returns the address of a function, whose name ends with a NUL.
    fn function(&self, name: &str) -> Result<*mut c_void, String> {
        let c_name = CStr::from_bytes_until_nul(name.as_bytes()).unwrap_or_default();
        // SAFETY: the handle is open, and the name is a C string.
        let function = unsafe { libc::dlsym(self.handle, c_name.as_ptr()) };
        if function.is_null() {
            let (library, name) = (self.name, c_name.to_string_lossy());
            return Err(format!("{library} has no {name}; install `librbd1` {MIN_VERSION} or later"));
        }
        Ok(function)
    }
}

fn dl_error() -> String {
    // SAFETY: the text is valid until the next call of this thread, and is copied before.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}

/// Version of Ceph that has all functions.
const MIN_VERSION: &str = "16";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_package_of_missing_library() {
        let error = Loaded::open("libisolane-missing.so.9").err().unwrap();
        assert!(
            error.contains("cannot load libisolane-missing.so.9") && error.contains("`librbd1`"),
            "{error}"
        );
    }

    #[test]
    fn names_version_for_missing_function() {
        let library = Loaded::open("libc.so.6").unwrap();
        let error = Rbd::load(&library).err().unwrap();
        assert_eq!(error, "libc.so.6 has no rbd_open; install `librbd1` 16 or later");
    }
}
