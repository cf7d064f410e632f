//! Responses to requests.

use hyper::body::Bytes;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, VARY};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;

use super::accept::accepted;
use super::body::PartsBody;
use super::commands::to_response;
use crate::document::Document;
use crate::program::Reply;
use crate::source::Parts;

/// Paths of the listener, for its first page.
const INDEX: &str = "/healthz\n/metrics\n/snapshot.json\n/snapshot.json?steps=no\n";
const TEXT: &str = "text/plain; charset=utf-8";

/// Returns the response to one request.
pub fn respond<B>(request: &Request<B>, document: &Document) -> Response<PartsBody> {
    let (method, uri) = (request.method(), request.uri());
    if method != Method::GET && method != Method::HEAD {
        let detail = format!("{method} is not possible for {}; use GET", uri.path());
        let mut problem = Reply::problem(405, "wrong method", detail);
        problem.body["allow"] = json!(["GET", "HEAD"]);
        return to_response(&problem);
    }
    match uri.path() {
        "/" => text(StatusCode::OK, INDEX),
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/snapshot.json" => {
            let has_steps = !uri.query().is_some_and(|query| query.split('&').any(|it| it == "steps=no"));
            let parts = if has_steps { Parts::All } else { Parts::Now };
            response(StatusCode::OK, "application/json", document.json(parts))
        }
        "/metrics" => metrics(request.headers(), document),
        path => {
            let detail = format!("there is no {path}; / lists the paths");
            to_response(&Reply::problem(404, "unknown path", detail))
        }
    }
}

fn metrics(headers: &HeaderMap, document: &Document) -> Response<PartsBody> {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let exposition = accepted(values);
    let body = document.metrics(exposition).into();
    let mut response = response(StatusCode::OK, exposition.media_type(), vec![body]);
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response
}

fn text(status: StatusCode, text: &'static str) -> Response<PartsBody> {
    response(status, TEXT, vec![Bytes::from_static(text.as_bytes())])
}

fn response(status: StatusCode, kind: &'static str, parts: Vec<Bytes>) -> Response<PartsBody> {
    let mut response = Response::new(PartsBody::from(parts));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
