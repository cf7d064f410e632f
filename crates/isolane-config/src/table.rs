//! Tables of the file, defined once: type, key, description, and effect of each entry.

use serde_json::{Map, Value as Json, json};
use toml_edit::{ArrayOfTables, Item, Table as TomlTable, TableLike};

use crate::problem::{Invalid, nearest};
use crate::reader::Reader;
use crate::value::Value;

/// Effect of a change of a key while the target runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Immediately.
    Live,
    /// For associations that hosts make later.
    NewAssociations,
    /// After a restart.
    Restart,
}

impl Effect {
    /// Returns the description of the effect.
    pub fn name(self) -> &'static str {
        match self {
            Effect::Live => "live",
            Effect::NewAssociations => "new associations only",
            Effect::Restart => "restart",
        }
    }
}

/// Description of a key.
pub struct KeyInfo {
    /// Name.
    pub name: &'static str,
    /// Description, one sentence.
    pub about: &'static str,
    /// Whether each table needs it.
    pub is_required: bool,
    /// Effect of a change.
    pub effect: Effect,
    pub(crate) schema: fn() -> Json,
}

/// A table with keys.
pub trait Table: Sized {
    /// Its keys.
    const KEYS: &'static [KeyInfo];

    /// Returns the keys that are set, and their values.
    fn entries(&self) -> Vec<(&'static KeyInfo, Item)>;
}

/// A table that can be read.
pub(crate) trait ReadTable: Table {
    /// Reads the table; returns `None` if a part of it is invalid.
    fn read_table(table: &dyn TableLike, place: &str, reader: &mut Reader<'_>) -> Option<Self>;
}

/// A value, or a table that is a value.
pub(crate) trait Entry: Sized {
    /// Returns a remedy for a missing key.
    fn example(key: &str) -> String;
    fn read(item: &Item, place: &str, key: &'static str, reader: &mut Reader<'_>) -> Option<Self>;
    fn to_item(&self) -> Item;
    fn schema() -> Json;
}

impl<T: Value> Entry for T {
    fn example(key: &str) -> String {
        format!("add it, as in {key} = {}", T::EXAMPLE)
    }

    fn read(item: &Item, place: &str, key: &'static str, reader: &mut Reader<'_>) -> Option<T> {
        let Some(value) = item.as_value() else {
            let remedy = format!("write a value, as in {key} = {}", T::EXAMPLE);
            reader.invalid(item, place, key, Invalid::new("a table instead of a value", remedy));
            return None;
        };
        match T::parse(value, reader.kinds) {
            Ok(value) => Some(value),
            Err(invalid) => {
                reader.invalid(item, place, key, invalid);
                None
            }
        }
    }

    fn to_item(&self) -> Item {
        Item::Value(self.print())
    }

    fn schema() -> Json {
        T::schema()
    }
}

/// Returns the value of a required key, if it is valid.
pub(crate) fn required<T: Entry>(
    table: &dyn TableLike,
    place: &str,
    key: &'static str,
    reader: &mut Reader<'_>,
) -> Option<T> {
    if !table.contains_key(key) {
        reader.missing(place, key, T::example(key));
    }
    optional(table, place, key, reader).flatten()
}

/// Returns the value of an optional key: `Some(None)` if it is missing, `None` if it is invalid.
pub(crate) fn optional<T: Entry>(
    table: &dyn TableLike,
    place: &str,
    key: &'static str,
    reader: &mut Reader<'_>,
) -> Option<Option<T>> {
    let Some((name, item)) = table.get_key_value(key) else { return Some(None) };
    reader.record(place, key, item.span().or_else(|| name.span()));
    T::read(item, place, key, reader).map(Some)
}

/// Reports keys that the table does not have.
pub(crate) fn reject_unknown(table: &dyn TableLike, place: &str, keys: &[KeyInfo], reader: &mut Reader<'_>) {
    for (key, item) in table.iter() {
        if keys.iter().any(|known| known.name == key) {
            continue;
        }
        let span = table.get_key_value(key).and_then(|(key, _)| key.span()).or_else(|| item.span());
        let invalid = match RESERVED.iter().find(|(reserved, _)| *reserved == key) {
            Some((_, reason)) => Invalid::new(*reason, "remove it"),
            None => unknown_key(key, keys),
        };
        reader.unexpected(span, place, key, invalid);
    }
}

/// Returns the error of an unknown key, with the nearest known one.
fn unknown_key(key: &str, keys: &[KeyInfo]) -> Invalid {
    let nearest = nearest(key, keys.iter().map(|known| known.name));
    let remedy = nearest.map_or_else(
        || format!("use {}", keys.iter().map(|known| known.name).collect::<Vec<_>>().join(", ")),
        |nearest| format!("write {nearest}"),
    );
    Invalid::new("unknown key", remedy)
}

/// Reads a table that is the value of a key.
pub(crate) fn read_inner<T: ReadTable>(
    item: &Item,
    place: &str,
    key: &'static str,
    reader: &mut Reader<'_>,
) -> Option<T> {
    match item.as_table_like() {
        Some(table) => {
            let place = if place.is_empty() { key.to_owned() } else { format!("{place} {key}") };
            T::read_table(table, &place, reader)
        }
        None => {
            let remedy = format!("write a table, as in {key} = {{ {} = … }}", T::KEYS[0].name);
            reader.invalid(item, place, key, Invalid::new("a value instead of a table", remedy));
            None
        }
    }
}

/// Returns the schema of a table.
pub(crate) fn table_schema(keys: &[KeyInfo]) -> Json {
    let property = |key: &KeyInfo| {
        let mut schema = (key.schema)();
        if let Json::Object(schema) = &mut schema {
            schema.insert("description".to_owned(), json!(key.about));
        }
        (key.name.to_owned(), schema)
    };
    let properties: Map<String, Json> = keys.iter().map(property).collect();
    let required: Vec<&str> = keys.iter().filter(|key| key.is_required).map(|key| key.name).collect();
    json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    })
}

