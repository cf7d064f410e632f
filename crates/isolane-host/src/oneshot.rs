//! One value from one thread to another, for any executor or none.
//!
//! Invariant: the receiver completes. If the sender is dropped without a value, it yields `None`; if the
//! receiver is dropped first, the value is dropped when it is sent.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use parking_lot::Mutex;

/// Creates the two ends.
pub(crate) fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Mutex::new(State::Empty(None)));
    (Sender(Some(Arc::clone(&shared))), Receiver(shared))
}

#[derive(Debug)]
enum State<T> {
    Empty(Option<Waker>),
    Value(T),
    Ended,
}

/// Sends the value.
#[derive(Debug)]
pub(crate) struct Sender<T>(Option<Arc<Mutex<State<T>>>>);

impl<T> Sender<T> {
    pub(crate) fn send(mut self, value: T) {
        self.settle(State::Value(value));
    }

    fn settle(&mut self, state: State<T>) {
        let Some(shared) = self.0.take() else { return };
        // Bound to a name so that the waker is called after the lock is released.
        let before = std::mem::replace(&mut *shared.lock(), state);
        if let State::Empty(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.settle(State::Ended);
    }
}

/// Receives the value.
pub(crate) struct Receiver<T>(Arc<Mutex<State<T>>>);

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        if let State::Empty(waker) = &mut *state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Ended) {
            State::Value(value) => Poll::Ready(Some(value)),
            State::Empty(_) | State::Ended => Poll::Ready(None),
        }
    }
}

/// Blocks this thread until a future completes.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_reaches_waiting_thread() {
        let (sender, receiver) = oneshot();
        let thread = std::thread::spawn(move || block_on(receiver));
        std::thread::sleep(std::time::Duration::from_millis(10));
        sender.send(5);
        assert_eq!(thread.join().unwrap(), Some(5));
    }

    #[test]
    fn dropped_sender_ends_wait() {
        let (sender, receiver) = oneshot::<u32>();
        drop(sender);
        assert_eq!(block_on(receiver), None);
    }

    #[test]
    fn dropped_receiver_drops_value() {
        let (sender, receiver) = oneshot();
        let value = Arc::new(());
        drop(receiver);
        sender.send(Arc::clone(&value));
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
