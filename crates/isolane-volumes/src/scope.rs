//! Requests that a filter affects: all, or one kind of requests, in a period after the volume was opened.

use std::time::{Duration, Instant};

use isolane_volume::{OpenError, Request};

use crate::parts::Parts;

/// Requests of one kind or of all kinds, from a time until another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    /// `None` for all kinds.
    on: Option<RequestKind>,
    from: Duration,
    /// `None` without an end.
    until: Option<Duration>,
    opened: Instant,
}

/// Kind of a request in the option `on=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Read,
    /// Also zeroes and deallocates blocks.
    Write,
    Flush,
}

impl Scope {
    /// Parses the options `on=`, `from=`, and `for=` of a filter that is opened now.
    pub fn parse(parts: &Parts) -> Result<Scope, OpenError> {
        let kind = |text: &str| {
            let known = KINDS.into_iter().find(|(name, _)| *name == text).map(|(_, kind)| kind);
            known.ok_or_else(|| {
                parts
                    .error(format!("unknown kind {text:?} of requests"), "use on=read, on=write, or on=flush")
            })
        };
        let duration = |name| parts.option(name).map(|text| parts.duration(text)).transpose();
        let from = duration("from")?.unwrap_or_default();
        let length = duration("for")?;
        if length.is_some_and(|length| length.is_zero()) {
            return Err(parts.error("for= without a time", "use a longer one, as in for=10s"));
        }
        let until = length.map(|length| from + length);
        Ok(Scope { on: parts.option("on").map(kind).transpose()?, from, until, opened: Instant::now() })
    }

    /// Returns whether a request that arrives now is affected.
    pub fn includes(&self, request: &Request) -> bool {
        self.on.is_none_or(|on| on == RequestKind::from(request)) && self.includes_time(self.elapsed())
    }

    /// Returns the time since the volume was opened.
    pub fn elapsed(&self) -> Duration {
        self.opened.elapsed()
    }

    fn includes_time(&self, elapsed: Duration) -> bool {
        self.from <= elapsed && self.until.is_none_or(|until| elapsed < until)
    }
}

impl From<&Request> for RequestKind {
    fn from(request: &Request) -> RequestKind {
        match request {
            Request::Read { .. } => RequestKind::Read,
            Request::Flush => RequestKind::Flush,
            Request::Write { .. }
            | Request::WriteZeroes { .. }
            | Request::Deallocate { .. }
            | Request::Continue(_) => RequestKind::Write,
        }
    }
}

const KINDS: [(&str, RequestKind); 3] =
    [("read", RequestKind::Read), ("write", RequestKind::Write), ("flush", RequestKind::Flush)];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Driver;

    #[test]
    fn includes_period_after_opening() {
        let seconds = Duration::from_secs;
        let scope = |from, until| Scope { on: None, from, until, opened: Instant::now() };
        let period = scope(seconds(30), Some(seconds(40)));
        let included = [0, 29, 30, 39, 40, 90].map(|at| period.includes_time(seconds(at)));
        assert_eq!(included, [false, false, true, true, false, false]);
        assert!(scope(Duration::ZERO, None).includes_time(seconds(1 << 40)));
    }

    #[test]
    fn affects_kind_of_requests_only() {
        for (text, is_affected) in [("on=write", true), ("on=read", false), ("from=1000s", false)] {
            let mut driver = Driver::open(&format!("fault:1:mem:1M,{text}"));
            assert_eq!(driver.write(0, &[1; 512], false).is_err(), is_affected, "{text}");
            assert_eq!(driver.zero(0, 1).is_err(), is_affected, "{text}");
            assert_eq!(driver.deallocate(0, 1).is_err(), is_affected, "{text}");
            assert_eq!(driver.flush(), Ok(()), "{text}");
        }
    }

    #[test]
    fn rejects_invalid_scopes() {
        for (text, reason) in [
            ("delay:1ms:mem:1M,on=open", "unknown kind \"open\" of requests; use on=read"),
            ("stall:1ms:mem:1M,from=soon", "invalid duration \"soon\""),
            ("fault:1:mem:1M,for=3601s", "invalid duration"),
            ("fault:1:mem:1M,for=0s", "for= without a time; use a longer one"),
        ] {
            let error = crate::open(&crate::parse(text).unwrap()).err().unwrap().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
