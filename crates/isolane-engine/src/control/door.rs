//! Where clients come in, and who may.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use isolane_attach::control::Wire;
use rustix::fs::{stat, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, accept_with, bind, connect, listen as start, socket_with,
};
use rustix::process::getuid;

use crate::files::{check, is_safe, make_folder};
use crate::{Config, EngineError};

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Door(OwnedFd);

/// Who is at the other end of a connection, says the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub pid: i32,
    pub uid: u32,
}

impl Peer {
    /// Of whom the kernel has said nothing.
    pub const UNKNOWN: Peer = Peer { pid: 0, uid: u32::MAX };

    /// Whether it may come in.
    pub fn may_attach(self, config: &Config) -> bool {
        is_safe(self.uid) || config.allowed_uids.contains(&self.uid)
    }

    /// Why it may not.
    pub fn why_not(self) -> String {
        let (uid, own) = (self.uid, getuid().as_raw());
        format!(
            "user {uid} is neither the engine's ({own}), nor root, nor one that it allows; start the engine with \
             `--allow-uid {uid}`, or one of that user's own"
        )
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => write!(f, "the client of a process in another namespace, of user {}", self.uid),
            pid => write!(f, "the client of process {pid} of user {}", self.uid),
        }
    }
}

/// Listens on a Unix socket in a folder that only its owner may enter; the folder is made if there is none.
/// A socket there on which nobody listens any more is replaced.
///
/// # Errors
/// [`EngineError::Listen`].
pub fn listen(path: &Path) -> Result<OwnedFd, EngineError> {
    let refused = |why: String| EngineError::Listen { path: path.to_owned(), why };
    make_folder(path)?;
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
        unlink(path).map_err(|error| refused(format!("what is left there cannot be removed: {error}")))?;
    }
    let listener = socket()?;
    let outcome = bind(&listener, &address).and_then(|()| start(&listener, WAITING_MAX));
    outcome.map_err(|error| refused(format!("{error}; choose another path")))?;
    Ok(listener)
}

impl Door {
    /// Of a socket that listens.
    pub fn new(listener: OwnedFd) -> Door {
        Door(listener)
    }

    /// The next who knocks. `None` if nobody is there.
    pub fn accept(&self) -> io::Result<Option<(Wire, Peer)>> {
        loop {
            let socket = match accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return Ok(None),
                // The one who knocked has gone.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return Err(error.into()),
            };
            let isolane_ring::Peer { pid, uid } = isolane_ring::Peer::of(socket.as_fd())?;
            return Ok(Some((Wire::new(socket), Peer { pid, uid })));
        }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Clients that wait to be let in.
const WAITING_MAX: i32 = 128;
