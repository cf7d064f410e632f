//! Options of streams, and their adoption by the engine.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use isolane_shm::PAGE_SIZE;

use super::driver::DriverHandle;
use super::halves::{ReadHalf, WriteHalf};
use super::shared::Shared;
use super::wakers::StreamWakers;
use isolane_engine_api::stream::{ControlBlock, Origin, StreamLayout};

use super::{RxRing, Stream, TxRing, open_rings};
use crate::AttachError;
use crate::session::{Allocation, Session};
use isolane_engine_api::layout::stream as block_layout;
use isolane_engine_api::{OpenObject, Reply, Request, decode};

/// Options of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Capacity of the receive ring in bytes: rounded up to a power of two of whole pages, at most 64 MiB. 0 (the
    /// default): 256 KiB, or less if the session's memory must last for as many streams as it can have.
    pub rx_bytes: usize,
    /// Capacity of the transmit ring in bytes, likewise.
    pub tx_bytes: usize,
    /// Minimum size in bytes of a blocking write that bypasses the ring: it is sent on the application's own socket if
    /// the ring is empty. This saves a copy but uses the application's CPU time.
    pub bypass_write_min: usize,
    /// Minimum size in bytes of blocking reads that bypass the ring: after a few reads of at least this size, the
    /// application receives from its own socket. It returns to the ring after a few shorter reads, or immediately if the
    /// stream is read or waited for in another way. `usize::MAX`: never.
    pub bypass_read_min: usize,
    /// Time that a blocking call spins before it sleeps.
    pub spin: Duration,
    /// Core of the engine, by index in [`Session::cores`]. `None`: the core that receives its packets, if it is the
    /// engine's, else round robin.
    pub core: Option<u32>,
}

impl Default for StreamOptions {
    fn default() -> StreamOptions {
        StreamOptions {
            rx_bytes: 0,
            tx_bytes: 0,
            bypass_write_min: 16 << 10,
            bypass_read_min: 4 << 10,
            spin: Duration::from_micros(20),
            core: None,
        }
    }
}

impl StreamOptions {
    /// Moves a connection to the engine.
    ///
    /// # Errors
    /// As [`Stream::adopt`].
    pub fn adopt(self, session: &Session, socket: TcpStream) -> Result<Stream, AdoptError> {
        match DriverHandle::for_session(session) {
            Ok(driver) => self.open(session, socket, driver.queue(), Some(driver)),
            Err(error) => Err(AdoptError { error, socket }),
        }
    }

    /// Like [`StreamOptions::adopt`], but falls back to a plain stream, which works on the socket directly
    /// ([`Stream::is_adopted`]), for example if the session has its maximum number of streams.
    ///
    /// # Errors
    /// [`AttachError::Forked`].
    pub fn adopt_if_possible(self, session: &Session, socket: TcpStream) -> Result<Stream, AttachError> {
        session.check_process()?;
        let (driver, opened) = match DriverHandle::for_session(session) {
            Ok(driver) => {
                let opened = self.request(session, &socket, driver.queue());
                (Some(driver), opened)
            }
            Err(error) => (None, Err(error)),
        };
        let opened = opened.or_else(|error| {
            log::debug!("connection not adopted, using its socket directly: {error}");
            Opened::plain(session)
        })?;
        Ok(self.stream(session, socket, driver, opened))
    }

    /// Like [`Poller::adopt`](super::Poller::adopt), for threads that do not have the poller but the ID of its queue.
    ///
    /// # Errors
    /// As [`Stream::adopt`].
    pub fn adopt_into_queue(
        self,
        session: &Session,
        socket: TcpStream,
        queue: u32,
    ) -> Result<Stream, AdoptError> {
        self.open(session, socket, queue, None)
    }

    pub(super) fn open(
        self,
        session: &Session,
        socket: TcpStream,
        queue: u32,
        driver: Option<DriverHandle>,
    ) -> Result<Stream, AdoptError> {
        match self.request(session, &socket, queue) {
            Ok(opened) => Ok(self.stream(session, socket, driver, opened)),
            Err(error) => Err(AdoptError { error, socket }),
        }
    }

