//! The requests of operators that exist: a request that is not in the table is rejected, and the OpenAPI document lists
//! the table.

use std::sync::LazyLock;

use isolane_inspect::program::{Reply, Request};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::json;

use super::bodies::{
    Add, AppliedChanges, Apply, Closed, ConnectionList, Disconnect, DisconnectedCount, Edits, Faulty,
    LogLevel, NamespaceList, NoOptions, Open, Opened, ProgramInfo, Protected, ReadOnly, Replace, Resize,
    Resized, RunningConfig, SetFault, Upgrade,
};

/// Returns the schema of a body.
pub type SchemaFn = fn(&mut SchemaGenerator) -> Schema;

/// A request that exists.
pub struct Route {
    pub method: &'static str,
    /// Path with names of parameters, as `/v1/namespaces/{nsid}`.
    pub path: String,
    pub summary: &'static str,
    pub body: Option<RequestBody>,
    /// Status and body of success; `None` if there is no response then.
    pub success: Option<(u16, SchemaFn)>,
    /// Media type of success.
    pub media: &'static str,
    /// Statuses of errors.
    pub errors: &'static [u16],
}

/// Body of a request.
#[derive(Clone, Copy)]
pub struct RequestBody {
    pub schema: SchemaFn,
    pub is_required: bool,
    /// It can have the field `runtime`.
    pub has_runtime: bool,
}

/// All requests.
pub static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    let mut routes = general();
    routes.extend(namespaces("/v1/namespaces"));
    routes.extend(namespaces("/v1/subsystems/{nqn}/namespaces"));
    routes
});

/// Returns the request with its path decoded, or the problem of a request that does not exist; `None` if its path does
/// not.
pub fn resolve(request: &Request) -> Option<Result<Request, Reply>> {
    let at_path: Vec<&Route> = ROUTES.iter().filter(|route| matches(&route.path, &request.path)).collect();
    if at_path.is_empty() {
        return None;
    }
    if at_path.iter().any(|route| route.method == request.method) {
        let path = decode(&request.path)?;
        return Some(Ok(Request { path, ..request.clone() }));
    }
    let allowed: Vec<&str> = at_path.iter().map(|route| route.method).collect();
    let detail =
        format!("{} is not possible for {}; use {}", request.method, request.path, allowed.join(" or "));
    let mut problem = Reply::problem(405, "wrong method", detail);
    problem.body["allow"] = json!(allowed);
    Some(Err(problem))
}

/// Returns whether a path has the form of a route.
fn matches(route: &str, path: &str) -> bool {
    let (mut names, mut segments) = (route.split('/'), path.split('/'));
    loop {
        match (names.next(), segments.next()) {
            (None, None) => return true,
            (Some("{nsid}"), Some(nsid)) => {
                if nsid.bytes().any(|byte| !byte.is_ascii_digit()) || nsid.parse::<u32>().is_err() {
                    return false;
                }
            }
            (Some("{nqn}"), Some(nqn)) if decode(nqn).is_some_and(|nqn| !nqn.is_empty()) => {}
            (Some(name), Some(segment)) if name == segment => {}
            _ => return false,
        }
    }
}

/// Decodes a percent-encoded text; `None` if it is not UTF-8.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        let code = part.get(..2).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn body<T: JsonSchema>() -> Option<RequestBody> {
    Some(RequestBody { schema: schema::<T>, is_required: true, has_runtime: false })
}

fn body_with_runtime<T: JsonSchema>(is_required: bool) -> Option<RequestBody> {
    Some(RequestBody { schema: schema::<T>, is_required, has_runtime: true })
}

/// Success with status 200.
fn ok<T: JsonSchema>() -> Option<(u16, SchemaFn)> {
    Some((200, schema::<T>))
}

fn lines(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({ "type": "string" })
}

fn any_object(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({ "type": "object" })
}

