//! Parser of a file: syntax, tables, and then relations between keys.

use std::collections::BTreeMap;

use isolane_volumes::Kinds;
use toml_edit::Document;

use crate::check;
use crate::model::{Config, Objects, TOP_LEVEL, read_objects};
use crate::print;
use crate::problem::Problems;
use crate::reader::Reader;
use crate::table;

impl Config {
    /// Parses the text of a file named `file`, with volumes of `kinds`, and checks everything that needs no other file.
    ///
    /// # Errors
    /// All errors of the text.
    pub fn parse(text: &str, file: &str, kinds: &Kinds) -> Result<Config, Problems> {
        let mut reader = Reader::new(text, kinds);
        let document = match Document::parse(text) {
            Ok(document) => document,
            Err(error) => {
                reader.invalid_syntax(&error);
                return Err(reader
                    .finish(file)
                    .err()
                    .unwrap_or_else(|| unreachable!("an error was reported")));
            }
        };
        let table = document.as_table();
        let mut config = Config::default();
        if let Some(item) = table.get("server") {
            let server = table::read_inner(item, "", "server", &mut reader);
            config.server = server.unwrap_or_default();
        }
        read_list(table, &mut config.ports, &mut reader);
        read_list(table, &mut config.hosts, &mut reader);
        read_list(table, &mut config.subsystems, &mut reader);
        read_list(table, &mut config.referrals, &mut reader);
        table::reject_unknown(table, "", &TOP_LEVEL, &mut reader);
        check::check(&config, &mut reader);
        reader.finish(file).map(|()| config)
    }

    /// Prints the configuration. Parsing the result returns the same configuration.
    pub fn to_toml(&self) -> String {
        print::print(self)
    }
}

fn read_list<T: Objects>(
    table: &toml_edit::Table,
    objects: &mut BTreeMap<T::Id, T>,
    reader: &mut Reader<'_>,
) {
    if let Some(item) = table.get(T::KIND) {
        *objects = read_objects(item, "", T::KIND, reader).unwrap_or_default();
    }
}
