//! Errors of exported functions: a number for `errno`, and a text that names the culprit and the remedy.
//!
//! Invariant: each thread has its own last error.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::io::{self, ErrorKind};

use isolane_attach::AttachError;
use isolane_attach::stream::AdoptError;
use isolane_engine_api::PacketError;
use isolane_host::RequestError;
use isolane_shm::MemoryError;
use isolane_volume::{OpenError, VolumeError};

/// Error of an exported function.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A wrong argument: `EINVAL` with this text.
    Argument(&'static str),
    /// This number and text.
    WithErrno(i32, String),
    /// An error of the system or the engine.
    Io(io::Error),
}

impl Failure {
    pub(crate) fn bug(message: &str) -> Failure {
        Failure::WithErrno(libc::EIO, format!("bug in libisolane, please report: {message}"))
    }

    /// Returns the number and the text, without the name of a function.
    pub(crate) fn number_and_text(self) -> (i32, String) {
        match self {
            Failure::Argument(message) => (libc::EINVAL, message.to_owned()),
            Failure::WithErrno(number, message) => (number, message),
            Failure::Io(error) => (errno_of(&error), error.to_string()),
        }
    }

    /// Makes this the thread's last error.
    pub(crate) fn store(&self, name: &'static str) {
        let (number, text) = match self {
            // Does not allocate: nonblocking calls fail often.
            Failure::Io(error) if error.kind() == ErrorKind::WouldBlock => {
                (libc::EAGAIN, Cow::Borrowed(AGAIN))
            }
            Failure::Argument(message) => (libc::EINVAL, text(name, message)),
            Failure::WithErrno(number, message) => (*number, text(name, message)),
            Failure::Io(error) => (errno_of(error), text(name, &error.to_string())),
        };
        // The value is gone while its thread exits.
        let _ = LAST.try_with(|last| *last.borrow_mut() = text);
        set_error_number(number);
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Failure {
        Failure::WithErrno(error.raw_os_error(), error.to_string())
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Failure {
        let number = match error {
            VolumeError::OutOfRange { .. } | VolumeError::WrongLength { .. } => libc::EINVAL,
            VolumeError::ReadOnly => libc::EROFS,
            VolumeError::Shrunk | VolumeError::ShortWrite { .. } => libc::EIO,
            VolumeError::NoSpace { raw_os_error }
            | VolumeError::SizeUnknown { raw_os_error }
            | VolumeError::ReadFailed { raw_os_error }
            | VolumeError::WriteFailed { raw_os_error }
            | VolumeError::Gone { raw_os_error }
            | VolumeError::SyncFailed { raw_os_error } => raw_os_error,
        };
        Failure::WithErrno(number, error.to_string())
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        Failure::WithErrno(error.raw_os_error.unwrap_or(libc::EIO), error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

impl From<AdoptError> for Failure {
    fn from(error: AdoptError) -> Failure {
        error.error.into()
    }
}

impl From<AttachError> for Failure {
    fn from(error: AttachError) -> Failure {
        Failure::Io(error.into())
    }
}

/// Number of the system's error, or the closest one.
fn errno_of(error: &io::Error) -> i32 {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let number = match inner {
        Some(
            AttachError::NoEngine { source, .. }
            | AttachError::Forbidden { source, .. }
            | AttachError::System { source, .. }
            | AttachError::Memory(MemoryError::System { source, .. })
            | AttachError::Socket(PacketError::System(source)),
        ) => source.raw_os_error(),
        Some(AttachError::Memory(MemoryError::Size { .. })) => Some(libc::EINVAL),
        _ => error.raw_os_error(),
    };
    number.unwrap_or(match error.kind() {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::PermissionDenied => libc::EPERM,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        ErrorKind::ConnectionAborted => libc::ECONNABORTED,
        ErrorKind::BrokenPipe => libc::EPIPE,
        ErrorKind::InvalidInput => libc::EINVAL,
        ErrorKind::InvalidData => libc::EPROTO,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        _ => libc::EIO,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn isolane_error_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(EMPTY.as_ptr())
}

fn text(name: &str, message: &str) -> Cow<'static, CStr> {
    let text = format!("{name}: {message}").replace('\0', "?");
    CString::new(text).map_or(Cow::Borrowed(EMPTY), Cow::Owned)
}

fn set_error_number(number: i32) {
    // SAFETY: the C library returns the address of this thread's `errno`, which is valid while the thread runs.
    unsafe { *libc::__errno_location() = number };
}

#[cfg(test)]
pub(crate) fn error_number() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap()
}

#[cfg(test)]
pub(crate) fn error_text() -> String {
    LAST.with(|last| last.borrow().to_str().unwrap().to_owned())
}

thread_local! {
    static LAST: RefCell<Cow<'static, CStr>> = const { RefCell::new(Cow::Borrowed(EMPTY)) };
}

const EMPTY: &CStr = c"";
const AGAIN: &CStr = c"not ready, or timed out: try again later";

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(failure: Failure) -> (i32, String) {
        failure.store("isolane_example");
        (error_number(), error_text())
    }

    #[test]
    fn every_failure_has_errno_and_hint() {
        let closed = || AttachError::SessionClosed("the engine has gone".into());
        let refused = AttachError::Refused { what: "a stream", reason: "not a TCP socket".into() };
        let not_started = AttachError::NotStarted { path: "/x".into(), reason: "no program".into() };
        let system =
            AttachError::System { what: "a thread", source: io::Error::from_raw_os_error(libc::EMFILE) };
        for (failure, number, part) in [
            (closed().into(), libc::ECONNABORTED, "attach again"),
            (io::Error::from(closed()).into(), libc::ECONNABORTED, "attach again"),
            (not_started.into(), libc::ENOENT, "isolane engine"),
            (refused.into(), libc::EPERM, "not a TCP socket"),
            (system.into(), libc::EMFILE, "a thread: "),
            (AttachError::OutOfMemory { bytes: 8, of: 4 }.into(), libc::ENOMEM, "attach with more memory"),
            (io::Error::from_raw_os_error(libc::ECONNRESET).into(), libc::ECONNRESET, "reset by peer"),
            (io::Error::from(ErrorKind::BrokenPipe).into(), libc::EPIPE, "pipe"),
            (io::Error::from(ErrorKind::WouldBlock).into(), libc::EAGAIN, "try again later"),
            (io::Error::new(ErrorKind::InvalidData, "garbage").into(), libc::EPROTO, "garbage"),
            (io::Error::other("x\0y").into(), libc::EIO, "x?y"),
            (Failure::Argument("buffer is NULL"), libc::EINVAL, "isolane_example: buffer is NULL"),
        ] {
            let (errno, text) = stored(failure);
            assert!(errno == number && text.contains(part), "{errno} {number} {text}");
        }
    }

    #[test]
    fn each_thread_has_its_own_error() {
        let (_, before) = stored(Failure::Argument("mine"));
        std::thread::spawn(|| {
            assert_eq!(error_text(), "");
            stored(Failure::Argument("of another thread"));
        })
        .join()
        .unwrap();
        assert_eq!(error_text(), before);
    }
}
