//! Requests of operators on the control socket: namespaces of the running target.
//!
//! A subsystem has its own paths, below `/v1/subsystems/NQN`. Without that prefix, they mean the only subsystem; the list
//! has those of all.
//!
//! [`routes`] lists all requests.
//!
//! Invariant: a volume is opened before anything changes, and a request that fails changes nothing.

pub(super) mod bodies;
mod connections;
mod events;
mod fault;
mod log_level;
mod openapi;
mod routes;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use isolane_config::Config;
use isolane_inspect::events::Events;
use isolane_inspect::program::{Reply, Request};
use isolane_target::{
    Changed, NamespaceChange, NamespaceControl, NamespaceError, NamespaceState, NamespaceStatus, Orphan,
    Target, TargetControl,
};
use isolane_volume::spec::VolumeSpec;
use isolane_volume::{MemoryImage, Volume, inherited_memory};
use isolane_volumes::Kinds;
use isolane_wire::Nqn;
use serde::de::DeserializeOwned;

use self::bodies::{
    Add, Closed, ClosingVolume, NamespaceEntry, NamespaceList, NoOptions, Open, Opened, OrphanEntry,
    ProgramInfo, Protected, ReadOnly, Replace, Resize, Resized, Upgrade, reply, state_name,
};
use super::conditions::Conditions;
use super::differences::without_size;
use super::handover::{HandedNamespace, HandedSubsystem};
use super::live_config::LiveConfig;
use super::memory_images::Images;
use super::qos;
use super::state::State;
use super::subsystem;
use super::upgrade_request::Upgrades;
use crate::locks::try_lock;
use crate::memory;
use crate::volume;

/// Executes requests.
pub struct Operator {
    pub(super) target: TargetControl,
    pub(super) kinds: Arc<Kinds>,
    pub(super) conditions: Arc<Conditions>,
    /// Ordered by name.
    pub(super) subsystems: Mutex<BTreeMap<String, Arc<SubsystemOperator>>>,
    /// The file of the target, if it has one.
    pub(super) file: Option<LiveConfig>,
    /// Configuration of the arguments of a target without a file, without volumes, or why no file can have it.
    pub(super) arguments: Option<Result<Config, String>>,
    pub(super) events: Events,
    upgrades: Upgrades,
    /// Number of upgrades of this process.
    upgraded: u64,
}

/// Executes requests for one subsystem.
pub(super) struct SubsystemOperator {
    pub(super) target: NamespaceControl,
    kinds: Arc<Kinds>,
    conditions: Arc<Conditions>,
    /// By namespace ID. Locked during a change, so that there is one at a time.
    specs: Mutex<BTreeMap<u32, Served>>,
}

/// A namespace, as operators want it.
pub(super) struct Served {
    pub(super) spec: VolumeSpec,
    /// Protected from writes, also after its volume was opened again or replaced.
    pub(super) is_protected: bool,
    /// Data of its memory volumes from the program before, until it is online.
    pub(super) images: Vec<MemoryImage>,
}

impl From<VolumeSpec> for Served {
    fn from(spec: VolumeSpec) -> Served {
        Served { spec, is_protected: false, images: Vec::new() }
    }
}

impl Operator {
    /// `subsystems` are those that the target serves, and `file` is where they are from.
    pub fn new(
        target: &Target,
        kinds: Kinds,
        conditions: &Arc<Conditions>,
        subsystems: Vec<subsystem::Opened>,
        file: Option<LiveConfig>,
        upgraded: u64,
    ) -> Operator {
        let operator = Operator {
            target: target.control(),
            kinds: Arc::new(kinds),
            conditions: Arc::clone(conditions),
            subsystems: Mutex::default(),
            file,
            arguments: None,
            events: Events::default(),
            upgrades: Upgrades::default(),
            upgraded,
        };
        for subsystem::Opened { subsystem, volumes, missing } in subsystems {
            let specs = volumes.into_iter().map(|volume| (volume.nsid, volume.spec)).chain(missing);
            operator.add_subsystem(&subsystem.nqn, specs);
        }
        operator
    }

    /// Returns the state that outlives the target, if it has one.
    pub fn state(&self) -> Option<&State> {
        self.file.as_ref()?.state.as_ref()
    }

    /// Returns requests to replace the program.
    pub fn upgrades(&self) -> &Upgrades {
        &self.upgrades
    }

    /// Returns what executes requests for each subsystem, by name.
    pub(super) fn subsystems(&self) -> BTreeMap<String, Arc<SubsystemOperator>> {
        self.all().clone()
    }