/// Returns the table of an object.
pub(crate) fn table_of<T: Table>(object: &T) -> TomlTable {
    let mut table = TomlTable::new();
    for (key, item) in object.entries() {
        if !item.as_array_of_tables().is_some_and(ArrayOfTables::is_empty) {
            table.insert(key.name, item);
        }
    }
    table
}

/// Keys of later versions.
const RESERVED: [(&str, &str); 2] = [
    ("security", "this version has no TLS; a port has no key `security` yet"),
    ("tls-key", "this version has no TLS; a host has no key `tls-key` yet"),
];

/// Defines a table: its struct, and how it is read, printed, and described.
macro_rules! table {
    (@type required $type:ty) => { $type };
    (@type optional $type:ty) => { Option<$type> };
    (@required required) => { true };
    (@required optional) => { false };
    (@set required $value:expr) => { Some(&$value) };
    (@set optional $value:expr) => { $value.as_ref() };
    ($(#[doc = $about:literal])* pub struct $name:ident { $(
        $(#[doc = $doc:literal])* $need:ident $field:ident: $type:ty = $key:literal, $effect:ident;
    )* }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name { $(
            $(#[doc = $doc])*
            pub $field: table!(@type $need $type),
        )* }

        impl $crate::table::Table for $name {
            const KEYS: &'static [$crate::table::KeyInfo] = &[$(
                $crate::table::KeyInfo {
                    name: $key,
                    about: concat!($($doc),*).trim_ascii_start(),
                    is_required: table!(@required $need),
                    effect: $crate::table::Effect::$effect,
                    schema: <$type as $crate::table::Entry>::schema,
                }
            ),*];

            fn entries(&self) -> Vec<(&'static $crate::table::KeyInfo, toml_edit::Item)> {
                let items = [$(table!(@set $need self.$field).map($crate::table::Entry::to_item)),*];
                Self::KEYS.iter().zip(items).filter_map(|(key, item)| item.map(|item| (key, item))).collect()
            }
        }

        impl $crate::table::ReadTable for $name {
            fn read_table(
                table: &dyn toml_edit::TableLike,
                place: &str,
                reader: &mut $crate::reader::Reader<'_>,
            ) -> Option<$name> {
                $(let $field = $crate::table::$need::<$type>(table, place, $key, reader);)*
                $crate::table::reject_unknown(table, place, <$name as $crate::table::Table>::KEYS, reader);
                Some($name { $($field: $field?),* })
            }
        }
    };
}

/// Makes a table a value of another table, printed in braces.
macro_rules! inner_table {
    ($name:ident) => {
        impl $crate::table::Entry for $name {
            fn example(key: &str) -> String {
                format!("add a table, as in {key} = {{ … }}")
            }

            fn read(
                item: &toml_edit::Item,
                place: &str,
                key: &'static str,
                reader: &mut $crate::reader::Reader<'_>,
            ) -> Option<$name> {
                $crate::table::read_inner(item, place, key, reader)
            }

            fn to_item(&self) -> toml_edit::Item {
                let mut table = toml_edit::InlineTable::new();
                for (key, item) in $crate::table::Table::entries(self) {
                    if let toml_edit::Item::Value(value) = item {
                        table.insert(key.name, value);
                    }
                }
                toml_edit::value(table)
            }

            fn schema() -> serde_json::Value {
                $crate::table::table_schema(<$name as $crate::table::Table>::KEYS)
            }
        }
    };
}

pub(crate) use {inner_table, table};
