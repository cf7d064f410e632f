//! Printer of a configuration.

use toml_edit::{ArrayOfTables, DocumentMut, Item};

use crate::model::Config;
use crate::table::{Table, table_of};

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
