//! Edits of a text that keep its comments and its order.

use std::fmt;

use isolane_volumes::Kinds;
use serde_json::Value as Json;
use toml_edit::{ArrayOfTables, DocumentMut, InlineTable, Item, Table as TomlTable, TableLike, Value};

use crate::model::{Config, Host, Namespace, Nsid, Port, Referral, Server, Subsystem};
use crate::names::{Name, SubsystemNqn};
use crate::problem::Problems;
use crate::table::Table;

/// An object of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectId {
    /// The options of the target.
    Server,
    /// A port.
    Port(Name),
    /// A host.
    Host(Name),
    /// A referral.
    Referral(Name),
    /// A subsystem.
    Subsystem(SubsystemNqn),
    /// A namespace of a subsystem.
    Namespace(SubsystemNqn, Nsid),
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectId::Server => f.write_str("server"),
            ObjectId::Port(name) => write!(f, "port {name}"),
            ObjectId::Host(name) => write!(f, "host {name}"),
            ObjectId::Referral(name) => write!(f, "referral {name}"),
            ObjectId::Subsystem(nqn) => write!(f, "subsystem {}", nqn.0),
            ObjectId::Namespace(nqn, nsid) => write!(f, "subsystem {} namespace {}", nqn.0, nsid.get()),
        }
    }
}

/// A change of one object.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Adds it with these keys, its name among them.
    Add(Vec<(String, Value)>),
    /// Removes it, and everything in it.
    Remove,
    /// Sets a key.
    Set(String, Value),
    /// Removes a key, so that its default applies.
    Unset(String),
}

/// An edit that is not possible.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The object does not exist.
    #[error("there is no {0}; check its name, or add it")]
    Missing(String),
    /// The object exists already.
    #[error("{0} exists already; choose another name, or set its keys")]
    Exists(String),
    /// The text is not valid, before or after the edit.
    #[error("{0}")]
    Invalid(Problems),
}

/// Applies edits in their order to the text of a file, and returns the text with its model. Both texts are checked
/// completely.
///
/// # Errors
/// The first edit that is not possible, or all errors of the text; those of the new text without lines.
pub fn edit(
    text: &str,
    edits: &[(ObjectId, Edit)],
    file: &str,
    kinds: &Kinds,
) -> Result<(String, Config), EditError> {
    Config::parse(text, file, kinds).map_err(EditError::Invalid)?;
    let mut document: DocumentMut =
        text.parse().unwrap_or_else(|_| unreachable!("the text was parsed before"));
    for (object, edit) in edits {
        apply(document.as_table_mut(), object, edit)?;
    }
    let text = document.to_string();
    let config =
        Config::parse(&text, file, kinds).map_err(|problems| EditError::Invalid(problems.without_lines()))?;
    Ok((text, config))
}

/// Returns the value of a key from the command line, where texts and lists of texts can be without quotes and brackets: a
/// list is `a,b`.
pub fn parse_value(object: &ObjectId, key: &str, text: &str) -> Value {
    let keys = match object {
        ObjectId::Server => Server::KEYS,
        ObjectId::Port(_) => Port::KEYS,
        ObjectId::Host(_) => Host::KEYS,
        ObjectId::Referral(_) => Referral::KEYS,
        ObjectId::Subsystem(_) => Subsystem::KEYS,
        ObjectId::Namespace(..) => Namespace::KEYS,
    };
    let schema = keys.iter().find(|info| info.name == key).map(|info| (info.schema)()).unwrap_or_default();
    let forms = schema["anyOf"].as_array().cloned().unwrap_or_else(|| vec![schema.clone()]);
    let is_any = |test: &dyn Fn(&Json) -> bool| forms.iter().any(test);
    let is_quoted = text.starts_with(['[', '{', '"', '\'']);
    // A path of one location may contain commas.
    let is_location = |part: &str| part.starts_with("file:") || part.starts_with("credential:");
    let are_locations = || text.contains(',') && text.split(',').all(is_location);
    let parsed = || text.parse().unwrap_or_else(|_| Value::from(text));
    if is_quoted || is_any(&|form| form["type"] == "integer") {
        parsed()
    } else if is_any(&|form| form["type"] == "array") && are_locations() {
        text.split(',').collect()
    } else if is_any(&|form| form["type"] == "string" || form["const"] == text) {
        Value::from(text)
    } else if is_any(&|form| form["type"] == "array") {
        text.split(',').filter(|part| !part.is_empty()).collect()
    } else {
        parsed()
    }
}

