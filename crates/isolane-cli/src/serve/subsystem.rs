//! The subsystems of a target, before and after their volumes are open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use isolane_target::{OfflineVolume, QosConfig, Subsystem};
use isolane_volume::spec::VolumeSpec;
use isolane_volume::{MemoryImage, OpenError, Volume, inherited_memory};
use isolane_volumes::Kinds;
use isolane_wire::Nqn;

use super::conditions::Conditions;
use super::handover::{HandedNamespace, HandedSubsystem};
use super::memory_images::Images;
use super::numbering::number;
use super::{Args, nqn};
use crate::failure::Failure;
use crate::host_args::parse_host_nqn;
use crate::memory;
use crate::volume;

/// A subsystem whose volumes are not open yet.
pub struct Planned {
    /// `None`: derived from the volumes.
    pub nqn: Option<Nqn>,
    /// `None`: derived from the name.
    pub serial: Option<String>,
    /// `None`: the program's name.
    pub model: Option<String>,
    /// `None`: every host.
    pub allowed_hosts: Option<Vec<Nqn>>,
    /// Names of ports; `None`: all.
    pub ports: Option<Vec<String>>,
    /// Lowest and highest controller ID; `None`: all.
    pub cntlids: (Option<u16>, Option<u16>),
    /// Maximum speeds, by namespace ID.
    pub qos: BTreeMap<u32, QosConfig>,
    /// Namespaces that fewer hosts see, and these hosts.
    pub masks: Vec<(u32, Vec<Nqn>)>,
    /// By namespace ID.
    pub volumes: Vec<(u32, VolumeSpec)>,
    /// The namespaces of the program before, if this one continues.
    pub before: Option<Vec<HandedNamespace>>,
}

impl Planned {
    /// Returns the subsystem that arguments describe.
    pub fn of_args(args: &Args, kinds: &Kinds) -> Result<Planned, Failure> {
        let specs = args.specs(kinds)?;
        let hosts = args.allow_host.iter().map(|text| parse_host_nqn(text)).collect::<Result<Vec<_>, _>>()?;
        Ok(Planned {
            nqn: args.nqn.as_deref().map(nqn::parse_nqn).transpose()?,
            serial: None,
            model: None,
            ports: None,
            masks: Vec::new(),
            cntlids: (None, None),
            allowed_hosts: (!hosts.is_empty()).then_some(hosts),
            qos: BTreeMap::new(),
            volumes: number(&specs)?.into_iter().zip(specs).collect(),
            before: None,
        })
    }

    /// Returns the subsystem as the program before has served it: with its name, and its namespaces instead of those here.
    ///
    /// # Errors
    /// If the program before has not served it.
    pub fn resume(self, before: &[HandedSubsystem]) -> Result<Planned, Failure> {
        let is_same = |one: &&HandedSubsystem| self.nqn.is_none_or(|nqn| nqn.as_str() == one.nqn);
        let Some(HandedSubsystem { nqn, namespaces }) = before.iter().find(is_same) else {
            let reason = "the state of the target before lacks a subsystem";
            return Err(Failure::new("cannot continue", reason));
        };
        let online = namespaces.iter().filter(|one| one.bytes.is_some());
        let volumes = online.map(|one| (one.nsid, one.spec.clone())).collect();
        Ok(Planned { nqn: Some(nqn::parse_nqn(nqn)?), volumes, before: Some(namespaces.clone()), ..self })
    }
}

impl Planned {
    /// Returns the subsystem with this name and these open volumes.
    pub fn to_subsystem(&self, nqn: Nqn, volumes: Vec<(u32, Arc<dyn Volume>)>) -> Subsystem {
        let default = Subsystem::new(nqn);
        let (first, last) = (*default.cntlids.start(), *default.cntlids.end());
        Subsystem {
            serial: self.serial.clone().unwrap_or_else(|| nqn::serial(&nqn)),
            model: self.model.clone().unwrap_or(default.model),
            volumes,
            allowed_hosts: self.allowed_hosts.clone(),
            ports: self.ports.clone(),
            qos: self.qos.clone(),
            masks: self.masks.clone(),
            cntlids: self.cntlids.0.unwrap_or(first)..=self.cntlids.1.unwrap_or(last),
            ..Subsystem::new(nqn)
        }
    }
}

/// A subsystem with open volumes.
pub struct Opened {
    /// What the target serves.
    pub subsystem: Subsystem,
    /// The volumes that are open.
    pub volumes: Vec<Described>,
    /// Those that cannot be opened, by namespace ID.
    pub missing: Vec<(u32, VolumeSpec)>,
}

/// An open volume, as users see it.
pub struct Described {
    /// Namespace ID.
    pub nsid: u32,
    /// Specification.
    pub spec: VolumeSpec,
    /// Description.
    pub text: String,
}

