//! The subsystems of a target, before and after their volumes are open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use isolane_target::{OfflineVolume, QosConfig, Subsystem};
use isolane_volume::spec::VolumeSpec;
use isolane_volume::{OpenError, Volume};
use isolane_volumes::Kinds;
use isolane_wire::Nqn;

use super::conditions::Conditions;
use super::{Args, nqn, number};
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
        })
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

/// Opens the volumes of all subsystems.
pub fn open(planned: Vec<Planned>, args: &Args, kinds: &Kinds) -> Result<(Vec<Opened>, Conditions), Failure> {
    let specs: Vec<VolumeSpec> =
        planned.iter().flat_map(|one| one.volumes.iter().map(|(_, spec)| spec.clone())).collect();
    memory::check(kinds, &specs)?;
    let mut opened = open_all(kinds, &specs).into_iter();
    let conditions = Conditions::default();
    let mut subsystems = Vec::new();
    for mut settings in planned {
        let (nqn, volumes) = (settings.nqn, std::mem::take(&mut settings.volumes));
        let (mut served, mut described, mut identities) = (Vec::new(), Vec::new(), Vec::new());
        let (mut missing, mut offline) = (Vec::new(), Vec::new());
        for ((nsid, spec), opened) in volumes.into_iter().zip(&mut opened) {
            let volume = match opened {
                Err(error) if args.skip_missing => {
                    let (name, reason) = (error.name.clone(), error.reason.clone());
                    offline.push(OfflineVolume { nsid, name, reason });
                    missing.push((nsid, spec));
                    conditions.skip(nsid, error);
                    continue;
                }
                opened => opened.map_err(Failure::from_error)?,
            };
            conditions.add(&volume);
            if nqn::has_identity(kinds, &spec)? {
                identities.push(volume.identity().uuid);
            }
            described.push(Described { nsid, text: volume::describe(&spec, &*volume), spec });
            served.push((nsid, volume));
        }
        let nqn = nqn.map_or_else(|| nqn::derive(identities, args.listeners()[0].address), Ok)?;
        let subsystem = Subsystem { offline, ..settings.to_subsystem(nqn, served) };
        subsystems.push(Opened { subsystem, volumes: described, missing });
    }
    conditions.check_any()?;
    Ok((subsystems, conditions))
}

/// Opens all volumes at the same time, because each can wait for other machines.
pub fn open_all(kinds: &Kinds, specs: &[VolumeSpec]) -> Vec<Result<Arc<dyn Volume>, OpenError>> {
    thread::scope(|scope| {
        let threads: Vec<_> = specs.iter().map(|spec| scope.spawn(move || kinds.open(spec))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}
