//! What is to be known of a stream beyond its socket and the shared words, and whether a socket can be one.

use std::io;
use std::os::fd::BorrowedFd;

use isolane_attach::control::StreamPlace;
use isolane_attach::layout::stream::RING_BYTES_MAX;
use isolane_ring::adopted::{self, State};
use rustix::net::{SocketType, sockopt};

/// What the supervisor keeps of a stream beside a duplicate of its socket. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Where it is in the session's memory.
    pub place: StreamPlace,
    /// What the kernel had counted as written when the stream began.
    pub written: u64,
    /// What the kernel had counted as received, less what was unread and the peer's FIN.
    pub received: u64,
    /// The application has urgent bytes inline anyway.
    pub is_inline: bool,
}

/// Why a socket cannot be adopted.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It is none of those that can be.
    #[error("this socket cannot be adopted: {0}")]
    Unfit(&'static str),
    /// The system refuses.
    #[error("cannot look at the socket, or have it twice: {0}")]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for Refusal {
    fn from(error: rustix::io::Errno) -> Refusal {
        Refusal::System(error.into())
    }
}

impl Kept {
    /// Looks at a socket that may be adopted. Changes nothing.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn of(socket: BorrowedFd<'_>, place: StreamPlace) -> Result<Kept, Refusal> {
        if place.rx_capacity.max(place.tx_capacity) > RING_BYTES_MAX {
            return Err(Refusal::Unfit("its rings are larger than 64 MiB; ask for less"));
        }
        examine(socket)?;
        let mut before = adopted::counters(socket)?;
        for _ in 0..LOOKS_MAX {
            let fin = match before.state {
                State::Established => 0,
                State::CloseWait => 1,
                _ => return Err(Refusal::Unfit("it is not connected, or not any more")),
            };
            let unread = adopted::unread(socket)?;
            let after = adopted::counters(socket)?;
            if before.received == after.received && before.state == after.state {
                return Ok(Kept {
                    place,
                    written: after.written,
                    received: after.received.wrapping_sub(unread).wrapping_sub(fin),
                    is_inline: sockopt::socket_oobinline(socket)?,
                });
            }
            before = after;
        }
        Err(Refusal::Unfit("more arrives than it can be looked at"))
    }

    /// As the supervisor keeps it.
    pub fn encode(&self) -> [u8; Kept::BYTES] {
        let StreamPlace { block, rx, rx_capacity, tx, tx_capacity } = self.place;
        let inline = u64::from(self.is_inline);
        let words = [block, rx, rx_capacity, tx, tx_capacity, self.written, self.received, inline];
        let mut bytes = [0; Kept::BYTES];
        for (target, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// As it was kept, by an engine of this version.
    pub fn decode(bytes: &[u8; Kept::BYTES]) -> Kept {
        let word = |index: usize| u64::from_le_bytes(std::array::from_fn(|at| bytes[8 * index + at]));
        let place = StreamPlace {
            block: word(0),
            rx: word(1),
            rx_capacity: word(2),
            tx: word(3),
            tx_capacity: word(4),
        };
        Kept { place, written: word(5), received: word(6), is_inline: word(7) != 0 }
    }

    /// Bytes that are kept.
    pub const BYTES: usize = 64;
}

/// What no count tells.
fn examine(socket: BorrowedFd<'_>) -> Result<(), Refusal> {
    let is_tcp = sockopt::socket_type(socket)? == SocketType::STREAM
        && sockopt::socket_protocol(socket)? == Some(rustix::net::ipproto::TCP);
    if !is_tcp {
        return Err(Refusal::Unfit("it is no TCP socket"));
    }
    if adopted::has_upper_protocol(socket)? {
        return Err(Refusal::Unfit("the kernel's TLS, or another protocol above TCP, is on it"));
    }
    if adopted::has_error_queue(socket)? {
        return Err(Refusal::Unfit(
            "it uses its error queue; switch SO_ZEROCOPY, SO_TIMESTAMPING and IP_RECVERR off first",
        ));
    }
    if adopted::receive_low_water(socket)? != 1 {
        return Err(Refusal::Unfit("its SO_RCVLOWAT keeps the engine from hearing of bytes; set it to 1"));
    }
    if adopted::peek_offset(socket)? != -1 {
        return Err(Refusal::Unfit("it has a peek offset (SO_PEEK_OFF), as one that is adopted already"));
    }
    Ok(())
}

const LOOKS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back() {
        let place = StreamPlace { block: 1, rx: 2, rx_capacity: 3, tx: 4, tx_capacity: 5 };
        for is_inline in [false, true] {
            let kept = Kept { place, written: 6, received: u64::MAX, is_inline };
            assert_eq!(Kept::decode(&kept.encode()), kept);
        }
    }
}
