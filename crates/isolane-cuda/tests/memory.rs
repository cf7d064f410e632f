//! Regions of GPU memory: copies of any length, errors of each call, and memory that is not what it seems.

use std::ptr::NonNull;

use isolane_cuda::{CudaError, Gpu, find, is_in_use};
use isolane_memory::MemoryRegion;

mod driver;

use driver::{Driver, ILLEGAL_ADDRESS, OUT_OF_MEMORY, Place};

const GPU: Place = Place::Primary(0);
/// Length of a buffer in bytes.
const BUFFER: usize = 256 * 1024;
const LEN: usize = 3 * BUFFER;

fn find_at(address: u64, len: usize) -> Result<Option<MemoryRegion>, CudaError> {
    let start = NonNull::new(std::ptr::without_provenance_mut(address as usize)).unwrap();
    // SAFETY: the tests use no memory of others.
    unsafe { find(start, len) }
}

fn region(address: u64, len: usize) -> MemoryRegion {
    find_at(address, len).unwrap().expect("GPU memory")
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed) as u8).collect()
}

#[test]
fn copies_ranges_of_any_length() {
    let driver = Driver::load();
    let address = driver.allocate(&[(LEN, GPU)]);
    let region = region(address, LEN);
    assert!(region.is_on_device() && region.address() == address && !region.has_cheap_copies());
    for (offset, len) in
        [(0, 1), (7, 13), (1, BUFFER - 1), (3, BUFFER), (5, BUFFER + 1), (0, LEN), (LEN - 1, 1), (9, 0)]
    {
        let bytes = pattern(len, offset);
        assert!(region.try_copy_in(offset, &bytes), "{len} bytes at {offset}");
        assert!(driver.bytes(address + offset as u64, len) == bytes, "{len} bytes at {offset}");
        let other = pattern(len, offset + 1);
        driver.put(address + offset as u64, &other);
        assert!(region.to_vec(offset, len) == other, "{len} bytes at {offset}");
        assert!(region.is_readable(offset, len) && region.is_writable(offset, len));
        assert_eq!((driver.counts().pending, driver.counts().current), (0, 0));
    }
    drop(region);
    driver.assert_idle();
}

#[test]
fn stream_copies_while_its_other_buffer_is_filled() {
    let driver = Driver::load();
    let address = driver.allocate(&[(LEN, GPU)]);
    let region = region(address, LEN);
    let bytes = pattern(LEN, 3);
    let mut stream = region.device_stream().unwrap();
    for (index, part) in bytes.chunks(BUFFER).enumerate() {
        stream.buffer().copy_from_slice(part);
        assert!(stream.start(index * BUFFER, part.len()));
        assert_eq!(driver.counts().pending, 1);
        stream.buffer().fill(0xff);
    }
    drop(stream);
    assert_eq!(driver.counts().pending, 0);
    assert!(driver.bytes(address, LEN) == bytes);
    // There are as many streams as before, and then none.
    let streams: Vec<_> = std::iter::from_fn(|| region.device_stream()).collect();
    assert_eq!(streams.len(), 8);
    assert!(region.try_copy_in(0, b"without one") && region.to_vec(0, 11) == b"without one");
    drop(streams);
    drop(region);
    driver.assert_idle();
}

#[test]
fn range_can_have_several_allocations() {
    let driver = Driver::load();
    let lens = [5, 4091, 8192, 300_000];
    let (len, ranges) = (lens.iter().sum(), lens.map(|len| (len, GPU)));
    let address = driver.allocate(&ranges);
    let all = region(address, len);
    let bytes = pattern(len, 1);
    assert!(all.try_copy_in(0, &bytes) && all.to_vec(0, len) == bytes);
    let part = region(address + 4, 4093);
    assert!(part.to_vec(0, 4093) == bytes[4..4097]);
    let mut stream = all.device_stream().unwrap();
    stream.buffer()[..5000].fill(7);
    assert!(stream.start(3, 5000) && stream.finish());
    assert!(all.to_vec(2, 5002) == [&bytes[2..3], &[7; 5000], &bytes[5003..5004]].concat());
    // The program frees one of them.
    driver.free(address + 4096);
    assert!(all.try_copy_in(0, &[1; 4096]) && !all.try_copy_in(0, &[1; 4097]));
    assert!(!all.is_readable(4095, 2) && all.is_readable(0, 4096));
}

