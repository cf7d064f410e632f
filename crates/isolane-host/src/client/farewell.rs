//! The last words of a connection that the target has spoilt.
//!
//! A termination request tells the target what it did wrong. Resetting at once would destroy it on its way,
//! so a connection that has sent everything shuts down writing and waits a moment for the target to close
//! (TCP 1.0 §3.5). Invariant: the connection is reset after [`PATIENCE`] at the latest, which the margin of
//! [`fence`](crate::fence) covers.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{Shutdown, connect_unspec, shutdown, sockopt};

/// How long the target may take to close.
const PATIENCE: Duration = Duration::from_millis(500);

/// Waits for the target's end on a thread of its own; without one the connection is reset at once.
pub(super) fn part_in_peace(socket: OwnedFd) {
    let farewell = move || {
        if shutdown(&socket, Shutdown::Write).is_ok() {
            drain(&socket, Instant::now() + PATIENCE);
        }
        reset(&socket);
    };
    if let Err(error) = std::thread::Builder::new().name("isolane-farewell".to_owned()).spawn(farewell) {
        log::debug!("no thread for a farewell: {error}");
    }
}

/// Resets the connection: what its send buffer holds is thrown away, so that it does not arrive later.
pub(super) fn reset(socket: &OwnedFd) {
    // Disconnecting resets at once, also while the kernel still holds another reference to the socket; it
    // fails where the target has reset the connection already.
    let _ = connect_unspec(socket);
}

/// From now on the kernel resets the connection when this process is killed.
pub(super) fn reset_when_killed(socket: impl AsFd) {
    // Should it fail, what the send buffer holds still arrives; the fence waits for that in any case.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Undoes [`reset_when_killed`].
pub(super) fn close_in_order(socket: impl AsFd) {
    // Should it fail, the target sees a reset behind the end of its controller.
    let _ = sockopt::set_socket_linger(socket, None);
}

/// Reads until the target closes or the deadline: unread bytes would turn the close into a reset.
fn drain(socket: &OwnedFd, deadline: Instant) {
    let mut scratch = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let mut sockets = [PollFd::new(socket, PollFlags::IN)];
        if left.is_zero() || poll(&mut sockets, timeout.as_ref()).is_err() {
            return;
        }
        match rustix::io::read(socket, &mut scratch[..]) {
            Ok(0) => return,
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
