//! The functions of the driver library, found at run time.
//!
//! Invariant: the library is never unloaded, so its functions can be called for the life of the process.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;

use crate::error::{CudaError, Result};

/// A context of a GPU, `CUcontext`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ContextHandle(*mut c_void);

impl ContextHandle {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

// SAFETY: any thread can make a context its current one.
unsafe impl Send for ContextHandle {}
// SAFETY: as above.
unsafe impl Sync for ContextHandle {}

/// A queue of copies, `CUstream`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamHandle(*mut c_void);

// SAFETY: any thread can use a stream whose context is current.
unsafe impl Send for StreamHandle {}

macro_rules! functions {
    ($($name:ident = $symbol:ident($($argument:ty),*);)*) => {
        /// The functions, with the names of the interface of CUDA 4.0 or later.
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// # Safety
            /// `library` is the driver library.
            unsafe fn find(library: NonNull<c_void>) -> Result<Functions> {
                Ok(Functions {
                    $($name: {
                        let name = concat!(stringify!($symbol), "\0");
                        // SAFETY: the library is open, and the name ends with a zero.
                        let found = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr().cast()) };
                        let found = NonNull::new(found).ok_or(CudaError::Symbol(stringify!($symbol)))?;
                        // SAFETY: guaranteed by the caller: the symbol is a function of this type.
                        unsafe { transmute_copy(&found) }
                    },)*
                })
            }
        }
    };
}

functions! {
    init = cuInit(c_uint);
    get_error_name = cuGetErrorName(c_int, *mut *const c_char);
    device_get_count = cuDeviceGetCount(*mut c_int);
    device_get = cuDeviceGet(*mut c_int, c_int);
    device_get_name = cuDeviceGetName(*mut c_char, c_int, c_int);
    primary_context_retain = cuDevicePrimaryCtxRetain(*mut *mut c_void, c_int);
    primary_context_release = cuDevicePrimaryCtxRelease_v2(c_int);
    context_push = cuCtxPushCurrent_v2(*mut c_void);
    context_pop = cuCtxPopCurrent_v2(*mut *mut c_void);
    memory_allocate = cuMemAlloc_v2(*mut u64, usize);
    memory_free = cuMemFree_v2(u64);
    memory_get_address_range = cuMemGetAddressRange_v2(*mut u64, *mut usize, u64);
    host_register = cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    host_unregister = cuMemHostUnregister(*mut c_void);
    copy = cuMemcpyAsync(u64, u64, usize, *mut c_void);
    stream_create = cuStreamCreate(*mut *mut c_void, c_uint);
    stream_destroy = cuStreamDestroy_v2(*mut c_void);
    stream_synchronize = cuStreamSynchronize(*mut c_void);
    pointer_get_attribute = cuPointerGetAttribute(*mut c_void, c_int, u64);
}

/// The driver library.
pub(crate) struct Driver(Functions, Option<GetId>);

/// `cuCtxGetId` of CUDA 12.0 or later.
type GetId = unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int;

static DRIVER: OnceLock<Driver> = OnceLock::new();

