//! Mailboxes for messages between threads and reactors: many senders, one receiver, no lock, and a
//! [`Waker`] that is notified after each message. For control messages and submissions, not for
//! payload.

use crate::Waker;
use std::sync::mpsc;

/// Creates a mailbox of at most `max_messages` unread messages.
pub fn bounded<T>(waker: Waker, max_messages: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::sync_channel(max_messages);
    (Sender { channel: Channel::Bounded(sender), waker }, Receiver { receiver })
}

/// Creates a mailbox without a bound, for messages whose number is bounded elsewhere.
pub fn unbounded<T>(waker: Waker) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::channel();
    (Sender { channel: Channel::Unbounded(sender), waker }, Receiver { receiver })
}

/// Sending end; clone it for every thread.
#[derive(Debug)]
pub struct Sender<T> {
    channel: Channel<T>,
    waker: Waker,
}

#[derive(Debug)]
enum Channel<T> {
    Bounded(mpsc::SyncSender<T>),
    Unbounded(mpsc::Sender<T>),
}

impl<T> Sender<T> {
    /// Sends a message and wakes the receiver's reactor.
    ///
    /// # Errors
    /// Returns the message if the mailbox is full or its receiver was dropped.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.send_no_wake(message)?;
        self.waker.wake();
        Ok(())
    }

    /// Sends a message without a wakeup, for batches. End the batch with [`Sender::wake`].
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn send_no_wake(&self, message: T) -> Result<(), SendError<T>> {
        match &self.channel {
            Channel::Bounded(channel) => channel.try_send(message).map_err(|error| match error {
                mpsc::TrySendError::Full(message) => SendError::Full(message),
                mpsc::TrySendError::Disconnected(message) => SendError::Closed(message),
            }),
            Channel::Unbounded(channel) => {
                channel.send(message).map_err(|mpsc::SendError(message)| SendError::Closed(message))
            }
        }
    }

    /// Wakes the receiver's reactor.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        let channel = match &self.channel {
            Channel::Bounded(channel) => Channel::Bounded(channel.clone()),
            Channel::Unbounded(channel) => Channel::Unbounded(channel.clone()),
        };
        Sender { channel, waker: self.waker.clone() }
    }
}

/// An undelivered message.
#[derive(Debug, thiserror::Error)]
pub enum SendError<T> {
    /// The mailbox is full.
    #[error("the mailbox is full")]
    Full(T),
    /// The receiver was dropped.
    #[error("the mailbox is closed")]
    Closed(T),
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
