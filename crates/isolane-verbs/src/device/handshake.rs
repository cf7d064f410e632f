//! Hellos: the first bytes of a lane in each direction.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use isolane_tcp::socket::is_local;
use isolane_tcp::{SocketOptionError, SocketOptions};

use crate::connection::Received;
use crate::types::ConnectionParameters;
use crate::wire::{Capabilities, Hello, HelloError, Role};

/// Why a queue pair is not connected.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The system failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A socket option cannot be set.
    #[error(transparent)]
    Socket(#[from] SocketOptionError),
    /// The peer's hello is invalid.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The peer did not answer.
    #[error("the peer did not complete its hello within {} s", TIMEOUT.as_secs())]
    Timeout,
    /// The system has no random bytes.
    #[error("no random bytes for a hello: {0}")]
    Random(String),
}

/// One attempt to open a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneAttempt {
    /// Index of the lane.
    pub(super) lane: u8,
    pub(super) epoch: u32,
    /// Bytes received on the lane before, for the peer.
    pub(super) received: Received,
}

/// What this end says in its hellos.
pub(super) struct LocalHello {
    pub(super) number: u32,
    /// Number of the peer's first message.
    first_message: u32,
    nonce: [u8; 16],
    responder_resources: u8,
    shares_receives: bool,
    offer: Offer,
}

/// Features of the lanes of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    /// Maximum number of lanes, 1 to 8.
    pub(super) lanes: u8,
    /// Whether to request a CRC32C of each header and each payload.
    pub(super) checksums: bool,
}

impl LocalHello {
    /// Returns the contents for a queue pair whose peer starts with message `first_message`.
    pub(super) fn new(
        number: u32,
        first_message: u32,
        responder_resources: usize,
        shares_receives: bool,
        offer: Offer,
    ) -> Result<LocalHello, ConnectError> {
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|error| ConnectError::Random(error.to_string()))?;
        let responder_resources = responder_resources.min(u8::MAX.into()) as u8;
        Ok(LocalHello { number, first_message, nonce, responder_resources, shares_receives, offer })
    }

    /// Returns the hello for a lane of the queue pair, with the features that both ends have.
    pub(super) fn hello(
        &self,
        role: Role,
        attempt: LaneAttempt,
        offer: Offer,
        peer_number: u32,
        stream: &TcpStream,
    ) -> io::Result<Hello> {
        let LaneAttempt { lane, epoch, received } = attempt;
        Ok(Hello {
            magic: Hello::MAGIC,
            version: Hello::VERSION,
            role: role.code(),
            lane,
            capabilities: Capabilities(0)
                .with_shared_receives(self.shares_receives)
                .with_crc32c(offer.checksums),
            lanes: offer.lanes,
            responder_resources: self.responder_resources,
            epoch,
            max_segment_bytes: crate::connection::SEGMENT_BYTES,
            source_gid: gid(stream.local_addr()?.ip()),
            destination_gid: gid(stream.peer_addr()?.ip()),
            source_qpn: self.number,
            destination_qpn: peer_number,
            first_message: self.first_message,
            received_epoch: received.epoch,
            nonce: self.nonce,
            received_segments: received.segments,
            received_bytes: received.bytes,
            authentication: [0; 32],
        })
    }

    /// Features that this end offers.
    pub(super) fn offer(&self) -> Offer {
        self.offer
    }

    /// Features of the lanes to a peer.
    pub(super) fn agreed(&self, peer: &Hello) -> Offer {
        Offer {
            lanes: peer.lanes.min(self.offer.lanes),
            checksums: self.offer.checksums || peer.capabilities.crc32c(),
        }
    }

    /// Returns the parameters of a queue pair that is connected with itself.
    pub(super) fn loopback_parameters(&self) -> ConnectionParameters {
        ConnectionParameters {
            first_message: self.first_message,
            peer_first_message: self.first_message,
            peer_segment_bytes: crate::connection::SEGMENT_BYTES,
            peer_responder_resources: self.responder_resources.into(),
            peer_shares_receives: self.shares_receives,
            lanes: 1,
            checksums: false,
        }
    }

    pub(super) fn parameters(&self, peer: &Hello) -> ConnectionParameters {
        let Offer { lanes, checksums } = self.agreed(peer);
        ConnectionParameters {
            first_message: peer.first_message,
            peer_first_message: self.first_message,
            peer_segment_bytes: peer.max_segment_bytes,
            peer_responder_resources: peer.responder_resources.into(),
            peer_shares_receives: peer.capabilities.shared_receives(),
            lanes,
            checksums,
        }
    }
}

/// Returns the report of a hello about earlier epochs of its lane.
pub(super) fn received(hello: &Hello) -> Received {
    let Hello { received_epoch, received_segments, received_bytes, .. } = *hello;
    Received { epoch: received_epoch, segments: received_segments, bytes: received_bytes }
}

/// Returns the GID of an address: an IPv4 address is mapped.
pub fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Prepares the socket of a lane.
pub(super) fn prepare(stream: &TcpStream, options: &SocketOptions) -> Result<(), ConnectError> {
    options.apply(stream)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    tune(stream, options);
    Ok(())
}

/// Tunes a connected socket if both ends are on this machine.
pub(super) fn tune(stream: &TcpStream, options: &SocketOptions) {
    if let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr())
        && is_local(local.ip(), peer.ip())
    {
        options.tune_for_loopback(stream, LOCAL_SEND_BUFFER_BYTES);
    }
}

/// The part of a peer's hello that has arrived.
pub(super) struct Greeting {
    bytes: [u8; Hello::LEN],
    len: usize,
}

impl Default for Greeting {
    fn default() -> Greeting {
        Greeting { bytes: [0; Hello::LEN], len: 0 }
    }
}

impl Greeting {
    /// Receives no byte beyond the hello. `None` if some are missing.
    pub(super) fn receive(
        &mut self,
        mut stream: &TcpStream,
        role: Role,
    ) -> Result<Option<Hello>, ConnectError> {
        while self.len < Hello::LEN {
            match stream.read(&mut self.bytes[self.len..]) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => self.len += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(Hello::decode_from(&self.bytes, role)?))
    }
}

/// A hello fits into the buffer of a new socket.
pub(super) fn write_hello(mut stream: &TcpStream, hello: &Hello) -> io::Result<()> {
    stream.write_all(&hello.encode())
}

/// Send buffer of local connections. A larger one evicts data from the caches before it is received.
const LOCAL_SEND_BUFFER_BYTES: usize = 128 * 1024;
/// Maximum duration of a connect, and of a hello.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
