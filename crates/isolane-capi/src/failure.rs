//! Why a function has failed: a number for `errno`, and a text that names the culprit and the remedy.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::io::{self, ErrorKind};

use isolane_attach::AttachError;
use isolane_attach::control::PacketError;
use isolane_attach::stream::AdoptError;
use isolane_shm::MemoryError;

/// Why a function has failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The caller's mistake.
    Argument(&'static str),
    /// With this number, and for this reason.
    Told(i32, String),
    /// The system's, or the engine's.
    Io(io::Error),
}

impl Failure {
    pub(crate) fn argument(what: &'static str) -> Failure {
        Failure::Argument(what)
    }

    pub(crate) fn bug(words: &str) -> Failure {
        Failure::Told(libc::EIO, format!("a bug in libisolane, to be reported: {words}"))
    }

    /// Keeps it for this thread.
    pub(crate) fn keep(&self, name: &'static str) {
        let (number, text) = match self {
            // Without an allocation: there may be many of these.
            Failure::Io(error) if error.kind() == ErrorKind::WouldBlock => (libc::EAGAIN, Text::Fixed(AGAIN)),
            Failure::Argument(what) => (libc::EINVAL, Text::new(name, what)),
            Failure::Told(number, why) => (*number, Text::new(name, why)),
            Failure::Io(error) => (number_of(error), Text::new(name, &error.to_string())),
        };
        // A thread that is ending may have none any more.
        let _ = LAST.try_with(|last| *last.borrow_mut() = text);
        set_error_number(number);
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

/// The system's number where it has given one, else what comes nearest.
fn number_of(error: &io::Error) -> i32 {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let told = match inner {
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
    told.unwrap_or(match error.kind() {
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

/// As the header says.
#[unsafe(no_mangle)]
pub extern "C" fn isolane_error_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_c_str().as_ptr()).unwrap_or(NOTHING.as_ptr())
}

enum Text {
    Fixed(&'static CStr),
    Own(CString),
}

impl Text {
    fn new(name: &str, what: &str) -> Text {
        let text = format!("{name}: {what}").replace('\0', "?");
        CString::new(text).map_or(Text::Fixed(NOTHING), Text::Own)
    }

    fn as_c_str(&self) -> &CStr {
        match self {
            Text::Fixed(text) => text,
            Text::Own(text) => text,
        }
    }
}

fn set_error_number(number: i32) {
    // SAFETY: the C library gives the place of this thread's own `errno`, which is valid as long as the thread.
    unsafe { *libc::__errno_location() = number };
}

#[cfg(test)]
pub(crate) fn error_number() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap()
}

#[cfg(test)]
pub(crate) fn error_words() -> String {
    LAST.with(|last| last.borrow().as_c_str().to_str().unwrap().to_owned())
}

thread_local! {
    static LAST: RefCell<Text> = const { RefCell::new(Text::Fixed(NOTHING)) };
}

const NOTHING: &CStr = c"";
const AGAIN: &CStr = c"it would have to wait, or has waited as long as it may: try again later";

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(failure: Failure) -> (i32, String) {
        failure.keep("isolane_example");
        (error_number(), error_words())
    }

    #[test]
    fn every_failure_has_a_number_and_says_what_to_do() {
        let over = || AttachError::SessionClosed("the engine has gone".into());
        let refused = AttachError::Refused { what: "a stream", reason: "it is no TCP socket".into() };
        let not_started = AttachError::NotStarted { path: "/x".into(), reason: "no program".into() };
        let system =
            AttachError::System { what: "a thread", source: io::Error::from_raw_os_error(libc::EMFILE) };
        for (failure, number, words) in [
            (over().into(), libc::ECONNABORTED, "attach again"),
            (io::Error::from(over()).into(), libc::ECONNABORTED, "attach again"),
            (not_started.into(), libc::ENOENT, "isolane engine"),
            (refused.into(), libc::EPERM, "no TCP socket"),
            (system.into(), libc::EMFILE, "a thread: "),
            (AttachError::OutOfMemory { bytes: 8, of: 4 }.into(), libc::ENOMEM, "attach with more memory"),
            (io::Error::from_raw_os_error(libc::ECONNRESET).into(), libc::ECONNRESET, "reset by peer"),
            (io::Error::from(ErrorKind::BrokenPipe).into(), libc::EPIPE, "pipe"),
            (io::Error::from(ErrorKind::WouldBlock).into(), libc::EAGAIN, "try again later"),
            (io::Error::new(ErrorKind::InvalidData, "garbage").into(), libc::EPROTO, "garbage"),
            (io::Error::other("x\0y").into(), libc::EIO, "x?y"),
            (Failure::argument("the buffer is NULL"), libc::EINVAL, "isolane_example: the buffer is NULL"),
        ] {
            let (kept, text) = kept(failure);
            assert!(kept == number && text.contains(words), "{kept} {number} {text}");
        }
    }

    #[test]
    fn each_thread_has_its_own() {
        let (_, before) = kept(Failure::argument("mine"));
        std::thread::spawn(|| {
            assert_eq!(error_words(), "");
            kept(Failure::argument("another's"));
        })
        .join()
        .unwrap();
        assert_eq!(error_words(), before);
    }
}
