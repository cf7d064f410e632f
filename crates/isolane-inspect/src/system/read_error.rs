//! Errors of reading, parsing, and writing a file.

use std::io;

use rustix::io::Errno;

/// Failure to read, parse, or write a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct ReadError {
    /// Path below the root, with a leading `/`.
    pub path: String,
    /// Reason of the failure.
    pub reason: Reason,
}

/// Reason of a [`ReadError`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The file does not exist, or has vanished.
    #[error("does not exist")]
    Missing,
    /// The user lacks the permission.
    #[error("permission denied")]
    NotPermitted,
    /// The file is longer than the limit in bytes.
    #[error("longer than {0} bytes")]
    TooLong(usize),
    /// The content is not as expected.
    #[error(transparent)]
    Malformed(Malformed),
    /// Any other error of the system.
    #[error("{0}")]
    Io(String),
}

impl Reason {
    /// Returns the reason with a text.
    pub(super) fn from_text(text: &str) -> Reason {
        let limit = |text: &str| text.strip_prefix("longer than ")?.strip_suffix(" bytes")?.parse().ok();
        match text {
            "permission denied" => Reason::NotPermitted,
            text => limit(text).map_or_else(|| Reason::Io(text.to_owned()), Reason::TooLong),
        }
    }
}

/// Position and kind of unexpected content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: expected {expected}")]
pub struct Malformed {
    /// Number of the line, from 1.
    pub line: usize,
    /// The expected content.
    pub expected: &'static str,
}

impl Malformed {
    /// Returns the error for a line counted from 0.
    pub(crate) fn at(index: usize, expected: &'static str) -> Self {
        Malformed { line: index + 1, expected }
    }
}

impl From<Errno> for Reason {
    fn from(errno: Errno) -> Self {
        match errno {
            // A process that ends makes its files return ESRCH; a device that vanishes, ENODEV.
            Errno::NOENT | Errno::SRCH | Errno::NODEV | Errno::NOTDIR => Reason::Missing,
            Errno::ACCESS | Errno::PERM => Reason::NotPermitted,
            Errno::LOOP => Reason::Io("too many symbolic links".into()),
            other => Reason::Io(io::Error::from(other).to_string()),
        }
    }
}

/// Returns an empty value for a file that does not exist.
pub(crate) fn if_missing<T: Default>(error: ReadError) -> Result<T, ReadError> {
    if error.reason == Reason::Missing { Ok(T::default()) } else { Err(error) }
}