    /// Continues the changes of the program before that are not in its configuration.
    pub fn resume(&self, before: &[HandedSubsystem], mut images: Images) {
        for (HandedSubsystem { nqn, namespaces }, operator) in
            before.iter().filter_map(|one| Some((one, self.find(&one.nqn)?)))
        {
            let mut specs = operator.specs();
            for HandedNamespace { nsid, is_protected, .. } in namespaces {
                specs.entry(*nsid).and_modify(|served| {
                    served.is_protected = *is_protected;
                    served.images = images.remove(&(nqn.clone(), *nsid)).unwrap_or_default();
                });
            }
        }
    }

    /// Events for clients of the control socket.
    pub fn events(&self) -> &Events {
        &self.events
    }

    fn upgrade(&self, request: &Request) -> Reply {
        match request.method.as_str() {
            "GET" => {
                let version = env!("CARGO_PKG_VERSION");
                let file = self.file.as_ref().map(|file| file.path().to_owned());
                reply(200, &ProgramInfo { upgrades: self.upgraded, version, pid: std::process::id(), file })
            }
            _ => match read::<Upgrade>(request) {
                Ok(Upgrade { program }) => Reply::problem(409, "no upgrade", self.upgrades.request(program)),
                Err(problem) => problem,
            },
        }
    }

    /// Accepts requests for a subsystem that the target serves.
    pub(super) fn add_subsystem(&self, nqn: &Nqn, specs: impl Iterator<Item = (u32, VolumeSpec)>) {
        let Some(target) = self.target.namespaces(nqn) else { return };
        let operator = SubsystemOperator {
            target,
            kinds: Arc::clone(&self.kinds),
            conditions: Arc::clone(&self.conditions),
            specs: Mutex::new(specs.map(|(nsid, spec)| (nsid, spec.into())).collect()),
        };
        self.all().insert(nqn.to_string(), Arc::new(operator));
    }

    pub(super) fn all(&self) -> MutexGuard<'_, BTreeMap<String, Arc<SubsystemOperator>>> {
        self.subsystems.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what executes requests for a subsystem.
    pub(super) fn find(&self, nqn: &str) -> Option<Arc<SubsystemOperator>> {
        self.all().get(nqn).cloned()
    }

    /// Returns the response, or `None` if there is no such path.
    pub fn execute(&self, request: &Request) -> Option<Reply> {
        match routes::resolve(request)? {
            Ok(request) => self.execute_route(&request),
            Err(problem) => Some(problem),
        }
    }

    fn execute_route(&self, request: &Request) -> Option<Reply> {
        let path = request.path.strip_prefix("/v1/")?;
        if path == "openapi.json" {
            return Some(Reply::ok(openapi::document()));
        }
        if path == "log-level" {
            return Some(log_level::execute(request));
        }
        if path == "upgrade" {
            return Some(self.upgrade(request));
        }
        if path == "config" {
            return Some(self.dump().map_or_else(|problem| problem, |config| reply(200, &config)));
        }
        if let Some(verb) = path.strip_prefix("config/") {
            return self.execute_config(request, verb);
        }
        if let Some(path) = path.strip_prefix("connections") {
            return self.execute_connections(request, path);
        }
        if path == "namespaces" && request.method == "GET" {
            return Some(self.list());
        }
        let (named, path) = match path.strip_prefix("subsystems/") {
            Some(named) => {
                let (nqn, path) = named.rsplit_once("/namespaces")?;
                (Some(nqn), path)
            }
            None => (None, path.strip_prefix("namespaces")?),
        };
        let found = match named {
            Some(nqn) => self.find(nqn).map(|operator| (nqn.to_owned(), operator)),
            None => self.only(),
        };
        match (found, named) {
            (Some((nqn, operator)), _) => self.execute_namespace(request, &nqn, &operator, path),
            (None, Some(nqn)) => {
                let detail = format!("there is no subsystem {nqn}; it serves {}", self.names());
                Some(Reply::problem(404, "unknown subsystem", detail))
            }
            (None, None) => Some(self.name_one()),
        }
    }

    /// Returns the only subsystem.
    fn only(&self) -> Option<(String, Arc<SubsystemOperator>)> {
        let all = self.all();
        let (nqn, operator) = all.first_key_value()?;
        (all.len() == 1).then(|| (nqn.clone(), Arc::clone(operator)))
    }

