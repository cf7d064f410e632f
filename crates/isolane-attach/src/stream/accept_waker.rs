//! Thread that wakes the tasks waiting for a listener's connections. Started with the first task.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;

use isolane_shm::process_id;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// Handle to the thread, which exits when it is dropped.
#[derive(Debug)]
pub(super) struct AcceptWaker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Process that has the thread.
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
    stopped: bool,
}

impl AcceptWaker {
    /// Starts the thread, which keeps the listener open.
    pub fn start(listener: &TcpListener) -> io::Result<AcceptWaker> {
        let shared = Arc::new(Shared {
            waiting: Mutex::default(),
            changed: Condvar::new(),
            listener: listener.as_fd().try_clone_to_owned()?,
            end: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let watched = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("isolane-accept".into()).spawn(move || watched.watch())?;
        Ok(AcceptWaker { shared, thread: Some(thread), process: process_id() })
    }

    /// Registers a task to wake at the next connection, which may already be pending.
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
            self.changed.wait_while(&mut waiting, |waiting| waiting.wakers.is_empty() && !waiting.stopped);
            if waiting.stopped {
                return;
            }
            drop(waiting);
            let (listener, end) =
                (PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.end, PollFlags::IN));
            // A task woken spuriously registers again.
            let _ = poll(&mut [listener, end], None);
            let wakers = std::mem::take(&mut self.waiting.lock().wakers);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for AcceptWaker {
    fn drop(&mut self) {
        // A forked child has no such thread, and the lock may have been held at the fork.
        if self.process != process_id() {
            return std::mem::forget(self.thread.take());
        }
        self.shared.waiting.lock().stopped = true;
        self.shared.changed.notify_one();
        // Fails only if the counter is full, which is readable as well.
        let _ = rustix::io::write(&self.shared.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            // A task that it woke may drop the last handle.
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use isolane_shm::testing;

    use super::*;

    #[test]
    fn forked_child_drops_handle_under_parents_lock() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut accept_waker = Some(AcceptWaker::start(&listener).unwrap());
        let shared = accept_waker.as_ref().map(|accept_waker| Arc::clone(&accept_waker.shared)).unwrap();
        let held = shared.waiting.lock();
        assert!(testing::finishes_in_child(|| drop(accept_waker.take())), "the child waits for the lock");
        drop(held);
    }
}
