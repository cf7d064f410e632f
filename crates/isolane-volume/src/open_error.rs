//! The error of a volume that cannot be opened, or not have another size.

use rustix::io::Errno;

/// A volume that could not be opened: name, reason, and remedy.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {name}: {reason}{}{remedy}", if remedy.is_empty() { "" } else { "; " })]
pub struct OpenError {
    /// Name of the volume.
    pub name: String,
    /// Reason.
    pub reason: String,
    /// Remedy; empty if the reason has one.
    pub remedy: String,
    /// Error of the system that is the reason, or the closest one.
    pub raw_os_error: Option<i32>,
}

impl OpenError {
    /// Creates an error.
    pub fn new(name: &str, reason: impl Into<String>, remedy: impl Into<String>) -> OpenError {
        OpenError { name: name.to_owned(), reason: reason.into(), remedy: remedy.into(), raw_os_error: None }
    }

    /// Sets the error of the system.
    #[must_use]
    pub fn with_os_error(self, raw_os_error: Option<i32>) -> OpenError {
        OpenError { raw_os_error, ..self }
    }

    /// Creates an error for a specification that names the volume wrongly.
    pub fn invalid(name: &str, reason: impl Into<String>, remedy: impl Into<String>) -> OpenError {
        OpenError::new(name, reason, remedy).with_os_error(Some(Errno::INVAL.raw_os_error()))
    }

    /// Creates an error from one that has its own remedy.
    pub fn from_error(name: &str, error: impl std::fmt::Display) -> OpenError {
        OpenError::new(name, error.to_string(), "")
    }
}