    fn names(&self) -> String {
        self.all().keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    fn name_one(&self) -> Reply {
        let detail = match &*self.names() {
            "" => "the target has no subsystem; add one to its file".to_owned(),
            names => format!("several subsystems have namespaces; name one with --subsystem: {names}"),
        };
        Reply::problem(400, "invalid request", detail)
    }

    fn list(&self) -> Reply {
        let (mut namespaces, mut closing) = (Vec::new(), Vec::new());
        let all = self.all();
        all.iter().for_each(|(nqn, one)| one.add_to(nqn, &mut namespaces, &mut closing));
        let subsystems = all.keys().cloned().collect();
        reply(200, &NamespaceList { subsystems, namespaces, closing })
    }
}

impl SubsystemOperator {
    /// `path` follows `namespaces`.
    pub(super) fn execute(&self, request: &Request, path: &str) -> Option<Reply> {
        let mut parts = path.split('/').skip(1);
        let nsid = parts.next().map(|text| text.parse::<u32>()).transpose().ok()?;
        let reply = match (request.method.as_str(), nsid, parts.next()) {
            ("POST", None, None) => read(request).and_then(|body| self.add(body)),
            ("DELETE", Some(nsid), None) => read_options(request).and_then(|_| self.remove(nsid)),
            ("POST", Some(nsid), Some("replace")) => read(request).and_then(|body| self.replace(nsid, &body)),
            ("POST", Some(nsid), Some("offline")) => self.set_offline(nsid),
            ("POST", Some(nsid), Some("online")) => {
                read(request).and_then(|body| self.set_online(nsid, &body))
            }
            ("POST", Some(nsid), Some("reopen")) => read(request).and_then(|body| self.reopen(nsid, &body)),
            ("POST", Some(nsid), Some("resize")) => read(request).and_then(|body| self.resize(nsid, &body)),
            ("POST", Some(nsid), Some("fault")) => read(request).and_then(|body| self.set_fault(nsid, &body)),
            ("POST", Some(nsid), Some("read-only")) => {
                read(request).and_then(|body| self.set_read_only(nsid, &body))
            }
            _ => return None,
        };
        Some(reply.unwrap_or_else(|problem| problem))
    }

    fn add_to(&self, nqn: &str, namespaces: &mut Vec<NamespaceEntry>, closing: &mut Vec<ClosingVolume>) {
        for status in self.target.list() {
            if status.state == NamespaceState::Closing {
                let NamespaceStatus { nsid, volume, .. } = status;
                closing.push(ClosingVolume { subsystem: nqn.to_owned(), nsid, volume });
                continue;
            }
            namespaces.push(NamespaceEntry {
                subsystem: nqn.to_owned(),
                nsid: status.nsid,
                state: state_name(status.state),
                reason: reason(&status),
                volume: status.volume,
                bytes: status.bytes,
                block_size: status.block_size,
                read_only: status.read_only,
                oldest_command_ms: status.oldest_command.map(|age| age.as_millis() as u64),
                orphans: status.orphans.iter().map(describe_orphan).collect(),
                qos: status.qos.as_ref().map(qos::to_json),
                fault: status.fault.map(fault::kind),
            });
        }
    }

    fn add(&self, Add { volume, nsid }: Add) -> Result<Reply, Reply> {
        let mut specs = self.specs();
        let (spec, opened) = self.parse_and_open(&volume, None)?;
        let nsid = requested_nsid(nsid, &spec)?;
        let change = NamespaceChange::Add { nsid, volume: Arc::clone(&opened) };
        let changed = self.target.change(vec![change]).map_err(refused)?;
        self.conditions.add(&opened);
        let description = volume::describe(&spec, &*opened);
        let nsid = changed.added.first().copied().unwrap_or_default();
        log::info!("namespace {nsid}: added, {description}");
        specs.insert(nsid, spec.into());
        Ok(reply(201, &Opened { nsid, volume: description }))
    }

    fn remove(&self, nsid: u32) -> Result<Reply, Reply> {
        let mut specs = self.specs();
        let changed = self.target.change(vec![NamespaceChange::Remove { nsid }]).map_err(refused)?;
        specs.remove(&nsid);
        log::info!("namespace {nsid}: removed");
        Ok(closing(nsid, &changed))
    }

