//! Changes of single objects of a running target that has a configuration file: in the file, and then in the target.

use std::collections::btree_map::Entry;

use isolane_config::{
    Config, Edit, EditError, Effect, Name, Namespace, Nsid, ObjectId, SubsystemNqn, Toml, Volume, diff, edit,
    parse_value,
};
use isolane_inspect::program::{Reply, Request};
use isolane_target::NamespaceError;
use serde_json::{Value, json};

use super::apply::{Applied, Mode};
use super::live_config::{Current, LiveConfig};
use super::model::{with_size, without_nsid};
use super::operator::bodies::{
    Add, Closed, EditAction, Edits, ObjectEdit, ObjectKind, Opened, Replace, Resize, Resized, reply,
};
use super::operator::{Operator, SubsystemOperator, invalid, read, read_options, refused, requested_nsid};
use super::state::State;
use crate::failure::Failure;
use crate::volume;

impl ObjectEdit {
    fn object(&self) -> Result<ObjectId, Reply> {
        let name = || {
            let text = self.name.as_deref().unwrap_or_default();
            Name::new(text).map_err(|error| invalid(format!("{} {text:?}: {error}", self.kind.name())))
        };
        let nqn = || subsystem_nqn(self.name.as_deref().unwrap_or_default());
        Ok(match self.kind {
            ObjectKind::Server => ObjectId::Server,
            ObjectKind::Port => ObjectId::Port(name()?),
            ObjectKind::Host => ObjectId::Host(name()?),
            ObjectKind::Referral => ObjectId::Referral(name()?),
            ObjectKind::Subsystem => ObjectId::Subsystem(nqn()?),
            ObjectKind::Namespace => ObjectId::Namespace(nqn()?, parse_nsid(self.nsid.unwrap_or_default())?),
        })
    }

    fn edits(&self) -> Result<Vec<(ObjectId, Edit)>, Reply> {
        let object = self.object()?;
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let keys = || self.keys.iter().map(|(key, value)| (key.clone(), text(value)));
        let edits: Vec<Edit> = match self.action {
            EditAction::Add => {
                let values = keys().map(|(key, text)| {
                    let value = parse_value(&object, &key, &text);
                    (key, value)
                });
                vec![Edit::Add(id_of(&object).into_iter().chain(values).collect())]
            }
            EditAction::Remove => vec![Edit::Remove],
            EditAction::Set => keys()
                .map(|(key, text)| match &*text {
                    "" => Edit::Unset(key),
                    _ => {
                        let value = parse_value(&object, &key, &text);
                        Edit::Set(key, value)
                    }
                })
                .collect(),
        };
        Ok(edits.into_iter().map(|edit| (object.clone(), edit)).collect())
    }
}

/// Returns the key with the name of an object.
fn id_of(object: &ObjectId) -> Option<(String, Toml)> {
    let (key, value): (&str, Toml) = match object {
        ObjectId::Server => return None,
        ObjectId::Port(name) | ObjectId::Host(name) | ObjectId::Referral(name) => {
            ("name", name.as_str().into())
        }
        ObjectId::Subsystem(nqn) => ("nqn", nqn.0.as_str().into()),
        ObjectId::Namespace(_, nsid) => ("nsid", i64::from(nsid.get()).into()),
    };
    Some((key.to_owned(), value))
}

fn subsystem_nqn(text: &str) -> Result<SubsystemNqn, Reply> {
    isolane_config::parse_subsystem_nqn(text).map(SubsystemNqn).map_err(invalid)
}

fn parse_nsid(nsid: u32) -> Result<Nsid, Reply> {
    Nsid::new(nsid).ok_or_else(|| invalid(format!("namespace {nsid}: use a number from 1 to 1024")))
}

impl Operator {
    pub(super) fn edit_objects(&self, edits: &Edits) -> Result<Applied, Reply> {
        let file = self.file()?;
        let mode = Mode { dry_run: edits.dry_run, shrink: edits.shrink, runtime: edits.runtime };
        let edits = edits.edits.iter().map(ObjectEdit::edits).collect::<Result<Vec<_>, _>>()?.concat();
        self.edit(file, &mut file.lock(), &edits, mode)
    }

