//! One connection while it is being set up: a command at a time, waited for.
//!
//! Not for the data path. Invariant: no call waits beyond the deadline that the connection was opened with.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_memory::Buffer;
use isolane_proto::host::{self, Completed, Data, Event, Queue};
use isolane_reactor::socket;
use isolane_wire::fabrics::ConnectRejection;
use isolane_wire::{CompletionEntry, SubmissionEntry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::{ConnectError, Step};
use crate::options::Options;

/// A socket and the queue on it.
pub(crate) struct Connection {
    pub stream: TcpStream,
    pub queue: Queue,
    /// Whether Connect turned submission queue flow control off.
    pub is_flow_control_disabled: bool,
    address: SocketAddr,
    opened: Instant,
    deadline: Instant,
    overflow: Box<[u8]>,
    parameters: Parameters,
}

/// What ICReq and ICResp agreed on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parameters {
    pub header_digest: bool,
    pub data_digest: bool,
    pub data_alignment_bytes: usize,
    pub h2c_data_bytes_max: u32,
}

/// The answer to a command.
pub(crate) struct Reply {
    pub entry: CompletionEntry,
    pub buffer: Option<Buffer>,
}

impl Connection {
    /// Connects a socket and exchanges ICReq and ICResp.
    pub(crate) fn open(
        address: SocketAddr,
        options: &Options,
        deadline: Instant,
    ) -> Result<Connection, ConnectError> {
        let opened = Instant::now();
        let failed = |source| at_socket(address, Step::Tcp, source);
        let left = deadline.saturating_duration_since(opened).max(Duration::from_millis(1));
        let stream = connect(address, options, left)?;
        socket::set_nodelay(&stream).map_err(failed)?;
        stream.set_nonblocking(true).map_err(failed)?;
        let queue = Queue::new(queue_options(options), opened);
        let mut connection = Connection {
            stream,
            queue,
            is_flow_control_disabled: false,
            address,
            opened,
            deadline,
            overflow: vec![0; OVERFLOW_BYTES].into_boxed_slice(),
            parameters: Parameters::default(),
        };
        connection.initialize()?;
        Ok(connection)
    }

    /// Goes on with a connection that was in use, for a last exchange.
    pub(crate) fn resume(stream: TcpStream, queue: Queue, patience: Duration) -> io::Result<Connection> {
        let opened = Instant::now();
        Ok(Connection {
            address: stream.peer_addr()?,
            stream,
            queue,
            is_flow_control_disabled: false,
            opened,
            deadline: opened + patience,
            overflow: vec![0; OVERFLOW_BYTES].into_boxed_slice(),
            parameters: Parameters::default(),
        })
    }

    /// What ICReq and ICResp agreed on.
    pub(crate) fn parameters(&self) -> Parameters {
        self.parameters
    }

    /// The target's address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends one command and waits for its completion, whatever its status.
    pub(crate) fn call(
        &mut self,
        step: Step,
        entry: SubmissionEntry,
        data: Data,
    ) -> Result<Reply, ConnectError> {
        if let Err(rejected) = self.queue.submit(entry, data, CALL) {
            return Err(self.misbehaved(step, format!("its queue takes no command: {}", rejected.refusal)));
        }
        loop {
            match self.next_event(step)? {
                Event::Completed(Completed { tag: CALL, entry, buffer, intact: true }) => {
                    self.read_to_end(step)?;
                    return Ok(Reply { entry, buffer });
                }
                Event::Completed(Completed { tag: CALL, .. }) => {
                    return Err(self.misbehaved(step, "the data digest of its answer is wrong".to_owned()));
                }
                Event::Completed(_) | Event::Connected(_) => {}
                event => return Err(self.broken(step, event)),
            }
        }
    }

    /// Looks at what came together with an answer: the queue may go on with other memory for what it
    /// receives.
    fn read_to_end(&mut self, step: Step) -> Result<(), ConnectError> {
        while let Some(event) = self.queue.poll_event(&self.overflow, Instant::now()) {
            if !matches!(event, Event::Completed(_) | Event::Connected(_)) {
                return Err(self.broken(step, event));
            }
        }
        Ok(())
    }

    /// Sends one command and waits for its successful completion.
    pub(crate) fn command(
        &mut self,
        step: Step,
        entry: SubmissionEntry,
        data: Data,
    ) -> Result<Reply, ConnectError> {
        let reply = self.call(step, entry, data)?;
        match reply.entry.status.is_success() {
            true => Ok(reply),
            false => Err(self.refused(step, &reply.entry)),
        }
    }

    /// The error for a status that is none of success.
    pub(crate) fn refused(&self, step: Step, entry: &CompletionEntry) -> ConnectError {
        let field = match step {
            Step::ConnectAdmin | Step::ConnectIo => {
                ConnectRejection::parse(entry).map(|rejection| rejection.field())
            }
            _ => None,
        };
        ConnectError::Refused { address: self.address, step, status: entry.status, field }
    }

