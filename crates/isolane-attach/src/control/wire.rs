//! Packets between two processes: bytes, and descriptors that come with them.
//!
//! Invariant: a packet is sent whole or not at all, and one that is longer, or has more descriptors, than is
//! agreed on is an error, not a shorter one.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::{BYTES_MAX, DESCRIPTORS_MAX, Malformed};

/// One end of a connection of packets: a Unix socket of the kind SEQPACKET.
#[derive(Debug)]
pub struct Wire(OwnedFd);

/// What has come.
#[derive(Debug)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What came with them.
    pub descriptors: Vec<OwnedFd>,
}

/// Why a packet was not sent or received.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other side has closed its end.
    #[error("the other side has closed the connection")]
    Closed,
    /// Only if it was not to wait.
    #[error("the other side does not listen: it must receive what it is sent")]
    Full,
    /// It is longer, or has more descriptors, than any message.
    #[error("a packet is longer than {BYTES_MAX} bytes or has more than {DESCRIPTORS_MAX} descriptors")]
    TooLong {
        /// What came with it. To close it may wait for as long as who has sent it likes.
        descriptors: Vec<OwnedFd>,
    },
    /// It has no bytes, which a message has, but descriptors, which the end has not.
    #[error("a packet is nothing but descriptors")]
    Empty {
        /// What came with it, as of [`WireError::TooLong`].
        descriptors: Vec<OwnedFd>,
    },
    /// This process has no descriptor left for all that came with a packet.
    #[error("this process has no descriptor left for what comes with a packet{REMEDY}")]
    NoDescriptors(
        /// The packet, without some of its descriptors. To close the others may wait, as for
        /// [`WireError::TooLong`].
        Packet,
    ),
    /// So many descriptors are under way between processes of this user that the kernel takes no more for now.
    #[error("too many descriptors are under way between this user's processes{REMEDY}")]
    Crowded,
    /// It is no message.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The system refuses.
    #[error(transparent)]
    System(io::Error),
}

impl Wire {
    /// Of this socket.
    pub fn new(socket: OwnedFd) -> Wire {
        Wire(socket)
    }

    /// Sends a packet, and waits for room if `waits`; a little, if it is [`WireError::Crowded`].
    ///
    /// # Errors
    /// [`WireError`].
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>], waits: bool) -> Result<(), WireError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if bytes.len() > BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
            return Err(WireError::TooLong { descriptors: Vec::new() });
        }
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "there is room for as many");
        }
        let flags = SendFlags::NOSIGNAL | if waits { SendFlags::empty() } else { SendFlags::DONTWAIT };
        let mut tries = if waits { CROWDED_TRIES } else { 0 };
        loop {
            match sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // There is no other way to hear of the end of that.
                Err(Errno::TOOMANYREFS) if tries > 0 => {
                    tries -= 1;
                    std::thread::sleep(CROWDED_PAUSE);
                }
                Err(error) => return Err(WireError::of(error)),
            }
        }
    }

    /// The next packet; if there is none it waits, or says so: `None`.
    ///
    /// # Errors
    /// [`WireError`]. After [`WireError::TooLong`] and [`WireError::Empty`] the packet is gone, with all that came
    /// with it; after [`WireError::NoDescriptors`], what is missing is.
    pub fn receive(&self, waits: bool) -> Result<Option<Packet>, WireError> {
        let mut bytes = [0; BYTES_MAX];
        // Room for all that a packet can have: the kernel would close the others on this thread.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | if waits { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let received = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Ok(received) => break received,
                // A reset is told once; what the other side has said before it hung up comes behind.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(WireError::of(error)),
            }
        };
        let descriptors = rights(&mut control);
        if received.flags.contains(ReturnFlags::TRUNC) || descriptors.len() > DESCRIPTORS_MAX {
            return Err(WireError::TooLong { descriptors });
        }
        // A packet has at least the kind of message: nothing is the end.
        if received.bytes == 0 {
            return Err(match descriptors.is_empty() {
                true => WireError::Closed,
                false => WireError::Empty { descriptors },
            });
        }
        let packet = Packet { bytes: bytes[..received.bytes].to_vec(), descriptors };
        // There was room to name all that can come, so that it was the table that had none.
        match received.flags.contains(ReturnFlags::CTRUNC) {
            true => Err(WireError::NoDescriptors(packet)),
            false => Ok(Some(packet)),
        }
    }
}

impl From<Wire> for OwnedFd {
    fn from(wire: Wire) -> OwnedFd {
        wire.0
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl WireError {
    /// What came with what is an error. To close it may wait for as long as who has sent it likes.
    pub fn into_descriptors(self) -> Vec<OwnedFd> {
        match self {
            WireError::TooLong { descriptors } | WireError::Empty { descriptors } => descriptors,
            WireError::NoDescriptors(packet) => packet.descriptors,
            _ => Vec::new(),
        }
    }

    fn of(error: Errno) -> WireError {
        match error {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => WireError::Closed,
            Errno::AGAIN => WireError::Full,
            Errno::TOOMANYREFS => WireError::Crowded,
            error => WireError::System(error.into()),
        }
    }
}

/// What to do about an error, to be said behind it; nothing, if that is not known.
pub fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => REMEDY,
        _ => "",
    }
}

const REMEDY: &str = "; raise its limit of descriptors (`ulimit -n`)";
/// How often, and how long apart, is tried again what is [`WireError::Crowded`].
const CROWDED_TRIES: u32 = 1000;
const CROWDED_PAUSE: Duration = Duration::from_millis(1);
/// The kernel's bound on what comes with one packet.
const KERNEL_DESCRIPTORS_MAX: usize = 253;

fn rights(control: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    rights.flatten().collect()
}
