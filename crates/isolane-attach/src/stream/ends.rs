//! The application's ends of the two rings of a stream. They never wait, and know no session: whoever has
//! one rings the doorbell when told to.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use isolane_ring::adopted::{self, State};
use isolane_ring::{Memory, MemoryError, bytes};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use super::block::{Block, End, is_past};
use super::recovery::{Origin, discarded, sent};
use crate::control::StreamPlace;

/// What has become of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes moved. 0 of a read: the peer sends nothing more.
    pub bytes: usize,
    /// The engine must be rung: it asked for it.
    pub rings: bool,
}

/// The end that receives.
#[derive(Debug)]
pub struct Incoming {
    ring: bytes::Reader,
    block: Arc<Block>,
    /// What the engine was told last: odd if bytes are to be left in the kernel.
    past: u64,
    /// The engine has obeyed that.
    is_past: bool,
    /// Bytes received on the socket itself.
    native: u64,
    /// What that has failed with, which the kernel tells only once.
    failed: Option<i32>,
    is_shut: bool,
}

/// The end that sends.
#[derive(Debug)]
pub struct Outgoing {
    ring: bytes::Writer,
    block: Arc<Block>,
    /// Bytes sent on the socket itself.
    native: u64,
    is_shut: bool,
}

/// Both ends of a fresh stream, whose block is all zeroes.
///
/// # Errors
/// [`MemoryError`].
pub fn ends(memory: &Memory, place: &StreamPlace) -> Result<(Incoming, Outgoing, Arc<Block>), MemoryError> {
    let block = Arc::new(Block::open(memory, place)?);
    let incoming = Incoming {
        ring: bytes::Reader::new(memory, place.rx_ring(), 0)?,
        block: Arc::clone(&block),
        past: 0,
        is_past: false,
        native: 0,
        failed: None,
        is_shut: false,
    };
    let outgoing = Outgoing {
        ring: bytes::Writer::new(memory, place.tx_ring(), 0)?,
        block: Arc::clone(&block),
        native: 0,
        is_shut: false,
    };
    Ok((incoming, outgoing, block))
}

impl Incoming {
    /// Takes out what there is. Nothing comes while the engine leaves it in the kernel ([`Incoming::want_past`]).
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing yet; what the connection has failed with; `InvalidData` if the engine
    /// breaks the rules.
    #[inline]
    pub fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<Moved> {
        let count = self.ring.read(bytes).map_err(broken)?;
        if count == 0 && !bytes.is_empty() {
            return self.try_read_end(bytes);
        }
        let rings = self.ring.position() >= self.block.rx_want() && self.block.told.take();
        Ok(Moved { bytes: count, rings })
    }

    /// Nothing was there: nothing yet, or nothing more?
    fn try_read_end(&mut self, bytes: &mut [u8]) -> io::Result<Moved> {
        if self.is_shut {
            return Ok(Moved { bytes: 0, rings: false });
        }
        let end = self.end().ok_or(io::ErrorKind::WouldBlock)?;
        // The end is published behind the last bytes, which may have come since.
        match (self.ring.read(bytes).map_err(broken)?, end) {
            (0, End::Finished) => Ok(Moved { bytes: 0, rings: false }),
            (0, End::Failed(error)) => Err(io::Error::from_raw_os_error(error)),
            (count, _) => Ok(Moved { bytes: count, rings: self.block.told.take() }),
        }
    }

    /// Whether a read would not have to wait.
    ///
    /// # Errors
    /// `InvalidData` if the engine breaks the rules.
    #[inline]
    pub fn is_ready(&mut self) -> io::Result<bool> {
        let has_bytes = self.ring.available() > 0 || self.ring.refresh().map_err(broken)? > 0;
        Ok(has_bytes || self.is_shut || self.end().is_some())
    }

    fn end(&self) -> Option<End> {
        self.failed.map(End::Failed).or_else(|| self.block.rx_end())
    }

    /// Has the engine leave what comes in the kernel, or fetch it again. Returns whether it must be rung.
    #[cold]
    pub fn want_past(&mut self, wants: bool) -> bool {
        if wants == self.wants_past() {
            return false;
        }
        self.past += 1;
        self.is_past = false;
        self.block.set_rx_past(self.past);
        self.block.told.take()
    }

    /// Whether the engine is to leave what comes in the kernel.
    #[inline]
    pub fn wants_past(&self) -> bool {
        is_past(self.past)
    }

    /// Whether it does so, and all that it fetched before was read: now the application may receive itself.
    ///
    /// # Errors
    /// `InvalidData` if the engine breaks the rules.
    #[inline]
    pub fn is_past(&mut self) -> io::Result<bool> {
        if !self.is_past && self.wants_past() && self.block.rx_yielded() == self.past {
            self.is_past = self.ring.refresh().map_err(broken)? == 0;
        }
        // The engine tells an end only in the ring.
        Ok(self.is_past && !self.is_shut && self.end().is_none())
    }

