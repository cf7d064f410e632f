//! The present configuration of a running target, which another program continues: as operators have made it, and not as the
//! arguments or the file are.
//!
//! Invariant: requests of operators change nothing while this exists.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

use isolane_target::{
    NamespaceState, NamespaceStatus, OfflineVolume, StallTimes, Subsystem, Target, TargetConfig,
};
use isolane_volume::Volume;
use isolane_wire::Nqn;

use super::differences::without_size;
use super::from_file::{plan, ports, referrals};
use super::handover::{HandedNamespace, HandedSubsystem, Handover};
use super::live_config::Current;
use super::operator::{Operator, Served, SubsystemOperator};
use super::{limits, nqn, times};

/// The configuration, held as it is.
pub struct Present<'a> {
    operator: &'a Operator,
    /// That of the file, if there is one.
    current: Option<MutexGuard<'a, Current>>,
    subsystems: Vec<HeldSubsystem<'a>>,
}

struct HeldSubsystem<'a> {
    nqn: &'a str,
    operator: &'a SubsystemOperator,
    specs: MutexGuard<'a, BTreeMap<u32, Served>>,
}

impl<'a> Present<'a> {
    /// `subsystems` are those of [`Operator::subsystems`].
    ///
    /// # Errors
    /// A request of an operator is in progress.
    pub fn hold(
        operator: &'a Operator,
        subsystems: &'a BTreeMap<String, Arc<SubsystemOperator>>,
    ) -> Result<Present<'a>, String> {
        let busy = || "a change of the configuration is in progress; try again when it has ended".to_owned();
        let current = operator.file.as_ref().map(|file| file.try_lock().ok_or_else(busy)).transpose()?;
        let hold = |(nqn, operator): (&'a String, &'a Arc<SubsystemOperator>)| {
            Ok(HeldSubsystem { nqn, operator, specs: operator.try_specs().ok_or_else(busy)? })
        };
        let subsystems = subsystems.iter().map(hold).collect::<Result<_, String>>()?;
        Ok(Present { operator, current, subsystems })
    }

    /// Returns everything that the other program needs, without descriptors.
    ///
    /// # Errors
    /// The reason why it could not continue.
    pub fn handover(&self, target: &Target, upgrades: u64) -> Result<Handover, String> {
        let volumes = target.volumes();
        let handed = |held: &HeldSubsystem<'_>| {
            let mut namespaces = Vec::new();
            for status in held.operator.target.list() {
                check(&status)?;
                let nsid = status.nsid;
                let is_own = |one: &&(Nqn, u32, Arc<dyn Volume>)| one.0.as_str() == held.nqn && one.1 == nsid;
                let volume = volumes.iter().find(is_own).map(|(.., volume)| &**volume);
                let served = held.specs.get(&nsid);
                let served =
                    served.ok_or_else(|| format!("namespace {nsid} ({}) is unknown", status.volume))?;
                namespaces.push(self.handed_namespace(status, served, volume)?);
            }
            Ok(HandedSubsystem { nqn: held.nqn.to_owned(), namespaces })
        };
        let subsystems = self.subsystems.iter().map(handed).collect::<Result<_, String>>()?;
        let kinds = &self.operator.kinds;
        let file = self.current.as_ref().map(|current| current.to_texts(kinds)).transpose();
        let file = file.map_err(|error| error.to_string())?;
        Ok(Handover { upgrades, file, subsystems, ..Handover::default() })
    }

    fn handed_namespace(
        &self,
        NamespaceStatus { nsid, bytes, reason, .. }: NamespaceStatus,
        Served { spec, is_protected, images }: &Served,
        volume: Option<&dyn Volume>,
    ) -> Result<HandedNamespace, String> {
        let (is_protected, mut spec) = (*is_protected, spec.clone());
        let Some(volume) = volume else {
            if !images.is_empty() {
                let name = spec.name();
                return Err(format!(
                    "namespace {nsid} ({name}) is offline, and its data in memory would be lost; bring it online, or remove it"
                ));
            }
            return Ok(HandedNamespace { nsid, spec, is_protected, bytes: None, reason, memory: Vec::new() });
        };
        // The other program could not open it again, or would open something else.
        failure(nsid, volume).map_or(Ok(()), Err)?;
        spec = without_size(&spec);
        let has_identity =
            nqn::has_identity(&self.operator.kinds, &spec).map_err(|error| error.to_string())?;
        if !has_identity {
            spec.uuid = Some(volume.identity().uuid);
        }
        Ok(HandedNamespace { nsid, spec, is_protected, bytes: Some(bytes), reason: None, memory: Vec::new() })
    }

    /// Returns the configuration with which this program continues if the other one does not. `started` is that of its
    /// start, without volumes.
    ///
    /// # Errors
    /// If the parts of the configuration do not go together.
    pub fn config(
        &self,
        target: &Target,
        started: &TargetConfig,
        handover: &Handover,
    ) -> Result<TargetConfig, String> {
        let mut config = started.clone();
        if let Some(current) = &self.current {
            let served = current.served(&self.operator.kinds).map_err(|error| error.to_string())?;
            let subsystems = served.subsystems.values();
            config.subsystems =
                subsystems.map(|one| plan(&served, one).to_subsystem(one.nqn.0, Vec::new())).collect();
            config.listen = ports(&served);
            config.referrals = referrals(&served);
            config.limits = limits::plan(&served);
            let StallTimes { stall_after, answer_within } = times::plan(&served);
            (config.stall_after, config.answer_within) = (stall_after, answer_within);
        }
        let all = target.volumes();
        for Subsystem { nqn, volumes, offline, .. } in &mut config.subsystems {
            let own = all.iter().filter(|(of, ..)| of == nqn);
            *volumes = own.map(|(_, nsid, volume)| (*nsid, Arc::clone(volume))).collect();
            let handed = handover.subsystems.iter().find(|one| one.nqn == nqn.as_str());
            let missing = handed.into_iter().flat_map(|one| &one.namespaces).filter(|one| one.is_offline());
            *offline = missing.map(to_offline).collect();
        }
        Ok(config)
    }
}

/// Returns the failure of a volume, which another program would not know of.
pub fn failure(nsid: u32, volume: &dyn Volume) -> Option<String> {
    let condition = volume.conditions().into_iter().find(|condition| condition.is_failure)?;
    Some(format!("namespace {nsid}: {}: {}", condition.name, condition.text))
}

fn to_offline(HandedNamespace { nsid, spec, reason, .. }: &HandedNamespace) -> OfflineVolume {
    OfflineVolume { nsid: *nsid, name: spec.name(), reason: reason.clone().unwrap_or_default() }
}

/// A volume that is stalled, has failed, or is being closed has operations, or a past, that the other program could not
/// continue.
fn check(NamespaceStatus { nsid, volume, state, .. }: &NamespaceStatus) -> Result<(), String> {
    let what = match state {
        NamespaceState::Online | NamespaceState::Offline => return Ok(()),
        NamespaceState::Stalled => "is stalled",
        NamespaceState::Failed => "has failed",
        NamespaceState::Closing => "is being closed",
    };
    Err(format!("namespace {nsid} ({volume}) {what}; see `isolane ctl status`"))
}
