//! Filter that fails every Nth request with an I/O error: `fault:100:A`, or `fault:100:A,on=write,from=30s`.
//!
//! Invariant: a request that fails does not reach the inner volume; after a failed flush, every flush fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use isolane_volume::{NestedIo, OpenError, Outcome, Request, Volume, VolumeError};

use crate::EIO;
use crate::nested_volume::{NestedVolume, Runner};
use crate::parts::Parts;
use crate::scope::{RequestKind, Scope};

struct Fault {
    inner: Arc<dyn Volume>,
    every: u64,
    scope: Scope,
    /// Number of requests in the scope.
    count: AtomicU64,
    sync_failed: AtomicBool,
}

pub(crate) fn open(parts: Parts) -> Result<Arc<dyn Volume>, OpenError> {
    let every = parts.argument.parse().ok().filter(|every| *every > 0);
    let every = every.ok_or_else(|| {
        parts.error(format!("invalid number {:?}", parts.argument), "write it first, as in fault:100:A")
    })?;
    let (inner, scope) = (Arc::clone(parts.first()), Scope::parse(&parts)?);
    let fault = Fault { inner, every, scope, count: AtomicU64::new(0), sync_failed: AtomicBool::new(false) };
    Ok(NestedVolume::filter(parts, fault))
}

impl Fault {
    /// Returns the error of a request that fails.
    fn error(&self, request: &Request) -> Option<VolumeError> {
        let kind = RequestKind::from(request);
        let error = match kind {
            RequestKind::Read => VolumeError::ReadFailed { raw_os_error: EIO },
            RequestKind::Write => VolumeError::WriteFailed { raw_os_error: EIO },
            RequestKind::Flush => VolumeError::SyncFailed { raw_os_error: EIO },
        };
        if kind == RequestKind::Flush && self.sync_failed.load(Ordering::Acquire) {
            return Some(error);
        }
        let is_due = self.scope.includes(request)
            && (self.count.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.every);
        if is_due && kind == RequestKind::Flush {
            self.sync_failed.store(true, Ordering::Release);
        }
        is_due.then_some(error)
    }
}

impl Runner for Fault {
    async fn run(self: Arc<Self>, io: NestedIo, request: Request) -> Outcome {
        match self.error(&request) {
            Some(error) => Err(error),
            None => io.start(&self.inner, request).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Driver;

    #[test]
    fn fails_every_nth_request_of_kind() {
        let mut driver = Driver::open("fault:2:mem:1M,on=write");
        assert_eq!(driver.write(0, &[1; 512], false), Ok(()));
        assert_eq!(driver.read(0, 1).unwrap(), [1; 512]);
        let error = Err(VolumeError::WriteFailed { raw_os_error: EIO });
        assert_eq!(driver.write(0, &[2; 512], false), error);
        assert_eq!(driver.read(0, 1).unwrap(), [1; 512]);
        assert_eq!(driver.zero(0, 1), Ok(()));
    }

    #[test]
    fn keeps_failing_flushes() {
        let mut driver = Driver::open("stripe:4k:(fault:2:mem:64k,on=flush);mem:64k");
        assert_eq!(driver.flush(), Ok(()));
        for _ in 0..3 {
            assert_eq!(driver.flush(), Err(VolumeError::SyncFailed { raw_os_error: EIO }));
        }
        assert_eq!(driver.write(0, &[1; 8192], false), Ok(()));
    }

    #[test]
    fn rejects_invalid_numbers() {
        let error = crate::open(&crate::parse("fault:0:mem:1M").unwrap()).err().unwrap().to_string();
        assert!(error.contains("invalid number"), "{error}");
    }
}
