//! JSON Schema of the file.

use serde_json::{Value as Json, json};

use crate::model::TOP_LEVEL;
use crate::table::table_schema;

/// Returns the schema of the file, in JSON Schema 2020-12. Relations between keys, such as names that exist, are beyond
/// a schema: [`Config::parse`](crate::Config::parse) checks these.
pub fn schema() -> Json {
    let mut schema = table_schema(&TOP_LEVEL);
    if let Json::Object(members) = &mut schema {
        members.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
        members.insert("title".into(), json!("Configuration of isolane serve"));
    }
    schema
}
