//! How a stream is to be.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use isolane_ring::PAGE_SIZE;
use parking_lot::Mutex;

use super::halves::{ReadHalf, WriteHalf};
use super::last_close::LastClose;
use super::shared::{Shared, Waiters};
use super::tasks::Tasks;
use super::{Block, Incoming, Origin, Outgoing, Stream, ends};
use crate::AttachError;
use crate::control::{Object, Open, Reply, Request, StreamPlace};
use crate::layout::stream as layout_block;
use crate::session::{Room, Session, Watcher};

/// How a stream is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Bytes of the ring of what is received: rounded up to a power of two of whole pages, at most 64 MiB. 0 (the
    /// default): 256 KiB, or less if the session's memory is to last for as many streams as it may have.
    pub rx_bytes: usize,
    /// Bytes of the ring of what is to be sent: likewise.
    pub tx_bytes: usize,
    /// Blocking writes of at least so many bytes go past the ring, on the application's own socket, when
    /// nothing waits in the ring: one copy less, for processor time of the application's.
    pub past_bytes: usize,
    /// Blocking reads go past the ring, on the application's own socket, after a few of them that brought at least
    /// so many bytes each; through it again after a few that brought less, or at once if the stream is read or
    /// waited for in another way. `usize::MAX`: never.
    pub past_bytes_read: usize,
    /// How long a blocking call spins before it sleeps.
    pub spin: Duration,
    /// On which of the engine's cores, by index in [`Session::cores`]; else where its packets arrive, if there is an
    /// engine's core, or on each in turn.
    pub core: Option<u32>,
}

impl Default for StreamOptions {
    fn default() -> StreamOptions {
        StreamOptions {
            rx_bytes: 0,
            tx_bytes: 0,
            past_bytes: 16 << 10,
            past_bytes_read: 4 << 10,
            spin: Duration::from_micros(20),
            core: None,
        }
    }
}

impl StreamOptions {
    /// Has the engine do the network processing of a connection from now on.
    ///
    /// # Errors
    /// As [`Stream::adopt`].
    pub fn adopt(self, session: &Session, socket: TcpStream) -> Result<Stream, AdoptError> {
        match Tasks::of(session) {
            Ok(tasks) => self.open(session, socket, tasks.queue(), Some(tasks)),
            Err(error) => Err(AdoptError { error, socket }),
        }
    }

    /// Has the engine do the network processing of many connections: as [`StreamOptions::adopt`] of each, but without
    /// waiting for one before the next is asked for. In the same order.
    pub fn adopt_all(
        self,
        session: &Session,
        sockets: impl IntoIterator<Item = TcpStream>,
    ) -> Vec<Result<Stream, AdoptError>> {
        let ask = |socket: TcpStream| match Tasks::of(session) {
            Ok(tasks) => (self.begin(session, &socket, tasks.queue()), Some(tasks), socket),
            Err(error) => (Err(error), None, socket),
        };
        let asked: Vec<_> = sockets.into_iter().map(ask).collect();
        let finish = |(asked, tasks, socket): (Result<Asked, AttachError>, _, _)| match asked
            .and_then(|asked| asked.finish(session))
        {
            Ok(opened) => Ok(self.stream(session, socket, tasks, opened)),
            Err(error) => Err(AdoptError { error, socket }),
        };
        asked.into_iter().map(finish).collect()
    }

    /// As [`StreamOptions::adopt`]; where that is not possible, for example because the session has as many streams as
    /// it may have, a stream that works on the socket itself ([`Stream::is_adopted`]).
    ///
    /// # Errors
    /// [`MemoryError`](isolane_ring::MemoryError), if the session's memory is none of ours; [`AttachError::Forked`].
    pub fn adopt_if_possible(self, session: &Session, socket: TcpStream) -> Result<Stream, AttachError> {
        session.check_process()?;
        let (socket, tasks) = match Tasks::of(session) {
            Ok(tasks) => match self.ask(session, &socket, tasks.queue()) {
                Ok(opened) => return Ok(self.stream(session, socket, Some(tasks), opened)),
                Err(error) => {
                    log::debug!("a connection goes on without the engine: {error}");
                    (socket, Some(tasks))
                }
            },
            Err(error) => {
                log::debug!("a connection goes on without the engine: {error}");
                (socket, None)
            }
        };
        let page = session.unused();
        let capacity = PAGE_SIZE as u64;
        let place =
            StreamPlace { block: page, rx: page, rx_capacity: capacity, tx: page, tx_capacity: capacity };
        let opened = Opened {
            id: session.next_id(),
            core: 0,
            origin: Origin { written: 0, is_inline: false },
            room: None,
            ends: ends(session.memory(), &place)?,
        };
        Ok(self.stream(session, socket, tasks, opened))
    }

