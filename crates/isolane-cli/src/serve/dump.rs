//! The configuration of a running target, as a file from which another target would serve the same.

use std::net::SocketAddr;

use isolane_config::{Namespace, Namespaces, Number, Volume};
use isolane_inspect::program::Reply;
use isolane_target::NamespaceStatus;
use isolane_volume::spec::{Source, VolumeSpec};
use isolane_volumes::Kinds;

use super::operator::bodies::RunningConfig;
use super::operator::{Operator, Served, SubsystemOperator};
use super::{Args, model, nqn};
use crate::failure::{Context, Failure};

impl Operator {
    /// Keeps the arguments of a target without a file, which listens at these addresses.
    pub fn with_arguments(mut self, args: &Args, addresses: &[SocketAddr]) -> Operator {
        let only = self.all().keys().next().cloned().filter(|_| self.file.is_none());
        self.arguments = only.map(|name| {
            let config = nqn::parse_nqn(&name).and_then(|nqn| model::of_running(args, nqn, addresses));
            config.map_err(|error| error.to_string())
        });
        self
    }

    /// Returns the configuration that the target serves now.
    pub(super) fn dump(&self) -> Result<RunningConfig, Reply> {
        let not_possible = |error: &dyn std::fmt::Display| Reply::problem(409, "no configuration", error);
        let busy = || Reply::problem(503, "busy", "the target changes its configuration; try again");
        if let Some(file) = &self.file {
            let current = file.try_lock().ok_or_else(busy)?;
            let served = current.served(&self.kinds).map_err(|error| not_possible(&error))?;
            return Ok(RunningConfig { file: Some(file.path().to_owned()), text: served.to_toml() });
        }
        let Some(config) = &self.arguments else {
            return Err(not_possible(&"it has no subsystem"));
        };
        let mut config = config.clone().map_err(|error| not_possible(&error))?;
        for (nqn, subsystem) in &mut config.subsystems {
            let Some(operator) = self.find(nqn.0.as_str()) else { continue };
            let namespaces = operator.to_model(&self.kinds).ok_or_else(busy)?;
            subsystem.namespaces = Some(namespaces.map_err(|error| not_possible(&error))?);
        }
        let config = model::check(&config, &self.kinds).map_err(|error| not_possible(&error))?;
        Ok(RunningConfig { file: None, text: config.to_toml() })
    }
}

impl SubsystemOperator {
    /// Returns the namespaces as a file has them, or `None` during a change.
    fn to_model(&self, kinds: &Kinds) -> Option<Result<Namespaces, Failure>> {
        let specs = self.try_specs()?;
        let statuses = self.target.list();
        let namespace = |(nsid, served): (&u32, &Served)| {
            let status = statuses.iter().find(|status| status.nsid == *nsid);
            let text = to_text(served, status, kinds)?;
            let volume = Volume::new(&text, kinds).context(format!("cannot write {text} into a file"))?;
            let nsid = Number::new(*nsid)
                .ok_or_else(|| Failure::new(format!("namespace {nsid}"), "a file has IDs up to 1024"))?;
            Ok((nsid, Namespace { nsid, volume, hosts: None, qos: None }))
        };
        Some(specs.iter().map(namespace).collect())
    }
}

/// Returns the volume as it is served now: with paths from the root, the present size of a file that was created with
/// one, and protection from writes.
fn to_text(
    Served { spec, is_protected, .. }: &Served,
    status: Option<&NamespaceStatus>,
    kinds: &Kinds,
) -> Result<String, Failure> {
    let mut spec = kinds.with_absolute_paths(spec).map_err(Failure::from_error)?;
    spec.nsid = None;
    if let Source::Path { size, .. } = &mut spec.source {
        let present = status.map(|status| status.bytes).filter(|bytes| *bytes > 0);
        *size = size.map(|size| present.unwrap_or(size));
    }
    let spec = if *is_protected && !spec.read_only { protected(spec) } else { spec };
    Ok(spec.to_text())
}

/// Returns the volume with protection from writes. The option `ro` of a nested volume is one of its members, which a
/// mirror rejects.
fn protected(spec: VolumeSpec) -> VolumeSpec {
    if !matches!(spec.source, Source::Nested { .. }) {
        return VolumeSpec { read_only: true, ..spec };
    }
    let (uuid, group) = (spec.uuid, spec.group.clone());
    let inner = VolumeSpec { uuid: None, group: None, ..spec };
    let text = format!("({})", inner.to_text());
    let source = Source::Nested { kind: "read-only".to_owned(), text, options: Vec::new() };
    VolumeSpec { uuid, group, ..VolumeSpec::new(source) }
}