    fn replace(&self, nsid: u32, Replace { volume, shrink }: &Replace) -> Result<Reply, Reply> {
        let mut specs = self.specs();
        let (spec, opened) = self.parse_and_open(volume, specs.get(&nsid))?;
        if spec.nsid.is_some_and(|other| other != nsid) {
            return Err(invalid(format!("the volume has another nsid than {nsid}; leave it out")));
        }
        let is_protected = specs.get(&nsid).is_some_and(|served| served.is_protected);
        let served = Served { is_protected, ..Served::from(spec) };
        let changed = self.give(nsid, &served, opened, *shrink)?;
        specs.insert(nsid, served);
        Ok(closing(nsid, &changed))
    }

    /// Serves an open volume under an ID that exists.
    fn give(
        &self,
        nsid: u32,
        Served { spec, is_protected, .. }: &Served,
        opened: Arc<dyn Volume>,
        may_shrink: bool,
    ) -> Result<Changed, Reply> {
        let change = NamespaceChange::Replace { nsid, volume: Arc::clone(&opened), may_shrink };
        let mut changes = vec![change];
        changes.extend(is_protected.then_some(NamespaceChange::ReadOnly { nsid, read_only: true }));
        let changed = self.target.change(changes).map_err(refused)?;
        self.conditions.add(&opened);
        log::info!("namespace {nsid}: serves {}", volume::describe(spec, &*opened));
        Ok(changed)
    }

    fn set_offline(&self, nsid: u32) -> Result<Reply, Reply> {
        let specs = self.specs();
        let changed = self.take_offline(nsid, &specs)?;
        drop(specs);
        Ok(closing(nsid, &changed))
    }

    fn take_offline(&self, nsid: u32, specs: &BTreeMap<u32, Served>) -> Result<Changed, Reply> {
        let served = specs.get(&nsid).ok_or_else(|| refused(NamespaceError::Unknown(nsid)))?;
        if memory::is_part_of(&self.kinds, &served.spec).map_err(invalid)? {
            let detail = format!(
                "namespace {nsid}: a memory volume loses its data when it is closed; remove it instead"
            );
            return Err(Reply::problem(409, "not possible", detail));
        }
        let changed = self.target.change(vec![NamespaceChange::Offline { nsid }]).map_err(refused)?;
        log::info!("namespace {nsid}: offline");
        Ok(changed)
    }

    fn set_online(&self, nsid: u32, Open { shrink }: &Open) -> Result<Reply, Reply> {
        let mut specs = self.specs();
        let reply = self.bring_online(nsid, &specs, *shrink)?;
        specs.entry(nsid).and_modify(|served| served.images.clear());
        Ok(reply)
    }

    fn bring_online(&self, nsid: u32, specs: &BTreeMap<u32, Served>, shrink: bool) -> Result<Reply, Reply> {
        let served = specs.get(&nsid).ok_or_else(|| refused(NamespaceError::Unknown(nsid)))?;
        let is_offline =
            |status: &NamespaceStatus| status.nsid == nsid && status.state == NamespaceState::Offline;
        let Some(status) = self.target.list().into_iter().find(is_offline) else {
            let detail = format!("namespace {nsid} is online; reopen closes its volume first");
            return Err(Reply::problem(409, "not possible", detail));
        };
        // A file that was open has its size, which may have changed.
        let spec = if status.reason.is_none() { without_size(&served.spec) } else { served.spec.clone() };
        let opened = inherited_memory::open_with(&served.images, || self.open(&spec, Some(served)))?;
        let is_protected = served.is_protected;
        let served = Served { is_protected, ..Served::from(spec) };
        let description = volume::describe(&served.spec, &*opened);
        self.give(nsid, &served, opened, shrink)?;
        self.conditions.find(nsid, &status.volume);
        Ok(reply(200, &Opened { nsid, volume: description }))
    }

    fn reopen(&self, nsid: u32, Open { shrink }: &Open) -> Result<Reply, Reply> {
        let specs = self.specs();
        let changed = self.take_offline(nsid, &specs)?;
        if !changed.closing.wait(CLOSE_TIMEOUT) {
            let detail = format!(
                "namespace {nsid}: operations at its volume have not ended, so it stays offline; bring it online once \
                 `isolane ctl status` does not list the volume"
            );
            return Err(Reply::problem(409, "not closed", detail));
        }
        self.bring_online(nsid, &specs, *shrink)
    }

    pub(super) fn specs(&self) -> MutexGuard<'_, BTreeMap<u32, Served>> {
        self.specs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the namespaces, or `None` during a change.
    pub(super) fn try_specs(&self) -> Option<MutexGuard<'_, BTreeMap<u32, Served>>> {
        try_lock(&self.specs)
    }