#[test]
fn range_of_two_contexts_or_with_other_memory_is_refused() {
    let driver = Driver::load();
    for (ranges, found) in [
        ([(4096, GPU), (4096, Place::Other)], 4096),
        ([(100, Place::Primary(1)), (4096, GPU)], 100),
        ([(4096, GPU), (4096, Place::Pool)], 4096),
    ] {
        let start = driver.allocate(&ranges);
        let refused = find_at(start, 4097).err();
        assert_eq!(refused, Some(CudaError::Range { start, len: 4097, found }), "{ranges:?}");
    }
    let start = driver.allocate(&[(100, GPU)]);
    let refused = find_at(start, 101).err().unwrap().to_string();
    let expected = format!("101 bytes at {start:#x}: only the first 100 are GPU memory of one context");
    assert_eq!(refused, expected);
    driver.assert_idle();
}

#[test]
fn memory_of_each_context_is_found() {
    let driver = Driver::load();
    for place in [GPU, Place::Primary(1), Place::Other, Place::Pool] {
        let address = driver.allocate(&[(4096, place)]);
        let region = region(address, 4096);
        assert!(region.try_copy_in(5, b"data"), "{place:?}");
        assert_eq!(driver.bytes(address + 5, 4), b"data", "{place:?}");
        assert!(driver.counts().contexts >= i32::from(matches!(place, Place::Pool)), "{place:?}");
        // Memory that is registered again uses the same streams.
        let before = driver.counts();
        assert!(find_at(address, 4096).unwrap().is_some());
        assert_eq!(driver.counts(), before, "{place:?}");
        drop(region);
        driver.assert_idle();
    }
    assert!(is_in_use());
}

#[test]
fn memory_that_the_cpu_can_access_is_not_of_a_gpu() {
    let driver = Driver::load();
    let bytes = [0_u8; 64];
    assert!(find_at(bytes.as_ptr().addr() as u64, 64).unwrap().is_none());
    let managed = driver.allocate(&[(4096, GPU)]);
    driver.manage(managed);
    assert!(find_at(managed, 4096).unwrap().is_none());
    driver.assert_idle();
}

#[test]
fn atomic_operations_of_threads_are_not_lost() {
    let driver = Driver::load();
    let address = driver.allocate(&[(4096, GPU)]);
    let region = region(address, 4096);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    region.fetch_add(8, 3).unwrap();
                }
            });
        }
    });
    assert_eq!(driver.bytes(address + 8, 8), 600_u64.to_ne_bytes());
    assert_eq!(region.compare_swap(8, 599, 1), Some(600));
    assert_eq!(region.compare_swap(8, 600, 1), Some(600));
    assert_eq!(driver.bytes(address + 8, 8), 1_u64.to_ne_bytes());
}

