//! The one error of the command line: what failed, why, and what to do about it.
//!
//! Every subcommand returns [`Failure`]; `main` prints it on stderr as
//! `isolane: what failed: why; what to do` and exits with status 1, or 128 + N after signal N.

use std::fmt;
use std::io::{self, ErrorKind};

use rustix::io::Errno;

/// Why a subcommand could not do its work.
#[derive(Debug)]
pub struct Failure {
    text: String,
    status: u8,
}

impl Failure {
    /// `what` failed because of `why`.
    pub fn new(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Failure::whole(format_args!("{what}: {why}"))
    }

    /// An error that already says all three.
    pub fn whole(error: impl fmt::Display) -> Self {
        Failure { text: error.to_string(), status: 1 }
    }

    /// `what` failed because the system said `why`, with the remedy where there is a usual one.
    pub fn of_system(what: impl fmt::Display, why: &io::Error) -> Self {
        let failure = Failure::new(what, why);
        match why.kind() {
            // EPERM, and not EACCES: no user may do it.
            _ if Errno::from_io_error(why) == Some(Errno::PERM) => failure.remedy(
                "the system forbids it to every user, root too: allow it to the container, or remove the file's \
                 immutable flag (chattr -i)",
            ),
            ErrorKind::NotFound => failure.remedy("check the path"),
            ErrorKind::PermissionDenied => failure.remedy("run as a user who may do that"),
            ErrorKind::IsADirectory => failure.remedy("name a file"),
            ErrorKind::StorageFull => failure.remedy("make room, or choose another place"),
            ErrorKind::ResourceBusy => failure.remedy("unmount it, or stop the program that uses it"),
            _ => failure,
        }
    }

    /// Adds what the user can do.
    pub fn remedy(self, remedy: impl fmt::Display) -> Self {
        Failure { text: format!("{}; {remedy}", self.text), ..self }
    }

    /// Makes it what a signal led to: the exit status tells which.
    pub fn by_signal(self, signal: i32) -> Self {
        Failure { status: u8::try_from(128 + signal).unwrap_or(1), ..self }
    }

    /// The exit status.
    pub fn status(&self) -> u8 {
        self.status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

/// Says what was being done when an error came up.
pub trait Context<T> {
    /// Turns the error into a [`Failure`] of `what`.
    fn context(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|why| Failure::new(what, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_reads_what_why_and_remedy() {
        let failure = Failure::new("cannot open x", "no such file").remedy("create it with size=1G");
        assert_eq!(failure.to_string(), "cannot open x: no such file; create it with size=1G");
    }

    #[test]
    fn a_refusal_of_the_system_has_its_usual_remedy() {
        let failure = Failure::of_system("cannot open x", &ErrorKind::IsADirectory.into());
        assert!(failure.to_string().ends_with("; name a file"), "{failure}");
        let failure = Failure::of_system("cannot open x", &Errno::PERM.into());
        assert!(failure.to_string().contains("allow it to the container"), "{failure}");
    }

    #[test]
    fn a_failure_without_remedy_ends_after_the_reason() {
        assert_eq!(Failure::new("cannot open x", "denied").to_string(), "cannot open x: denied");
    }
}
