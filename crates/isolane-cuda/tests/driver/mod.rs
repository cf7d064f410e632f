//! The driver library of the tests, `libcuda.c`: compiled and loaded when a test first uses it.
#![allow(dead_code, reason = "no test uses all of it")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The library, for one test at a time.
pub struct Driver {
    library: usize,
    _guard: MutexGuard<'static, ()>,
}

/// What is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Number of times that primary contexts are retained.
    pub contexts: i32,
    pub streams: i32,
    /// Number of copies that are not executed.
    pub pending: i32,
    /// Number of contexts on the stack of this thread.
    pub current: i32,
}

/// Where memory is allocated.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// In the primary context of a GPU.
    Primary(c_int),
    /// In another context.
    Other,
    /// In a pool of GPU 1, without a context.
    Pool,
}

impl Place {
    fn number(self) -> c_int {
        match self {
            Place::Primary(gpu) => gpu,
            Place::Other => 2,
            Place::Pool => 3,
        }
    }
}

/// Errors of the driver.
pub const OUT_OF_MEMORY: i32 = 2;
pub const ILLEGAL_ADDRESS: i32 = 700;

impl Driver {
    /// Loads the library. Other tests wait until the value is dropped.
    pub fn load() -> Driver {
        static LIBRARY: OnceLock<usize> = OnceLock::new();
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = Driver { library: *LIBRARY.get_or_init(open), _guard: guard };
        driver.fail("", 0, 0, 0);
        driver
    }

    fn function(&self, name: &str) -> *mut c_void {
        let symbol = CString::new(name).unwrap();
        // SAFETY: the library is never closed.
        let found = unsafe { libc::dlsym(self.library as *mut c_void, symbol.as_ptr()) };
        assert!(!found.is_null(), "the library has no {name}");
        found
    }

    /// Lets `count` calls of a function fail with `code` after `after` others.
    pub fn fail(&self, function: &str, after: i32, count: i32, code: i32) {
        let function = CString::new(function).unwrap().into_raw();
        type Fail = unsafe extern "C" fn(*const c_char, c_int, c_int, c_int);
        // SAFETY: the function has this type. It keeps the name, which is never freed.
        unsafe {
            std::mem::transmute::<*mut c_void, Fail>(self.function("test_fail"))(function, after, count, code)
        };
    }

    /// Returns the number of calls of a function since [`Driver::fail`].
    pub fn calls(&self, function: &str) -> i32 {
        let function = CString::new(function).unwrap().into_raw();
        type Calls = unsafe extern "C" fn(*const c_char) -> c_int;
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*mut c_void, Calls>(self.function("test_calls"))(function) }
    }

    /// Allocates adjacent ranges. Returns the address of the first one.
    pub fn allocate(&self, ranges: &[(usize, Place)]) -> u64 {
        let lens: Vec<usize> = ranges.iter().map(|(len, _)| *len).collect();
        let places: Vec<c_int> = ranges.iter().map(|(_, place)| place.number()).collect();
        type Allocate = unsafe extern "C" fn(*const usize, *const c_int, c_int) -> u64;
        // SAFETY: the function has this type, and reads as many values.
        unsafe {
            let allocate = std::mem::transmute::<*mut c_void, Allocate>(self.function("test_allocate"));
            allocate(lens.as_ptr(), places.as_ptr(), ranges.len() as c_int)
        }
    }

    /// Frees memory, as the program can.
    pub fn free(&self, address: u64) {
        type Free = unsafe extern "C" fn(u64) -> c_int;
        // SAFETY: the function has this type.
        let code =
            unsafe { std::mem::transmute::<*mut c_void, Free>(self.function("cuMemFree_v2"))(address) };
        assert_eq!(code, 0);
    }

    /// Destroys a context with everything in it, as the program can. The next allocation makes it again.
    pub fn destroy(&self, place: Place) {
        type Destroy = unsafe extern "C" fn(c_int);
        // SAFETY: the function has this type.
        unsafe { std::mem::transmute::<*mut c_void, Destroy>(self.function("test_destroy"))(place.number()) };
    }

    /// Makes an allocation one that the CPU can access also.
    pub fn manage(&self, address: u64) {
        type Manage = unsafe extern "C" fn(u64);
        // SAFETY: the function has this type.
        unsafe { std::mem::transmute::<*mut c_void, Manage>(self.function("test_manage"))(address) };
    }

    /// Copies bytes of the memory of a GPU, without the functions that programs call.
    pub fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        // SAFETY: the allocations have these bytes, and no copy changes them meanwhile.
        unsafe { std::slice::from_raw_parts(self.memory(address), len) }.to_vec()
    }

    /// Changes bytes of the memory of a GPU.
    pub fn put(&self, address: u64, bytes: &[u8]) {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.memory(address), bytes.len()) }.copy_from_slice(bytes);
    }

    fn memory(&self, address: u64) -> *mut u8 {
        type Bytes = unsafe extern "C" fn(u64) -> *mut u8;
        // SAFETY: the function has this type.
        let bytes =
            unsafe { std::mem::transmute::<*mut c_void, Bytes>(self.function("test_bytes"))(address) };
        assert!(!bytes.is_null(), "no memory at {address:#x}");
        bytes
    }

    /// Checks that no copy is in progress, and no context current.
    pub fn assert_idle(&self) {
        let counts = self.counts();
        assert_eq!((counts.pending, counts.current), (0, 0), "{counts:?}");
    }

    /// Returns what is in use.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts { contexts: 0, streams: 0, pending: 0, current: 0 };
        type GetCounts = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int, *mut c_int);
        // SAFETY: the function has this type, and the places are valid.
        unsafe {
            let get = std::mem::transmute::<*mut c_void, GetCounts>(self.function("test_counts"));
            get(&mut counts.contexts, &mut counts.streams, &mut counts.pending, &mut counts.current);
        }
        counts
    }
}

/// Compiles the library, and loads it as a program would.
fn open() -> usize {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../isolane-cuda/tests/driver/libcuda.c");
    let directory = std::env::temp_dir().join(format!("isolane-cuda-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let library = directory.join("libcuda.so.1");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libcuda.so.1", "-o"])
        .args([&library, &source])
        .status();
    assert!(compiled.expect("a C compiler").success());
    let path = CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: the library has no initialization.
    let opened = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(!opened.is_null());
    opened as usize
}
