//! The one error of the command line: what failed, why, and what to do about it.
//!
//! Every subcommand returns [`Failure`]; `main` prints it on stderr as
//! `isolane: what failed: why; what to do` and exits with status 1.

use std::fmt;

/// Why a subcommand could not do its work.
#[derive(Debug)]
pub struct Failure {
    what: String,
    why: String,
    remedy: Option<String>,
}

impl Failure {
    /// `what` failed because of `why`.
    pub fn new(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Failure { what: what.to_string(), why: why.to_string(), remedy: None }
    }

    /// Adds what the user can do.
    pub fn remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy = Some(remedy.to_string());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)?;
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
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
    fn a_failure_without_remedy_ends_after_the_reason() {
        assert_eq!(Failure::new("cannot open x", "denied").to_string(), "cannot open x: denied");
    }
}
