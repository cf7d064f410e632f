//! Reasons why a target cannot start, each with its remedy.

use std::io;
use std::net::SocketAddr;

use isolane_proto::subsystem::ConfigError;
use isolane_reactor::{ReactorError, SocketOptionError};

/// Reason why a target could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The target cannot listen on the address.
    #[error("cannot listen on {address}: {error}; {}", remedy(error))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error of the kernel.
        error: io::Error,
    },
    /// An address is given more than once.
    #[error("{0} is given twice: name every address once")]
    SameAddress(SocketAddr),
    /// A listener does not support a socket option.
    #[error("cannot listen on {address}: {error}")]
    SocketOption {
        /// The address.
        address: SocketAddr,
        /// The option, the error of the kernel, and the remedy.
        error: SocketOptionError,
    },
    /// A reactor could not be set up.
    #[error(transparent)]
    Reactor(#[from] ReactorError),
    /// A thread could not be started.
    #[error("cannot start a reactor thread: {0}; raise the limit of processes (ulimit -u)")]
    Thread(io::Error),
    /// A reactor cannot accept connections.
    #[error("cannot accept connections: {0}; raise the limit of open files (ulimit -n)")]
    Begin(io::Error),
    /// Two namespaces have the same identity.
    #[error("{first} and {second} have the same identity; give one of them its own with uuid=")]
    SameIdentity {
        /// Name of one volume.
        first: String,
        /// Name of the other.
        second: String,
    },
    /// The configuration cannot be served.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop the program that uses it, or choose another port with --listen",
        io::ErrorKind::PermissionDenied => {
            "choose a port from 1024, or give the program CAP_NET_BIND_SERVICE"
        }
        io::ErrorKind::AddrNotAvailable => "choose an address of this machine (ip address shows them)",
        _ => "choose another address with --listen",
    }
}
