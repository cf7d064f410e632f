//! Filter that logs requests, their outcome, and their duration, at level info: `log:A`, or `log:A,on=write`.

use std::sync::Arc;
use std::time::Instant;

use isolane_volume::{NestedIo, OpenError, Outcome, Request, Volume};

use crate::nested_volume::{NestedVolume, Runner};
use crate::parts::Parts;
use crate::scope::Scope;

struct Log {
    inner: Arc<dyn Volume>,
    scope: Scope,
}

pub(crate) fn open(parts: Parts) -> Result<Arc<dyn Volume>, OpenError> {
    let (inner, scope) = (Arc::clone(parts.first()), Scope::parse(&parts)?);
    Ok(NestedVolume::filter(parts, Log { inner, scope }))
}

impl Runner for Log {
    async fn run(self: Arc<Self>, io: NestedIo, request: Request) -> Outcome {
        if !self.scope.includes(&request) {
            return io.start(&self.inner, request).await;
        }
        let (description, start) = (describe(&request), Instant::now());
        let outcome = io.start(&self.inner, request).await;
        let (name, duration) = (self.inner.name(), start.elapsed());
        match &outcome {
            Ok(_) => log::info!("{name}: {description} completed in {duration:?}"),
            Err(error) => log::info!("{name}: {description} failed in {duration:?}: {error}"),
        }
        outcome
    }
}

fn describe(request: &Request) -> String {
    let fua = |fua: bool| if fua { ", FUA" } else { "" };
    match request {
        Request::Read { lba, blocks } => format!("read of {blocks} blocks from {lba}"),
        Request::Write { lba, blocks, fua: is_fua, .. } => {
            format!("write of {blocks} blocks from {lba}{}", fua(*is_fua))
        }
        Request::WriteZeroes { lba, blocks, fua: is_fua, .. } => {
            format!("zeroing of {blocks} blocks from {lba}{}", fua(*is_fua))
        }
        Request::Deallocate { ranges, fua: is_fua } => {
            format!("deallocation of {} ranges{}", ranges.len(), fua(*is_fua))
        }
        Request::Flush => "flush".to_owned(),
        Request::Continue(_) => "continuation".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Driver;

    #[test]
    fn passes_requests_and_outcomes() {
        let mut driver = Driver::open("log:(read-only:mem:1M)");
        assert_eq!(driver.read(3, 1).unwrap(), [0; 512]);
        assert!(driver.write(3, &[1; 512], false).is_err());
        let mut driver = Driver::open("log:mem:1M,on=write");
        assert_eq!(driver.read(3, 1).unwrap(), [0; 512]);
        assert_eq!(describe(&Request::Read { lba: 3, blocks: 2 }), "read of 2 blocks from 3");
    }
}
