//! Wakes tasks when somebody connects to a listener: a thread, started with the first task that waits.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;

use isolane_ring::process_id;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// The thread of one listener. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Doorman {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The process that has the thread.
    process: u64,
}

#[derive(Debug)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    listener: OwnedFd,
    end: OwnedFd,
}

#[derive(Debug, Default)]
struct Waiting {
    wakers: Vec<Waker>,
    is_over: bool,
}

impl Doorman {
    /// Of a listener, which stays open as long as it lives.
    pub fn start(listener: &TcpListener) -> io::Result<Doorman> {
        let shared = Arc::new(Shared {
            waiting: Mutex::default(),
            changed: Condvar::new(),
            listener: listener.as_fd().try_clone_to_owned()?,
            end: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let watched = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("isolane-accept".into()).spawn(move || watched.watch())?;
        Ok(Doorman { shared, thread: Some(thread), process: process_id() })
    }

    /// Wakes a task when somebody connects, or has already.
    pub fn register(&self, waker: &Waker) {
        let mut waiting = self.shared.waiting.lock();
        if !waiting.wakers.iter().any(|known| known.will_wake(waker)) {
            waiting.wakers.push(waker.clone());
        }
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn watch(&self) {
        loop {
            let mut waiting = self.waiting.lock();
            self.changed.wait_while(&mut waiting, |waiting| waiting.wakers.is_empty() && !waiting.is_over);
            if waiting.is_over {
                return;
            }
            drop(waiting);
            let (listener, end) =
                (PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.end, PollFlags::IN));
            // Who is woken for nothing looks and waits again.
            let _ = poll(&mut [listener, end], None);
            let wakers = std::mem::take(&mut self.waiting.lock().wakers);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for Doorman {
    fn drop(&mut self) {
        // A child has no such thread, and that may have held the lock when it was forked.
        if self.process != process_id() {
            return std::mem::forget(self.thread.take());
        }
        self.shared.waiting.lock().is_over = true;
        self.shared.changed.notify_one();
        // The only failure of a non-blocking eventfd is a full counter, and then it rings already.
        let _ = rustix::io::write(&self.shared.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            // A task that it woke may have been the last owner.
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use isolane_ring::mock;

    use super::*;

    #[test]
    fn forked_child_drops_it_under_lock_of_its_parent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut doorman = Some(Doorman::start(&listener).unwrap());
        let shared = doorman.as_ref().map(|doorman| Arc::clone(&doorman.shared)).unwrap();
        let held = shared.waiting.lock();
        assert!(mock::ends_in_child(|| drop(doorman.take())), "the child waits for the lock");
        drop(held);
    }
}
