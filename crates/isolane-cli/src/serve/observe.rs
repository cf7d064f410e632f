//! Side threads of a target: its recorder, control socket, and metrics.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use isolane_inspect::control::{Listeners, dir};
use isolane_inspect::events::Events;
use isolane_inspect::program::{OnSlow, Program, Reply, Request, SharedProgram, Turn};
use isolane_inspect::side_threads::SideThreads;
use isolane_observe::snapshot::Snapshot;
use isolane_target::{SnapshotSource, Target};

use super::operator::Operator;
use crate::failure::{Context, Failure};

/// A target, as side threads see it.
struct Observed {
    source: SnapshotSource,
    operator: Arc<Operator>,
}

impl Program for Observed {
    fn snapshot(&self) -> Snapshot {
        self.source.snapshot().unwrap_or_default()
    }

    fn turns(&self) -> Vec<Turn> {
        let turns = self.source.turns().into_iter();
        let turn =
            |isolane_target::Turn { core, thread, number, phase }| Turn { core, thread, number, phase };
        turns.map(turn).collect()
    }

    fn avoid(&self, volume: u32, is_avoided: bool) -> bool {
        self.source.avoid(volume, is_avoided)
    }

    fn events(&self) -> Option<&Events> {
        Some(self.operator.events())
    }

    fn control(&self, request: &Request) -> Option<Reply> {
        self.operator.execute(request)
    }
}

/// Place of the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlSocket {
    /// In the directory of this user.
    Default,
    /// No socket.
    Off,
    /// At this path.
    At(PathBuf),
}

/// Parses `off` or a path.
pub fn parse_control_socket(text: &str) -> Result<ControlSocket, String> {
    match text {
        "off" => Ok(ControlSocket::Off),
        "" => Err("write a path, or off".into()),
        path => Ok(ControlSocket::At(path.into())),
    }
}

/// Parses a list of actions for slow devices.
pub fn parse_on_slow(text: &str) -> Result<OnSlow, String> {
    let mut on_slow = OnSlow { log: false, metric: false, light: false, avoid: false };
    for action in text.split(',') {
        match action {
            "log" => on_slow.log = true,
            "metric" => on_slow.metric = true,
            "light" => on_slow.light = true,
            "avoid" => on_slow.avoid = true,
            "none" if text == "none" => {}
            "none" => return Err("none excludes all other actions; write none alone, or leave it out".into()),
            _ => return Err(format!("unknown action {action:?}; write log, metric, light, avoid, or none")),
        }
    }
    Ok(on_slow)
}

/// Starts the side threads.
pub fn start(
    target: &Target,
    operator: Arc<Operator>,
    cores: &[usize],
    listeners: (&ControlSocket, Option<SocketAddr>),
    on_slow: OnSlow,
) -> Result<SideThreads, Failure> {
    let default = dir::socket_path(&dir::own_directory(), "serve");
    if *listeners.0 != ControlSocket::Off {
        Operator::publish_events(&operator)?;
    }
    let setting = if operator.file.is_some() { "server.control-socket" } else { "--control-socket" };
    let observed = Observed { source: target.source(), operator };
    start_for(Arc::new(observed), default, cores, (listeners.0, listeners.1, setting), on_slow)
}

/// Starts the side threads of a program. `default` is the path of [`ControlSocket::Default`], and the third part of the
/// listeners is the name of the setting with the path.
pub fn start_for(
    program: SharedProgram,
    default: PathBuf,
    cores: &[usize],
    (socket, metrics, setting): (&ControlSocket, Option<SocketAddr>, &'static str),
    on_slow: OnSlow,
) -> Result<SideThreads, Failure> {
    let cpus = cores.iter().filter_map(|core| u32::try_from(*core).ok()).collect();
    let mut threads = SideThreads::start(program, cpus, on_slow).context("cannot start side threads")?;
    let path = match socket {
        ControlSocket::Default => Some(default),
        ControlSocket::Off => None,
        ControlSocket::At(path) => Some(path.clone()),
    };
    let listeners = Listeners { socket: path, metrics, setting };
    match threads.listen(&listeners) {
        // A program serves without it, as in a system without a writable directory.
        Err(reason) if *socket == ControlSocket::Default && metrics.is_none() => {
            log::warn!("no control socket: {reason}, or `off`");
        }
        result => result.map_err(Failure::from_error)?,
    }
    if let Some(address) = threads.metrics() {
        log::info!("metrics at http://{address}/metrics");
        if !address.ip().is_loopback() {
            log::warn!("{address}: metrics are readable from other machines, without authentication");
        }
    }
    if let Some(path) = threads.socket() {
        log::info!("control socket {}", path.display());
    }
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_actions_for_slow_devices() {
        let actions = |text| parse_on_slow(text).map(|it| [it.log, it.metric, it.light, it.avoid]);
        assert_eq!(actions("log,metric"), Ok([true, true, false, false]));
        assert_eq!(actions("avoid,log"), Ok([true, false, false, true]));
        assert_eq!(actions("light"), Ok([false, false, true, false]));
        assert_eq!(actions("none"), Ok([false; 4]));
        assert!(actions("none,log").is_err_and(|error| error.contains("none excludes")));
        for text in ["", "log,", "Log", "lights"] {
            assert!(
                actions(text).is_err_and(|error| error.contains("log, metric, light, avoid, or none")),
                "{text}"
            );
        }
    }
}
