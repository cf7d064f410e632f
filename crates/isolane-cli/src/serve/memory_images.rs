//! The data of memory volumes over an upgrade in place: copied while hosts use them, and once more what has changed when no
//! host does.
//!
//! Invariant: the other program has all of the data before this one ends, or the upgrade is refused.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use isolane_reactor::inherited;
use isolane_target::Target;
use isolane_volume::spec::Source;
use isolane_volume::tree::{MirrorState, VolumeTree, kind};
use isolane_volume::{MemoryCopy, MemoryImage, Volume};
use isolane_volumes::Kinds;

use super::handover::{self, HandedMemory, HandedNamespace, Handover};
use crate::failure::{Context, Failure};
use crate::memory;
use crate::units::show_bytes;

/// The data of the memory volumes of each namespace, in their order in it; by subsystem and namespace ID.
pub type Images = BTreeMap<(String, u32), Vec<MemoryImage>>;

/// Copies of all memory volumes of a target.
pub struct Copies(Vec<Copied>);

struct Copied {
    nsid: u32,
    namespace: Arc<dyn Volume>,
    /// The namespace, or a volume beneath it.
    volume: Arc<dyn Volume>,
    copy: MemoryCopy,
    /// The descriptor that the other program inherits.
    _inherited: OwnedFd,
}

impl Copies {
    /// Copies the memory volumes of a target, and adds them to what the other program gets.
    ///
    /// # Errors
    /// The reason why the other program could not have them, as for users.
    pub fn new(target: &Target, kinds: &Kinds, handover: &mut Handover) -> Result<Copies, String> {
        let mut copies = Copies(Vec::new());
        for (nqn, nsid, volume) in target.volumes() {
            let mut subsystems = handover.subsystems.iter_mut();
            let own = subsystems.find(|one| one.nqn == nqn.as_str());
            let handed = own.and_then(|own| own.namespaces.iter_mut().find(|one| one.nsid == nsid));
            handed.map_or(Ok(()), |handed| copies.add(&volume, kinds, handed))?;
        }
        copies.update(u64::MAX)?;
        Ok(copies)
    }

    fn add(
        &mut self,
        namespace: &Arc<dyn Volume>,
        kinds: &Kinds,
        handed: &mut HandedNamespace,
    ) -> Result<(), String> {
        let nsid = handed.nsid;
        let mut volumes = Vec::new();
        find(namespace, &mut volumes);
        let leaves = kinds.leaves(&handed.spec).map_err(|error| error.to_string())?;
        let expected = leaves.iter().filter_map(|leaf| match leaf.source {
            Source::Memory { bytes } => Some(bytes),
            _ => None,
        });
        if !expected.eq(volumes.iter().map(|volume| volume.info().bytes())) {
            let name = namespace.name();
            return Err(format!("namespace {nsid} ({name}) lacks a memory volume; restart the target"));
        }
        for volume in volumes {
            let failed = |error| format!("namespace {nsid}: cannot copy its memory: {error}");
            let copy = MemoryCopy::new(volume.info().bytes()).map_err(failed)?;
            let inherited = handover::inheritable(copy.file()).map_err(failed)?;
            handed.memory.push(to_handed(&*volume, &inherited));
            let namespace = Arc::clone(namespace);
            self.0.push(Copied { nsid, namespace, volume, copy, _inherited: inherited });
        }
        Ok(())
    }

    /// Copies what hosts change, as long as that becomes less.
    ///
    /// # Errors
    /// The reason why that is not possible, as for users.
    pub fn settle(&self) -> Result<(), String> {
        let mut before = u64::MAX;
        loop {
            let copied = self.update(u64::MAX)?;
            if copied <= FEW_BYTES || copied > before / 4 * 3 {
                return Ok(());
            }
            before = copied;
        }
    }

    /// Copies the rest while hosts wait.
    ///
    /// # Errors
    /// The reason why that is not possible, as for users. It is too much, for example.
    pub fn finish(&self) -> Result<(), String> {
        self.update(MAX_REST).map(drop)
    }