    fn request(self, session: &Session, socket: &TcpStream, queue: u32) -> Result<Opened, AttachError> {
        session.check_process()?;
        // The engine disconnects a client that requests an invalid core.
        let cores = session.cores().len();
        if let Some(core) = self.core.filter(|core| *core as usize >= cores) {
            let reason = format!("core index {core} of {cores} cores; use a lower one");
            return Err(AttachError::Refused { what: "a stream", reason });
        }
        let ring_bytes = |bytes: usize| match bytes {
            0 => session.default_ring_bytes(),
            bytes => bytes.max(PAGE_SIZE).checked_next_power_of_two().unwrap_or(1 << (usize::BITS - 1)),
        };
        let (rx_capacity, tx_capacity) = (ring_bytes(self.rx_bytes), ring_bytes(self.tx_bytes));
        // A saturated size exceeds the memory.
        let bytes = rx_capacity.saturating_add(tx_capacity).saturating_add(block_layout::BYTES);
        let allocation = session.alloc(bytes)?;
        allocation.clear(block_layout::BYTES)?;
        let rx = allocation.offset() + block_layout::BYTES as u64;
        let layout = StreamLayout {
            block: allocation.offset(),
            rx,
            rx_capacity: rx_capacity as u64,
            tx: rx + rx_capacity as u64,
            tx_capacity: tx_capacity as u64,
        };
        let rings = open_rings(session.memory(), &layout)?;
        let id = session.next_id();
        let open = OpenObject { id, core: self.core, queue: Some(queue), object: layout.object() };
        let reply = session.request("a stream", &Request::OpenObject(open), &[socket.as_fd()])?;
        let opened = match &reply {
            Reply::Opened { core, answer } if (*core as usize) < cores => {
                decode(answer).ok().map(|origin| (*core, origin))
            }
            _ => None,
        };
        let unexpected = || AttachError::SessionClosed(format!("unexpected reply of the engine: {reply:?}"));
        let (core, origin) = opened.ok_or_else(unexpected)?;
        Ok(Opened { id, core, origin, allocation: Some(allocation), rings })
    }

    fn stream(
        self,
        session: &Session,
        socket: TcpStream,
        driver: Option<DriverHandle>,
        opened: Opened,
    ) -> Stream {
        let Opened { id, core, origin, allocation, rings: (rx, tx, block) } = opened;
        let plain = allocation.is_none();
        let socket = Arc::new(socket);
        let wakers = Arc::new(StreamWakers::new(block, &socket));
        let watcher: Weak<StreamWakers> = Arc::downgrade(&wakers);
        session.watch(watcher.clone());
        let watched = match &driver {
            Some(driver) => driver.register(id, watcher, plain.then(|| socket.as_fd())).is_ok(),
            None => !plain,
        };
        let shared = Arc::new(Shared {
            session: session.clone(),
            plain,
            id,
            core,
            socket,
            wakers,
            allocation,
            driver,
            watched,
            origin,
            releasing: 0.into(),
            released: plain.into(),
        });
        let read = ReadHalf {
            rx,
            shared: Arc::clone(&shared),
            timeout: None,
            spin: self.spin,
            bypass_min: self.bypass_read_min,
            mismatches: 0,
        };
        let bypass_min = self.bypass_write_min;
        let write = WriteHalf { tx, shared, timeout: None, spin: self.spin, bypass_min };
        Stream { read, write }
    }
}

/// An open stream, adopted or plain.
struct Opened {
    id: u32,
    core: u32,
    origin: Origin,
    /// `None` for a plain stream.
    allocation: Option<Allocation>,
    rings: (RxRing, TxRing, Arc<ControlBlock>),
}

impl Opened {
    fn plain(session: &Session) -> Result<Opened, AttachError> {
        let (page, bytes) = (session.unused(), PAGE_SIZE as u64);
        let layout = StreamLayout { block: page, rx: page, rx_capacity: bytes, tx: page, tx_capacity: bytes };
        let rings = open_rings(session.memory(), &layout)?;
        let origin = Origin { written: 0, oob_inline: false };
        Ok(Opened { id: session.next_id(), core: 0, origin, allocation: None, rings })
    }
}

/// Failure to adopt a connection, which is returned unchanged.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct AdoptError {
    /// Reason.
    pub error: AttachError,
    /// The connection.
    pub socket: TcpStream,
}

impl From<AdoptError> for AttachError {
    fn from(error: AdoptError) -> AttachError {
        error.error
    }
}

impl From<AdoptError> for io::Error {
    fn from(error: AdoptError) -> io::Error {
        error.error.into()
    }
}
