//! The OpenAPI document of the control socket, from the table of requests and the types of their bodies.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::bodies::Problem;
use super::routes::{ROUTES, RequestBody, Route};

/// Returns the document.
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12();
    let mut generator =
        settings.with(|it| it.definitions_path = "/components/schemas".into()).into_generator();
    let mut paths = reads();
    for route in ROUTES.iter() {
        let operation = operation(route, &mut generator);
        paths.entry(route.path.clone()).or_insert_with(|| json!({}))[route.method.to_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Control socket of isolane serve",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "HTTP over a Unix socket, one request per connection, for the user of the target and root.",
        },
        "paths": paths,
        "components": { "schemas": generator.take_definitions(true) },
    })
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let mut responses = Map::new();
    if let Some((status, schema)) = route.success {
        responses.insert(status.to_string(), response("Success", route.media, json!(schema(generator))));
    }
    let too_long = route.body.map(|_| 413);
    for status in route.errors.iter().copied().chain(too_long).chain([503]) {
        let problem = json!(generator.subschema_for::<Problem>());
        responses.insert(status.to_string(), response(meaning(status), "application/problem+json", problem));
    }
    let id: String = route.path.chars().filter(|char| !matches!(char, '{' | '}')).collect();
    let mut operation = json!({
        "operationId": format!("{}{}", route.method.to_lowercase(), id.replace('/', "-")),
        "summary": route.summary,
        "responses": responses,
    });
    let parameters: Vec<Value> = route.path.split('/').filter_map(parameter).collect();
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if let Some(body) = route.body {
        operation["requestBody"] = request_body(body, generator);
    }
    operation
}

fn request_body(body: RequestBody, generator: &mut SchemaGenerator) -> Value {
    let mut schema = json!((body.schema)(generator));
    if body.has_runtime {
        // The field is beside those of the type, which has no others.
        let name = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()).map(str::to_owned);
        let definition = name.and_then(|name| generator.definitions().get(&name).cloned());
        schema = definition.unwrap_or(schema);
        schema["properties"]["runtime"] = json!({ "type": "boolean", "description": "Leave the configuration file as it is.", "default": false });
    }
    json!({ "required": body.is_required, "content": { "application/json": { "schema": schema } } })
}

fn response(description: &str, kind: &str, schema: Value) -> Value {
    json!({ "description": description, "content": { kind: { "schema": schema } } })
}

/// Returns the parameter of a segment of a path, if it is one.
fn parameter(segment: &str) -> Option<Value> {
    let (name, schema) = match segment {
        "{nsid}" => ("nsid", json!({ "type": "integer", "minimum": 1, "maximum": 1024 })),
        "{nqn}" => ("nqn", json!({ "type": "string", "minLength": 1, "maxLength": 223 })),
        _ => return None,
    };
    Some(json!({ "name": name, "in": "path", "required": true, "schema": schema }))
}

/// The requests that change nothing, which the listener for metrics has also.
fn reads() -> Map<String, Value> {
    let text = json!({ "type": "string" });
    let read = |id: &str, summary: &str, content: Value| {
        let responses = json!({ "200": { "description": "Success", "content": content } });
        json!({ "get": { "operationId": id, "summary": summary, "responses": responses } })
    };
    let plain = || json!({ "text/plain": { "schema": text } });
    let metrics = json!({
        "application/openmetrics-text": { "schema": text },
        "application/vnd.google.protobuf": { "schema": text },
    });
    let mut snapshot = read(
        "get-snapshot.json",
        "All numbers since the start, and those of the last minutes",
        json!({ "application/json": { "schema": { "type": "object" } } }),
    );
    // Other values have no effect.
    let steps =
        json!({ "type": ["string", "null", "boolean", "number", "array", "object"], "examples": ["no"] });
    snapshot["get"]["parameters"] = json!([{
        "name": "steps", "in": "query", "description": "With `no`, the last minutes are left out.", "schema": steps
    }]);
    let paths = [
        ("/", read("get-index", "Paths of the listener for metrics", plain())),
        ("/healthz", read("get-healthz", "Whether the program runs", plain())),
        ("/metrics", read("get-metrics", "Metrics for Prometheus", metrics)),
        ("/snapshot.json", snapshot),
    ];
    paths.into_iter().map(|(path, item)| (path.to_owned(), item)).collect()
}

fn meaning(status: u16) -> &'static str {
    match status {
        400 => "The request is invalid",
        404 => "A named object does not exist",
        409 => "The state of the target does not allow it",
        413 => "The body is too long",
        422 => "A volume or the configuration cannot be used",
        503 => "The program is stopping, or busy",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_every_route_with_its_statuses() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        for Route { method, path, success, errors, .. } in ROUTES.iter() {
            let operation = &paths[path][method.to_lowercase()];
            let statuses = success.iter().map(|(status, _)| *status).chain(errors.iter().copied());
            for status in statuses {
                assert!(operation["responses"][status.to_string()].is_object(), "{method} {path}: {status}");
            }
        }
        let listed: usize = paths.values().map(|methods| methods.as_object().unwrap().len()).sum();
        assert_eq!(listed, ROUTES.len() + reads().len());
    }

    #[test]
    fn references_exist() {
        let document = document();
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let names = text.split("\"#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap());
        let unknown: Vec<&str> = names.filter(|name| !schemas.contains_key(*name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let add = &document["paths"]["/v1/namespaces"]["post"]["requestBody"]["content"]["application/json"];
        assert!(add["schema"]["properties"]["runtime"].is_object(), "{add}");
        assert_eq!(add["schema"]["additionalProperties"], false);
    }
}
