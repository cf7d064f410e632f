//! A volume that executes each request with requests to other volumes.
//!
//! Its behavior implements [`Runner`]; `delay.rs` is the smallest one.

use std::future::Future;
use std::sync::Arc;

use isolane_memory::Pool;
use isolane_volume::tree::MirrorState;
use isolane_volume::{
    Condition, CorePart, NestedIo, Outcome, Request, Step, Volume, VolumeDescription, VolumeTree,
};
use uuid::Uuid;

use crate::parts::Parts;

/// Behavior of a nested volume.
pub(crate) trait Runner: Send + Sync + 'static {
    /// Executes a valid request, as a rule with `io.start(&self.inner, request).await`.
    fn run(self: Arc<Self>, io: NestedIo, request: Request) -> impl Future<Output = Outcome> + Send;

    /// Returns the conditions of the volume itself.
    fn conditions(&self) -> Vec<Condition> {
        Vec::new()
    }

    /// Returns the state, of a mirror.
    fn mirror_state(&self) -> Option<MirrorState> {
        None
    }

    /// Lets reads avoid a member, or ends that. Returns `false` if it cannot.
    fn avoid_member(&self, _position: usize, _is_avoided: bool) -> bool {
        false
    }
}

pub(crate) struct NestedVolume<R> {
    pub description: VolumeDescription,
    /// Without members.
    pub tree: VolumeTree,
    pub members: Vec<Arc<dyn Volume>>,
    pub runner: Arc<R>,
}

impl<R: Runner> NestedVolume<R> {
    /// Returns a filter over the only member.
    pub fn filter(parts: Parts, runner: R) -> Arc<dyn Volume> {
        let inner = parts.first();
        let tree = parts.tree();
        let group = tree.group.or_else(|| inner.tree().group);
        Arc::new(NestedVolume {
            tree: VolumeTree { group, ..tree },
            description: VolumeDescription {
                identity: parts.identity(|| inner.identity().clone()),
                name: parts.name.clone(),
                ..inner.description().clone()
            },
            members: vec![Arc::clone(inner)],
            runner: Arc::new(runner),
        })
    }
}

impl<R: Runner> Volume for NestedVolume<R> {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn stores(&self) -> Vec<Uuid> {
        self.members.iter().flat_map(|member| member.stores()).collect()
    }

    fn conditions(&self) -> Vec<Condition> {
        let members = self.members.iter().flat_map(|member| member.conditions());
        self.runner.conditions().into_iter().chain(members).collect()
    }

    fn tree(&self) -> VolumeTree {
        let members = self.members.iter().map(|member| member.tree()).collect();
        VolumeTree { members, mirror: self.runner.mirror_state(), ..self.tree.clone() }
    }

    fn members(&self) -> Vec<Arc<dyn Volume>> {
        self.members.clone()
    }

    fn avoid_member(&self, position: usize, is_avoided: bool) -> bool {
        self.runner.avoid_member(position, is_avoided)
    }

    fn reads_into_pool(&self) -> bool {
        self.members.iter().any(|member| member.reads_into_pool())
    }

    fn take_core_parts(&self) -> Vec<Box<dyn CorePart>> {
        self.members.iter().flat_map(|member| member.take_core_parts()).collect()
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        match request.check(self.info()) {
            Ok(()) => Step::nested(request, |io, request| Arc::clone(&self.runner).run(io, request)),
            Err(error) => request.fail(error, pool),
        }
    }
}
