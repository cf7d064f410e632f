//! The side thread: accepts connections, and answers one request of each.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use isolane_engine_api::runtime_dir::is_trusted;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;

use super::body::ResponseBody;
use super::clients::{Client, Clients, TIMEOUT};
use super::commands::{self, Executor};
use super::respond::respond;
use crate::document::Document;
use crate::placement;

/// Limit in bytes of the head of a request.
pub(super) const MAX_REQUEST: usize = 64 << 10;
/// Pause after a failed accept, as with too many open files.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Requests that a listener accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Those that read, and those that change the program.
    All,
    Read,
}

/// Starts the thread.
pub fn start(
    unix: Option<UnixListener>,
    tcp: Option<TcpListener>,
    document: Arc<Document>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (unix, tcp) = {
        let _context = runtime.enter();
        (unix.map(to_tokio_unix).transpose()?, tcp.map(to_tokio_tcp).transpose()?)
    };
    let run = move || {
        placement::avoid(document.cpus());
        runtime.block_on(async {
            let unix = unix.map(|listener| tokio::spawn(serve_unix(listener, Arc::clone(&document))));
            let tcp = tcp.map(|listener| tokio::spawn(serve_tcp(listener, Arc::clone(&document))));
            for task in unix.into_iter().chain(tcp) {
                // Each ends only by a panic.
                let _ = task.await;
            }
        });
    };
    std::thread::Builder::new().name("control".into()).spawn(run)?;
    Ok(())
}

fn to_tokio_unix(listener: UnixListener) -> io::Result<tokio::net::UnixListener> {
    listener.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(listener)
}

fn to_tokio_tcp(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

async fn serve_unix(listener: tokio::net::UnixListener, document: Arc<Document>) {
    let (mut clients, executor) = (Clients::new(), Arc::new(Executor::new(document)));
    while let Some(permit) = clients.admit().await {
        match listener.accept().await {
            Ok((socket, _)) if socket.peer_cred().is_ok_and(|peer| is_trusted(peer.uid())) => {
                let executor = Arc::clone(&executor);
                clients.spawn(|client| answer(socket, executor, Access::All, client, permit));
            }
            Ok((socket, _)) => {
                let user = socket.peer_cred().map_or(u32::MAX, |peer| peer.uid());
                log::limited!(Warn, "control socket: rejected a process of user {user}");
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn serve_tcp(listener: tokio::net::TcpListener, document: Arc<Document>) {
    let (mut clients, executor) = (Clients::new(), Arc::new(Executor::new(document)));
    while let Some(permit) = clients.admit().await {
        match listener.accept().await {
            Ok((socket, _)) => {
                let executor = Arc::clone(&executor);
                clients.spawn(|client| answer(socket, executor, Access::Read, client, permit));
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn pause(error: &io::Error) {
    log::limited!(Warn, "control socket: cannot accept a connection: {error}");
    tokio::time::sleep(RETRY_DELAY).await;
}

/// Answers one request, and closes the connection.
async fn answer(
    socket: impl AsyncRead + AsyncWrite + Unpin,
    executor: Arc<Executor>,
    access: Access,
    client: Arc<Client>,
    _permit: OwnedSemaphorePermit,
) {
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let (executor, client) = (Arc::clone(&executor), Arc::clone(&client));
        async move {
            let is_command = access == Access::All && request.uri().path().starts_with(commands::PREFIX);
            if is_command {
                return Ok::<_, Infallible>(executor.execute(request, &client).await);
            }
            client.set_answered_within(TIMEOUT);
            Ok(respond(&request, executor.document()).map(ResponseBody::Parts))
        }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(MAX_REQUEST).timer(TokioTimer::new()).header_read_timeout(TIMEOUT);
    let connection = http.serve_connection(TokioIo::new(socket), service);
    if let Some(Err(error)) = client.drive(connection).await {
        log::debug!("control socket: {error}");
    }
}