    /// The error for a target that does what it must not.
    pub(crate) fn misbehaved(&self, step: Step, what: String) -> ConnectError {
        ConnectError::Misbehaved { address: self.address, step, what }
    }

    /// The error for a deadline that has passed.
    pub(crate) fn timed_out(&self, step: Step) -> ConnectError {
        ConnectError::Timeout { address: self.address, step, waited: self.opened.elapsed() }
    }

    /// Waits a moment; false if the deadline has passed.
    pub(crate) fn pause(&self, moment: Duration) -> bool {
        std::thread::sleep(moment.min(self.deadline.saturating_duration_since(Instant::now())));
        Instant::now() < self.deadline
    }

    fn initialize(&mut self) -> Result<(), ConnectError> {
        match self.next_event(Step::Initialize)? {
            Event::Connected(response) => {
                self.parameters = Parameters {
                    header_digest: response.digests.header(),
                    data_digest: response.digests.data(),
                    data_alignment_bytes: (usize::from(response.cpda) + 1) * 4,
                    h2c_data_bytes_max: response.maxh2cdata,
                };
                Ok(())
            }
            event => Err(self.broken(Step::Initialize, event)),
        }
    }

    fn next_event(&mut self, step: Step) -> Result<Event, ConnectError> {
        loop {
            if let Some(event) = self.queue.poll_event(&self.overflow, Instant::now()) {
                return Ok(event);
            }
            self.transmit(step)?;
            self.wait(step)?;
            self.receive(step)?;
        }
    }

    fn transmit(&mut self, step: Step) -> Result<(), ConnectError> {
        while self.queue.wants_transmit() {
            let sent = socket::send(&self.stream, &self.queue.transmit_plan());
            match sent {
                Ok(count) => self.queue.handle_transmitted(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(at_socket(self.address, step, error)),
            }
        }
        Ok(())
    }

    fn wait(&self, step: Step) -> Result<(), ConnectError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.timed_out(step));
        }
        let writable = if self.queue.wants_transmit() { PollFlags::OUT } else { PollFlags::empty() };
        let mut sockets = [PollFd::new(&self.stream, PollFlags::IN | writable)];
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut sockets, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(at_socket(self.address, step, error.into())),
        }
    }

    fn receive(&mut self, step: Step) -> Result<(), ConnectError> {
        let mut plan = self.queue.receive_plan(&mut self.overflow);
        let received = socket::receive(&self.stream, &mut plan);
        drop(plan);
        match received {
            Ok(0) => Err(ConnectError::Closed { address: self.address, step }),
            Ok(count) => {
                self.queue.handle_received(count);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(at_socket(self.address, step, error)),
        }
    }

    /// The error behind an event that ends the connection.
    fn broken(&mut self, step: Step, event: Event) -> ConnectError {
        // A termination request tells the target what was wrong; whether it gets there does not matter here.
        let _ = self.transmit(step);
        self.misbehaved(step, crate::client::describe(&event))
    }
}

/// The options come first: the handshake tells the peer how large our buffer is.
fn connect(address: SocketAddr, options: &Options, patience: Duration) -> Result<TcpStream, ConnectError> {
    let failed = |source| at_socket(address, Step::Tcp, source);
    let socket =
        Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)).map_err(failed)?;
    options.socket.apply(&socket)?;
    socket.connect_timeout(&address.into(), patience).map_err(failed)?;
    let stream = TcpStream::from(socket);
    if stream.local_addr().is_ok_and(|local| socket::is_within_machine(local.ip(), address.ip())) {
        options.socket.suit_within_machine(&stream, SEND_BUFFER_HERE_BYTES);
    }
    Ok(stream)
}

/// Send buffer of a connection to this machine: as long as data is sent, data is on its way.
const SEND_BUFFER_HERE_BYTES: usize = 128 * 1024;

fn at_socket(address: SocketAddr, step: Step, source: io::Error) -> ConnectError {
    match source.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe if step != Step::Tcp => {
            ConnectError::Closed { address, step }
        }
        _ => ConnectError::Socket { address, step, source: Arc::new(source) },
    }
}

/// HPDA and MAXR2T stay 0: old targets know nothing else.
fn queue_options(options: &Options) -> host::Options {
    host::Options {
        header_digest: options.header_digest,
        data_digest: options.data_digest,
        handshake: options.connect_timeout,
        stall: options.command_timeout,
        ..host::Options::default()
    }
}

/// The mark of the one command on its way.
const CALL: u64 = u64::MAX;

/// Enough for the answers of a setup in one piece.
const OVERFLOW_BYTES: usize = 8192;
