//! Waits of a stream's halves: threads wait on a flag or the socket, tasks register a waker.
//!
//! Invariant: the end of the session wakes every waiter. It wakes the flags of all streams; waits on a socket also watch
//! the session's connection.

use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use isolane_shm::{WakeFlag, timespec};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::session::Session;

/// Returns the end of a wait; `None` means no limit.
pub(super) fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// Spins, then sleeps until the flag is taken. May return early.
///
/// # Errors
/// `WouldBlock` on timeout; if the session is closed; from `is_ready`.
pub(super) fn wait(
    session: &Session,
    flag: &WakeFlag,
    spin: Duration,
    deadline: Option<Instant>,
    mut is_ready: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    let start = Instant::now();
    while start.elapsed() < spin {
        if is_ready()? {
            return Ok(());
        }
        std::hint::spin_loop();
    }
    flag.arm();
    let sleeps = session.check().map_err(io::Error::from).and_then(|()| is_ready()).map(|is_ready| !is_ready);
    let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let has_time = match sleeps {
        Ok(true) => flag.wait(remaining),
        _ => true,
    };
    flag.disarm();
    if sleeps? && !has_time {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(())
}

/// Sleeps until the socket is ready, or the session, if any, closes.
///
/// # Errors
/// `WouldBlock` on timeout; the system's.
pub(super) fn wait_for_socket(
    session: Option<&Session>,
    socket: BorrowedFd<'_>,
    events: PollFlags,
    deadline: Option<Instant>,
) -> io::Result<()> {
    let socket = PollFd::from_borrowed_fd(socket, events);
    // Watches the session for a hangup only: `poll` always reports it, and packets belong to the receiver thread.
    let connection =
        session.map(|session| PollFd::from_borrowed_fd(session.connection(), PollFlags::empty()));
    let remaining = deadline.map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())));
    let ready = match connection {
        Some(connection) => poll(&mut [socket, connection], remaining.as_ref()),
        None => poll(&mut [socket], remaining.as_ref()),
    };
    match ready {
        Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Spins, then sleeps until the socket is readable, or the session closes.
///
/// # Errors
/// As [`wait`].
pub(super) fn wait_for_bytes(
    session: &Session,
    socket: BorrowedFd<'_>,
    spin: Duration,
    deadline: Option<Instant>,
) -> io::Result<()> {
    let start = Instant::now();
    while start.elapsed() < spin {
        session.check()?;
        if is_socket_ready(socket, PollFlags::IN) != Ok(false) {
            return Ok(());
        }
    }
    session.check()?;
    wait_for_socket(Some(session), socket, PollFlags::IN, deadline)
}

/// Returns `true` if the socket is ready.
///
/// # Errors
/// The system's.
pub(super) fn is_socket_ready(socket: BorrowedFd<'_>, events: PollFlags) -> Result<bool, Errno> {
    Ok(poll(&mut [PollFd::from_borrowed_fd(socket, events)], Some(&ZERO))? > 0)
}

/// Registers the task of `context`. Check for readiness again afterwards.
pub(super) fn register(slot: &Mutex<Option<Waker>>, context: &Context<'_>) {
    let mut slot = slot.lock();
    if slot.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
        return;
    }
    let old = slot.replace(context.waker().clone());
    drop(slot);
    // Without the lock: this may drop the task.
    drop(old);
}

pub(super) fn to_poll<T>(result: io::Result<T>) -> Poll<io::Result<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        result => Poll::Ready(result),
    }
}

pub(super) const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use isolane_shm::testing;
    use rustix::net::{SendFlags, send};

    use super::*;
    use crate::session::tests::{session, with_timeout};

    const SPIN: Duration = Duration::from_micros(50);

    fn soon() -> Option<Instant> {
        deadline(Some(Duration::from_millis(5)))
    }

    fn has_timed_out(result: io::Result<()>) -> bool {
        matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    #[test]
    fn waits_time_out_and_disarm() {
        let (session, _engine) = session();
        let (flag, (near, _far)) = (WakeFlag::new(), testing::connection().unwrap());
        assert!(has_timed_out(wait(&session, &flag, SPIN, soon(), || Ok(false))));
        assert!(!flag.take(), "the flag is still armed");
        assert!(has_timed_out(wait_for_bytes(&session, near.as_fd(), SPIN, soon())));
        while send(&near, &[0; 65536], SendFlags::DONTWAIT).is_ok() {}
        assert!(has_timed_out(wait_for_socket(Some(&session), near.as_fd(), PollFlags::OUT, soon())));
        assert!(has_timed_out(wait_for_socket(None, near.as_fd(), PollFlags::OUT, soon())));
        assert!(deadline(Some(Duration::MAX)).is_none(), "not unlimited");
    }

    #[test]
    fn waits_end_when_ready() {
        let (session, _engine) = session();
        let (flag, (near, far)) = (Arc::new(WakeFlag::new()), testing::connection().unwrap());
        let clone = Arc::clone(&flag);
        with_timeout("the wait does not end", move || {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !clone.wake() {
                        std::thread::yield_now();
                    }
                    send(&far, b"x", SendFlags::empty()).unwrap();
                });
                wait(&session, &flag, SPIN, None, || Ok(false)).unwrap();
                wait(&session, &flag, SPIN, None, || Ok(true)).unwrap();
                wait_for_bytes(&session, near.as_fd(), SPIN, None).unwrap();
                wait_for_socket(Some(&session), near.as_fd(), PollFlags::OUT, None).unwrap();
            });
        });
    }

    #[test]
    fn socket_waits_end_when_session_closes() {
        let (session, engine) = session();
        let (near, _far) = testing::connection().unwrap();
        while send(&near, &[0; 65536], SendFlags::DONTWAIT).is_ok() {}
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(engine);
        });
        with_timeout("the wait does not end", move || {
            wait_for_socket(Some(&session), near.as_fd(), PollFlags::OUT, None).unwrap();
            while session.check().is_ok() {
                std::thread::yield_now();
            }
            let error = wait_for_bytes(&session, near.as_fd(), SPIN, None).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
            let error = wait(&session, &WakeFlag::new(), SPIN, None, || Ok(false)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        });
        ending.join().unwrap();
    }

    struct Counted(AtomicU32);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn last_registered_task_is_woken() {
        let slot = Mutex::new(None);
        let [first, last] = [(); 2].map(|()| Arc::new(Counted(AtomicU32::new(0))));
        for task in [&first, &first, &last] {
            register(&slot, &Context::from_waker(&Waker::from(Arc::clone(task))));
        }
        assert_eq!(Arc::strong_count(&first), 1, "its waker is still registered");
        let waker: Option<Waker> = slot.lock().take();
        waker.unwrap().wake();
        assert_eq!([first, last].map(|task| task.0.load(Ordering::Relaxed)), [0, 1]);
    }
}
