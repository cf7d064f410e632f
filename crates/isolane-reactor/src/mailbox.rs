//! Messages between threads and reactors: many senders, one receiver, no lock, and a [`Waker`] that is rung
//! after each message. Not for payload: what is sent here is control (a new connection, a stop) or a
//! submission.

use crate::Waker;
use std::sync::mpsc;

/// A mailbox that holds at most `messages_max` unread messages.
pub fn bounded<T>(waker: Waker, messages_max: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::sync_channel(messages_max);
    (Sender { channel: Channel::Bounded(sender), waker }, Receiver { receiver })
}

/// A mailbox without a bound: only for messages whose number something else bounds.
pub fn unbounded<T>(waker: Waker) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::channel();
    (Sender { channel: Channel::Unbounded(sender), waker }, Receiver { receiver })
}

/// The sending end; clone it for every thread.
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
    /// Leaves a message and wakes the receiver's reactor.
    ///
    /// # Errors
    /// The message comes back when the mailbox is full or its receiver is gone.
    pub fn send(&self, message: T) -> Result<(), Undelivered<T>> {
        self.send_silently(message)?;
        self.waker.wake();
        Ok(())
    }

    /// Leaves a message without waking anybody: more follow. End the batch with [`Sender::wake`].
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn send_silently(&self, message: T) -> Result<(), Undelivered<T>> {
        match &self.channel {
            Channel::Bounded(channel) => channel.try_send(message).map_err(|refusal| match refusal {
                mpsc::TrySendError::Full(message) => Undelivered::Full(message),
                mpsc::TrySendError::Disconnected(message) => Undelivered::Closed(message),
            }),
            Channel::Unbounded(channel) => {
                channel.send(message).map_err(|mpsc::SendError(message)| Undelivered::Closed(message))
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

/// A message that could not be left.
#[derive(Debug, thiserror::Error)]
pub enum Undelivered<T> {
    /// The mailbox holds as many messages as it may.
    #[error("the mailbox is full")]
    Full(T),
    /// Nobody will ever read it.
    #[error("the mailbox is closed")]
    Closed(T),
}

/// The receiving end, owned by the reactor's driver. Empty it on every [`Event::Woken`](crate::Event::Woken).
#[derive(Debug)]
pub struct Receiver<T> {
    receiver: mpsc::Receiver<T>,
}

impl<T> Receiver<T> {
    /// The oldest unread message. After reading a bounded number of them, wake the own reactor if there may
    /// be more.
    pub fn poll(&self) -> Option<T> {
        self.receiver.try_recv().ok()
    }
}