    /// Copies what has changed since the last time, unless that is more than `most` bytes. Returns its bytes.
    fn update(&self, most: u64) -> Result<u64, String> {
        let changed = self.0.iter().map(Copied::changed_bytes).sum();
        check_rest(changed, most)?;
        memory::check_copy(changed)?;
        self.0.iter().try_for_each(Copied::update)?;
        Ok(changed)
    }
}

fn check_rest(changed: u64, most: u64) -> Result<(), String> {
    if changed <= most {
        return Ok(());
    }
    let [changed, most] = [changed, most].map(|bytes| show_bytes(bytes as f64));
    Err(format!(
        "hosts write to memory volumes faster than they are copied: {changed} are left, and hosts would wait too long for \
         more than {most}; try again when they write less"
    ))
}

impl Copied {
    fn changed_bytes(&self) -> u64 {
        self.volume.memory().map_or(0, |pages| self.copy.changed_bytes(pages))
    }

    fn update(&self) -> Result<(), String> {
        let nsid = self.nsid;
        if is_copying(&self.namespace.tree()) {
            // It would write its member after the last copy.
            let name = self.namespace.name();
            return Err(format!("namespace {nsid} ({name}) copies a member; try again when it is in sync"));
        }
        let updated = self.volume.memory().map(|volume| self.copy.update(volume));
        updated
            .unwrap_or(Ok(()))
            .map_err(|error| format!("namespace {nsid}: cannot copy its memory: {error}"))
    }
}

/// Takes the data that the program before has passed on.
///
/// # Errors
/// If a part is missing, or is not that of the volume.
pub fn take(handover: &Handover) -> Result<Images, Failure> {
    let mut images = Images::new();
    for subsystem in &handover.subsystems {
        for HandedNamespace { nsid, memory, .. } in &subsystem.namespaces {
            let taken: Result<Vec<_>, _> = memory.iter().map(take_one).collect();
            let taken = taken.context(format_args!("the data of namespace {nsid} in memory"))?;
            images.insert((subsystem.nqn.clone(), *nsid), taken);
        }
    }
    images.retain(|_, images| !images.is_empty());
    Ok(images)
}

fn take_one(
    &HandedMemory { descriptor, bytes, uuid, generation }: &HandedMemory,
) -> std::io::Result<MemoryImage> {
    MemoryImage::new(File::from(inherited::take(descriptor)?), bytes, uuid, generation)
}

fn to_handed(volume: &dyn Volume, inherited: &OwnedFd) -> HandedMemory {
    let generation = volume.description().generation.map(|generation| generation.id);
    HandedMemory {
        descriptor: inherited.as_raw_fd(),
        bytes: volume.info().bytes(),
        uuid: volume.identity().uuid,
        generation: generation.unwrap_or_default(),
    }
}

/// Finds the memory volumes in a volume, in the order in which they are opened.
fn find(volume: &Arc<dyn Volume>, found: &mut Vec<Arc<dyn Volume>>) {
    if volume.memory().is_some() {
        found.push(Arc::clone(volume));
    }
    volume.members().iter().for_each(|member| find(member, found));
}

/// Whether a mirror writes a member in memory, also when no host writes.
fn is_copying(tree: &VolumeTree) -> bool {
    let copies = matches!(tree.mirror, Some(MirrorState::Copying { .. }));
    (copies && has_memory(tree)) || tree.members.iter().any(is_copying)
}

fn has_memory(tree: &VolumeTree) -> bool {
    tree.kind == kind::MEMORY || tree.members.iter().any(has_memory)
}

/// Changes that hosts hardly wait for, in bytes.
const FEW_BYTES: u64 = 16 << 20;
/// Most bytes that are copied while hosts wait, for half a second or so.
const MAX_REST: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_is_bounded() {
        assert_eq!(check_rest(MAX_REST, MAX_REST), Ok(()));
        let error = check_rest(3 << 30, MAX_REST).unwrap_err();
        assert!(error.contains("3.0 GiB are left") && error.contains("more than 1.0 GiB"), "{error}");
    }
}
