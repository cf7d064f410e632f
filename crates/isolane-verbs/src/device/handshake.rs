//! Hellos: the first bytes of a lane in each direction.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use isolane_tcp::socket::is_local;
use isolane_tcp::{SocketOptionError, SocketOptions};

use crate::connection::Received;
use crate::shared_key::SharedKey;
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
    /// This end has a key, and the peer has none.
    #[error("the peer has no shared key: set ISOLANE_VERBS_KEY there to a copy of this end's key file")]
    PeerLacksKey,
    /// The peer has a key, and this end has none.
    #[error("the peer requires a shared key: set ISOLANE_VERBS_KEY to a copy of its key file")]
    KeyRequired,
    /// The ends have different keys.
    #[error("the peer has another shared key: set ISOLANE_VERBS_KEY to copies of one key file at both ends")]
    WrongKey,
    /// The peer has closed the connection instead of a proof.
    #[error(
        "the peer ended before its proof: if that repeats, set ISOLANE_VERBS_KEY to copies of one key file"
    )]
    NoProof,
    /// The system has no random bytes.
    #[error("no random bytes for a hello: {0}")]
    Random(String),
}

impl ConnectError {
    /// Whether the ends do not have the same key, which a person must correct.
    pub(super) fn concerns_key(&self) -> bool {
        matches!(self, ConnectError::PeerLacksKey | ConnectError::KeyRequired | ConnectError::WrongKey)
    }
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

impl LaneAttempt {
    /// Whether the peer, which has got `reply`, can use this attempt: the reply has another epoch if the lane was open, and
    /// another report if another connection was the lane since.
    pub(super) fn agrees_with(&self, reply: &Hello) -> bool {
        self.epoch == reply.epoch && self.received == received(reply)
    }
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
    /// Whether both ends prove a key.
    pub(super) authenticated: bool,
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
        let gids = [gid(stream.local_addr()?.ip()), gid(stream.peer_addr()?.ip())];
        Ok(self.hello_between(gids, role, attempt, offer, peer_number))
    }

    /// Returns the hello as [`LocalHello::hello`], from one GID to another.
    pub(super) fn hello_between(
        &self,
        [source_gid, destination_gid]: [[u8; 16]; 2],
        role: Role,
        attempt: LaneAttempt,
        offer: Offer,
        peer_number: u32,
    ) -> Hello {
        let LaneAttempt { lane, epoch, received } = attempt;
        Hello {
            magic: Hello::MAGIC,
            version: Hello::VERSION,
            role: role.code(),
            lane,
            capabilities: Capabilities(0)
                .with_shared_receives(self.shares_receives)
                .with_crc32c(offer.checksums)
                .with_authenticated(offer.authenticated),
            lanes: offer.lanes,
            responder_resources: self.responder_resources,
            epoch,
            max_segment_bytes: crate::connection::SEGMENT_BYTES,
            source_gid,
            destination_gid,
            source_qpn: self.number,
            destination_qpn: peer_number,
            first_message: self.first_message,
            received_epoch: received.epoch,
            nonce: self.nonce,
            received_segments: received.segments,
            received_bytes: received.bytes,
            authentication: [0; 32],
        }
    }

    /// Sends the reply to a hello, with a proof of the key. Returns it.
    pub(super) fn reply(
        &self,
        stream: &TcpStream,
        hello: &Hello,
        attempt: LaneAttempt,
        key: &SharedKey,
    ) -> io::Result<Hello> {
        let mut reply = self.hello(Role::Accepts, attempt, self.agreed(hello), hello.source_qpn, stream)?;
        reply.authentication = key.sign_reply(hello, &reply);
        write(stream, &reply.encode())?;
        Ok(reply)
    }

    /// Whether this end has announced a shared receive queue.
    pub(super) fn shares_receives(&self) -> bool {
        self.shares_receives
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
            authenticated: self.offer.authenticated,
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
        let Offer { lanes, checksums, .. } = self.agreed(peer);
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

/// The part of a peer's first message that has arrived.
pub(super) struct Arriving<const LEN: usize> {
    bytes: [u8; LEN],
    len: usize,
}

/// The part of a peer's hello that has arrived.
pub(super) type Greeting = Arriving<{ Hello::LEN }>;

impl<const LEN: usize> Default for Arriving<LEN> {
    fn default() -> Arriving<LEN> {
        Arriving { bytes: [0; LEN], len: 0 }
    }
}

impl<const LEN: usize> Arriving<LEN> {
    /// Receives no byte beyond the message. `None` if some are missing.
    pub(super) fn bytes(&mut self, mut stream: &TcpStream) -> io::Result<Option<&[u8; LEN]>> {
        while self.len < LEN {
            match stream.read(&mut self.bytes[self.len..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.len += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(&self.bytes))
    }
}

impl Greeting {
    /// Receives no byte beyond the hello. `None` if some are missing.
    pub(super) fn receive(&mut self, stream: &TcpStream, role: Role) -> Result<Option<Hello>, ConnectError> {
        let Some(bytes) = self.bytes(stream)? else { return Ok(None) };
        Ok(Some(Hello::decode_from(bytes, role)?))
    }
}

/// Returns the reply to a peer of which only one end has a key, so that both ends can report it.
pub(super) fn refusal(hello: &Hello, authenticated: bool) -> Hello {
    Hello {
        role: Role::Accepts.code(),
        capabilities: Capabilities(0).with_authenticated(authenticated),
        source_gid: hello.destination_gid,
        destination_gid: hello.source_gid,
        source_qpn: hello.destination_qpn,
        destination_qpn: hello.source_qpn,
        received_epoch: 0,
        received_segments: 0,
        received_bytes: 0,
        nonce: [0; 16],
        authentication: [0; 32],
        ..hello.clone()
    }
}

/// A hello, and a proof after it, fit into the buffer of a new socket.
pub(super) fn write(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)
}

/// Send buffer of local connections. A larger one evicts data from the caches before it is received.
const LOCAL_SEND_BUFFER_BYTES: usize = 128 * 1024;
/// Maximum duration of a connect, and of a hello.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
