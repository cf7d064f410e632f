//! JSON schema of the document, `docs/snapshot.schema.json`.

use std::borrow::Cow;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::Snapshot;
use crate::histogram::{FINE_CELLS, Histogram};

/// Returns the schema of a document as a program writes it, as text.
pub fn schema() -> String {
    let settings = SchemaSettings::draft2020_12().for_serialize().with_transform(RecursiveTransform(clean));
    format!("{:#}\n", settings.into_generator().into_root_schema_for::<Snapshot>().to_value())
}

/// Removes the defaults of a reader, and the links of the documentation.
fn clean(schema: &mut Schema) {
    schema.remove("default");
    if let Some(serde_json::Value::String(text)) = schema.get_mut("description") {
        *text = text.replace("[`", "`").replace("`]", "`").replace('\n', " ");
    }
}

impl JsonSchema for Histogram {
    fn schema_name() -> Cow<'static, str> {
        "Histogram".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let count = json_schema!({ "type": "integer", "minimum": 0 });
        json_schema!({
            "description": "Cells per doubling from 64 ns, sum in nanoseconds, and pairs of a cell and its count. \
                Cell 0 has all durations below 64 ns, cell `1 + doubling * per_doubling + part` those from \
                `64 * 2^doubling * (1 + part / per_doubling)`.",
            "type": "array",
            "prefixItems": [
                { "enum": [4, 8] },
                count,
                {
                    "type": "array",
                    "items": { "type": "array", "prefixItems": [count, count], "minItems": 2, "maxItems": 2 },
                    "maxItems": FINE_CELLS,
                },
            ],
            "minItems": 3,
            "maxItems": 3,
        })
    }
}