#[test]
fn error_of_each_call_is_an_error_of_its_operation() {
    let driver = Driver::load();
    let address = driver.allocate(&[(LEN, GPU)]);
    let registering = ["cuMemGetAddressRange_v2", "cuStreamCreate", "cuCtxPushCurrent_v2"];
    let mut address = address;
    for function in registering {
        for after in 0.. {
            // The next registration makes the streams again.
            driver.destroy(GPU);
            address = driver.allocate(&[(LEN, GPU)]);
            let before = driver.counts();
            driver.fail(function, after, 1, OUT_OF_MEMORY);
            let found = find_at(address, LEN);
            let calls = driver.calls(function);
            driver.fail(function, 0, 0, 0);
            if calls <= after {
                assert!(found.unwrap().is_some(), "{function}");
                break;
            }
            // Contexts that cannot be checked are kept.
            let Err(error) = found else {
                assert_eq!(function, "cuCtxPushCurrent_v2", "call {after} was not needed");
                continue;
            };
            assert!(error.is_out_of_memory(), "{error}");
            let name = function.trim_end_matches("_v2");
            assert_eq!(error.to_string(), format!("{name}: CUDA_ERROR_OUT_OF_MEMORY (2)"));
            driver.assert_idle();
            // Those of a registration that has failed are destroyed.
            if function == "cuStreamCreate" {
                assert_eq!(driver.counts().streams, before.streams, "call {after}");
            }
        }
    }
    let region = region(address, LEN);
    for function in ["cuMemcpyAsync", "cuStreamSynchronize", "cuCtxPushCurrent_v2"] {
        for after in 0..4 {
            let fails = |operation: &dyn Fn() -> bool| {
                driver.fail(function, after, 1, ILLEGAL_ADDRESS);
                let is_reached = !operation() || driver.calls(function) <= after;
                driver.fail(function, 0, 0, 0);
                is_reached && driver.counts().pending == 0 && driver.counts().current == 0
            };
            let bytes = pattern(LEN, 1);
            assert!(fails(&|| region.try_copy_in(0, &bytes)), "{function}");
            assert!(fails(&|| region.try_copy_out(0, &mut bytes.clone())), "{function}");
            assert!(fails(&|| region.is_readable(0, LEN)), "{function}");
            assert!(fails(&|| region.fetch_add(0, 1).is_some()), "{function}");
            let has_failed = fails(&|| {
                let mut stream = region.device_stream().unwrap();
                (0..3).all(|at| stream.start(at, 10)) && stream.finish()
            });
            // The end of the last copy needs no context.
            let is_needed = function != "cuCtxPushCurrent_v2" || after < 3;
            assert_eq!(has_failed, is_needed, "call {after} of {function}");
            assert_eq!(driver.counts().pending, 0, "call {after} of {function}");
            assert!(region.try_copy_in(0, &bytes) && region.to_vec(0, LEN) == bytes, "{function}");
        }
    }
    drop(region);
    driver.assert_idle();
}

#[test]
fn buffers_that_cannot_be_pinned_are_used() {
    let driver = Driver::load();
    driver.destroy(GPU);
    let address = driver.allocate(&[(LEN, GPU)]);
    driver.fail("cuMemHostRegister_v2", 2, 4, OUT_OF_MEMORY);
    let region = region(address, LEN);
    assert_eq!(driver.calls("cuMemHostRegister_v2"), 9);
    let streams: Vec<_> = std::iter::from_fn(|| region.device_stream()).collect();
    assert_eq!(streams.len(), 8);
    for (seed, mut stream) in streams.into_iter().enumerate() {
        stream.buffer().copy_from_slice(&pattern(BUFFER, seed));
        assert!(stream.start(BUFFER, BUFFER) && stream.finish());
        assert!(driver.bytes(address + BUFFER as u64, BUFFER) == pattern(BUFFER, seed));
        assert!(region.to_vec(BUFFER, BUFFER) == pattern(BUFFER, seed));
    }
    drop(region);
    driver.assert_idle();
}

#[test]
fn copy_ends_also_if_its_context_cannot_be_made_current() {
    let driver = Driver::load();
    let address = driver.allocate(&[(LEN, GPU)]);
    let region = region(address, LEN);
    let fail = |count| driver.fail("cuCtxPushCurrent_v2", 0, count, OUT_OF_MEMORY);
    let bytes = pattern(BUFFER, 5);
    for step in 0..3 {
        let mut stream = region.device_stream().unwrap();
        stream.buffer().copy_from_slice(&bytes);
        assert!(stream.start(0, BUFFER));
        fail(i32::MAX);
        match step {
            0 => assert!(stream.finish()),
            1 => assert!(!stream.start(0, BUFFER)),
            _ => drop(stream),
        }
        assert_eq!(driver.counts().pending, 0, "step {step}");
        assert!(driver.bytes(address, BUFFER) == bytes, "step {step}");
        driver.put(address, &pattern(BUFFER, 6));
        fail(0);
    }
    drop(region);
    driver.assert_idle();
}

