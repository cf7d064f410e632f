//! A volume that executes each request with requests to other volumes.
//!
//! Its behavior implements [`Runner`]; `delay.rs` is the smallest one.

use std::future::Future;
use std::sync::Arc;

use isolane_memory::Pool;
use isolane_volume::{NestedIo, Outcome, Request, Step, Volume, VolumeDescription};
use uuid::Uuid;

use crate::parts::Parts;

/// Behavior of a nested volume.
pub(crate) trait Runner: Send + Sync + 'static {
    /// Executes a valid request, as a rule with `io.start(&self.inner, request).await`.
    fn run(self: Arc<Self>, io: NestedIo, request: Request) -> impl Future<Output = Outcome> + Send;
}

pub(crate) struct NestedVolume<R> {
    pub description: VolumeDescription,
    pub stores: Vec<Uuid>,
    pub reads_into_pool: bool,
    pub runner: Arc<R>,
}

impl<R: Runner> NestedVolume<R> {
    /// Returns a filter over the only member.
    pub fn filter(parts: Parts, runner: R) -> Arc<dyn Volume> {
        let inner = parts.first();
        Arc::new(NestedVolume {
            description: VolumeDescription {
                identity: parts.identity(|| inner.identity().clone()),
                name: parts.name.clone(),
                ..inner.description().clone()
            },
            stores: inner.stores(),
            reads_into_pool: inner.reads_into_pool(),
            runner: Arc::new(runner),
        })
    }
}

impl<R: Runner> Volume for NestedVolume<R> {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn stores(&self) -> Vec<Uuid> {
        self.stores.clone()
    }

    fn reads_into_pool(&self) -> bool {
        self.reads_into_pool
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        match request.check(self.info()) {
            Ok(()) => Step::nested(request, |io, request| Arc::clone(&self.runner).run(io, request)),
            Err(error) => request.fail(error, pool),
        }
    }
}
