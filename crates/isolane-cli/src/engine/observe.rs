//! Side threads of an engine: its control socket.

use std::path::Path;
use std::sync::Arc;

use isolane_engine::SnapshotSource;
use isolane_inspect::control::{dir, unusable};
use isolane_inspect::program::{OnSlow, Program, Turn};
use isolane_inspect::side_threads::SideThreads;
use isolane_observe::snapshot::Snapshot;
use rustix::process::{Pid, getppid};

use crate::failure::Failure;
use crate::serve::observe::{ControlSocket, start_for};

/// An engine, as side threads see it.
struct Observed(SnapshotSource);

impl Program for Observed {
    fn snapshot(&self) -> Snapshot {
        self.0.snapshot().unwrap_or_default()
    }

    fn turns(&self) -> Vec<Turn> {
        let turns = self.0.turns().into_iter();
        let turn = |isolane_engine::CurrentTurn { core, thread, number, phase }| Turn {
            core,
            thread,
            number,
            phase,
        };
        turns.map(turn).collect()
    }
}

/// Rejects a path that no engine could listen on.
pub fn check(socket: &Path) -> Result<(), Failure> {
    let failed = |reason: String| Failure::from_error(unusable(socket, "--control-socket", &reason));
    dir::prepare(socket).map_err(failed)
}

/// Starts the side threads of an engine, whose clients connect to `client_socket`. The path of the control socket stays
/// the same when the supervisor replaces the engine, which serves without it if it cannot listen.
pub fn start(
    source: SnapshotSource,
    client_socket: &Path,
    cores: &[usize],
    socket: Option<&ControlSocket>,
) -> Option<SideThreads> {
    let supervisor = Pid::as_raw(getppid());
    let default = client_socket.with_file_name(format!("engine-{supervisor}.sock"));
    let socket = socket.unwrap_or(&ControlSocket::Default);
    let threads = start_for(
        Arc::new(Observed(source)),
        default,
        cores,
        (socket, None, "--control-socket"),
        OnSlow::default(),
    );
    threads.inspect_err(|failure| log::warn!("no control socket: {failure}")).ok()
}