#[test]
fn result_of_a_copy_is_kept_if_the_context_of_the_thread_is_not_restored() {
    let driver = Driver::load();
    let address = driver.allocate(&[(LEN, GPU)]);
    let region = region(address, LEN);
    // The driver of the tests restores it, and reports an error.
    driver.fail("cuCtxPopCurrent_v2", 0, 2, ILLEGAL_ADDRESS);
    assert!(region.try_copy_in(0, b"data") && region.to_vec(0, 4) == b"data");
    assert_eq!(driver.counts().current, 0);
}

#[test]
fn context_that_the_program_destroys_fails_its_copies() {
    for place in [GPU, Place::Other] {
        let driver = Driver::load();
        let address = driver.allocate(&[(LEN, place)]);
        let lost = region(address, LEN);
        let [mut idle, mut copying] = [0; 2].map(|_| lost.device_stream().unwrap());
        assert!(copying.start(0, BUFFER));
        driver.destroy(place);
        // The buffers are still mapped.
        for stream in [&mut idle, &mut copying] {
            stream.buffer().fill(1);
            assert!(!stream.start(0, BUFFER));
        }
        assert!(!lost.try_copy_in(0, &[1; 5000]) && !lost.try_copy_out(0, &mut [1; 5000]));
        assert!(!lost.is_readable(0, 1) && lost.fetch_add(0, 1).is_none());
        drop((idle, copying, lost));
        driver.assert_idle();
        // A new context with the same handle.
        let address = driver.allocate(&[(LEN, place)]);
        let new = region(address, LEN);
        assert!(new.try_copy_in(0, &pattern(LEN, 1)) && new.to_vec(0, LEN) == pattern(LEN, 1));
        drop(new);
        driver.assert_idle();
    }
}

#[test]
fn error_of_one_stream_spares_the_others() {
    let driver = Driver::load();
    driver.destroy(GPU);
    let address = driver.allocate(&[(LEN, GPU)]);
    let before = driver.counts();
    driver.fail("cuMemHostUnregister", 0, 0, 0);
    driver.fail("cuStreamDestroy_v2", 1, 1, ILLEGAL_ADDRESS);
    driver.fail("cuStreamCreate", 5, 1, OUT_OF_MEMORY);
    assert!(find_at(address, LEN).err().unwrap().is_out_of_memory());
    driver.fail("cuStreamCreate", 0, 0, 0);
    assert_eq!((driver.calls("cuStreamDestroy_v2"), driver.calls("cuMemHostUnregister")), (5, 5));
    assert_eq!(driver.counts().streams, before.streams + 1);
    driver.destroy(GPU);
}

#[test]
fn gpu_allocates_memory_and_frees_it() {
    let driver = Driver::load();
    assert!(matches!(Gpu::open(2), Err(CudaError::Library(_) | CudaError::NoGpu { index: 2, count: 2 })));
    driver.fail("cuMemFree_v2", 0, 0, 0);
    let gpu = Gpu::open(1).unwrap();
    assert_eq!(gpu.info().name, "test GPU 1");
    let region = gpu.allocate(10_000).unwrap();
    region.copy_in(9996, b"last");
    let address = region.address();
    assert_eq!(driver.bytes(address + 9996, 4), b"last");
    assert!(gpu.allocate(0).is_err());
    drop(gpu);
    assert_eq!(region.to_vec(9996, 4), b"last");
    drop(region);
    assert_eq!(driver.calls("cuMemFree_v2"), 1);
    driver.assert_idle();
}
