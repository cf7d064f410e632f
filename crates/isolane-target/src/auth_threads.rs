//! Side threads that run the exponentiations of hosts that authenticate, and post the results to the cores.
//!
//! An exponentiation takes up to some tens of milliseconds, during which a core would serve nothing.
//!
//! Invariant: the number of threads is bounded, and no core waits for a thread.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::auth_requests::AuthRequest;
use crate::shared::{Message, Shared};

/// Starts the threads.
///
/// # Errors
/// The error of the system. [`AuthRequests::close`] ends the threads that run already.
pub(crate) fn spawn(shared: &Arc<Shared>) -> std::io::Result<Vec<JoinHandle<()>>> {
    let spawn = |_| {
        let shared = Arc::clone(shared);
        thread::Builder::new().name("isolane-auth".to_owned()).spawn(move || serve(&shared))
    };
    (0..THREADS).map(spawn).collect()
}

fn serve(shared: &Shared) {
    // Handshakes yield to I/O. A system that refuses this serves them with the same priority.
    let _ = rustix::process::nice(NICE);
    while let Some(AuthRequest { work, lane, core, .. }) = shared.auth_requests.next() {
        shared.post(core, Message::Computed { lane, computed: Some(Box::new(work.run())) });
    }
}

const THREADS: usize = 2;
/// On a core that a reactor fills, both threads together get 18 % of it. With 15 it would be 7 %, but hosts could then not
/// authenticate in time on a machine whose cores other programs fill.
const NICE: i32 = 10;
