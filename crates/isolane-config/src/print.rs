//! Printer of a configuration.

use toml_edit::{ArrayOfTables, DocumentMut, Item, Table as TomlTable};

use crate::model::Config;
use crate::table::Table;

/// Returns the text of a configuration.
pub(crate) fn print(config: &Config) -> String {
    let mut document = DocumentMut::new();
    let server = table_of(&config.server);
    if !server.is_empty() {
        document.insert("server", Item::Table(server));
    }
    insert_all(&mut document, "port", config.ports.values());
    insert_all(&mut document, "host", config.hosts.values());
    insert_all(&mut document, "referral", config.referrals.values());
    insert_all(&mut document, "subsystem", config.subsystems.values());
    document.to_string()
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

fn insert_all<'a, T: Table + 'a>(
    document: &mut DocumentMut,
    key: &str,
    objects: impl Iterator<Item = &'a T>,
) {
    let tables: ArrayOfTables = objects.map(table_of).collect();
    if !tables.is_empty() {
        document.insert(key, Item::ArrayOfTables(tables));
    }
}
