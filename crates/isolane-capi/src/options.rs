//! Options of streams.

use std::ffi::c_int;
use std::time::Duration;

use isolane_attach::stream::StreamOptions;

use crate::entry::{call, close};
use crate::error::Failure;
use crate::ffi::{as_mut, as_ref, into_raw};

const ISOLANE_RX_BYTES: c_int = 1;
const ISOLANE_TX_BYTES: c_int = 2;
const ISOLANE_BYPASS_WRITE_MIN: c_int = 3;
const ISOLANE_SPIN_NS: c_int = 4;
const ISOLANE_CORE: c_int = 5;
const ISOLANE_BYPASS_READ_MIN: c_int = 6;

#[unsafe(no_mangle)]
pub extern "C" fn isolane_options_new() -> *mut StreamOptions {
    call("isolane_options_new", || Ok(into_raw(StreamOptions::default())))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_options_set(
    options: *mut StreamOptions,
    option: c_int,
    value: u64,
) -> c_int {
    call("isolane_options_set", || {
        // SAFETY: the header states the requirements.
        let options = unsafe { as_mut(options)? };
        set(options, option, value)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_options_free(options: *mut StreamOptions) {
    // SAFETY: the header states the requirements.
    unsafe { close("isolane_options_free", options) };
}

/// Returns the defaults for a null pointer.
///
/// # Safety
/// The requirements of [`as_ref`].
pub(crate) unsafe fn or_default(options: *const StreamOptions) -> StreamOptions {
    // SAFETY: this function has the same requirements.
    unsafe { as_ref(options) }.copied().unwrap_or_default()
}

fn set(options: &mut StreamOptions, option: c_int, value: u64) -> Result<(), Failure> {
    let bytes = || usize::try_from(value).map_err(|_| TOO_LARGE);
    let ring_bytes = || bytes().ok().filter(|bytes| *bytes <= MAX_RING_BYTES).ok_or(TOO_LARGE);
    match option {
        ISOLANE_RX_BYTES => options.rx_bytes = ring_bytes()?,
        ISOLANE_TX_BYTES => options.tx_bytes = ring_bytes()?,
        ISOLANE_BYPASS_WRITE_MIN => options.bypass_write_min = bytes()?,
        ISOLANE_BYPASS_READ_MIN => options.bypass_read_min = bytes()?,
        ISOLANE_SPIN_NS => options.spin = Duration::from_nanos(value),
        ISOLANE_CORE => options.core = Some(u32::try_from(value).map_err(|_| TOO_LARGE)?),
        _ => return Err(Failure::Argument("unknown option: pass ISOLANE_RX_BYTES or another of isolane.h")),
    }
    Ok(())
}

/// Default limit of an engine for all memory of a session.
const MAX_RING_BYTES: usize = 1 << 30;
const TOO_LARGE: Failure = Failure::Argument("value too large for the option: pass a smaller one");
