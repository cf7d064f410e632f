//! Requests that the program executes, below `/v1/` of the control socket.
//!
//! Invariant: the body is bounded, and a request that waits delays no other one.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde_json::Value;

use super::body::PartsBody;
use crate::document::Document;
use crate::program::{self, Reply};

/// Start of the paths.
pub const PREFIX: &str = "/v1/";
/// Limit in bytes of a body: a configuration file of 4 MiB as JSON.
pub const MAX_BODY: usize = 9 << 20;

/// Executes a request.
pub async fn execute(request: Request<Incoming>, document: Arc<Document>) -> Response<PartsBody> {
    let (head, body) = request.into_parts();
    let reply = match read(body).await {
        Ok(body) => {
            let (method, path) = (head.method.as_str().to_owned(), head.uri.path().to_owned());
            run(program::Request { method, path, body }, document).await
        }
        Err(problem) => problem,
    };
    to_response(&reply)
}

async fn run(request: program::Request, document: Arc<Document>) -> Reply {
    let Some(program) = document.program() else {
        return Reply::problem(503, "stopping", "the program is stopping; start it again");
    };
    let executed = tokio::task::spawn_blocking(move || program.control(&request)).await;
    match executed {
        Ok(Some(reply)) => reply,
        Ok(None) => {
            Reply::problem(404, "unknown path", "no such path; use the `isolane` of the same version")
        }
        Err(_) => {
            Reply::problem(500, "internal error", "the request failed by a fault of the program; see its log")
        }
    }
}

async fn read(mut body: Incoming) -> Result<Vec<u8>, Reply> {
    let mut read = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|error| Reply::problem(400, "incomplete request", error))?;
        let Ok(data) = frame.into_data() else { continue };
        if read.len() + data.len() > MAX_BODY {
            let detail = format!("the body is longer than {MAX_BODY} bytes; shorten it");
            return Err(Reply::problem(413, "too long", detail));
        }
        read.extend_from_slice(&data);
    }
    Ok(read)
}

/// Returns a response. The field `allow` of a problem is also its header.
pub fn to_response(reply: &Reply) -> Response<PartsBody> {
    let mut response = Response::new(PartsBody::from(vec![Bytes::from(reply.body.to_string())]));
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = if reply.status < 400 { "application/json" } else { "application/problem+json" };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    let allowed = reply.body["allow"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if reply.status == 405 {
        let allowed = allowed.collect::<Vec<_>>().join(", ");
        headers.extend(HeaderValue::try_from(allowed).ok().map(|allowed| (ALLOW, allowed)));
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