    fn resize(&self, nsid: u32, Resize { bytes, shrink }: &Resize) -> Result<Reply, Reply> {
        let bytes = self.target.resize(nsid, *bytes, *shrink).map_err(refused)?;
        log::info!("namespace {nsid}: {bytes} bytes");
        Ok(reply(200, &Resized { nsid, bytes }))
    }

    fn set_read_only(&self, nsid: u32, ReadOnly { read_only }: &ReadOnly) -> Result<Reply, Reply> {
        let mut specs = self.specs();
        let change = NamespaceChange::ReadOnly { nsid, read_only: *read_only };
        self.target.change(vec![change]).map_err(refused)?;
        if let Some(served) = specs.get_mut(&nsid) {
            served.is_protected = *read_only;
        }
        log::info!("namespace {nsid}: {}", if *read_only { "read-only" } else { "writable" });
        Ok(reply(200, &Protected { nsid, read_only: *read_only }))
    }

    /// Opens a volume in place of `replaced`.
    fn parse_and_open(
        &self,
        text: &str,
        replaced: Option<&Served>,
    ) -> Result<(VolumeSpec, Arc<dyn Volume>), Reply> {
        let spec = volume::parse(&self.kinds, text, "serve", None).map_err(invalid)?;
        let opened = self.open(&spec, replaced)?;
        Ok((spec, opened))
    }

    fn open(&self, spec: &VolumeSpec, replaced: Option<&Served>) -> Result<Arc<dyn Volume>, Reply> {
        let unusable = |error: &dyn Display| Reply::problem(422, "unusable volume", error);
        let specs = slice::from_ref(spec);
        let checked = match replaced {
            // The data is here already.
            Some(served) if !served.images.is_empty() => memory::warn_of_inherited(&self.kinds, specs),
            Some(served) => self.conditions.check_memory(&self.kinds, specs, slice::from_ref(&served.spec)),
            None => self.conditions.check_memory(&self.kinds, specs, &[]),
        };
        checked.map_err(|error| unusable(&error))?;
        self.kinds.open(spec).map_err(|error| unusable(&error))
    }
}

/// Returns the ID that a request, its volume, or both name.
pub(super) fn requested_nsid(nsid: Option<u32>, spec: &VolumeSpec) -> Result<Option<u32>, Reply> {
    match (nsid, spec.nsid) {
        (Some(one), Some(other)) if one != other => {
            Err(invalid(format!("nsid is {one}, and that of the volume {other}; name one of them")))
        }
        (nsid, of_volume) => Ok(nsid.or(of_volume)),
    }
}

pub(super) fn read<T: DeserializeOwned>(request: &Request) -> Result<T, Reply> {
    // A list would be accepted as the fields of an object in their order.
    if request.body.trim_ascii_start().first() != Some(&b'{') {
        return Err(invalid("the body is not an object of JSON"));
    }
    serde_json::from_slice(&request.body).map_err(invalid)
}

/// Checks the body of a request that has no options, and can be empty.
pub(super) fn read_options(request: &Request) -> Result<(), Reply> {
    if request.body.is_empty() { Ok(()) } else { read(request).map(|NoOptions {}| ()) }
}

pub(super) fn invalid(error: impl Display) -> Reply {
    Reply::problem(400, "invalid request", error)
}

pub(super) fn refused(error: NamespaceError) -> Reply {
    match error {
        NamespaceError::Unknown(_) => Reply::problem(404, "unknown namespace", error),
        error => Reply::problem(409, "not possible", error),
    }
}

/// Returns the cause of the state, and its remedy.
fn reason(
    NamespaceStatus { nsid, state, reason, oldest_command, fault, .. }: &NamespaceStatus,
) -> Option<String> {
    let stall = || {
        let age = oldest_command.filter(|_| *state == NamespaceState::Stalled)?.as_secs();
        Some(format!("a command has not completed for {age} s; check the storage of the volume"))
    };
    reason.clone().or_else(|| fault::reason(*nsid, *fault)).or_else(stall)
}

fn describe_orphan(orphan: &Orphan) -> OrphanEntry {
    let Orphan { operation, first_block, blocks, age } = *orphan;
    OrphanEntry { operation: operation.name(), first_block, blocks, age_ms: age.as_millis() as u64 }
}

fn closing(nsid: u32, changed: &Changed) -> Reply {
    reply(200, &Closed { nsid, closed: changed.closing.wait(CLOSE_TIMEOUT) })
}

/// Time for commands in flight at a removed volume, and its flush.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