impl Driver {
    /// Returns the driver if the program has loaded it. A library without the functions has no memory of a GPU.
    pub(crate) fn of_program() -> Option<&'static Driver> {
        if let Some(driver) = DRIVER.get() {
            return Some(driver);
        }
        if !is_loaded() {
            return None;
        }
        // SAFETY: the name is a string; the library was initialized before.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        let driver = Driver::new(NonNull::new(library)?);
        driver.inspect_err(|error| log::limited!(Warn, "GPU memory is not found: {error}")).ok()
    }

    /// Returns the driver. Loads it if the program has not.
    pub(crate) fn load() -> Result<&'static Driver> {
        // SAFETY: the name is a string; the initialization of the driver library has no requirements.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        NonNull::new(library).map_or_else(|| Err(CudaError::Library(last_error())), Driver::new)
    }

    fn new(library: NonNull<c_void>) -> Result<&'static Driver> {
        // SAFETY: only the driver library has this name.
        let functions = unsafe { Functions::find(library) }?;
        // SAFETY: the library is open, and the name is a string.
        let get_id = NonNull::new(unsafe { libc::dlsym(library.as_ptr(), c"cuCtxGetId".as_ptr()) });
        // SAFETY: the symbol is a function of this type.
        let get_id = get_id.map(|found| unsafe { transmute_copy::<_, GetId>(&found) });
        Ok(DRIVER.get_or_init(|| Driver(functions, get_id)))
    }

    /// Returns an error unless `code` is 0.
    fn check(&self, function: &'static str, code: c_int) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(function, code)) }
    }

    #[cold]
    fn error(&self, function: &'static str, code: c_int) -> CudaError {
        let mut name = null();
        // SAFETY: the place is valid.
        let is_known = unsafe { (self.0.get_error_name)(code, &mut name) } == 0 && !name.is_null();
        let name = if is_known {
            // SAFETY: the driver returns a constant string.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            "unknown error".to_owned()
        };
        CudaError::Call { function, name, code }
    }

    pub(crate) fn initialize(&self) -> Result<()> {
        // SAFETY: no requirements.
        self.check("cuInit", unsafe { (self.0.init)(0) })
    }

    /// Returns the number of GPUs.
    pub(crate) fn gpu_count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the place is valid.
        self.check("cuDeviceGetCount", unsafe { (self.0.device_get_count)(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Returns the handle of the GPU with an index, and its name.
    pub(crate) fn gpu(&self, index: usize) -> Result<(c_int, String)> {
        let (mut gpu, mut name) = (0, [0; 256]);
        // SAFETY: the places are valid, and the length is the one of the text without its last byte, which stays 0.
        unsafe {
            self.check("cuDeviceGet", (self.0.device_get)(&mut gpu, index as c_int))?;
            let len = name.len() as c_int - 1;
            self.check("cuDeviceGetName", (self.0.device_get_name)(name.as_mut_ptr(), len, gpu))?;
            Ok((gpu, CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()))
        }
    }

    /// Returns the primary context of a GPU, which lives until [`Driver::release_primary`].
    pub(crate) fn retain_primary(&self, gpu: c_int) -> Result<ContextHandle> {
        let mut context = null_mut();
        // SAFETY: the place is valid.
        let code = unsafe { (self.0.primary_context_retain)(&mut context, gpu) };
        self.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(ContextHandle(context))
    }

    pub(crate) fn release_primary(&self, gpu: c_int) -> Result<()> {
        // SAFETY: no requirements.
        self.check("cuDevicePrimaryCtxRelease", unsafe { (self.0.primary_context_release)(gpu) })
    }

    /// Returns the number of a context, which no other context of the process gets. `None` if the driver is too old.
    pub(crate) fn context_id(&self, context: ContextHandle) -> Result<Option<u64>> {
        let Some(get_id) = self.1 else { return Ok(None) };
        let mut id = 0;
        // SAFETY: the driver checks the handle, and the place is valid.
        self.check("cuCtxGetId", unsafe { get_id(context.0, &mut id) }).map(|()| Some(id))
    }

    /// Runs a function while `context` is the current one of the thread.
    pub(crate) fn with_current<T>(
        &self,
        context: ContextHandle,
        function: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        // SAFETY: the driver checks the handle.
        self.check("cuCtxPushCurrent", unsafe { (self.0.context_push)(context.0) })?;
        let result = function();
        let mut popped = null_mut();
        // SAFETY: the place is valid.
        let code = unsafe { (self.0.context_pop)(&mut popped) };
        if let Err(error) = self.check("cuCtxPopCurrent", code) {
            // The result remains valid.
            log::limited!(Warn, "a thread keeps another GPU context than its own: {error}");
        }
        result
    }

    /// Allocates memory of the GPU of the current context.
    pub(crate) fn allocate(&self, len: usize) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the place is valid.
        self.check("cuMemAlloc", unsafe { (self.0.memory_allocate)(&mut address, len) })?;
        Ok(address)
    }

    /// Frees memory of [`Driver::allocate`].
    pub(crate) fn free(&self, address: u64) -> Result<()> {
        // SAFETY: the driver checks the address.
        self.check("cuMemFree", unsafe { (self.0.memory_free)(address) })
    }

    /// Returns start and length of the allocation that contains an address.
    pub(crate) fn allocation(&self, address: u64) -> Result<(u64, usize)> {
        let (mut start, mut len) = (0, 0);
        // SAFETY: the places are valid.
        let code = unsafe { (self.0.memory_get_address_range)(&mut start, &mut len, address) };
        self.check("cuMemGetAddressRange", code)?;
        Ok((start, len))
    }

    /// Pins memory of the host, so that all GPUs access it without another copy.
    ///
    /// # Safety
    /// The memory stays mapped until [`Driver::unregister_host`], or until the context ends.
    pub(crate) unsafe fn register_host(&self, start: NonNull<u8>, len: usize) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        let code = unsafe { (self.0.host_register)(start.as_ptr().cast(), len, HOST_PORTABLE) };
        self.check("cuMemHostRegister", code)
    }

    /// Undoes [`Driver::register_host`].
    pub(crate) fn unregister_host(&self, start: NonNull<u8>) -> Result<()> {
        // SAFETY: the driver checks the address.
        self.check("cuMemHostUnregister", unsafe { (self.0.host_unregister)(start.as_ptr().cast()) })
    }

    /// Returns a new stream, which waits for no other one.
    pub(crate) fn create_stream(&self) -> Result<StreamHandle> {
        let mut stream = null_mut();
        // SAFETY: the place is valid.
        let code = unsafe { (self.0.stream_create)(&mut stream, STREAM_NON_BLOCKING) };
        self.check("cuStreamCreate", code)?;
        Ok(StreamHandle(stream))
    }

    /// # Safety
    /// Nothing uses the stream afterwards.
    pub(crate) unsafe fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("cuStreamDestroy", unsafe { (self.0.stream_destroy)(stream.0) })
    }

    /// Starts a copy between memory of the GPU and of the host.
    ///
    /// # Safety
    /// The memory of the host stays mapped, and no reference to it is in use until [`Driver::synchronize`]. The stream is
    /// not destroyed.
    pub(crate) unsafe fn copy(&self, to: u64, from: u64, len: usize, stream: StreamHandle) -> Result<()> {
        // SAFETY: guaranteed by the caller; the driver checks the range of the GPU.
        self.check("cuMemcpyAsync", unsafe { (self.0.copy)(to, from, len, stream.0) })
    }

    /// Waits for all copies of a stream.
    pub(crate) fn synchronize(&self, stream: StreamHandle) -> Result<()> {
        // SAFETY: streams are destroyed with their only owner.
        self.check("cuStreamSynchronize", unsafe { (self.0.stream_synchronize)(stream.0) })
    }

    /// Returns an attribute of a pointer. `None` if the driver does not know the pointer.
    ///
    /// # Errors
    /// If the driver reports another error: the memory can then be of a GPU.
    pub(crate) fn attribute<T: Attribute>(&self, address: u64) -> Result<Option<T>> {
        let mut value = T::default();
        // SAFETY: the place has the type of the attribute.
        let code = unsafe { (self.0.pointer_get_attribute)((&raw mut value).cast(), T::NUMBER, address) };
        if UNKNOWN_POINTER.contains(&code) {
            return Ok(None);
        }
        self.check("cuPointerGetAttribute", code).map(|()| Some(value))
    }

    /// Returns the error for memory of a GPU that the driver no longer knows.
    pub(crate) fn unknown_pointer(&self) -> CudaError {
        self.error("cuPointerGetAttribute", INVALID_VALUE)
    }
}

