//! Graceful close of a connection after a protocol violation, and its reset.
//!
//! A termination request reports the violation to the target. An immediate reset would destroy it in transit,
//! so a connection that has sent everything shuts down writing and waits briefly for the target to close (TCP
//! 1.0 §3.5).
//!
//! Invariant: the connection is reset after [`CLOSE_TIMEOUT`] at the latest, which the margin of
//! [`fence`](crate::fence) covers.

use std::time::{Duration, Instant};

use isolane_shm::with_signals_blocked;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{Shutdown, connect_unspec, shutdown, sockopt};

/// Time for the target to close.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Waits on a separate thread until the target closes. Without a thread, resets the connection immediately.
pub(super) fn close_gracefully(socket: OwnedFd) {
    let close = move || {
        if shutdown(&socket, Shutdown::Write).is_ok() {
            drain(&socket, Instant::now() + CLOSE_TIMEOUT);
        }
        reset(&socket);
    };
    let thread = std::thread::Builder::new().name("isolane-closing".to_owned());
    if let Err(error) = with_signals_blocked(|| thread.spawn(close)) {
        log::debug!("cannot spawn close thread: {error}");
    }
}

/// Resets the connection and discards its send buffer, so that the data does not arrive later.
pub(super) fn reset(socket: &OwnedFd) {
    // Disconnecting resets immediately, even if the kernel still holds another reference to the socket. It
    // fails if the target has reset the connection already.
    let _ = connect_unspec(socket);
}

/// Makes the kernel reset the connection if this process is killed.
pub(super) fn set_abortive_close(socket: impl AsFd) {
    // On failure the send buffer still arrives, for which the fence waits in any case.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Undoes [`set_abortive_close`].
pub(super) fn clear_abortive_close(socket: impl AsFd) {
    // On failure the target sees a reset after the end of its controller.
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
