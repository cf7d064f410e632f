//! Sessions: the connection to an engine.

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use isolane_attach::{Session, SessionOptions};
use isolane_shm::with_signals_blocked;

use crate::entry::{call, close};
use crate::error::Failure;
use crate::ffi::{as_ref, into_raw, slice_mut, text};
use crate::fork::Busy;
use crate::logging;

const ISOLANE_NO_SPAWN: c_int = 1;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_session_open(
    path: *const c_char,
    memory_bytes: usize,
    flags: c_int,
) -> *mut Session {
    call("isolane_session_open", || {
        if flags & !ISOLANE_NO_SPAWN != 0 {
            return Err(Failure::Argument("unknown flag: pass 0 or ISOLANE_NO_SPAWN"));
        }
        let mut options =
            SessionOptions { spawn_engine: flags & ISOLANE_NO_SPAWN == 0, ..SessionOptions::default() };
        if !path.is_null() {
            // SAFETY: the header states the requirements.
            options.path = OsStr::from_bytes(unsafe { text(path)? }.to_bytes()).into();
        }
        if memory_bytes > 0 {
            options.memory_bytes = memory_bytes;
        }
        let _busy = Busy::open()?;
        logging::start();
        Ok(into_raw(with_signals_blocked(|| Session::open(&options))?))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_session_check(session: *const Session) -> c_int {
    call("isolane_session_check", || {
        // SAFETY: the header states the requirements.
        unsafe { as_ref(session)? }.check()?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_session_cores(
    session: *const Session,
    cpus: *mut u32,
    capacity: usize,
) -> c_int {
    call("isolane_session_cores", || {
        // SAFETY: the header states the requirements.
        let (session, cpus) =
            unsafe { (as_ref(session)?, slice_mut::<u32>(cpus.cast::<c_void>(), capacity)?) };
        cpus.iter_mut().zip(session.cores()).for_each(|(cpu, core)| *cpu = *core);
        Ok(session.cores().len() as c_int)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_session_close(session: *mut Session) {
    // SAFETY: the header states the requirements.
    unsafe { close("isolane_session_close", session) };
}