    /// Makes edits of the file and of the target, or of the target only. What was changed at runtime stays.
    fn edit(
        &self,
        file: &LiveConfig,
        current: &mut Current,
        edits: &[(ObjectId, Edit)],
        mode: Mode,
    ) -> Result<Applied, Reply> {
        let path = file.path().display().to_string();
        let edited = |text: &str, name: &str| {
            edit(text, edits, name, &self.kinds).map_err(|error| match error {
                EditError::Missing(_) => Reply::problem(404, "unknown object", error),
                EditError::Exists(_) => Reply::problem(409, "not possible", error),
                EditError::Invalid(_) => Reply::problem(422, "invalid configuration", error),
            })
        };
        let edit_running = || edited(&current.running.to_toml(), "the target with changes of --runtime");
        let invalid = |error: Failure| Reply::problem(422, "invalid configuration", error);
        if mode.runtime {
            let (_, running) = edit_running()?;
            file.check(&running).map_err(invalid)?;
            reject_later(current, &running)?;
            let text = current.text.clone();
            return self.apply(file, current, (&text, running), mode);
        }
        let before = file
            .text_for_edit(current)
            .map_err(|error| Reply::problem(409, "file has other changes", error))?;
        let (text, config) = edited(&before, &path)?;
        file.check(&config).map_err(invalid)?;
        let running = if current.is_changed_at_runtime { edit_running()?.1 } else { config };
        self.apply(file, current, (&text, running), mode)
    }

    /// Executes a request for the namespaces of a subsystem. `path` follows `namespaces`.
    pub(super) fn execute_namespace(
        &self,
        request: &Request,
        nqn: &str,
        operator: &SubsystemOperator,
        path: &str,
    ) -> Option<Reply> {
        let (request, is_runtime) = match split_runtime(request) {
            Ok(split) => split,
            Err(problem) => return Some(problem),
        };
        match &self.file {
            Some(file) if request.method != "GET" => {
                let change = NamespaceRequest { request, path, nqn, operator, is_runtime };
                self.change_namespace(file, &change).unwrap_or_else(Some)
            }
            _ => operator.execute(&request, path),
        }
    }

    fn change_namespace(
        &self,
        file: &LiveConfig,
        change: &NamespaceRequest<'_>,
    ) -> Result<Option<Reply>, Reply> {
        let NamespaceRequest { request, path, nqn, operator, is_runtime } = change;
        let nqn = subsystem_nqn(nqn)?;
        let mut current = file.lock();
        let mut parts = path.split('/').skip(1);
        let nsid = parts.next().and_then(|text| text.parse().ok());
        let (verb, nsid, volume, shrink) = match (request.method.as_str(), nsid, parts.next()) {
            ("POST", None, None) => {
                let (nsid, volume) = self.number((&nqn, operator, file.state.as_ref()), read(request)?)?;
                (Verb::Add, nsid, Some(volume), false)
            }
            ("DELETE", Some(nsid), None) => {
                read_options(request)?;
                (Verb::Remove, nsid, None, false)
            }
            ("POST", Some(nsid), Some("replace")) => {
                let Replace { volume, shrink } = read(request)?;
                (Verb::Replace, nsid, Some(volume), shrink)
            }
            ("POST", Some(nsid), Some("resize")) => {
                return self.resize(file, &mut current, change, (nqn, nsid)).map(Some);
            }
            _ => return Ok(operator.execute(request, path)),
        };
        let id = (nqn, parse_nsid(nsid)?);
        if *is_runtime {
            let numbered = json!({ "volume": volume, "nsid": nsid });
            let request = match verb {
                Verb::Add => Request { body: numbered.to_string().into(), ..request.clone() },
                Verb::Remove | Verb::Replace => request.clone(),
            };
            let model = volume.map(|text| self.parse_volume(&text)).transpose()?;
            if let Some(state) = file.state.as_ref().filter(|_| verb == Verb::Add) {
                let added = state.add_namespace(nqn.0.as_str(), nsid);
                added.map_err(|error| Reply::problem(409, "state not written", error))?;
            }
            let executed = operator.execute(&request, path);
            if executed.as_ref().is_some_and(|reply| reply.status < 300) {
                current.set_volume(id, model);
            }
            return Ok(executed);
        }
        let object = ObjectId::Namespace(id.0, id.1);
        let edit = match volume {
            None => Edit::Remove,
            Some(text) if verb == Verb::Add => {
                Edit::Add(id_of(&object).into_iter().chain([("volume".to_owned(), text.into())]).collect())
            }
            Some(text) => Edit::Set("volume".to_owned(), text.into()),
        };
        let applied = self.edit(file, &mut current, &[(object, edit)], Mode { shrink, ..Mode::default() })?;
        Ok(Some(match verb {
            Verb::Add => reply(201, &Opened { nsid, volume: applied.opened.concat() }),
            Verb::Remove | Verb::Replace => reply(200, &Closed { nsid, closed: applied.closed }),
        }))
    }

