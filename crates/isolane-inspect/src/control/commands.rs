//! Requests that the program executes, below `/v1/` of the control socket.
//!
//! Invariant: the body is bounded, and a request that waits delays no other one.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::body::{PartsBody, ResponseBody};
use super::clients::{COMMAND_TIMEOUT, Client, TIMEOUT};
use crate::document::Document;
use crate::events::MAX_FOLLOWERS;
use crate::program::{self, Reply};

/// Start of the paths.
pub const PREFIX: &str = "/v1/";
/// Limit in bytes of a body: a configuration file of 4 MiB as JSON.
pub const MAX_BODY: usize = 9 << 20;
/// Length in bytes of bodies that are read at the same time in any number.
const MAX_SHORT_BODY: usize = 64 << 10;
/// Longer bodies at the same time.
const MAX_LONG_BODIES: usize = 4;
/// Requests that read, and requests that change the program, at the same time.
pub const MAX_EXECUTING: usize = 16;
/// Path of the last events.
const EVENTS: &str = "/v1/events";
/// Path of later events.
const FOLLOW: &str = "/v1/events/follow";

/// Executes the requests of one listener.
pub struct Executor {
    document: Arc<Document>,
    /// Requests that read.
    reads: Arc<Semaphore>,
    /// Requests that change the program. Those that read do not wait for them.
    changes: Arc<Semaphore>,
    /// Bodies that need much memory.
    long_bodies: Semaphore,
}

impl Executor {
    pub fn new(document: Arc<Document>) -> Executor {
        Executor {
            document,
            reads: Arc::new(Semaphore::new(MAX_EXECUTING)),
            changes: Arc::new(Semaphore::new(MAX_EXECUTING)),
            long_bodies: Semaphore::new(MAX_LONG_BODIES),
        }
    }

    pub fn document(&self) -> &Document {
        &self.document
    }

    /// Executes a request.
    pub async fn execute(&self, request: Request<Incoming>, client: &Client) -> Response<ResponseBody> {
        let (head, body) = request.into_parts();
        if head.method == Method::GET
            && let Some(response) = self.events(head.uri.path(), client)
        {
            return response;
        }
        let reply = match self.read(body).await {
            Ok(Body { bytes, .. }) => {
                client.set_answered_within(COMMAND_TIMEOUT);
                let (method, path) = (head.method.as_str().to_owned(), head.uri.path().to_owned());
                self.run(program::Request { method, path, body: bytes }).await
            }
            Err(problem) => problem,
        };
        client.set_answered_within(TIMEOUT);
        to_response(&reply).map(ResponseBody::Parts)
    }

    /// Returns the last events, or the later ones, if the program has events.
    fn events(&self, path: &str, client: &Client) -> Option<Response<ResponseBody>> {
        if path != EVENTS && path != FOLLOW {
            return None;
        }
        let program = self.document.program()?;
        let events = program.events()?;
        let body = if path == EVENTS {
            client.set_answered_within(TIMEOUT);
            ResponseBody::Parts(PartsBody::from(events.recent()))
        } else {
            let Some(stream) = events.follow() else {
                client.set_answered_within(TIMEOUT);
                let detail = format!("{MAX_FOLLOWERS} clients follow events; end one of them");
                return Some(to_response(&Reply::problem(503, "busy", detail)).map(ResponseBody::Parts));
            };
            client.set_endless();
            ResponseBody::Events(stream)
        };
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Some(response)
    }

    async fn run(&self, request: program::Request) -> Reply {
        let Some(program) = self.document.program() else {
            return Reply::problem(503, "stopping", "the program is stopping; start it again");
        };
        let executing = if request.method == "GET" { &self.reads } else { &self.changes };
        let Ok(permit) = Arc::clone(executing).try_acquire_owned() else {
            let detail =
                format!("{MAX_EXECUTING} requests have not ended; see `isolane ctl status`, and try again");
            return Reply::problem(503, "busy", detail);
        };
        let executed = tokio::task::spawn_blocking(move || {
            let reply = program.control(&request);
            // Also if the client is gone.
            drop(permit);
            reply
        });
        match executed.await {
            Ok(Some(reply)) => reply,
            Ok(None) => {
                Reply::problem(404, "unknown path", "no such path; use the `isolane` of the same version")
            }
            Err(_) => Reply::problem(
                500,
                "internal error",
                "the request failed by a fault of the program; see its log",
            ),
        }
    }

    /// Reads a body. Long ones wait for others to end.
    async fn read(&self, mut body: Incoming) -> Result<Body<'_>, Reply> {
        let mut read = Body { bytes: Vec::new(), permit: None };
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(|error| Reply::problem(400, "incomplete request", error))?;
            let Ok(data) = frame.into_data() else { continue };
            let len = read.bytes.len() + data.len();
            if len > MAX_BODY {
                let detail = format!("the body is longer than {MAX_BODY} bytes; shorten it");
                return Err(Reply::problem(413, "too long", detail));
            }
            if len > MAX_SHORT_BODY && read.permit.is_none() {
                read.permit = self.long_bodies.acquire().await.ok();
            }
            read.bytes.extend_from_slice(&data);
        }
        Ok(read)
    }
}

/// A body that was read.
struct Body<'a> {
    bytes: Vec<u8>,
    /// That of a long one.
    permit: Option<SemaphorePermit<'a>>,
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
