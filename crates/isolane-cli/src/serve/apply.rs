//! Application of a new configuration to the running target.
//!
//! Everything that can fail comes first: the text is checked, volumes are opened, keys are read, and the target checks the
//! changes. Then the file is written, the target makes the changes, and volumes that are no longer served are closed.
//!
//! Invariant: an error before the target makes the changes changes neither the file nor the target.

use std::fmt::Display;
use std::sync::Arc;
use std::thread;

use isolane_config::{Config, Effect, diff};
use isolane_inspect::program::{Reply, Request};
use isolane_target::{ApplyError, NamespaceChange, TargetChange};
use isolane_volume::Volume;
use isolane_volume::spec::VolumeSpec;
use isolane_wire::Nqn;
use serde_json::json;

use super::auth::ConfiguredKeys;
use super::differences::{Difference, Differences};
use super::exposure::warn_of_gaps;
use super::live_config::{Current, LiveConfig};
use super::operator::bodies::{AppliedChange, AppliedChanges, Apply, reply};
use super::operator::{CLOSE_TIMEOUT, Operator, read, refused};
use super::port_changes::ChangedPorts;
use super::subsystem::{Planned, open_all};
use crate::failure::{Context, Failure};
use crate::volume;

/// How changes are applied.
#[derive(Clone, Copy, Default)]
pub struct Mode {
    /// Only checked, and listed.
    pub dry_run: bool,
    /// Namespaces can become smaller.
    pub shrink: bool,
    /// The file stays as it is.
    pub runtime: bool,
}

/// Changes that were made.
pub(super) struct Applied {
    changes: Vec<AppliedChange>,
    /// Descriptions of the volumes that were opened.
    pub opened: Vec<String>,
    /// Whether all volumes that are no longer served are closed.
    pub closed: bool,
    /// Why a port could not change after all other changes.
    failed: Option<String>,
}

impl Applied {
    fn into_reply(self) -> Reply {
        if let Some(error) = self.failed {
            let detail =
                format!("{error}; all other changes are made, so set the port again, or restart the target");
            return Reply::problem(409, "port not changed", detail);
        }
        reply(200, &AppliedChanges { changes: self.changes, closed: self.closed })
    }
}

impl Operator {
    /// `verb` follows `/v1/config/`.
    pub(super) fn execute_config(&self, request: &Request, verb: &str) -> Option<Reply> {
        let applied = match (request.method.as_str(), verb) {
            ("POST", "apply") => read(request).and_then(|Apply { text, dry_run, shrink }| {
                let file = self.file()?;
                self.apply_file(file, &mut file.lock(), &text, Mode { dry_run, shrink, runtime: false })
            }),
            ("POST", "edit") => read(request).and_then(|edits| self.edit_objects(&edits)),
            _ => return None,
        };
        Some(applied.map_or_else(|problem| problem, Applied::into_reply))
    }

    pub(super) fn file(&self) -> Result<&LiveConfig, Reply> {
        self.file.as_ref().ok_or_else(|| {
            let detail = "this target has no configuration file; start it with `isolane serve --config FILE`";
            Reply::problem(409, "no configuration file", detail)
        })
    }

    /// Applies the file in a thread of its own, because a volume can open slowly, and signals wait.
    pub fn start_reload(operator: &Arc<Operator>) -> Result<(), Failure> {
        let operator = Arc::clone(operator);
        let thread = thread::Builder::new().name("reload".into()).spawn(move || operator.reload());
        thread.map(drop).context("cannot apply the file")
    }

    /// Applies the present text of the file, and logs the result.
    fn reload(&self) {
        let Some(file) = &self.file else { return };
        let path = file.path().display();
        let applied = file.read().map_err(|error| error.to_string()).and_then(|text| {
            let applied = self.apply_file(file, &mut file.lock(), &text, Mode::default());
            applied.map_err(|Reply { body, .. }| body["detail"].as_str().unwrap_or_default().to_owned())
        });
        match applied {
            // The changes have lines of their own.
            Ok(applied) => match applied.changes.len() {
                0 => log::info!("{path}: applied, and nothing has changed"),
                1 => log::info!("{path}: applied, 1 change"),
                count => log::info!("{path}: applied, {count} changes"),
            },
            Err(reason) => log::error!("{path}: not applied, and nothing has changed: {reason}"),
        }
    }

    /// Makes the target what a text describes, and the text that of the file.
    fn apply_file(
        &self,
        file: &LiveConfig,
        current: &mut Current,
        text: &str,
        mode: Mode,
    ) -> Result<Applied, Reply> {
        let new = file.parse(text).map_err(|error| unusable("invalid configuration", &error))?;
        let applied = self.apply(file, current, (text, new), mode)?;
        current.is_changed_at_runtime &= mode.dry_run;
        Ok(applied)
    }

