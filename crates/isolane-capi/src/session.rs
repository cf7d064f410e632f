//! The connection to an engine.

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use isolane_attach::{Session, SessionOptions};

use crate::border::{give, places, shared, text, without_signals};
use crate::call::{call, close};
use crate::failure::Failure;

const ISOLANE_DONT_START: c_int = 1;

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_session_open(
    path: *const c_char,
    memory_bytes: usize,
    flags: c_int,
) -> *mut Session {
    call("isolane_session_open", || {
        if flags & !ISOLANE_DONT_START != 0 {
            return Err(Failure::argument("there is no such flag: give 0, or ISOLANE_DONT_START"));
        }
        let mut options =
            SessionOptions { spawn_engine: flags & ISOLANE_DONT_START == 0, ..SessionOptions::default() };
        if !path.is_null() {
            // SAFETY: as the header says.
            options.path = OsStr::from_bytes(unsafe { text(path)? }.to_bytes()).into();
        }
        if memory_bytes > 0 {
            options.memory_bytes = memory_bytes;
        }
        Ok(give(without_signals(|| Session::open(&options))?))
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_session_check(session: *const Session) -> c_int {
    call("isolane_session_check", || {
        // SAFETY: as the header says.
        unsafe { shared(session)? }.check()?;
        Ok(0)
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_session_cores(
    session: *const Session,
    cpus: *mut u32,
    capacity: usize,
) -> c_int {
    call("isolane_session_cores", || {
        // SAFETY: as the header says.
        let (session, cpus) = unsafe { (shared(session)?, places::<u32>(cpus.cast::<c_void>(), capacity)?) };
        cpus.iter_mut().zip(session.cores()).for_each(|(cpu, core)| *cpu = *core);
        Ok(session.cores().len() as c_int)
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_session_close(session: *mut Session) {
    // SAFETY: as the header says.
    unsafe { close("isolane_session_close", session) };
}
