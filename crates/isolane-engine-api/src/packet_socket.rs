//! Packets between two processes: bytes and descriptors over a Unix `SOCK_SEQPACKET` socket.
//!
//! Invariant: a packet is sent completely or not at all. A received packet that exceeds the limits is an error, never
//! truncated.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use isolane_shm::{SCM_MAX_FD, received_fds};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use super::{DecodeError, MAX_DESCRIPTORS, MAX_MESSAGE_BYTES};

/// One end of a packet connection.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// Payload.
    pub bytes: Vec<u8>,
    /// Descriptors sent with it.
    pub descriptors: Vec<OwnedFd>,
}

/// Error of sending or receiving a packet.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// The peer closed its end.
    #[error("the peer closed the connection")]
    Closed,
    /// A non-blocking send found the buffer full.
    #[error("send buffer full: the peer is not reading")]
    WouldBlock,
    /// The packet exceeds the limits of a message.
    #[error(
        "a packet is longer than {MAX_MESSAGE_BYTES} bytes or has more than {MAX_DESCRIPTORS} descriptors"
    )]
    TooLong {
        /// Descriptors of the packet. Closing them may block for as long as their sender chooses.
        descriptors: Vec<OwnedFd>,
    },
    /// The packet has descriptors but no bytes; without descriptors it would be the end of the connection.
    #[error("a packet has descriptors but no data")]
    FdsWithoutData {
        /// Descriptors of the packet, as for [`PacketError::TooLong`].
        descriptors: Vec<OwnedFd>,
    },
    /// This process has too few free descriptors for a packet.
    #[error("no free descriptor for a received packet{HINT}")]
    NoDescriptors(
        /// The packet, without some of its descriptors. Closing the others may block, as for
        /// [`PacketError::TooLong`].
        Packet,
    ),
    /// The kernel's limit of descriptors in flight between this user's processes is reached.
    #[error("too many descriptors in flight between this user's processes{HINT}")]
    TooManyFdsInFlight,
    /// The packet is not a message.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// A system call failed.
    #[error(transparent)]
    System(io::Error),
}

impl PacketSocket {
    /// Wraps a socket.
    pub fn new(socket: OwnedFd) -> PacketSocket {
        PacketSocket(socket)
    }

    /// Sends a packet. If `blocking`, waits for buffer space, and briefly after [`PacketError::TooManyFdsInFlight`].
    ///
    /// # Errors
    /// [`PacketError`].
    pub fn send(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        blocking: bool,
    ) -> Result<(), PacketError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if bytes.len() > MAX_MESSAGE_BYTES || descriptors.len() > MAX_DESCRIPTORS {
            return Err(PacketError::TooLong { descriptors: Vec::new() });
        }
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "space for MAX_DESCRIPTORS");
        }
        let flags = SendFlags::NOSIGNAL | if blocking { SendFlags::empty() } else { SendFlags::DONTWAIT };
        let mut retries = if blocking { MAX_RETRIES } else { 0 };
        loop {
            match sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // The kernel gives no notification when this ends.
                Err(Errno::TOOMANYREFS) if retries > 0 => {
                    retries -= 1;
                    std::thread::sleep(RETRY_DELAY);
                }
                Err(error) => return Err(PacketError::from_errno(error)),
            }
        }
    }

    /// Receives a packet. Without a packet, waits if `blocking`; otherwise returns `None`.
    ///
    /// # Errors
    /// [`PacketError`]. [`PacketError::TooLong`] and [`PacketError::FdsWithoutData`] discard the packet;
    /// [`PacketError::NoDescriptors`] discards the missing descriptors.
    pub fn receive(&self, blocking: bool) -> Result<Option<Packet>, PacketError> {
        let mut bytes = [0; MAX_MESSAGE_BYTES];
        // Space for all descriptors that a packet can have: the kernel would close the others in this thread.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | if blocking { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let received = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Ok(received) => break received,
                // A reset is reported once; packets that the peer sent before it closed follow.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(PacketError::from_errno(error)),
            }
        };
        let descriptors = received_fds(&mut control);
        if received.flags.contains(ReturnFlags::TRUNC) || descriptors.len() > MAX_DESCRIPTORS {
            return Err(PacketError::TooLong { descriptors });
        }
        // A message has at least its kind, so 0 bytes are the end of the connection.
        if received.bytes == 0 {
            return Err(if descriptors.is_empty() {
                PacketError::Closed
            } else {
                PacketError::FdsWithoutData { descriptors }
            });
        }
        let packet = Packet { bytes: bytes[..received.bytes].to_vec(), descriptors };
        // The buffer was large enough, so the process ran out of descriptors.
        if received.flags.contains(ReturnFlags::CTRUNC) {
            Err(PacketError::NoDescriptors(packet))
        } else {
            Ok(Some(packet))
        }
    }
}

impl From<PacketSocket> for OwnedFd {
    fn from(socket: PacketSocket) -> OwnedFd {
        socket.0
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PacketError {
    /// Returns the descriptors of the packet. Closing them may block for as long as their sender chooses.
    pub fn into_descriptors(self) -> Vec<OwnedFd> {
        match self {
            PacketError::TooLong { descriptors } | PacketError::FdsWithoutData { descriptors } => descriptors,
            PacketError::NoDescriptors(packet) => packet.descriptors,
            _ => Vec::new(),
        }
    }

    fn from_errno(error: Errno) -> PacketError {
        match error {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => PacketError::Closed,
            Errno::AGAIN => PacketError::WouldBlock,
            Errno::TOOMANYREFS => PacketError::TooManyFdsInFlight,
            error => PacketError::System(error.into()),
        }
    }
}

/// Returns a remedy to append to an error text; empty if none is known.
pub fn hint(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => HINT,
        _ => "",
    }
}

const HINT: &str = "; raise the limit of open descriptors (`ulimit -n`)";
/// Retries after [`PacketError::TooManyFdsInFlight`].
const MAX_RETRIES: u32 = 1000;
const RETRY_DELAY: Duration = Duration::from_millis(1);