    pub(super) fn open(
        self,
        session: &Session,
        socket: TcpStream,
        queue: u32,
        tasks: Option<Tasks>,
    ) -> Result<Stream, AdoptError> {
        match self.ask(session, &socket, queue) {
            Ok(opened) => Ok(self.stream(session, socket, tasks, opened)),
            Err(error) => Err(AdoptError { error, socket }),
        }
    }

    /// Has the engine open it.
    fn ask(self, session: &Session, socket: &TcpStream, queue: u32) -> Result<Opened, AttachError> {
        self.begin(session, socket, queue)?.finish(session)
    }

    /// Asks the engine to open it.
    fn begin(self, session: &Session, socket: &TcpStream, queue: u32) -> Result<Asked, AttachError> {
        session.check_process()?;
        // An engine drops who names one that there is not.
        let cores = session.cores().len();
        if let Some(core) = self.core.filter(|core| *core as usize >= cores) {
            let why = format!("it has {cores} cores, and none of index {core}: give a lower one");
            return Err(AttachError::Refused { what: "a stream", why });
        }
        let ring_bytes = |bytes: usize| match bytes {
            0 => session.ring_bytes(),
            bytes => bytes.max(PAGE_SIZE).checked_next_power_of_two().unwrap_or(1 << (usize::BITS - 1)),
        };
        let (rx_capacity, tx_capacity) = (ring_bytes(self.rx_bytes), ring_bytes(self.tx_bytes));
        // More than there can be is more than the memory has.
        let bytes = rx_capacity.saturating_add(tx_capacity).saturating_add(layout_block::BYTES);
        let room = session.take(bytes)?;
        room.clear(layout_block::BYTES)?;
        let rx = room.offset() + layout_block::BYTES as u64;
        let place = StreamPlace {
            block: room.offset(),
            rx,
            rx_capacity: rx_capacity as u64,
            tx: rx + rx_capacity as u64,
            tx_capacity: tx_capacity as u64,
        };
        let ends = ends(session.memory(), &place)?;
        let id = session.next_id();
        let open = Open { id, core: self.core, queue: Some(queue), object: Object::Stream(place) };
        let serial = session.begin(&Request::Open(open), &[socket.as_fd()])?;
        Ok(Asked { serial, id, room, ends })
    }

    /// What was opened, to be used.
    fn stream(self, session: &Session, socket: TcpStream, tasks: Option<Tasks>, opened: Opened) -> Stream {
        let Opened { id, core, origin, room, ends: (incoming, outgoing, block) } = opened;
        let is_plain = room.is_none();
        let socket = Arc::new(socket);
        let last_close = LastClose::of(&socket);
        let shared = Arc::new(Shared {
            session: session.clone(),
            is_plain,
            id,
            core,
            socket,
            waiters: Arc::new(Waiters {
                block,
                last_close,
                reader: Mutex::default(),
                writer: Mutex::default(),
                is_watched: AtomicBool::new(!is_plain),
            }),
            room: room.into(),
            tasks,
            origin,
            is_released: is_plain.into(),
        });
        if let Some(tasks) = &shared.tasks {
            tasks.know(&shared);
        }
        let watcher: Arc<dyn Watcher> = Arc::clone(&shared.waiters) as _;
        session.watch(Arc::downgrade(&watcher));
        let read = ReadHalf {
            incoming,
            shared: Arc::clone(&shared),
            timeout: None,
            spin: self.spin,
            past_bytes: self.past_bytes_read,
            unlike: 0,
        };
        let past_bytes = self.past_bytes;
        let write = WriteHalf { outgoing, shared, timeout: None, spin: self.spin, past_bytes };
        Stream { read, write }
    }
}

/// What the engine was asked to open.
struct Asked {
    serial: u32,
    id: u32,
    room: Room,
    ends: (Incoming, Outgoing, Arc<Block>),
}

impl Asked {
    /// Waits until it is opened.
    fn finish(self, session: &Session) -> Result<Opened, AttachError> {
        let Asked { serial, id, room, ends } = self;
        let reply = session.finish("a stream", serial)?;
        let opened = match &reply {
            Reply::Opened { core, answer } if (*core as usize) < session.cores().len() => {
                Origin::decode(answer).map(|origin| (*core, origin))
            }
            _ => None,
        };
        let answered = || AttachError::Over(format!("the engine has answered {reply:?}"));
        let (core, origin) = opened.ok_or_else(answered)?;
        Ok(Opened { id, core, origin, room: Some(room), ends })
    }
}

/// What the engine has opened.
struct Opened {
    id: u32,
    core: u32,
    origin: Origin,
    /// None where no engine has it.
    room: Option<Room>,
    ends: (Incoming, Outgoing, Arc<Block>),
}

/// Why a connection was not adopted. It is the caller's again, and what it was.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct AdoptError {
    /// Why not.
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