fn route(
    (method, path): (&'static str, &str),
    summary: &'static str,
    body: Option<RequestBody>,
    success: Option<(u16, SchemaFn)>,
    errors: &'static [u16],
) -> Route {
    Route { method, path: path.to_owned(), summary, body, success, media: "application/json", errors }
}

fn general() -> Vec<Route> {
    vec![
        route(("GET", "/v1/openapi.json"), "Describes the requests", None, Some((200, any_object)), &[]),
        route(
            ("GET", "/v1/namespaces"),
            "Lists the namespaces, and the volumes that are being closed",
            None,
            ok::<NamespaceList>(),
            &[],
        ),
        route(
            ("GET", "/v1/config"),
            "The configuration that the target serves now, as a file of it",
            None,
            ok::<RunningConfig>(),
            &[409],
        ),
        route(
            ("POST", "/v1/config/apply"),
            "Makes the target what the text of a configuration file describes",
            body::<Apply>(),
            ok::<AppliedChanges>(),
            &[400, 409, 422],
        ),
        route(
            ("POST", "/v1/config/edit"),
            "Changes objects in the configuration file and the target",
            body::<Edits>(),
            ok::<AppliedChanges>(),
            &[400, 404, 409, 422],
        ),
        route(
            ("GET", "/v1/connections"),
            "Lists the connections of hosts",
            None,
            ok::<ConnectionList>(),
            &[],
        ),
        route(
            ("POST", "/v1/connections/disconnect"),
            "Ends the connections of a host, or one connection; the host may connect again",
            body::<Disconnect>(),
            ok::<DisconnectedCount>(),
            &[400, 404, 409],
        ),
        Route {
            media: EVENTS,
            ..route(
                ("GET", "/v1/events"),
                "The last events, an object of JSON in each line",
                None,
                Some((200, lines)),
                &[],
            )
        },
        Route {
            media: EVENTS,
            ..route(
                ("GET", "/v1/events/follow"),
                "Later events, without an end; an empty line follows each 10 s without one",
                None,
                Some((200, lines)),
                &[],
            )
        },
        route(("GET", "/v1/log-level"), "The level of the log", None, ok::<LogLevel>(), &[]),
        route(
            ("POST", "/v1/log-level"),
            "Sets the level of the log, until the program ends",
            body::<LogLevel>(),
            ok::<LogLevel>(),
            &[400],
        ),
        route(("GET", "/v1/upgrade"), "Describes the program", None, ok::<ProgramInfo>(), &[]),
        route(
            ("POST", "/v1/upgrade"),
            "Replaces the program while hosts stay connected; the connection then closes without a response",
            body::<Upgrade>(),
            None,
            &[400, 409],
        ),
    ]
}

/// The requests for the namespaces of a subsystem. Without its name, they mean the only one.
fn namespaces(all: &str) -> Vec<Route> {
    let one = |verb: &str| format!("{all}/{{nsid}}{verb}");
    let opened: Option<(u16, SchemaFn)> = ok::<Opened>();
    vec![
        route(
            ("POST", all),
            "Serves a volume",
            body_with_runtime::<Add>(true),
            Some((201, schema::<Opened>)),
            &[400, 404, 409, 422],
        ),
        route(
            ("DELETE", &one("")),
            "Ends a namespace, and closes its volume",
            body_with_runtime::<NoOptions>(false),
            ok::<Closed>(),
            &[400, 404, 409, 422],
        ),
        route(
            ("POST", &one("/replace")),
            "Serves another volume under the ID",
            body_with_runtime::<Replace>(true),
            ok::<Closed>(),
            &[400, 404, 409, 422],
        ),
        route(
            ("POST", &one("/offline")),
            "Closes the volume; hosts repeat their commands",
            None,
            ok::<Closed>(),
            &[400, 404, 409],
        ),
        route(
            ("POST", &one("/online")),
            "Opens the volume again",
            body::<Open>(),
            opened,
            &[400, 404, 409, 422],
        ),
        route(
            ("POST", &one("/reopen")),
            "Closes the volume, and opens it again",
            body::<Open>(),
            opened,
            &[400, 404, 409, 422],
        ),
        route(
            ("POST", &one("/resize")),
            "Adopts the present size of a file or device, or sets it",
            body_with_runtime::<Resize>(true),
            ok::<Resized>(),
            &[400, 404, 409, 422],
        ),
        route(
            ("POST", &one("/read-only")),
            "Rejects writes, or accepts them again",
            body::<ReadOnly>(),
            ok::<Protected>(),
            &[400, 404, 409],
        ),
        route(
            ("POST", &one("/fault")),
            "Stalls or fails the namespace on purpose, or ends that, to test hosts and monitoring",
            body::<SetFault>(),
            ok::<Faulty>(),
            &[400, 404, 409],
        ),
    ]
}

/// Media type of events.
const EVENTS: &str = "application/x-ndjson";

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, path: &str) -> Request {
        Request { method: method.to_owned(), path: path.to_owned(), body: Vec::new() }
    }

    #[test]
    fn finds_routes_and_decodes_names() {
        let resolved = |path: &str| resolve(&request("POST", path)).map(|found| found.ok().unwrap().path);
        for path in ["/v1/namespaces", "/v1/namespaces/7/resize", "/v1/config/apply", "/v1/upgrade"] {
            assert_eq!(resolved(path).as_deref(), Some(path));
        }
        let named = "/v1/subsystems/nqn.2014-08.org.example%3Aa%2Fb/namespaces/1/replace";
        let decoded = "/v1/subsystems/nqn.2014-08.org.example:a/b/namespaces/1/replace";
        assert_eq!(resolved(named).as_deref(), Some(decoded));
        for path in [
            "/v1/",
            "/v1/namespaces/",
            "/v1/namespaces/x/resize",
            "/v1/namespaces/+1/resize",
            "/v1/namespaces/4294967296/resize",
            "/v1/namespaces/1/other",
            "/v1/subsystems//namespaces",
            "/v1/subsystems/%zz/namespaces",
            "/v1/subsystems/%ff/namespaces",
            "/v1/subsystems/%2/namespaces",
        ] {
            assert_eq!(resolved(path), None, "{path}");
        }
    }

    #[test]
    fn names_the_methods_of_a_path() {
        let problem = resolve(&request("PUT", "/v1/namespaces")).unwrap().unwrap_err();
        assert_eq!((problem.status, &problem.body["allow"]), (405, &json!(["GET", "POST"])));
    }
}
