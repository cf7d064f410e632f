//! The next table of namespaces, and removed namespaces.
//!
//! A core takes a table between two events. A removed namespace keeps its position until no command of any core
//! uses it. Each core reports that by dropping its reference to the [`Release`]; the last one flushes the volume
//! before it does.
//!
//! Invariant: a volume is closed only after its last command, and after a flush.

use std::collections::HashSet;
use std::sync::Arc;

use super::fair_share::VolumeState;
use super::flush::AfterFlush;
use super::{Core, Driver};
use crate::lane::Lane;
use crate::namespace::Namespaces;
use crate::release::Release;
use crate::work::FileWork;

impl Core {
    /// Uses this table and its volumes.
    fn take_namespaces(&mut self, next: Arc<Namespaces>) {
        let before = std::mem::replace(&mut self.namespaces, next);
        self.waiting.over_limit.try_all(self.now);
        // A fault can have come, or gone.
        self.has_orphans |= self.namespaces.has_faults();
        self.waiting.retry_behind();
        let end = self.namespaces.end().max(before.end());
        self.volumes.resize_with(end, VolumeState::default);
        for position in 0..end {
            let (old, new) = (before.get(position), self.namespaces.get(position));
            let is_same = match (old, new) {
                (Some(old), Some(new)) => Arc::ptr_eq(&old.volume, &new.volume),
                (None, None) => true,
                _ => false,
            };
            if is_same {
                continue;
            }
            if old.is_some() {
                self.parts.remove(position, &mut self.reactor);
                self.volumes[position] = VolumeState::default();
                self.counters.oldest_commands[position].set(None);
            }
            self.take_parts(position);
        }
    }

    /// Takes the parts of the volume at a position of this core's share.
    pub(super) fn take_parts(&mut self, position: usize) {
        let is_own = position % self.shared.counters.len() == self.index;
        if let Some(namespace) = self.namespaces.get(position).filter(|_| is_own) {
            self.parts.take(position, &*namespace.volume, &mut self.reactor, self.now);
        }
    }
}

impl Core {
    /// Gives the host of a lane its number in the masks of the present table.
    pub(super) fn number_host(&self, lane: &mut Lane) {
        if let Some(association) = &mut lane.association {
            association.mask_host = self.namespaces.mask_host(&association.host);
        }
    }
}

impl Driver {
    /// Uses this table for later commands.
    pub(super) fn take_namespaces(&mut self, next: Arc<Namespaces>) {
        self.core.take_namespaces(next);
        self.lanes.values_mut().for_each(|lane| self.core.number_host(lane));
        self.give_back_replaced();
    }

    /// Releases the removed namespaces that this core does not use.
    pub(super) fn release_unused(&mut self) {
        if self.core.releasing.is_empty() {
            return;
        }
        let used = self.used_positions();
        let releasing = std::mem::take(&mut self.core.releasing);
        let (kept, unused) =
            releasing.into_iter().partition(|release: &Arc<Release>| used.contains(&release.position));
        self.core.releasing = kept;
        for last in unused.into_iter().filter_map(Arc::into_inner) {
            if last.is_flushed { drop(last) } else { self.core.flush_removed(last) }
        }
    }

    /// Continues a release after the flush of its volume, which can still be there after its time limit.
    pub(super) fn handle_removed_flushed(&mut self, release: Release) {
        self.core.releasing.push(Arc::new(release));
        self.release_unused();
    }

    /// Returns the positions that commands and flushes of this core have.
    fn used_positions(&self) -> HashSet<usize> {
        let core = &self.core;
        let mut used: HashSet<usize> = core.waiting.iter().map(|waiting| waiting.position()).collect();
        used.extend(core.files.values().filter_map(|work| match work {
            FileWork::Command { job, .. } => Some(job.position),
            FileWork::Flush { position, .. } => Some(*position),
            FileWork::Member(_) => None,
        }));
        used.extend(core.flushes.positions());
        for lane in self.lanes.values() {
            used.extend(lane.positions());
        }
        used
    }
}

impl Core {
    /// Flushes the volume of a removed namespace, which no core uses.
    fn flush_removed(&mut self, mut release: Release) {
        let position = release.position;
        release.is_flushed = true;
        self.flushes.insert_for(position, self.now + self.shared.stuck_after, AfterFlush::Release(release));
    }
}
