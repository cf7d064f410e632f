//! Opening a volume from its specification.

use std::sync::Arc;

use rustix::io::Errno;

use crate::file::FileVolume;
use crate::spec::{Source, VolumeSpec};
use crate::{Identity, MemoryVolume, NullVolume, OpenError, Volume, VolumeInfo, inherited_memory};

/// Opens the volume specified by `spec`.
pub fn open(spec: &VolumeSpec) -> Result<Arc<dyn Volume>, OpenError> {
    let name = spec.name();
    match &spec.source {
        Source::Memory { bytes } => {
            let volume = match inherited_memory::take() {
                Some(image) => MemoryVolume::from_image(name.clone(), info(spec, *bytes), &image)
                    .map_err(|error| OpenError::from_error(&name, error))?,
                None => MemoryVolume::new(name.clone(), info(spec, *bytes), identity(spec))
                    .ok_or_else(|| too_large(&name))?,
            };
            Ok(Arc::new(volume.with_group(spec.group.clone())))
        }
        Source::Null { bytes } => {
            let volume = NullVolume::new(name, info(spec, *bytes), identity(spec));
            Ok(Arc::new(volume.with_group(spec.group.clone())))
        }
        Source::Path { path, size } => Ok(Arc::new(FileVolume::open(spec, path, *size)?)),
        Source::Nested { .. } => Err(OpenError::new(
            &name,
            "the volume is made of others",
            "open it with the crate isolane-volumes",
        )),
    }
}

fn identity(spec: &VolumeSpec) -> Identity {
    spec.uuid.map_or_else(Identity::random, |uuid| Identity { uuid })
}

fn too_large(name: &str) -> OpenError {
    OpenError::new(name, "not enough memory for its page table", "choose a smaller size")
        .with_os_error(Some(Errno::NOMEM.raw_os_error()))
}

/// Memory and null volumes have no volatile cache.
fn info(spec: &VolumeSpec, bytes: u64) -> VolumeInfo {
    VolumeInfo {
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
    fn rejects_memory_volume_beyond_machine() {
        let refused = open(&spec::parse("mem:16000000T").unwrap()).err().unwrap().to_string();
        assert!(
            refused.contains("cannot open mem:16000000T") && refused.contains("choose a smaller size"),
            "{refused}"
        );
        assert!(open(&spec::parse("null:16000000T").unwrap()).is_ok());
    }
}