    /// Makes the target what a configuration describes, and a text that of the file. Both were checked. Returns the changes.
    pub(super) fn apply(
        &self,
        file: &LiveConfig,
        current: &mut Current,
        (text, new): (&str, Config),
        mode: Mode,
    ) -> Result<Applied, Reply> {
        let mut ports = ChangedPorts::new(&current.running, &new);
        let keys = ConfiguredKeys::read(&new).map_err(|error| unusable("unusable key", &error))?;
        let mut plan = plan(current, &new);
        plan.extend(file.keys.replaced(&current.running, &new, &keys).into_iter().map(|host| {
            AppliedChange {
                change: format!("host {}: its key files have other keys", host.name),
                effect: Effect::NewAssociations.name().to_owned(),
            }
        }));
        if mode.dry_run {
            return Ok(Applied { changes: plan, opened: Vec::new(), closed: true, failed: None });
        }
        // Volumes that grow stay so, also if the file cannot be written after that.
        let prepared = if mode.runtime { Ok(None) } else { file.prepare(current, text) };
        let prepared = prepared.map_err(|error| Reply::problem(409, "file not written", error))?;
        let opened = |nqn: &Nqn, nsid| Some(self.find(nqn.as_str())?.specs().get(&nsid)?.spec.clone());
        let differences = Differences::new(&current.running, &new, opened);
        let specs = differences.to_open();
        let volumes = self.open_volumes(&specs, &self.replaced(&differences))?;
        let changes =
            changes(&differences, &volumes, mode).map_err(|error| unusable("invalid name", &error))?;
        if let Some(state) = &file.state {
            let generation = self.target.discovery_generation().map_err(refused)?;
            let prepared = state.prepare(generation, &current.running, &new);
            prepared.map_err(|error| Reply::problem(409, "state not written", error))?;
            ports.number(state);
        }
        let commit = || {
            file.state.as_ref().map_or(Ok(()), |state| state.add_namespaces(&new))?;
            if !mode.runtime {
                file.write(current, text, prepared)?;
            }
            file.keys.add(&keys);
            Ok::<(), Failure>(())
        };
        let bound = ports.bind(&self.target, file, (!mode.runtime).then_some(text))?;
        let changed = self.target.apply(changes, commit).map_err(|error| match error {
            ApplyError::Change(error) => Reply::problem(409, "not possible", error),
            ApplyError::Commit(error) => Reply::problem(409, "file not written", error),
        })?;
        let failed = ports.finish(bound, &self.target, &new).map(|error| error.to_string());
        let described = specs.iter().zip(&volumes).map(|(spec, opened)| volume::describe(spec, &**opened));
        let opened = described.collect();
        volumes.iter().for_each(|volume| self.conditions.add(volume));
        // The target has what is left of them.
        drop(volumes);
        file.keys.set(Arc::new(keys));
        self.adopt(differences);
        if !plan.is_empty() {
            self.events.publish("applied", json!({ "changes": plan.len() }));
        }
        warn_of_gaps(&new);
        plan.iter().for_each(log_change);
        current.adopt(text, new);
        current.is_changed_at_runtime |= mode.runtime;
        Ok(Applied { changes: plan, opened, closed: changed.closing.wait(CLOSE_TIMEOUT), failed })
    }

    /// Returns the volumes that are no longer served after changes.
    fn replaced(&self, differences: &Differences) -> Vec<VolumeSpec> {
        let mut replaced = Vec::new();
        for operator in differences.removed.iter().filter_map(|nqn| self.find(nqn.as_str())) {
            replaced.extend(operator.specs().values().map(|served| served.spec.clone()));
        }
        for (nqn, nsid, difference) in &differences.namespaces {
            if let Difference::Removed | Difference::Replaced(_) = difference
                && let Some(operator) = self.find(nqn.as_str())
            {
                replaced.extend(operator.specs().get(nsid).map(|served| served.spec.clone()));
            }
        }
        replaced
    }

    fn open_volumes(
        &self,
        specs: &[VolumeSpec],
        replaced: &[VolumeSpec],
    ) -> Result<Vec<Arc<dyn Volume>>, Reply> {
        let checked = self.conditions.check_memory(&self.kinds, specs, replaced);
        checked.map_err(|error| unusable("unusable volume", &error))?;
        let opened = open_all(&self.kinds, specs, &[]).into_iter().collect::<Result<_, _>>();
        opened.map_err(|error| unusable("unusable volume", &error))
    }

    /// Accepts requests for what the target serves now.
    fn adopt(&self, differences: Differences) {
        let Differences { removed, added, hosts: _, ports: _, namespaces } = differences;
        for nqn in removed {
            self.all().remove(nqn.as_str());
        }
        for Planned { nqn, volumes, .. } in added {
            nqn.iter().for_each(|nqn| self.add_subsystem(nqn, volumes.iter().cloned()));
        }
        for (nqn, nsid, difference) in namespaces {
            let Some(operator) = self.find(nqn.as_str()) else { continue };
            let mut specs = operator.specs();
            match difference {
                Difference::Removed => drop(specs.remove(&nsid)),
                Difference::Added(spec) | Difference::Replaced(spec) => drop(specs.insert(nsid, spec.into())),
                Difference::Resized(spec, _) => {
                    specs.entry(nsid).and_modify(|served| served.spec = spec);
                }
                Difference::Masked(_) | Difference::Limited(_) => {}
                Difference::Protected(is_protected) => {
                    specs.entry(nsid).and_modify(|served| served.is_protected = is_protected);
                }
            }
        }
    }
}

