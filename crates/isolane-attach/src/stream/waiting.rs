//! How a stream's half waits: a thread on a flag or on the socket, a task for its waker.
//!
//! Invariant: nobody sleeps through the end of the session. It takes the flags of all streams; on a socket, its
//! connection is watched as well.

use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use isolane_ring::Flag;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::session::Session;

/// Until when to wait; for ever if `None`.
pub(super) fn moment(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// Spins, then sleeps until the flag is taken. May end before it is ready.
///
/// # Errors
/// `WouldBlock` if time has run out; that the session is over; what `is_ready` returns.
pub(super) fn wait(
    session: &Session,
    flag: &Flag,
    spin: Duration,
    until: Option<Instant>,
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
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let has_time = match sleeps {
        Ok(true) => flag.wait(left),
        _ => true,
    };
    flag.disarm();
    if sleeps? && !has_time {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(())
}

/// Sleeps until the kernel has room for more to send, or the session is over, if there is one.
///
/// # Errors
/// `WouldBlock` if time has run out; the system's.
pub(super) fn wait_for_room(
    session: Option<&Session>,
    socket: BorrowedFd<'_>,
    until: Option<Instant>,
) -> io::Result<()> {
    let socket = PollFd::from_borrowed_fd(socket, PollFlags::OUT);
    match session {
        Some(session) => sleep(&mut [socket, end_of(session)], until),
        None => sleep(&mut [socket], until),
    }
}

/// Spins, then sleeps until the kernel has something, or the session is over.
///
/// # Errors
/// As [`wait`].
pub(super) fn wait_for_bytes(
    session: &Session,
    socket: BorrowedFd<'_>,
    spin: Duration,
    until: Option<Instant>,
) -> io::Result<()> {
    let socket = PollFd::from_borrowed_fd(socket, PollFlags::IN);
    let start = Instant::now();
    while start.elapsed() < spin {
        session.check()?;
        if poll(&mut [socket.clone()], Some(&AT_ONCE)) != Ok(0) {
            return Ok(());
        }
    }
    session.check()?;
    sleep(&mut [socket, end_of(session)], until)
}

/// Sleeps until the kernel has what a stream waits for that no engine has.
///
/// # Errors
/// As [`wait`].
pub(super) fn wait_natively(
    socket: BorrowedFd<'_>,
    what: PollFlags,
    until: Option<Instant>,
) -> io::Result<()> {
    sleep(&mut [PollFd::from_borrowed_fd(socket, what)], until)
}

/// Whether the kernel has that already.
///
/// # Errors
/// The system's.
pub(super) fn is_ready_natively(socket: BorrowedFd<'_>, what: PollFlags) -> io::Result<bool> {
    Ok(poll(&mut [PollFd::from_borrowed_fd(socket, what)], Some(&AT_ONCE))? > 0)
}

/// That it is hung up is told unasked; what comes on it is not this thread's.
fn end_of(session: &Session) -> PollFd<'_> {
    PollFd::from_borrowed_fd(session.line(), PollFlags::empty())
}

fn sleep(what: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<()> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.map(isolane_ring::timespec);
    match poll(what, left.as_ref()) {
        Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Has the task of `context` woken. Look once more behind that.
pub(super) fn register(waiting: &Mutex<Option<Waker>>, context: &Context<'_>) {
    let mut waiting = waiting.lock();
    if waiting.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
        return;
    }
    let before = waiting.replace(context.waker().clone());
    drop(waiting);
    // Not under the lock: it may be the last of a task.
    drop(before);
}

/// What a task is told of an attempt.
pub(super) fn pending(outcome: io::Result<usize>) -> Poll<io::Result<usize>> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        outcome => Poll::Ready(outcome),
    }
}

pub(super) const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use isolane_ring::mock;
    use rustix::net::{SendFlags, send};

    use super::*;
    use crate::session::tests::{in_time, session};

    const SPIN: Duration = Duration::from_micros(50);

    fn in_a_moment() -> Option<Instant> {
        moment(Some(Duration::from_millis(5)))
    }

    fn is_out_of_time(outcome: io::Result<()>) -> bool {
        matches!(outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    #[test]
    fn whoever_waits_gives_up_when_time_has_run_out_and_asks_for_nothing_more() {
        let (session, _engine) = session();
        let (flag, (near, _far)) = (Flag::new(), mock::connection().unwrap());
        assert!(is_out_of_time(wait(&session, &flag, SPIN, in_a_moment(), || Ok(false))));
        assert!(!flag.take(), "it is still armed");
        assert!(is_out_of_time(wait_for_bytes(&session, near.as_fd(), SPIN, in_a_moment())));
        while send(&near, &[0; 65536], SendFlags::DONTWAIT).is_ok() {}
        assert!(is_out_of_time(wait_for_room(Some(&session), near.as_fd(), in_a_moment())));
        assert!(is_out_of_time(wait_for_room(None, near.as_fd(), in_a_moment())));
        assert!(moment(Some(Duration::MAX)).is_none(), "that is for ever");
    }

    #[test]
    fn whoever_waits_wakes_when_there_is_something() {
        let (session, _engine) = session();
        let (flag, (near, far)) = (Arc::new(Flag::new()), mock::connection().unwrap());
        let theirs = Arc::clone(&flag);
        in_time("it sleeps on", move || {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !theirs.rouse() {
                        std::thread::yield_now();
                    }
                    send(&far, b"x", SendFlags::empty()).unwrap();
                });
                wait(&session, &flag, SPIN, None, || Ok(false)).unwrap();
                wait(&session, &flag, SPIN, None, || Ok(true)).unwrap();
                wait_for_bytes(&session, near.as_fd(), SPIN, None).unwrap();
                wait_for_room(Some(&session), near.as_fd(), None).unwrap();
            });
        });
    }

    #[test]
    fn nobody_sleeps_on_a_socket_through_the_end_of_the_session() {
        let (session, engine) = session();
        let (near, _far) = mock::connection().unwrap();
        while send(&near, &[0; 65536], SendFlags::DONTWAIT).is_ok() {}
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(engine);
        });
        in_time("it sleeps on", move || {
            wait_for_room(Some(&session), near.as_fd(), None).unwrap();
            while session.check().is_ok() {
                std::thread::yield_now();
            }
            let error = wait_for_bytes(&session, near.as_fd(), SPIN, None).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
            let error = wait(&session, &Flag::new(), SPIN, None, || Ok(false)).unwrap_err();
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
    fn the_last_task_that_waits_is_the_one_that_is_woken() {
        let waiting = Mutex::new(None);
        let [first, last] = [(); 2].map(|()| Arc::new(Counted(AtomicU32::new(0))));
        for task in [&first, &first, &last] {
            register(&waiting, &Context::from_waker(&Waker::from(Arc::clone(task))));
        }
        assert_eq!(Arc::strong_count(&first), 1, "its waker is kept");
        let waker: Option<Waker> = waiting.lock().take();
        waker.unwrap().wake();
        assert_eq!([first, last].map(|task| task.0.load(Ordering::Relaxed)), [0, 1]);
    }
}
