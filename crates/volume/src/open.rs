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
            let geometry = geometry(spec, *bytes)?;
            Ok(Arc::new(MemoryVolume::new(name, geometry, identity(spec))))
        }
        Source::Null { bytes } => {
            let geometry = geometry(spec, *bytes)?;
            Ok(Arc::new(NullVolume::new(name, geometry, identity(spec))))
        }
        Source::Path { path, size } => Ok(Arc::new(FileVolume::open(spec, path, *size)?)),
    }
}

fn identity(spec: &VolumeSpec) -> Identity {
    spec.uuid.map_or_else(Identity::random, |uuid| Identity { uuid })
}

/// Memory and nothingness have no cache that could be lost apart from them.
fn geometry(spec: &VolumeSpec, bytes: u64) -> Result<Geometry, OpenError> {
    if bytes > ADDRESSABLE_BYTES && matches!(spec.source, Source::Memory { .. }) {
        let reason = "it is larger than the address space";
        return Err(OpenError::new(&spec.name(), reason, "ask for at most 64T"));
    }
    Ok(Geometry {
        block_size: spec.block_size,
        blocks: bytes / u64::from(spec.block_size),
        read_only: spec.read_only,
        volatile_cache: false,
        deallocate: true,
        zeroes_after_deallocate: true,
    })
}

/// Far below what 47 address bits hold.
const ADDRESSABLE_BYTES: u64 = 64 << 40;
