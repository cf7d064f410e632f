//! Differences of two configurations, as a plan of changes with their effects.

use std::collections::BTreeMap;
use std::fmt;

use toml_edit::{Item, Value};

use crate::edit::{Edit, ObjectId};
use crate::model::Config;
use crate::table::{Effect, KeyInfo, Table};

/// A change of one object, and its effect on a running target.
#[derive(Clone, Debug)]
pub struct Change {
    /// The object.
    pub object: ObjectId,
    /// The change.
    pub edit: Edit,
    /// The value before a change of a key.
    pub old: Option<Value>,
    /// When the change takes effect.
    pub effect: Effect,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: Option<&Value>| {
            value.map_or_else(|| "(default)".to_owned(), |value| value.to_string().trim().to_owned())
        };
        match &self.edit {
            Edit::Add(keys) => {
                let keys: Vec<String> =
                    keys.iter().map(|(key, set)| format!("{key} = {}", value(Some(set)))).collect();
                write!(f, "add {}: {}", self.object, keys.join(", "))
            }
            Edit::Remove => write!(f, "remove {}", self.object),
            Edit::Set(key, new) => {
                write!(f, "{}: {key} = {} -> {}", self.object, value(self.old.as_ref()), value(Some(new)))?;
                self.write_consequence(f)
            }
            Edit::Unset(key) => {
                write!(f, "{}: {key} = {} -> (default)", self.object, value(self.old.as_ref()))?;
                self.write_consequence(f)
            }
        }
    }
}

impl Change {
    /// Each changed key of a port replaces its listener.
    fn write_consequence(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.object {
            ObjectId::Port(_) => f.write_str("; its connections close after their commands"),
            _ => Ok(()),
        }
    }
}

/// Returns the changes that make `new` of `old`, in an order in which they can be applied: objects are there before they
/// are named, and are not named any more before they are removed.
pub fn diff(old: &Config, new: &Config) -> Vec<Change> {
    let (before, mut after) = (objects(old), objects(new));
    let (mut changes, mut removed) = (Vec::new(), Vec::new());
    for (object, keys) in before {
        match after.remove(&object) {
            Some(new_keys) => compare(&object, &keys, &new_keys, &mut changes),
            // Goes with its subsystem.
            None if matches!(&object, ObjectId::Namespace(nqn, _) if !new.subsystems.contains_key(nqn)) => {}
            None => removed.push(Change { object, edit: Edit::Remove, old: None, effect: Effect::Live }),
        }
    }
    let added = after.into_iter().map(|(object, keys)| {
        let keys = keys.into_iter().map(|(key, value)| (key.name.to_owned(), value)).collect();
        Change { object, edit: Edit::Add(keys), old: None, effect: Effect::Live }
    });
    let mut plan: Vec<Change> = added.collect();
    plan.append(&mut changes);
    plan.extend(removed.into_iter().rev());
    plan
}

type Keys = Vec<(&'static KeyInfo, Value)>;

/// Returns all objects and their keys, without lists of objects.
fn objects(config: &Config) -> BTreeMap<ObjectId, Keys> {
    let mut objects = BTreeMap::new();
    objects.insert(ObjectId::Server, keys(&config.server));
    objects.extend(config.ports.values().map(|port| (ObjectId::Port(port.name.clone()), keys(port))));
    objects.extend(config.hosts.values().map(|host| (ObjectId::Host(host.name.clone()), keys(host))));
    let referrals = config.referrals.values();
    objects.extend(referrals.map(|referral| (ObjectId::Referral(referral.name.clone()), keys(referral))));
    for subsystem in config.subsystems.values() {
        objects.insert(ObjectId::Subsystem(subsystem.nqn), keys(subsystem));
        for (nsid, namespace) in subsystem.namespaces.iter().flatten() {
            objects.insert(ObjectId::Namespace(subsystem.nqn, *nsid), keys(namespace));
        }
    }
    objects
}

fn keys(object: &impl Table) -> Keys {
    let values = object.entries().into_iter().filter_map(|(key, item)| match item {
        Item::Value(value) => Some((key, value)),
        _ => None,
    });
    values.collect()
}

fn compare(object: &ObjectId, old: &Keys, new: &Keys, changes: &mut Vec<Change>) {
    let value_of = |keys: &Keys, name: &str| {
        keys.iter().find(|(key, _)| key.name == name).map(|(_, value)| value.clone())
    };
    let text = |value: &Value| value.to_string().trim().to_owned();
    for (key, value) in new {
        let old = value_of(old, key.name);
        if old.as_ref().map(text) != Some(text(value)) {
            let edit = Edit::Set(key.name.to_owned(), value.clone());
            changes.push(Change { object: object.clone(), edit, old, effect: key.effect });
        }
    }
    for (key, value) in old.iter().filter(|(key, _)| value_of(new, key.name).is_none()) {
        let edit = Edit::Unset(key.name.to_owned());
        changes.push(Change { object: object.clone(), edit, old: Some(value.clone()), effect: key.effect });
    }
}
