//! `--show-placement`: cores of threads and connections, and where packets arrive.
//!
//! The submitting thread also drives the lanes of every class, so each class starts on the core of that thread (H3);
//! with `--cores`, lanes are driven on their own cores. The network card decides where packets arrive; for the
//! target's end, `isolane serve` reports it on SIGUSR1 (S6).

use std::path::PathBuf;

use isolane_host::{ConnectionStatus, EngineStatus};
use serde::Serialize;

/// Cores of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Placement {
    /// Threads that submitted and, together or one at a time, drove the connections.
    pub threads: Vec<ThreadPlacement>,
    /// Connections, the admin queue first.
    pub connections: Vec<ConnectionPlacement>,
    /// The engine that owns the connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EnginePlacement>,
}

/// An isolated engine and the core that drives the volume's connections.
#[derive(Debug, Clone, Serialize)]
pub struct EnginePlacement {
    socket: PathBuf,
    core: usize,
}

/// Core of a thread at its end.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ThreadPlacement {
    core: usize,
    pinned: bool,
}

/// Cores of a connection.
#[derive(Debug, Clone, Serialize)]
pub struct ConnectionPlacement {
    /// The controller, one per association.
    cntlid: u16,
    qid: u16,
    /// Lane class; the admin queue has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    /// Index in the class.
    #[serde(skip_serializing_if = "Option::is_none")]
    lane: Option<usize>,
    local_port: u16,
    /// Assigned core, with `--cores`.
    #[serde(skip_serializing_if = "Option::is_none")]
    core: Option<usize>,
    /// Core of the thread that drove it at the end: one of those above or, with `--inline off`, the volume's thread.
    driving_core: usize,
    incoming_cpu: Option<usize>,
}

impl Placement {
    /// Returns the placement of threads, connections, and the engine, if there is one.
    pub fn new(
        threads: Vec<ThreadPlacement>,
        connections: &[ConnectionStatus],
        engine: Option<EngineStatus>,
    ) -> Placement {
        let engine = engine.map(|EngineStatus { path: socket, core }| EnginePlacement { socket, core });
        Placement { threads, connections: connections.iter().map(ConnectionPlacement::new).collect(), engine }
    }

    /// Returns one line for each thread, connection, and engine.
    pub fn to_text(&self) -> String {
        let threads = self.threads.iter().map(|thread| {
            format!("thread     on core {}{}\n", thread.core, if thread.pinned { ", pinned" } else { "" })
        });
        let engine = self.engine.iter().map(|EnginePlacement { socket, core }| {
            format!("engine     {}, connections driven on its core {core}\n", socket.display())
        });
        threads.chain(self.connections.iter().map(ConnectionPlacement::to_text)).chain(engine).collect()
    }
}

impl ThreadPlacement {
    /// Returns the placement of the calling thread.
    pub fn current() -> ThreadPlacement {
        let pinned = isolane_reactor::cpu::allowed().is_ok_and(|cores| cores.len() == 1);
        ThreadPlacement { core: isolane_reactor::cpu::current(), pinned }
    }
}

impl ConnectionPlacement {
    fn new(status: &ConnectionStatus) -> ConnectionPlacement {
        ConnectionPlacement {
            cntlid: status.cntlid,
            qid: status.qid,
            class: status.lane.map(|(class, _)| class.to_string()),
            lane: status.lane.map(|(_, lane)| lane),
            local_port: status.local.port(),
            core: status.core,
            driving_core: status.driving_core,
            incoming_cpu: status.incoming_cpu,
        }
    }

    fn to_text(&self) -> String {
        let name = match (&self.class, self.lane) {
            (Some(class), Some(lane)) => format!("{class} {lane}"),
            _ => "admin".to_owned(),
        };
        let arrive = self.incoming_cpu.map_or("an unknown core".into(), |core| format!("core {core}"));
        let placed = self.core.map_or(String::new(), |core| format!("placed on core {core}, "));
        format!(
            "{name:<10} queue {}, port {}, {placed}driven on core {}, packets arrive on {arrive}\n",
            self.qid, self.local_port, self.driving_core
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isolane_host::LaneClass;

    fn status(qid: u16, lane: Option<(LaneClass, usize)>, incoming_cpu: Option<usize>) -> ConnectionStatus {
        let local = ([127, 0, 0, 1], 40_000 + qid).into();
        ConnectionStatus { cntlid: 1, core: None, qid, lane, local, driving_core: 2, incoming_cpu }
    }

    #[test]
    fn shows_threads_and_connections() {
        let connections = [
            status(0, None, None),
            status(1, Some((LaneClass::Default, 0)), Some(3)),
            status(2, Some((LaneClass::Poll, 0)), Some(1)),
            ConnectionStatus { core: Some(2), ..status(3, Some((LaneClass::Poll, 1)), Some(1)) },
        ];
        let placement = Placement::new(vec![ThreadPlacement { core: 2, pinned: true }], &connections, None);
        assert_eq!(
            placement.to_text(),
            "thread     on core 2, pinned\n\
             admin      queue 0, port 40000, driven on core 2, packets arrive on an unknown core\n\
             default 0  queue 1, port 40001, driven on core 2, packets arrive on core 3\n\
             poll 0     queue 2, port 40002, driven on core 2, packets arrive on core 1\n\
             poll 1     queue 3, port 40003, placed on core 2, driven on core 2, packets arrive on core 1\n"
        );
    }

    #[test]
    fn shows_the_engine() {
        let engine = EngineStatus { path: "/run/sock".into(), core: 3 };
        let placement = Placement::new(vec![], &[], Some(engine));
        assert_eq!(placement.to_text(), "engine     /run/sock, connections driven on its core 3\n");
        let json = serde_json::to_value(&placement).unwrap();
        assert_eq!(json["engine"], serde_json::json!({ "socket": "/run/sock", "core": 3 }));
        let without = Placement { engine: None, ..placement };
        assert!(serde_json::to_value(without).unwrap().get("engine").is_none());
    }

    #[test]
    fn shows_pinned_threads() {
        let here = std::thread::spawn(|| {
            let core = isolane_reactor::cpu::allowed().unwrap()[0];
            isolane_reactor::cpu::pin(core).unwrap();
            (core, ThreadPlacement::current())
        });
        let (core, here) = here.join().unwrap();
        assert_eq!((here.core, here.pinned), (core, true));
    }
}
