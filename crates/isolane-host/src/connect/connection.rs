//! Connection during setup and shutdown: one command at a time, with blocking waits.
//!
//! Invariant: no execute waits longer than the deadline of the connection.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_memory::Buffer;
use isolane_proto::host::{self, Completed, Connection, Data, Event};
use isolane_reactor::socket;
use isolane_wire::fabrics::ConnectRejection;
use isolane_wire::pdu::{Digests, IcResp};
use isolane_wire::{CompletionEntry, SubmissionEntry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::{ConnectError, Step};
use crate::options::Options;

/// A socket and the protocol state of its queue.
pub(crate) struct BlockingConnection {
    pub stream: TcpStream,
    pub queue: Connection,
    /// Whether Connect turned submission queue flow control off.
    pub flow_control_disabled: bool,
    /// Parameters that the target has chosen.
    pub response: IcResp,
    /// The target's address.
    pub address: SocketAddr,
    opened: Instant,
    deadline: Instant,
    overflow: Box<[u8]>,
}

impl BlockingConnection {
    /// Connects a socket and exchanges ICReq and ICResp.
    pub(crate) fn open(
        address: SocketAddr,
        options: &Options,
        deadline: Instant,
    ) -> Result<BlockingConnection, ConnectError> {
        let opened = Instant::now();
        let failed = |source| socket_error(address, Step::Tcp, source);
        let remaining = deadline.saturating_duration_since(opened).max(Duration::from_millis(1));
        let stream = connect(address, options, remaining)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_nonblocking(true).map_err(failed)?;
        let queue = Connection::new(connection_config(options), opened);
        let mut connection = BlockingConnection::new(stream, queue, address, deadline);
        connection.initialize()?;
        Ok(connection)
    }

    /// Resumes a connection that was in use, for a last exchange.
    pub(crate) fn resume(
        stream: TcpStream,
        queue: Connection,
        timeout: Duration,
    ) -> io::Result<BlockingConnection> {
        let address = stream.peer_addr()?;
        Ok(BlockingConnection::new(stream, queue, address, Instant::now() + timeout))
    }

    fn new(
        stream: TcpStream,
        queue: Connection,
        address: SocketAddr,
        deadline: Instant,
    ) -> BlockingConnection {
        BlockingConnection {
            stream,
            queue,
            flow_control_disabled: false,
            response: IcResp { cpda: 0, digests: Digests(0), maxh2cdata: 0 },
            address,
            opened: Instant::now(),
            deadline,
            overflow: vec![0; OVERFLOW_BYTES].into_boxed_slice(),
        }
    }

    /// Sends one command and waits for its completion, whatever its status.
    pub(crate) fn execute(
        &mut self,
        step: Step,
        entry: SubmissionEntry,
        data: Data,
    ) -> Result<Completed, ConnectError> {
        self.submit(step, entry, data)?;
        self.wait_for_reply(step)
    }

    fn submit(&mut self, step: Step, entry: SubmissionEntry, data: Data) -> Result<u16, ConnectError> {
        self.queue.submit(entry, data, TAG).map_err(|rejected| {
            self.protocol_violation(step, format!("command not accepted: {}", rejected.kind))
        })
    }

    fn wait_for_reply(&mut self, step: Step) -> Result<Completed, ConnectError> {
        loop {
            match self.next_event(step)? {
                Event::Completed(completed @ Completed { tag: TAG, digest_ok: true, .. }) => {
                    self.drain_input(step)?;
                    return Ok(completed);
                }
                Event::Completed(Completed { tag: TAG, .. }) => {
                    return Err(self.protocol_violation(step, "data digest error in a reply".to_owned()));
                }
                Event::Completed(_) | Event::Connected(_) => {}
                event => return Err(self.broken(step, event)),
            }
        }
    }

    /// Processes data received together with a reply, because the connection may continue with another
    /// buffer.
    fn drain_input(&mut self, step: Step) -> Result<(), ConnectError> {
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
    ) -> Result<Completed, ConnectError> {
        let reply = self.execute(step, entry, data)?;
        self.check_status(step, reply)
    }

    /// As [`BlockingConnection::command`], for a read that can return less data than its buffer holds.
    pub(crate) fn read_up_to(
        &mut self,
        step: Step,
        entry: SubmissionEntry,
        buffer: Buffer,
    ) -> Result<Completed, ConnectError> {
        let cid = self.submit(step, entry, Data::Read(buffer))?;
        self.queue.accept_less(cid);
        let reply = self.wait_for_reply(step)?;
        self.check_status(step, reply)
    }

    fn check_status(&self, step: Step, reply: Completed) -> Result<Completed, ConnectError> {
        if reply.entry.status.is_success() { Ok(reply) } else { Err(self.refused(step, &reply.entry)) }
    }

    /// Returns the error for an error status.
    pub(crate) fn refused(&self, step: Step, entry: &CompletionEntry) -> ConnectError {
        let field = match step {
            Step::ConnectAdmin | Step::ConnectIo => {
                ConnectRejection::parse(entry).map(|rejection| rejection.field())
            }
            _ => None,
        };
        ConnectError::Refused { address: self.address, step, status: entry.status, field }
    }

    /// Returns the error for a protocol violation.
    pub(crate) fn protocol_violation(&self, step: Step, what: String) -> ConnectError {
        ConnectError::ProtocolViolation { address: self.address, step, what }
    }

    /// Returns the error for a controller that is not ready.
    pub(crate) fn not_ready(&self, reason: &str) -> ConnectError {
        ConnectError::NotReady { address: self.address, reason: reason.to_owned() }
    }

    /// Returns the error for a passed deadline.
    pub(crate) fn timed_out(&self, step: Step) -> ConnectError {
        ConnectError::Timeout { address: self.address, step, waited: self.opened.elapsed() }
    }

    /// Sleeps. Returns `false` if the deadline has passed.
    pub(crate) fn pause(&self, delay: Duration) -> bool {
        std::thread::sleep(delay.min(self.deadline.saturating_duration_since(Instant::now())));
        Instant::now() < self.deadline
    }

    fn initialize(&mut self) -> Result<(), ConnectError> {
        match self.next_event(Step::Initialize)? {
            Event::Connected(response) => {
                self.response = response;
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
                Err(error) => return Err(socket_error(self.address, step, error)),
            }
        }
        Ok(())
    }

    fn wait(&self, step: Step) -> Result<(), ConnectError> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(self.timed_out(step));
        }
        let writable = if self.queue.wants_transmit() { PollFlags::OUT } else { PollFlags::empty() };
        let mut sockets = [PollFd::new(&self.stream, PollFlags::IN | writable)];
        let timeout = Timespec::try_from(remaining).ok();
        match poll(&mut sockets, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(socket_error(self.address, step, error.into())),
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
            Err(error) => Err(socket_error(self.address, step, error)),
        }
    }

    /// Returns the error for an event that ends the connection.
    fn broken(&mut self, step: Step, event: Event) -> ConnectError {
        // Sends a pending termination request; the connection ends even if that fails.
        let _ = self.transmit(step);
        self.protocol_violation(step, describe(&event))
    }
}

