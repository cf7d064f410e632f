//! Kernel interface of a reactor: io_uring or epoll.

use crate::epoll::Epoll;
use crate::event::{BackendEvent, PollWait};
use crate::file::FileJob;
use crate::key::{Key, Kind};
use crate::uring::{self, Uring};
use crate::{IoChoice, ReactorError};
use rustix::fd::BorrowedFd;
use std::io;

pub(crate) enum Backend {
    Uring(Box<Uring>),
    Epoll(Epoll),
}

impl Backend {
    /// Opens the chosen backend and returns its description.
    pub fn open(choice: IoChoice, doorbell: BorrowedFd<'_>) -> Result<(Backend, String), ReactorError> {
        let reason = match choice {
            IoChoice::Epoll => String::new(),
            IoChoice::Auto | IoChoice::Uring => match uring::open() {
                Ok(ring) => return Ok((Backend::Uring(Box::new(ring)), "io_uring".into())),
                Err(reason) if choice == IoChoice::Uring => return Err(ReactorError::Uring(reason)),
                Err(reason) => format!(": io_uring is not usable: {reason}"),
            },
        };
        let epoll = Epoll::new(doorbell).map_err(|error| ReactorError::Setup { what: "epoll", error })?;
        Ok((Backend::Epoll(epoll), format!("epoll{reason}")))
    }

    /// Returns the descriptor that becomes readable on an event, if the backend has one.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Backend::Uring(_) => None,
            Backend::Epoll(epoll) => Some(epoll.wait_fd()),
        }
    }

    /// Reopens the backend after an error of [`Backend::collect`] if the cause is a move to another
    /// thread. Nothing is armed afterwards.
    ///
    /// # Errors
    /// The original error if it has another cause; else the error of the system call.
    pub fn rebind_thread(&mut self, error: io::Error) -> io::Result<()> {
        match self {
            Backend::Uring(ring) if uring::is_wrong_thread(&error) => ring.reopen(),
            _ => Err(error),
        }
    }

    /// Registers a socket or listener.
    pub fn register(&mut self, socket: BorrowedFd<'_>, key: Key) -> io::Result<()> {
        match self {
            Backend::Uring(_) => Ok(()),
            Backend::Epoll(epoll) => epoll.register(socket, key),
        }
    }

    /// Unregisters a socket or listener; `armed` are the keys of its pending notifications.
    pub fn unregister(&mut self, socket: BorrowedFd<'_>, armed: impl IntoIterator<Item = Key>) {
        match self {
            Backend::Uring(ring) => armed.into_iter().for_each(|key| ring.disarm(key)),
            Backend::Epoll(epoll) => epoll.unregister(socket),
        }
    }

    /// Requests one notification when the socket is readable, immediate if it already is.
    pub fn arm_read(&mut self, socket: BorrowedFd<'_>, key: Key) {
        match self {
            Backend::Uring(ring) => ring.arm_read(socket, key),
            // Registered for every change.
            Backend::Epoll(_) => {}
        }
    }

    /// Requests one notification when the socket is writable.
    pub fn arm_write(&mut self, socket: BorrowedFd<'_>, key: Key) -> io::Result<()> {
        debug_assert_eq!(key.kind, Kind::Write);
        match self {
            Backend::Uring(ring) => {
                ring.arm_write(socket, key);
                Ok(())
            }
            Backend::Epoll(epoll) => epoll.arm_write(socket, key),
        }
    }

    /// Appends a bounded number of events to `backend_events`.
    pub fn collect(
        &mut self,
        wait: PollWait,
        doorbell: BorrowedFd<'_>,
        backend_events: &mut Vec<BackendEvent>,
    ) -> io::Result<()> {
        match self {
            Backend::Uring(ring) => ring.collect(wait, doorbell, backend_events),
            Backend::Epoll(epoll) => epoll.collect(wait, backend_events),
        }
    }

    /// Starts a file operation. Returns it if the backend does not support it.
    pub fn submit_file(&mut self, job: FileJob) -> Result<(), FileJob> {
        match self {
            Backend::Uring(ring) => ring.submit_file(job),
            Backend::Epoll(_) => Err(job),
        }
    }
}
