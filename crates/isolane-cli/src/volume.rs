//! Volumes on the command line.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use isolane_rbd::Rbd;
use isolane_volume::Volume;
use isolane_volume::spec::{Source, VolumeSpec};
use isolane_volumes::{Kind, Kinds};

use crate::failure::Failure;
use crate::host_args::is_like_address;
use crate::units::show_bytes;

/// Images of one connection to a cluster, unless an option says so.
pub const RBD_IMAGES_PER_CONNECTION: u16 = 8;
/// Time for clusters to close images at the end.
pub const RBD_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the kinds of volumes that can be served.
pub fn kinds(rbd: &Arc<Rbd>) -> Kinds {
    let (mut kinds, rbd) = (Kinds::default(), Arc::clone(rbd));
    kinds.add(Kind::leaf("rbd", isolane_rbd::OPTIONS, move |spec| rbd.open(spec)));
    kinds
}

/// Whether a text starts with a kind of volume, and thus names no file.
pub fn has_kind(text: &str) -> bool {
    let kinds = kinds(&Arc::new(Rbd::new(RBD_IMAGES_PER_CONNECTION.into())));
    text.split_once(':').is_some_and(|(kind, _)| kinds.has(kind))
}

/// Parses one volume. Rejects addresses, unless a file has that name; `listen` is the option for these, with an
/// example, if there is one.
pub fn parse(kinds: &Kinds, text: &str, action: &str, listen: Option<&str>) -> Result<VolumeSpec, Failure> {
    let name = text.split(',').next().unwrap_or_default();
    let has_kind = name.split_once(':').is_some_and(|(kind, _)| kinds.has(kind));
    let is_address = is_like_address(name) && !has_kind || name.parse::<u16>().is_ok();
    if is_address && !Path::new(name).exists() {
        let address = listen.map_or_else(String::new, |listen| {
            let option = listen.split(' ').next().unwrap_or(listen);
            format!("give an address with {option}, as in {listen}, and ")
        });
        let failure = Failure::new(format!("cannot {action} {text}"), "it looks like an address");
        return Err(
            failure.with_hint(format_args!("{address}name a volume, as mem:1G; write ./NAME for a file"))
        );
    }
    kinds.parse(text).map_err(Failure::from_error)
}

/// Returns name, kind, size, and access of a volume.
pub fn describe(spec: &VolumeSpec, volume: &dyn Volume) -> String {
    let kind = match &spec.source {
        Source::Memory { .. } => "memory",
        Source::Null { .. } => "null",
        Source::Path { path, .. } if path.is_file() => "file",
        Source::Path { .. } => "block device",
        Source::Nested { kind, .. } => kind,
    };
    let geometry = volume.info();
    let read_only = if geometry.read_only { ", read-only" } else { "" };
    format!("{}, {kind}, {}{read_only}", volume.name(), show_bytes(geometry.bytes() as f64))
}