/// An attribute of a pointer.
///
/// # Safety
/// The type is the one that the driver stores for `NUMBER`.
pub(crate) unsafe trait Attribute: Default {
    const NUMBER: c_int;
}

/// `CU_POINTER_ATTRIBUTE_CONTEXT`.
#[repr(transparent)]
pub(crate) struct PointerContext(pub(crate) ContextHandle);

impl Default for PointerContext {
    fn default() -> PointerContext {
        PointerContext(ContextHandle(null_mut()))
    }
}

// SAFETY: a `CUcontext`.
unsafe impl Attribute for PointerContext {
    const NUMBER: c_int = 1;
}

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
#[derive(Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct MemoryType(c_uint);

impl MemoryType {
    pub(crate) const DEVICE: MemoryType = MemoryType(2);
}

// SAFETY: a `CUmemorytype`, which is an unsigned number of 4 bytes.
unsafe impl Attribute for MemoryType {
    const NUMBER: c_int = 2;
}

/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`. The driver stores 1 byte or 4, depending on its version.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct IsManaged(pub(crate) c_uint);

// SAFETY: a Boolean of at most 4 bytes, over zeroes.
unsafe impl Attribute for IsManaged {
    const NUMBER: c_int = 8;
}

/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct DeviceOrdinal(pub(crate) c_int);

// SAFETY: an integer of 4 bytes.
unsafe impl Attribute for DeviceOrdinal {
    const NUMBER: c_int = 9;
}

/// Whether the program has loaded the library. Searches no directory, as `dlopen` would.
fn is_loaded() -> bool {
    unsafe extern "C" fn check(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid structure; its name is null or a string, and `found` is the one below.
        unsafe {
            let name = (*info).dlpi_name;
            let is_found = !name.is_null() && is_driver(CStr::from_ptr(name));
            *found.cast::<bool>() |= is_found;
            c_int::from(is_found)
        }
    }
    let mut found = false;
    // SAFETY: the function has the expected type, and `found` lives during the call.
    unsafe { libc::dl_iterate_phdr(Some(check), (&raw mut found).cast()) };
    found
}

/// Whether a path names the library, also with a longer version.
fn is_driver(path: &CStr) -> bool {
    let name = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.starts_with(LIBRARY_PREFIX.as_bytes())
}

fn last_error() -> String {
    // SAFETY: null or a string that is valid until the next call of this thread.
    let error = unsafe { libc::dlerror() };
    if error.is_null() {
        return "unknown error".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned()
}

const LIBRARY: &CStr = c"libcuda.so.1";
const LIBRARY_PREFIX: &str = "libcuda.so";
/// `CU_MEMHOSTREGISTER_PORTABLE`.
const HOST_PORTABLE: c_uint = 1;
/// `CU_STREAM_NON_BLOCKING`.
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: c_int = 1;
/// Errors for a pointer that is not known, and `CUDA_ERROR_NOT_INITIALIZED` and `CUDA_ERROR_DEINITIALIZED`: without the
/// driver, there is no memory of a GPU.
const UNKNOWN_POINTER: [c_int; 3] = [INVALID_VALUE, 3, 4];
