//! Listening socket for clients, and their credentials.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use isolane_engine_api::PacketSocket;
use isolane_engine_api::runtime_dir::is_trusted;
use isolane_shm::PeerCred;
use rustix::fs::{stat, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, accept_with, bind, connect, listen as start, socket_with,
};
use rustix::process::getuid;

use crate::files::{check, create_socket_dir};
use crate::{EngineConfig, EngineError};

/// Credentials of a client, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientCred {
    pub pid: i32,
    pub uid: u32,
}

impl ClientCred {
    pub const UNKNOWN: ClientCred = ClientCred { pid: 0, uid: u32::MAX };

    /// Checks whether the client may attach.
    ///
    /// # Errors
    /// The reason, for the client.
    pub fn check(self, config: &EngineConfig) -> Result<(), String> {
        let (uid, own) = (self.uid, getuid().as_raw());
        if is_trusted(uid) || config.allowed_uids.contains(&uid) {
            return Ok(());
        }
        Err(format!(
            "user {uid} is neither the engine's ({own}), nor root, nor allowed; start the engine with `--allow-uid \
             {uid}`, or start one as that user"
        ))
    }
}

impl ClientCred {
    /// Returns the name of the process and its PID, for people. The process chooses the name.
    pub fn application(self) -> String {
        if self.pid == 0 {
            return self.to_string();
        }
        let name = std::fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        format!("{} (PID {})", String::from_utf8_lossy(name.trim_ascii()).escape_debug(), self.pid)
    }
}

impl fmt::Display for ClientCred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => write!(f, "client of user {} in another PID namespace", self.uid),
            pid => write!(f, "client with pid {pid} of user {}", self.uid),
        }
    }
}

/// Listens on a Unix socket, in a directory that is created for its owner alone if it does not exist. Replaces a
/// socket without listener.
///
/// # Errors
/// [`EngineError::Listen`].
pub fn listen(path: &Path) -> Result<OwnedFd, EngineError> {
    let refused = |reason: String| EngineError::Listen { path: path.to_owned(), reason };
    create_socket_dir(path)?;
    let address = check(path)?;
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|error| refused(error.to_string()))
    };
    if stat(path).is_ok() {
        if connect(&socket()?, &address) != Err(Errno::CONNREFUSED) {
            return Err(refused("an engine listens there; end it, or choose another path".into()));
        }
        unlink(path).map_err(|error| refused(format!("cannot remove an unused socket: {error}")))?;
    }
    let listener = socket()?;
    let result = bind(&listener, &address).and_then(|()| start(&listener, BACKLOG));
    result.map_err(|error| refused(format!("{error}; choose another path")))?;
    Ok(listener)
}

/// Accepts the next connection. Returns `None` if none is pending.
pub(super) fn accept(listener: &OwnedFd) -> io::Result<Option<(PacketSocket, ClientCred)>> {
    loop {
        let socket = match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            Err(Errno::AGAIN) => return Ok(None),
            // The client has closed its connection.
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(error) => return Err(error.into()),
        };
        let PeerCred { pid, uid } = PeerCred::from_socket(socket.as_fd())?;
        return Ok(Some((PacketSocket::new(socket), ClientCred { pid, uid })));
    }
}

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 128;