    /// Receives on the application's own socket, without waiting. Only where the engine does not
    /// ([`Incoming::is_past`]). 0 of a read means that the engine is to be asked how the stream has ended:
    /// another call may have been told the error.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing yet; what the connection has failed with.
    ///
    /// # Panics
    /// If the engine may receive, too: bytes would come twice.
    #[inline]
    pub fn receive_past(&mut self, socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
        assert!(self.is_past, "the engine has not yielded");
        let count = match recv(socket, bytes, RecvFlags::DONTWAIT) {
            Ok((count, _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => {
                self.failed = Some(error.raw_os_error());
                return Err(error.into());
            }
        };
        self.native += count as u64;
        self.block.set_rx_native(self.native);
        Ok(count)
    }

    /// From now on, what is not in the ring yet reads as the end.
    pub fn shut(&mut self) {
        self.is_shut = true;
    }

    /// Whether it was shut.
    pub fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// Takes the socket back, where no engine works on it any more and none will: the kernel has what was not read,
    /// and nothing of an engine is left on it.
    ///
    /// # Errors
    /// `InvalidData` if somebody has broken the rules; the kernel's.
    pub fn take_back(&mut self, socket: BorrowedFd<'_>, origin: &Origin) -> io::Result<()> {
        // An engine that could not go on with it did not know either.
        if self.block.rx_end() == Some(End::Failed(Errno::CONNABORTED.raw_os_error())) {
            return Err(lost());
        }
        let consumed = self.ring.position();
        let produced = consumed + self.ring.refresh().map_err(broken)?;
        let discarded = discarded(socket, produced, self.block.rx_discarded())?;
        let mut discarded = discarded.filter(|discarded| *discarded <= consumed).ok_or_else(lost)?;
        // More than once only where there is an urgent mark.
        while discarded < consumed {
            match adopted::discard(socket, (consumed - discarded) as usize)? {
                0 => return Err(lost()),
                count => discarded += count as u64,
            }
        }
        adopted::set_peek_offset(socket, -1)?;
        Ok(sockopt::set_socket_oobinline(socket, origin.is_inline)?)
    }
}

impl Outgoing {
    /// Puts in what there is room for.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room yet; `BrokenPipe` after [`Outgoing::shut`]; what the connection has failed
    /// with; `InvalidData` if the engine breaks the rules.
    #[inline]
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<Moved> {
        self.check()?;
        let count = self.ring.write(bytes).map_err(broken)?;
        if count == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Moved { bytes: count, rings: self.block.told.take() })
    }

    /// Sends on the application's own socket, without waiting. Only where nothing waits in the ring
    /// ([`Outgoing::is_idle`]).
    ///
    /// # Errors
    /// As [`Outgoing::try_write`].
    ///
    /// # Panics
    /// If something does: these bytes would come before it.
    pub fn send_past(&mut self, socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        assert!(self.ring.unread() == 0, "bytes wait in the ring to be sent before");
        let count = send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        self.native += count as u64;
        self.block.set_tx_native(self.native);
        Ok(count)
    }

    #[inline]
    fn check(&self) -> io::Result<()> {
        if self.is_shut {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        match self.block.tx_end() {
            None => Ok(()),
            Some(End::Failed(error)) => Err(io::Error::from_raw_os_error(error)),
            Some(End::Finished) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Whether a write would not have to wait.
    ///
    /// # Errors
    /// `InvalidData` if the engine breaks the rules.
    #[inline]
    pub fn is_ready(&mut self) -> io::Result<bool> {
        let has_room = self.ring.refresh().map_err(broken)? > 0;
        Ok(has_room || self.is_shut || self.block.tx_end().is_some())
    }

    /// Nothing more is sent behind what was written: the engine says so to the peer when it has sent that.
    /// Returns whether the engine must be rung.
    pub fn shut(&mut self) -> bool {
        if std::mem::replace(&mut self.is_shut, true) {
            return false;
        }
        self.block.shut_tx(self.ring.position());
        self.block.told.take()
    }

    /// Whether nothing more is to be sent.
    pub fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// Whether nothing waits in the ring: all that was put in is in the kernel. Or nothing can be sent at all.
    ///
    /// # Errors
    /// `InvalidData` if the engine breaks the rules.
    pub fn is_idle(&mut self) -> io::Result<bool> {
        self.ring.refresh().map_err(broken)?;
        Ok(self.ring.unread() == 0 || self.check().is_err())
    }

    /// What is not sent, where no engine works on the stream any more and none will.
    ///
    /// # Errors
    /// As [`Incoming::take_back`].
    pub fn take_back(&mut self, socket: BorrowedFd<'_>, origin: &Origin) -> io::Result<Vec<u8>> {
        let now = adopted::counters(socket)?;
        let unsent = self.ring.take_back().map_err(broken)?;
        let published = self.ring.position() - unsent.len() as u64;
        let tx_shut = self.is_shut.then(|| self.ring.position());
        match sent(&now, origin.written, self.native, tx_shut).checked_sub(published) {
            Some(more) => Ok(unsent[unsent.len().min(more.try_into().unwrap_or(usize::MAX))..].to_vec()),
            // Nothing can be sent there any more, and so it is not counted.
            None if now.state == State::Closed => Ok(unsent),
            None => Err(lost()),
        }
    }

    /// What the engine has not sent; only once it does not work on the stream any more.
    ///
    /// # Errors
    /// `InvalidData` if the engine breaks the rules.
    pub fn unsent(&mut self) -> io::Result<Vec<u8>> {
        self.ring.take_back().map_err(broken)
    }
}

/// Somebody else has read or written on the socket, or the engine has.
fn lost() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the stream's positions and its socket's do not go together")
}

#[cold]
fn broken(error: isolane_ring::Impossible) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
