//! The measuring program `examples/gpu`, with the driver library of the tests.

use std::time::Duration;

mod driver;
#[path = "../examples/gpu/measure.rs"]
mod measure;

use driver::Driver;
use measure::Plan;

const NO_DEVICE: i32 = 100;

fn plan(index: usize) -> Plan {
    Plan { index, time: Duration::from_millis(5), limit: Duration::from_secs(150) }
}

#[test]
fn prints_four_cells() {
    let driver = Driver::load();
    let json = measure::run(&plan(1)).unwrap().to_json();
    assert!(
        json.starts_with("{\"gpu\":\"test GPU 1\",\"cells\":[{\"memory\":\"host\",\"hog\":false,"),
        "{json}"
    );
    for cell in ["host\",\"hog\":false", "gpu\",\"hog\":false", "host\",\"hog\":true", "gpu\",\"hog\":true"] {
        assert_eq!(
            json.matches(&format!("{{\"memory\":\"{cell},\"rows\":[{{\"size\":64,")).count(),
            1,
            "{json}"
        );
    }
    for size in [64, 4096, 16_384, 65_536, 262_144, 1_048_576] {
        assert_eq!(json.matches(&format!("{{\"size\":{size},")).count(), 4, "{json}");
    }
    driver.assert_idle();
}

#[test]
fn reports_that_it_was_skipped() {
    let driver = Driver::load();
    driver.fail("cuInit", 0, 1, NO_DEVICE);
    let json = measure::run(&plan(0)).unwrap().to_json();
    assert_eq!(json, "{\"skipped\":\"cuInit: CUDA_ERROR_NO_DEVICE (100)\"}");
    driver.fail("cuInit", 0, 0, 0);
}

#[test]
fn gpu_that_cannot_be_opened_is_an_error_of_the_program() {
    let driver = Driver::load();
    let error = |index| measure::run(&plan(index)).err().unwrap().to_string();
    assert_eq!(error(7), "no GPU has index 7; there are 2");
    driver.fail("cuInit", 0, 1, driver::ILLEGAL_ADDRESS);
    assert_eq!(error(0), "cuInit: CUDA_ERROR_ILLEGAL_ADDRESS (700)");
    driver.fail("cuDevicePrimaryCtxRetain", 0, 1, NO_DEVICE);
    assert_eq!(error(0), "cuDevicePrimaryCtxRetain: CUDA_ERROR_NO_DEVICE (100)");
    driver.fail("cuDevicePrimaryCtxRetain", 0, 0, 0);
}

#[test]
fn error_of_the_driver_is_an_error_of_the_program() {
    let driver = Driver::load();
    // The first copy clears the destination.
    driver.fail("cuMemcpyAsync", 1, i32::MAX, driver::ILLEGAL_ADDRESS);
    let error = measure::run(&plan(0)).err().unwrap().to_string();
    driver.fail("cuMemcpyAsync", 0, 0, 0);
    assert_eq!(error, "a WRITE has failed: remote operation error");
}
