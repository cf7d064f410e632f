//! Mailboxes for messages between threads and reactors: many senders, one receiver, no lock, and a
//! [`Waker`] that is notified after each message. For control messages and submissions, not for
//! payload. The number of messages is bounded elsewhere.

use crate::Waker;
use std::sync::mpsc;

pub use std::sync::mpsc::SendError;

/// Creates a mailbox.
pub fn unbounded<T>(waker: Waker) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::channel();
    (Sender { sender, waker }, Receiver { receiver })
}

/// Sending end; clone it for every thread.
#[derive(Debug)]
pub struct Sender<T> {
    sender: mpsc::Sender<T>,
    waker: Waker,
}

impl<T> Sender<T> {
    /// Sends a message and wakes the receiver's reactor.
    ///
    /// # Errors
    /// Returns the message if the receiver was dropped.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.sender.send(message)?;
        self.waker.wake();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { sender: self.sender.clone(), waker: self.waker.clone() }
    }
}

/// Receiving end, owned by the reactor's driver. Drain it on every
/// [`Event::Woken`](crate::Event::Woken).
#[derive(Debug)]
pub struct Receiver<T> {
    receiver: mpsc::Receiver<T>,
}

impl<T> Receiver<T> {
    /// Returns the oldest unread message. A driver that reads a bounded number per turn must wake
    /// its own reactor if more may remain.
    pub fn poll(&self) -> Option<T> {
        self.receiver.try_recv().ok()
    }
}