    /// Chooses the ID of an added namespace, and returns it with the volume without an ID.
    fn number(
        &self,
        (nqn, operator, state): (&SubsystemNqn, &SubsystemOperator, Option<&State>),
        Add { volume, nsid }: Add,
    ) -> Result<(u32, String), Reply> {
        let spec = volume::parse(&self.kinds, &volume, "serve", None).map_err(invalid)?;
        let free = || match state {
            Some(state) => {
                state.free_nsid(nqn.0.as_str()).map_err(|error| Reply::problem(409, "not possible", error))
            }
            None => operator.target.free_nsid().ok_or_else(|| refused(NamespaceError::Full)),
        };
        let nsid = requested_nsid(nsid, &spec)?.map_or_else(free, Ok)?;
        Ok((nsid, without_nsid(&volume, &spec)))
    }

    fn parse_volume(&self, text: &str) -> Result<Volume, Reply> {
        Volume::new(text, &self.kinds).map_err(invalid)
    }

    /// The size of a new file is in the file, so it must follow: the next start compares both.
    fn resize(
        &self,
        file: &LiveConfig,
        current: &mut Current,
        change: &NamespaceRequest<'_>,
        (nqn, nsid): (SubsystemNqn, u32),
    ) -> Result<Reply, Reply> {
        let Resize { bytes, shrink } = read(&change.request)?;
        let id = (nqn, parse_nsid(nsid)?);
        let text_of = |bytes| with_size(current.volume(id)?, bytes);
        let object = ObjectId::Namespace(id.0, id.1);
        let set = |text: &str| [(object.clone(), Edit::Set("volume".to_owned(), text.into()))];
        if let Some(bytes) = bytes
            && let Some(text) = text_of(bytes)
            && !change.is_runtime
        {
            self.edit(file, current, &set(&text), Mode { shrink, ..Mode::default() })?;
            return Ok(reply(200, &Resized { nsid, bytes }));
        }
        let resized = change.operator.execute(&change.request, change.path);
        let resized = resized.unwrap_or_else(|| Reply::problem(404, "unknown path", "no such path"));
        let Some(text) = resized.body["bytes"].as_u64().and_then(text_of) else { return Ok(resized) };
        if change.is_runtime {
            current.set_volume(id, Some(self.parse_volume(&text)?));
        } else {
            self.edit(file, current, &set(&text), Mode { shrink, ..Mode::default() })?;
        }
        Ok(resized)
    }
}

/// Rejects a change of the target alone that waits for a restart, because that ends the change.
fn reject_later(current: &Current, running: &Config) -> Result<(), Reply> {
    let later = diff(&current.running, running).into_iter().find(|change| change.effect == Effect::Restart);
    later.map_or(Ok(()), |change| {
        let detail = format!(
            "{change}: this waits for a restart, which ends changes with --runtime; leave out --runtime"
        );
        Err(Reply::problem(409, "not possible", detail))
    })
}

/// A request for a namespace of a subsystem with a file.
struct NamespaceRequest<'a> {
    request: Request,
    /// Follows `namespaces`.
    path: &'a str,
    nqn: &'a str,
    operator: &'a SubsystemOperator,
    /// The file stays as it is.
    is_runtime: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Add,
    Remove,
    Replace,
}

/// Takes the field `runtime` out of a request.
fn split_runtime(request: &Request) -> Result<(Request, bool), Reply> {
    let Ok(Value::Object(mut body)) = serde_json::from_slice(&request.body) else {
        return Ok((request.clone(), false));
    };
    let is_runtime = match body.remove("runtime") {
        None => return Ok((request.clone(), false)),
        Some(Value::Bool(is_runtime)) => is_runtime,
        Some(_) => return Err(invalid("runtime is true or false")),
    };
    Ok((Request { body: Value::Object(body).to_string().into(), ..request.clone() }, is_runtime))
}

impl Current {
    /// Returns the text of the volume of a namespace.
    fn volume(&self, (nqn, nsid): (SubsystemNqn, Nsid)) -> Option<&str> {
        Some(self.running.subsystems.get(&nqn)?.namespaces.as_ref()?.get(&nsid)?.volume.as_str())
    }

    /// Records a change that is not in the file.
    fn set_volume(&mut self, (nqn, nsid): (SubsystemNqn, Nsid), volume: Option<Volume>) {
        self.is_changed_at_runtime = true;
        let Some(subsystem) = self.running.subsystems.get_mut(&nqn) else { return };
        let namespaces = subsystem.namespaces.get_or_insert_default();
        let Some(volume) = volume else { return drop(namespaces.remove(&nsid)) };
        match namespaces.entry(nsid) {
            Entry::Occupied(mut entry) => entry.get_mut().volume = volume,
            Entry::Vacant(entry) => drop(entry.insert(Namespace { nsid, volume, hosts: None, qos: None })),
        }
    }
}