/// Describes an event that ends a connection.
pub(crate) fn describe(event: &Event) -> String {
    match event {
        Event::Fatal(error) => error.to_string(),
        Event::Terminated(request) => {
            format!("terminated the connection with {:?} at {:#x}", request.fes, request.fei)
        }
        Event::Connected(_) => "repeated the handshake".to_owned(),
        Event::Completed(_) => "completed a command unexpectedly".to_owned(),
    }
}

/// Sets the options before connecting, because the handshake advertises the buffer size.
fn connect(address: SocketAddr, options: &Options, timeout: Duration) -> Result<TcpStream, ConnectError> {
    let failed = |source| socket_error(address, Step::Tcp, source);
    let socket =
        Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)).map_err(failed)?;
    options.socket.apply(&socket)?;
    socket.connect_timeout(&address.into(), timeout).map_err(failed)?;
    let stream = TcpStream::from(socket);
    if stream.local_addr().is_ok_and(|local| socket::is_local(local.ip(), address.ip())) {
        options.socket.tune_for_loopback(&stream, LOCAL_SEND_BUFFER);
    }
    Ok(stream)
}

/// Send buffer of a connection within this machine.
const LOCAL_SEND_BUFFER: usize = 128 * 1024;

fn socket_error(address: SocketAddr, step: Step, source: io::Error) -> ConnectError {
    match source.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe if step != Step::Tcp => {
            ConnectError::Closed { address, step }
        }
        _ => ConnectError::Socket { address, step, source: Arc::new(source) },
    }
}

/// HPDA and MAXR2T stay 0, the only values that old targets accept.
fn connection_config(options: &Options) -> host::ConnectionConfig {
    host::ConnectionConfig {
        header_digest: options.header_digest,
        data_digest: options.data_digest,
        handshake: options.connect_timeout,
        stall: options.command_timeout,
        ..host::ConnectionConfig::default()
    }
}

/// Tag of the only command in flight.
const TAG: u64 = u64::MAX;

/// Enough for the replies of a setup at once.
const OVERFLOW_BYTES: usize = 8192;