fn apply(root: &mut TomlTable, object: &ObjectId, edit: &Edit) -> Result<(), EditError> {
    let missing = || EditError::Missing(object.to_string());
    match edit {
        Edit::Add(keys) => {
            if table_of(root, object).is_some() {
                return Err(EditError::Exists(object.to_string()));
            }
            if *object == ObjectId::Server {
                root.insert("server", Item::Table(TomlTable::from_iter(keys.iter().cloned())));
                return Ok(());
            }
            let (parent, list) = parent_of(root, object).ok_or_else(missing)?;
            add(parent, list, keys);
        }
        Edit::Remove if *object == ObjectId::Server => drop(root.remove("server").ok_or_else(missing)?),
        Edit::Remove => {
            let (parent, list) = parent_of(root, object).ok_or_else(missing)?;
            remove(parent, list, object).ok_or_else(missing)?;
        }
        Edit::Set(key, value) => {
            if *object == ObjectId::Server && !root.contains_key("server") {
                root.insert("server", Item::Table(TomlTable::new()));
            }
            set(table_of(root, object).ok_or_else(missing)?, key, value);
        }
        Edit::Unset(key) => drop(table_of(root, object).ok_or_else(missing)?.remove(key)),
    }
    Ok(())
}

/// Returns the table with the list of an object, and the key of the list.
fn parent_of<'a>(
    root: &'a mut TomlTable,
    object: &ObjectId,
) -> Option<(&'a mut dyn TableLike, &'static str)> {
    let list = list_of(object)?;
    match object {
        ObjectId::Namespace(nqn, _) => Some((table_of(root, &ObjectId::Subsystem(*nqn))?, list)),
        _ => Some((root, list)),
    }
}

/// Returns the key of the list with an object, if it is in one.
pub(crate) fn list_of(object: &ObjectId) -> Option<&'static str> {
    match object {
        ObjectId::Server => None,
        ObjectId::Port(_) => Some("port"),
        ObjectId::Host(_) => Some("host"),
        ObjectId::Referral(_) => Some("referral"),
        ObjectId::Subsystem(_) => Some("subsystem"),
        ObjectId::Namespace(..) => Some("namespace"),
    }
}

/// Returns the table of an object.
fn table_of<'a>(root: &'a mut TomlTable, object: &ObjectId) -> Option<&'a mut dyn TableLike> {
    if *object == ObjectId::Server {
        return root.get_mut("server")?.as_table_like_mut();
    }
    let (parent, list) = parent_of(root, object)?;
    match parent.get_mut(list)? {
        Item::ArrayOfTables(tables) => {
            tables.iter_mut().find(|table| is(*table, object)).map(|table| table as &mut dyn TableLike)
        }
        Item::Value(Value::Array(tables)) => {
            let mut tables = tables.iter_mut().filter_map(Value::as_inline_table_mut);
            tables.find(|table| is(*table, object)).map(|table| table as &mut dyn TableLike)
        }
        _ => None,
    }
}

/// Whether a table has the name of an object.
pub(crate) fn is(table: &dyn TableLike, object: &ObjectId) -> bool {
    let text = |key| table.get(key).and_then(Item::as_str);
    match object {
        ObjectId::Server => false,
        ObjectId::Port(name) | ObjectId::Host(name) | ObjectId::Referral(name) => {
            text("name") == Some(name.as_str())
        }
        ObjectId::Subsystem(nqn) => text("nqn") == Some(nqn.0.as_str()),
        ObjectId::Namespace(_, nsid) => {
            table.get("nsid").and_then(Item::as_integer) == Some(i64::from(nsid.get()))
        }
    }
}

fn add(parent: &mut dyn TableLike, list: &str, keys: &[(String, Value)]) {
    match parent.get_mut(list) {
        Some(Item::ArrayOfTables(tables)) => {
            let mut table = TomlTable::from_iter(keys.iter().cloned());
            table.decor_mut().set_prefix("\n");
            tables.push(table);
        }
        Some(Item::Value(Value::Array(tables))) => tables.push(InlineTable::from_iter(keys.iter().cloned())),
        _ => {
            let table = TomlTable::from_iter(keys.iter().cloned());
            parent.insert(list, Item::ArrayOfTables(ArrayOfTables::from_iter([table])));
        }
    }
}

/// Removes an object, its comment, and a list that is empty then.
fn remove(parent: &mut dyn TableLike, list: &str, object: &ObjectId) -> Option<()> {
    let is_empty = match parent.get_mut(list)? {
        Item::ArrayOfTables(tables) => {
            let at = tables.iter().position(|table| is(table, object))?;
            tables.remove(at);
            tables.is_empty()
        }
        Item::Value(Value::Array(tables)) => {
            let at = tables
                .iter()
                .position(|table| table.as_inline_table().is_some_and(|table| is(table, object)))?;
            tables.remove(at);
            tables.is_empty()
        }
        _ => return None,
    };
    if is_empty {
        parent.remove(list);
    }
    Some(())
}

/// Sets a key, and keeps the comment at its end.
fn set(table: &mut dyn TableLike, key: &str, value: &Value) {
    let mut value = value.clone();
    match table.get_mut(key) {
        Some(item) => {
            if let Some(old) = item.as_value() {
                *value.decor_mut() = old.decor().clone();
            }
            *item = Item::Value(value);
        }
        None => drop(table.insert(key, Item::Value(value))),
    }
}
