//! Filters: volumes that act on the requests of one inner volume.
//!
//! A filter implements [`Filter`]; `delay.rs` is the smallest one.

use std::future::Future;
use std::sync::Arc;

use isolane_memory::Pool;
use isolane_volume::{Generation, Identity, NestedIo, OpenError, Outcome, Request, Step, Volume, VolumeInfo};

use crate::parts::Parts;

/// Behavior of a filter.
pub(crate) trait Filter: Send + Sync + 'static {
    /// Executes a valid request, as a rule with `io.start(&inner, request).await`.
    fn run(
        self: Arc<Self>,
        io: NestedIo,
        inner: Arc<dyn Volume>,
        request: Request,
    ) -> impl Future<Output = Outcome> + Send;
}

/// Opens a filter over the only member.
pub(crate) fn open(parts: Parts, filter: impl Filter) -> Result<Arc<dyn Volume>, OpenError> {
    let inner = Arc::clone(parts.first());
    let identity = parts.identity(|| inner.identity().clone());
    Ok(Arc::new(Filtered { name: parts.name, identity, inner, filter: Arc::new(filter) }))
}

struct Filtered<F> {
    name: String,
    identity: Identity,
    inner: Arc<dyn Volume>,
    filter: Arc<F>,
}

impl<F: Filter> Volume for Filtered<F> {
    fn info(&self) -> &VolumeInfo {
        self.inner.info()
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn generation(&self) -> Option<Generation> {
        self.inner.generation()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn reads_into_pool(&self) -> bool {
        self.inner.reads_into_pool()
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        if let Err(error) = request.check(self.info()) {
            return request.fail(error, pool);
        }
        let (filter, inner) = (Arc::clone(&self.filter), Arc::clone(&self.inner));
        Step::nested(request, |io, request| filter.run(io, inner, request))
    }
}