impl Current {
    /// Takes a configuration that the target has now.
    fn adopt(&mut self, text: &str, new: Config) {
        text.clone_into(&mut self.text);
        self.started.subsystems.retain(|nqn, _| new.subsystems.contains_key(nqn));
        for (nqn, subsystem) in &new.subsystems {
            self.started.subsystems.entry(*nqn).or_insert_with(|| subsystem.clone());
        }
        self.running = new;
    }
}

/// Returns all changes, with those that wait for a restart of the target.
fn plan(current: &Current, new: &Config) -> Vec<AppliedChange> {
    let now = diff(&current.running, new).into_iter().filter(|change| change.effect != Effect::Restart);
    let later = diff(&current.started, new).into_iter().filter(|change| change.effect == Effect::Restart);
    now.chain(later)
        .map(|change| AppliedChange { change: change.to_string(), effect: change.effect.name().to_owned() })
        .collect()
}

fn log_change(AppliedChange { change, effect }: &AppliedChange) {
    log::info!("{change} ({effect})");
}

/// Returns the changes of the target. `volumes` are those of [`Differences::to_open`].
fn changes(
    differences: &Differences,
    volumes: &[Arc<dyn Volume>],
    mode: Mode,
) -> Result<Vec<TargetChange>, Failure> {
    let mut volumes = volumes.iter().cloned();
    let mut changes: Vec<TargetChange> =
        differences.removed.iter().map(|nqn| TargetChange::RemoveSubsystem(*nqn)).collect();
    for planned in &differences.added {
        let nsids = planned.volumes.iter().map(|(nsid, _)| *nsid);
        let Some(nqn) = planned.nqn else { continue };
        let opened = nsids.zip(&mut volumes).collect();
        changes.push(TargetChange::AddSubsystem(planned.to_subsystem(nqn, opened)));
    }
    let hosts = differences.hosts.iter().cloned();
    changes.extend(hosts.map(|(subsystem, hosts)| TargetChange::SetHosts { subsystem, hosts }));
    let ports = differences.ports.iter().cloned();
    changes.extend(ports.map(|(subsystem, ports)| TargetChange::SetPorts { subsystem, ports }));
    for (nqn, nsid, difference) in &differences.namespaces {
        let mut next = || {
            volumes.next().ok_or_else(|| Failure::new("cannot change volumes", "fewer are open than needed"))
        };
        changes.push(change_of((*nqn, *nsid), difference, &mut next, mode)?);
    }
    Ok(join(changes))
}

fn change_of(
    (subsystem, nsid): (Nqn, u32),
    difference: &Difference,
    next: &mut impl FnMut() -> Result<Arc<dyn Volume>, Failure>,
    mode: Mode,
) -> Result<TargetChange, Failure> {
    let change = match difference {
        Difference::Removed => NamespaceChange::Remove { nsid },
        Difference::Added(_) => NamespaceChange::Add { nsid: Some(nsid), volume: next()? },
        Difference::Replaced(_) => {
            NamespaceChange::Replace { nsid, volume: next()?, may_shrink: mode.shrink }
        }
        Difference::Protected(read_only) => NamespaceChange::ReadOnly { nsid, read_only: *read_only },
        Difference::Masked(hosts) => NamespaceChange::Hosts { nsid, hosts: hosts.clone() },
        Difference::Limited(qos) => NamespaceChange::Qos { nsid, qos: *qos },
        Difference::Resized(_, bytes) => {
            return Ok(TargetChange::Resize { subsystem, nsid, bytes: *bytes, may_shrink: mode.shrink });
        }
    };
    Ok(TargetChange::Namespaces { subsystem, changes: vec![change] })
}

/// Joins the changes of namespaces of each subsystem, so that its hosts get one notice.
fn join(changes: Vec<TargetChange>) -> Vec<TargetChange> {
    let mut joined: Vec<TargetChange> = Vec::new();
    for change in changes {
        match (joined.last_mut(), change) {
            (
                Some(TargetChange::Namespaces { subsystem, changes }),
                TargetChange::Namespaces { subsystem: other, changes: more },
            ) if *subsystem == other => changes.extend(more),
            (_, change) => joined.push(change),
        }
    }
    joined
}

fn unusable(title: &str, error: &dyn Display) -> Reply {
    Reply::problem(422, title, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_has_the_error_of_a_port() {
        let applied = |failed: Option<&str>| {
            let failed = failed.map(str::to_owned);
            Applied { changes: Vec::new(), opened: Vec::new(), closed: true, failed }.into_reply()
        };
        assert_eq!(applied(None).status, 200);
        let Reply { status, body } = applied(Some("port left: cannot listen"));
        let detail = body["detail"].as_str().unwrap();
        assert!(status == 409 && detail.starts_with("port left: cannot listen; all other"), "{detail}");
    }
}
