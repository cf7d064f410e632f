//! What a reactor asks of the kernel, whichever of its two interfaces answers.

use crate::epoll::Epoll;
use crate::file::{Checked, Finished};
use crate::key::{Key, Kind};
use crate::ring::{self, Ring};
use crate::{IoChoice, ReactorError};
use rustix::fd::BorrowedFd;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Something the kernel said.
#[derive(Debug)]
pub(crate) enum Occurrence {
    /// Bytes to receive, or the end.
    Readable { key: Key, is_hung_up: bool },
    /// Room to send, or the end.
    Writable { key: Key },
    /// A connection to accept.
    Acceptable { index: u32 },
    /// A waker rang.
    Doorbell,
    /// A file operation is done.
    File(Finished),
}

/// How long to look for occurrences.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Only look. If `is_urgent` is false and looking costs a system call, then not every time.
    No { is_urgent: bool },
    /// Until there is one, or the time is over.
    For(Option<Duration>),
}

pub(crate) enum Poller {
    Ring(Box<Ring>),
    Epoll(Epoll),
}

impl Poller {
    /// Opens the interface chosen, and says in words which it is.
    pub fn open(choice: IoChoice, doorbell: BorrowedFd<'_>) -> Result<(Poller, String), ReactorError> {
        let reason = match choice {
            IoChoice::Epoll => String::new(),
            IoChoice::Auto | IoChoice::Uring => match ring::open() {
                Ok(ring) => return Ok((Poller::Ring(Box::new(ring)), "io_uring".into())),
                Err(reason) if choice == IoChoice::Uring => return Err(ReactorError::Uring(reason)),
                Err(reason) => format!(": io_uring is not usable: {reason}"),
            },
        };
        let epoll = Epoll::new(doorbell).map_err(|error| ReactorError::Setup { what: "epoll", error })?;
        Ok((Poller::Epoll(epoll), format!("epoll{reason}")))
    }

    /// What becomes readable when there is something to collect, if there is such a thing.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Poller::Ring(_) => None,
            Poller::Epoll(epoll) => Some(epoll.descriptor()),
        }
    }

    /// After a refusal by [`Poller::collect`]: opens the interface anew if the reason is that the calling
    /// thread is another than before. Nothing is armed then.
    ///
    /// # Errors
    /// The refusal, if it has another reason; else the kernel's.
    pub fn follow_thread(&mut self, refusal: io::Error) -> io::Result<()> {
        match self {
            Poller::Ring(ring) if Ring::is_of_another_thread(&refusal) => ring.reopen(),
            _ => Err(refusal),
        }
    }

    /// A socket or listener comes in.
    pub fn register(&mut self, socket: BorrowedFd<'_>, key: Key) -> io::Result<()> {
        match self {
            Poller::Ring(_) => Ok(()),
            Poller::Epoll(epoll) => epoll.register(socket, key),
        }
    }

    /// A socket or listener leaves; `armed` are the keys that wait for the kernel's word.
    pub fn unregister(&mut self, socket: BorrowedFd<'_>, armed: impl IntoIterator<Item = Key>) {
        match self {
            Poller::Ring(ring) => armed.into_iter().for_each(|key| ring.disarm(key)),
            Poller::Epoll(epoll) => epoll.unregister(socket),
        }
    }

    /// Asks for one word when there are bytes (or a connection). If there are some already, it comes at once.
    pub fn arm_read(&mut self, socket: BorrowedFd<'_>, key: Key) {
        match self {
            Poller::Ring(ring) => ring.arm_read(socket, key),
            // Registered for every change.
            Poller::Epoll(_) => {}
        }
    }

    /// Asks for one word when there is room.
    pub fn arm_write(&mut self, socket: BorrowedFd<'_>, key: Key) -> io::Result<()> {
        debug_assert_eq!(key.kind, Kind::Write);
        match self {
            Poller::Ring(ring) => {
                ring.arm_write(socket, key);
                Ok(())
            }
            Poller::Epoll(epoll) => epoll.arm_write(socket, key),
        }
    }

    /// Appends what the kernel says to `occurrences`, a bounded number.
    pub fn collect(
        &mut self,
        wait: Wait,
        doorbell: BorrowedFd<'_>,
        occurrences: &mut Vec<Occurrence>,
    ) -> io::Result<()> {
        match self {
            Poller::Ring(ring) => ring.collect(wait, doorbell, occurrences),
            Poller::Epoll(epoll) => epoll.collect(wait, occurrences),
        }
    }

    /// Starts a file operation, or gives it back if this interface has none such.
    pub fn submit_file(&mut self, token: u64, file: &Arc<File>, operation: Checked) -> Result<(), Checked> {
        match self {
            Poller::Ring(ring) => ring.submit_file(token, file, operation),
            Poller::Epoll(_) => Err(operation),
        }
    }
}
