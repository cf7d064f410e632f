//! Control socket of a running program, and its listener for metrics: HTTP on a side thread.
//!
//! [`start`] listens, and a thread with a current-thread runtime answers. Only processes of the same user or of root are
//! admitted to the control socket: by its mode, and by the credentials of the peer. Requests below `/v1/` change the
//! program (`commands.rs`); the listener for metrics has none.
//!
//! Invariant: no request, panic, or error of this thread affects I/O, and the number of connections, the length of a
//! request, and its time are bounded. A client that is slow keeps no other one out (`clients.rs`).

mod accept;
mod body;
mod clients;
mod commands;
pub mod dir;
mod respond;
mod server;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use crate::document::Document;
use crate::unix_socket::{is_socket, refuses};

/// Listeners of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listeners {
    /// Path of the control socket.
    pub socket: Option<PathBuf>,
    /// Address for metrics.
    pub metrics: Option<SocketAddr>,
    /// Option or variable with the path of the socket, for errors; empty without one.
    pub setting: &'static str,
}

/// Running side thread. The control socket is removed when this is dropped.
#[derive(Debug)]
pub struct Control {
    socket: Option<PathBuf>,
    metrics: Option<SocketAddr>,
    /// Process that listens. A forked child removes no socket.
    process: u32,
}

impl Control {
    /// Returns the path of the control socket.
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Returns the address for metrics, with its actual port.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(path) = &self.socket
            && self.process == std::process::id()
        {
            // Another process can have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listens, and starts the side thread.
///
/// # Errors
/// A listener and the reason, with a remedy.
pub fn start(listeners: &Listeners, document: Arc<Document>) -> Result<Control, String> {
    let failed = |error: io::Error| format!("cannot start the side thread: {error}");
    let metrics = listeners.metrics.map(listen_tcp).transpose()?;
    let listen = |path| listen_unix(path).map_err(|reason| unusable(path, listeners.setting, &reason));
    let unix = listeners.socket.as_deref().map(listen).transpose()?;
    let control = Control {
        socket: listeners.socket.clone(),
        metrics: metrics.as_ref().map(TcpListener::local_addr).transpose().map_err(failed)?,
        process: std::process::id(),
    };
    server::start(unix, metrics, document).map_err(failed)?;
    Ok(control)
}

fn listen_tcp(address: SocketAddr) -> Result<TcpListener, String> {
    let listener = TcpListener::bind(address);
    listener
        .map_err(|error| format!("cannot listen for metrics on {address}: {error}; choose another address"))
}

/// Returns the error for a path, with a reason and a remedy as of [`dir::prepare`], to which another path is the
/// alternative; `setting` is that of [`Listeners`].
pub fn unusable(path: &Path, setting: &str, reason: &str) -> String {
    let setting = if setting.is_empty() { String::new() } else { format!(" with `{setting}`") };
    format!("cannot listen on {}: {reason}, or choose another path{setting}", path.display())
}

/// Listens. The error is a reason and a remedy.
fn listen_unix(path: &Path) -> Result<UnixListener, String> {
    dir::prepare(path)?;
    dir::remove_dead(path.parent().unwrap_or(Path::new(".")));
    let bound = match bind_unix(path) {
        Err(Errno::ADDRINUSE) if refuses(path) => {
            std::fs::remove_file(path).map_err(|error| format!("{error}; remove the dead socket"))?;
            bind_unix(path)
        }
        result => result,
    };
    bound.map(UnixListener::from).map_err(|error| match error {
        Errno::ADDRINUSE if is_socket(path) => "another program listens there; stop it".to_owned(),
        Errno::ADDRINUSE => "the file is not a socket; remove it".to_owned(),
        Errno::NAMETOOLONG => "the path is longer than 107 bytes; shorten it".to_owned(),
        error => format!("{}; allow it", io::Error::from(error)),
    })
}

fn bind_unix(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The file gets the mode of the socket, so that it never has another one.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

const BACKLOG: i32 = 64;

#[cfg(test)]
mod tests;
