//! The error of the command line: failed action, reason, and hint.
//!
//! Every subcommand returns [`Failure`]; `main` prints it on stderr as
//! `isolane: action: reason; hint` and exits with status 1, with 2 for a wrong option or configuration file, or with
//! 128 + N after signal N.
//!
//! Invariant: the printed text has no control characters but line feeds.

use std::fmt;
use std::io::{self, ErrorKind};

use isolane_observe::names::escape;
use rustix::io::Errno;

/// Failure of a subcommand.
#[derive(Debug)]
pub struct Failure {
    text: String,
    status: u8,
    /// Its cause may end without a change of the command or its files.
    may_end: bool,
}

impl Failure {
    /// Returns the failure of `what` because of `reason`.
    pub fn new(what: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Failure::from_error(format_args!("{what}: {reason}"))
    }

    /// Returns an error with a complete text.
    pub fn from_error(error: impl fmt::Display) -> Self {
        Failure { text: error.to_string(), status: 1, may_end: false }
    }

    /// Returns the failure of `what` by an error of the system, with its common hint.
    pub fn from_io(what: impl fmt::Display, error: &io::Error) -> Self {
        let failure = Failure::new(what, error);
        match error.kind() {
            // EPERM, unlike EACCES, applies to all users.
            _ if Errno::from_io_error(error) == Some(Errno::PERM) => failure.with_hint(
                "no user may do this, not even root: allow it for the container, or remove the immutable flag of the \
                 file (chattr -i)",
            ),
            ErrorKind::NotFound => failure.with_hint("check the path"),
            ErrorKind::PermissionDenied => failure.with_hint("run as a user with the permission"),
            ErrorKind::IsADirectory => failure.with_hint("name a file"),
            ErrorKind::FileTooLarge => failure.with_hint("raise the limit of file sizes (`ulimit -f`)"),
            ErrorKind::StorageFull => failure.with_hint("free space, or choose another location"),
            ErrorKind::ResourceBusy => failure.with_hint("unmount it, or stop the program that uses it"),
            _ => failure,
        }
    }

    /// Appends a hint for the user.
    pub fn with_hint(self, hint: impl fmt::Display) -> Self {
        Failure { text: format!("{}; {hint}", self.text), ..self }
    }

    /// Sets the exit status of a signal.
    pub fn by_signal(self, signal: i32) -> Self {
        Failure { status: u8::try_from(128 + signal).unwrap_or(1), ..self }
    }

    /// Sets the exit status of a wrong option or configuration file, which no repetition corrects, unless the cause may end
    /// by itself.
    pub fn of_usage(self) -> Self {
        Failure { status: if self.may_end { 1 } else { 2 }, ..self }
    }

    /// Notes that a repetition may succeed, as with a path on a file system that is not mounted yet.
    pub fn may_end(self) -> Self {
        Failure { status: 1, may_end: true, ..self }
    }

    /// Returns the exit status.
    pub fn status(&self) -> u8 {
        self.status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.text))
    }
}

impl std::error::Error for Failure {}

/// Returns a text in which control characters of names and arguments are escaped; lines stay.
pub fn printable(text: &str) -> String {
    text.split('\n').map(|line| escape(line, usize::MAX)).collect::<Vec<_>>().join("\n")
}

/// Adds the failed action to an error.
pub trait Context<T> {
    /// Converts the error to a [`Failure`] of `what`.
    fn context(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(what, error))
    }
}

/// Adds the failed action to an error of the system.
pub trait IoContext<T> {
    /// Converts the error to a [`Failure`] of `what`, with its common hint.
    fn io_context(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn io_context(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::from_io(what, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_action_reason_and_hint() {
        let failure = Failure::new("cannot open x", "no such file").with_hint("create it with size=1G");
        assert_eq!(failure.to_string(), "cannot open x: no such file; create it with size=1G");
    }

    #[test]
    fn system_errors_have_hints() {
        let failure = Failure::from_io("cannot open x", &ErrorKind::IsADirectory.into());
        assert!(failure.to_string().ends_with("; name a file"), "{failure}");
        let failure = Failure::from_io("cannot open x", &Errno::PERM.into());
        assert!(failure.to_string().contains("allow it for the container"), "{failure}");
    }

    #[test]
    fn escapes_control_characters_of_arguments() {
        let failure =
            Failure::new("cannot open \u{1b}[2Jx\u{202e}", "denied:\n  mem\r").with_hint("use a\u{7}");
        let text = "cannot open \\u{1b}[2Jx\\u{202e}: denied:\n  mem\\u{d}; use a\\u{7}";
        assert_eq!(failure.to_string(), text);
    }

    #[test]
    fn hint_is_optional() {
        assert_eq!(Failure::new("cannot open x", "denied").to_string(), "cannot open x: denied");
    }
}
