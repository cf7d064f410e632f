//! How streams are to be.

use std::ffi::c_int;
use std::time::Duration;

use isolane_attach::stream::StreamOptions;

use crate::border::{give, own, shared};
use crate::call::{call, close};
use crate::failure::Failure;

const ISOLANE_RX_BYTES: c_int = 1;
const ISOLANE_TX_BYTES: c_int = 2;
const ISOLANE_PAST_BYTES: c_int = 3;
const ISOLANE_SPIN_NS: c_int = 4;
const ISOLANE_CORE: c_int = 5;
const ISOLANE_PAST_BYTES_READ: c_int = 6;

/// As the header says.
#[unsafe(no_mangle)]
pub extern "C" fn isolane_options_new() -> *mut StreamOptions {
    call("isolane_options_new", || Ok(give(StreamOptions::default())))
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_options_set(
    options: *mut StreamOptions,
    option: c_int,
    value: u64,
) -> c_int {
    call("isolane_options_set", || {
        // SAFETY: as the header says.
        let options = unsafe { own(options)? };
        set(options, option, value)?;
        Ok(0)
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_options_free(options: *mut StreamOptions) {
    // SAFETY: as the header says.
    unsafe { close("isolane_options_free", options) };
}

/// Options, or the defaults.
///
/// # Safety
/// As of [`shared`].
pub(crate) unsafe fn or_default(options: *const StreamOptions) -> StreamOptions {
    // SAFETY: the same is asked.
    unsafe { shared(options) }.copied().unwrap_or_default()
}

fn set(options: &mut StreamOptions, option: c_int, value: u64) -> Result<(), Failure> {
    let bytes = || usize::try_from(value).map_err(|_| TOO_MUCH);
    let ring_bytes = || bytes().ok().filter(|bytes| *bytes <= MAX_RING_BYTES).ok_or(TOO_MUCH);
    match option {
        ISOLANE_RX_BYTES => options.rx_bytes = ring_bytes()?,
        ISOLANE_TX_BYTES => options.tx_bytes = ring_bytes()?,
        ISOLANE_PAST_BYTES => options.bypass_write_min = bytes()?,
        ISOLANE_PAST_BYTES_READ => options.bypass_read_min = bytes()?,
        ISOLANE_SPIN_NS => options.spin = Duration::from_nanos(value),
        ISOLANE_CORE => options.core = Some(u32::try_from(value).map_err(|_| TOO_MUCH)?),
        _ => {
            return Err(Failure::argument("there is no such option: give one of ISOLANE_RX_BYTES and so on"));
        }
    }
    Ok(())
}

/// As much as an engine lets a session have in all, unless it is told otherwise.
const MAX_RING_BYTES: usize = 1 << 30;
const TOO_MUCH: Failure = Failure::Argument("a value is larger than the option can have: give less");