/// Opens the volumes of all subsystems. If the program before has served them, those that cannot be opened are offline, so
/// that hosts repeat their commands.
pub fn open(
    planned: Vec<Planned>,
    args: &Args,
    kinds: &Kinds,
    images: &mut Images,
) -> Result<(Vec<Opened>, Conditions), Failure> {
    let specs: Vec<VolumeSpec> =
        planned.iter().flat_map(|one| one.volumes.iter().map(|(_, spec)| spec.clone())).collect();
    if planned.iter().any(|one| one.before.is_some()) {
        memory::warn_of_inherited(kinds, &specs)?;
    } else {
        memory::check(kinds, &specs, 0)?;
    }
    let mut opened = open_all(kinds, &specs, &images_of(&planned, images)).into_iter();
    let conditions = Conditions::default();
    let (mut subsystems, mut is_resumed) = (Vec::new(), false);
    for mut settings in planned {
        let (nqn, volumes) = (settings.nqn, std::mem::take(&mut settings.volumes));
        let (mut served, mut described, mut identities) = (Vec::new(), Vec::new(), Vec::new());
        let (mut missing, mut offline) = (Vec::new(), Vec::new());
        let before = settings.before.take();
        for ((nsid, spec), opened) in volumes.into_iter().zip(&mut opened) {
            let volume = match opened {
                Err(error) if args.skip_missing || before.is_some() => {
                    let (name, reason) = (error.name.clone(), error.reason.clone());
                    offline.push(OfflineVolume { nsid, name, reason });
                    missing.push((nsid, spec));
                    conditions.skip(nsid, error);
                    continue;
                }
                opened => opened.map_err(Failure::from_error)?,
            };
            if let Err(reason) = keep_size(nsid, &*volume, before.iter().flatten()) {
                log::error!("namespace {nsid} ({}) is offline: {reason}", volume.name());
                offline.push(conditions.keep_missing(nsid, &spec, Some(reason)));
                missing.push((nsid, spec));
                continue;
            }
            images.remove(&image_key(nqn.as_ref(), nsid));
            conditions.add(&volume);
            if nqn::has_identity(kinds, &spec)? {
                identities.push(volume.identity().uuid);
            }
            described.push(Described { nsid, text: volume::describe(&spec, &*volume), spec });
            served.push((nsid, volume));
        }
        is_resumed |= before.is_some();
        for HandedNamespace { nsid, spec, reason, .. } in
            before.into_iter().flatten().filter(HandedNamespace::is_offline)
        {
            offline.push(conditions.keep_missing(nsid, &spec, reason));
            missing.push((nsid, spec));
        }
        let nqn = nqn.map_or_else(|| nqn::derive(identities, args.listeners()[0].address), Ok)?;
        let subsystem = Subsystem { offline, ..settings.to_subsystem(nqn, served) };
        subsystems.push(Opened { subsystem, volumes: described, missing });
    }
    if !is_resumed {
        conditions.check_any()?;
    }
    Ok((subsystems, conditions))
}

/// Gives a volume the size that it had in the program before, which can be less than that of its file.
///
/// # Errors
/// The volume is smaller: to make it larger would show zeros in place of data.
fn keep_size<'a>(
    nsid: u32,
    volume: &dyn Volume,
    mut before: impl Iterator<Item = &'a HandedNamespace>,
) -> Result<(), String> {
    let Some(bytes) = before.find(|one| one.nsid == nsid).and_then(|one| one.bytes) else { return Ok(()) };
    let present = volume.blocks() * u64::from(volume.info().block_size);
    if present < bytes {
        return Err(format!(
            "it has {present} bytes, and had {bytes} before the upgrade; check what made it smaller"
        ));
    }
    if present > bytes
        && let Err(error) = volume.resize(Some(bytes), true)
    {
        log::warn!("namespace {nsid}: {error}");
    }
    Ok(())
}

/// Returns the data from the program before for each volume, in the order in which they are opened.
fn images_of(planned: &[Planned], images: &Images) -> Vec<Vec<MemoryImage>> {
    let all = planned.iter().flat_map(|one| one.volumes.iter().map(|(nsid, _)| (one.nqn.as_ref(), *nsid)));
    all.map(|(nqn, nsid)| images.get(&image_key(nqn, nsid)).cloned().unwrap_or_default()).collect()
}

fn image_key(nqn: Option<&Nqn>, nsid: u32) -> (String, u32) {
    (nqn.map(Nqn::to_string).unwrap_or_default(), nsid)
}

/// Opens all volumes at the same time, because each can wait for other machines. `images` has data from the program before
/// for memory volumes in the first ones.
pub fn open_all(
    kinds: &Kinds,
    specs: &[VolumeSpec],
    images: &[Vec<MemoryImage>],
) -> Vec<Result<Arc<dyn Volume>, OpenError>> {
    let images = images.iter().map(Vec::as_slice).chain(std::iter::repeat(&[][..]));
    let open = |spec, images| inherited_memory::open_with(images, || kinds.open(spec));
    thread::scope(|scope| {
        let open = |(spec, images)| scope.spawn(move || open(spec, images));
        let threads: Vec<_> = specs.iter().zip(images).map(open).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}
