//! Recovery record of a stream, and the check that a socket can be adopted.

use std::io;
use std::os::fd::BorrowedFd;

use isolane_engine_api::layout::stream::MAX_RING_BYTES;
use isolane_engine_api::stream::StreamLayout;
use isolane_tcp::TcpState;
use rustix::net::{SocketType, sockopt};
use serde::{Deserialize, Serialize};

/// State of a stream, in addition to its socket and shared memory, that the supervisor stores. Never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamRecord {
    /// Layout of the stream in the session's memory.
    pub place: StreamLayout,
    /// Kernel's count of written bytes when the stream was adopted.
    pub written: u64,
    /// Kernel's count of received bytes at that time, without unread bytes and the peer's FIN.
    pub received: u64,
    /// The application itself has SO_OOBINLINE set.
    pub oob_inline: bool,
}

/// Failure to adopt a socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketRefusal {
    /// The socket has an unsupported type, state, or option.
    #[error("this socket cannot be adopted: {0}")]
    Unsupported(&'static str),
    /// A system call failed.
    #[error("cannot inspect or duplicate the socket: {0}")]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for SocketRefusal {
    fn from(error: rustix::io::Errno) -> SocketRefusal {
        SocketRefusal::System(error.into())
    }
}

impl StreamRecord {
    /// Captures the state of a socket that can be adopted. Does not change the socket.
    ///
    /// # Errors
    /// [`SocketRefusal`].
    pub fn capture(socket: BorrowedFd<'_>, place: StreamLayout) -> Result<StreamRecord, SocketRefusal> {
        if place.rx_capacity.max(place.tx_capacity) > MAX_RING_BYTES {
            return Err(SocketRefusal::Unsupported("its rings are larger than 64 MiB; request less"));
        }
        check_socket(socket)?;
        let mut before = isolane_tcp::counters(socket)?;
        for _ in 0..MAX_RETRIES {
            let fin = match before.state {
                TcpState::Established => 0,
                TcpState::CloseWait => 1,
                _ => return Err(SocketRefusal::Unsupported("it is not connected, or no longer")),
            };
            let unread = isolane_tcp::unread_bytes(socket)?;
            let after = isolane_tcp::counters(socket)?;
            if before.received == after.received && before.state == after.state {
                return Ok(StreamRecord {
                    place,
                    written: after.written,
                    received: after.received.wrapping_sub(unread).wrapping_sub(fin),
                    oob_inline: sockopt::socket_oobinline(socket)?,
                });
            }
            before = after;
        }
        Err(SocketRefusal::Unsupported("data arrives faster than the socket can be inspected"))
    }
}

/// Checks the type and options of a socket.
fn check_socket(socket: BorrowedFd<'_>) -> Result<(), SocketRefusal> {
    let is_tcp = sockopt::socket_type(socket)? == SocketType::STREAM
        && sockopt::socket_protocol(socket)? == Some(rustix::net::ipproto::TCP);
    let reason = if !is_tcp {
        "it is not a TCP socket"
    } else if isolane_tcp::has_ulp(socket)? {
        "it uses kernel TLS or another protocol above TCP"
    } else if isolane_tcp::has_error_queue(socket)? {
        "it uses its error queue; switch SO_ZEROCOPY, SO_TIMESTAMPING and IP_RECVERR off first"
    } else if isolane_tcp::receive_low_water(socket)? != 1 {
        "its SO_RCVLOWAT hides data from the engine; set it to 1"
    } else if isolane_tcp::peek_offset(socket)? != -1 {
        "it has a peek offset (SO_PEEK_OFF), so it may be adopted already"
    } else {
        return Ok(());
    };
    Err(SocketRefusal::Unsupported(reason))
}

const MAX_RETRIES: usize = 64;
