//! From a description to a volume.

use std::sync::Arc;

use crate::file::FileVolume;
use crate::spec::{Source, VolumeSpec};
use crate::{Geometry, Identity, MemoryVolume, NullVolume, Volume};

/// Why a volume could not be opened: what failed, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {name}: {reason}; {remedy}")]
pub struct OpenError {
    /// The volume.
    pub name: String,
    /// Why.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

impl OpenError {
    pub(crate) fn new(name: &str, reason: impl Into<String>, remedy: impl Into<String>) -> OpenError {
        OpenError { name: name.to_owned(), reason: reason.into(), remedy: remedy.into() }
    }
}

/// Opens the volume that `spec` describes.
pub fn open(spec: &VolumeSpec) -> Result<Arc<dyn Volume>, OpenError> {
    let name = spec.name();
    match &spec.source {
        Source::Memory { bytes } => {
            let volume = MemoryVolume::new(name.clone(), geometry(spec, *bytes), identity(spec));
            Ok(Arc::new(volume.ok_or_else(|| too_large(&name))?))
        }
        Source::Null { bytes } => Ok(Arc::new(NullVolume::new(name, geometry(spec, *bytes), identity(spec)))),
        Source::Path { path, size } => Ok(Arc::new(FileVolume::open(spec, path, *size)?)),
    }
}

fn identity(spec: &VolumeSpec) -> Identity {
    spec.uuid.map_or_else(Identity::random, |uuid| Identity { uuid })
}

fn too_large(name: &str) -> OpenError {
    OpenError::new(name, "this machine cannot even hold the table of its pages", "ask for a smaller one")
}

/// Memory and nothingness have no cache that could be lost apart from them.
fn geometry(spec: &VolumeSpec, bytes: u64) -> Geometry {
    Geometry {
        block_size: spec.block_size,
        blocks: bytes / u64::from(spec.block_size),
        read_only: spec.read_only,
        volatile_cache: false,
        deallocate: true,
        zeroes_after_deallocate: true,
    }
}

#[cfg(test)]
mod tests {
    use crate::{open, spec};

    #[test]
    fn memory_that_no_machine_has_is_refused_with_a_remedy() {
        let refused = open(&spec::parse("mem:16000000T").unwrap()).err().unwrap().to_string();
        assert!(
            refused.contains("cannot open mem:16000000T") && refused.contains("ask for a smaller one"),
            "{refused}"
        );
        assert!(open(&spec::parse("null:16000000T").unwrap()).is_ok());
    }
}
