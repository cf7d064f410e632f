//! `--where`: the cores that a run was on, and for each connection where it is driven and where its packets
//! arrive.
//!
//! The thread that submits also drives the lanes of every class, so each class begins on the core of that
//! thread (H3); with `--cores` lanes are driven on the cores that they are placed on. Where the packets
//! arrive is for the network card to say, and for the target's end `isolane serve` tells it on SIGUSR1 (S6).

use std::fmt::Write;
use std::path::PathBuf;

use isolane_host::{ConnectionStatus, EngineStatus};
use serde::Serialize;

/// Where a run was.
#[derive(Debug, Clone, Serialize)]
pub struct Placement {
    /// The threads that submitted and, all or one at a time, drove the connections.
    pub threads: Vec<ThreadPlace>,
    /// The connections, the admin queue first.
    pub connections: Vec<ConnectionPlace>,
    /// The engine whose connections they are, if they are not this process's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EnginePlace>,
}

/// An isolated engine, and where it drives the volume's connections.
#[derive(Debug, Clone, Serialize)]
pub struct EnginePlace {
    socket: PathBuf,
    core: usize,
}

/// Where a thread was at its end.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ThreadPlace {
    core: usize,
    is_pinned: bool,
}

/// Where the packets of a connection arrive.
#[derive(Debug, Clone, Serialize)]
pub struct ConnectionPlace {
    /// The controller: one for each association.
    cntlid: u16,
    qid: u16,
    /// Its class; the admin queue has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    /// Its number in the class.
    #[serde(skip_serializing_if = "Option::is_none")]
    lane: Option<usize>,
    local_port: u16,
    /// Where it was placed, with `--cores`.
    #[serde(skip_serializing_if = "Option::is_none")]
    core: Option<usize>,
    /// Where the thread was that drove it at the end: one of those above or, with `--inline off`, the
    /// volume's own.
    driving_core: usize,
    incoming_cpu: Option<usize>,
}

impl Placement {
    pub fn new(threads: Vec<ThreadPlace>, connections: &[ConnectionStatus]) -> Placement {
        let connections = connections.iter().map(ConnectionPlace::of).collect();
        Placement { threads, connections, engine: None }
    }

    /// With the engine that the volume is at, if it is at one.
    pub fn at(self, engine: Option<EngineStatus>) -> Placement {
        Placement {
            engine: engine.map(|EngineStatus { path: socket, core }| EnginePlace { socket, core }),
            ..self
        }
    }

    /// One line for each.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for thread in &self.threads {
            let pinned = if thread.is_pinned { ", pinned" } else { "" };
            let _ = writeln!(text, "thread     on core {}{pinned}", thread.core);
        }
        self.connections.iter().for_each(|connection| connection.write(&mut text));
        if let Some(EnginePlace { socket, core }) = &self.engine {
            let _ = writeln!(text, "engine     {}, connections driven on its core {core}", socket.display());
        }
        text
    }
}

impl ThreadPlace {
    /// The calling thread's.
    pub fn here() -> ThreadPlace {
        let is_pinned = isolane_reactor::core::usable().is_ok_and(|cores| cores.len() == 1);
        ThreadPlace { core: isolane_reactor::core::current(), is_pinned }
    }
}

impl ConnectionPlace {
    fn of(status: &ConnectionStatus) -> ConnectionPlace {
        ConnectionPlace {
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

    fn write(&self, text: &mut String) {
        let name = match (&self.class, self.lane) {
            (Some(class), Some(lane)) => format!("{class} {lane}"),
            _ => "admin".to_owned(),
        };
        let arrive = self.incoming_cpu.map_or("no known core".into(), |core| format!("core {core}"));
        let placed = self.core.map_or(String::new(), |core| format!("placed on core {core}, "));
        let _ = writeln!(
            text,
            "{name:<10} queue {}, port {}, {placed}driven on core {}, packets arrive on {arrive}",
            self.qid, self.local_port, self.driving_core
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isolane_host::Class;

    fn status(qid: u16, lane: Option<(Class, usize)>, incoming_cpu: Option<usize>) -> ConnectionStatus {
        let local = ([127, 0, 0, 1], 40_000 + qid).into();
        ConnectionStatus { cntlid: 1, core: None, qid, lane, local, driving_core: 2, incoming_cpu }
    }

    #[test]
    fn every_thread_and_connection_has_a_line() {
        let connections = [
            status(0, None, None),
            status(1, Some((Class::Default, 0)), Some(3)),
            status(2, Some((Class::Poll, 0)), Some(1)),
            ConnectionStatus { core: Some(2), ..status(3, Some((Class::Poll, 1)), Some(1)) },
        ];
        let placement = Placement::new(vec![ThreadPlace { core: 2, is_pinned: true }], &connections);
        assert_eq!(
            placement.to_text(),
            "thread     on core 2, pinned\n\
             admin      queue 0, port 40000, driven on core 2, packets arrive on no known core\n\
             default 0  queue 1, port 40001, driven on core 2, packets arrive on core 3\n\
             poll 0     queue 2, port 40002, driven on core 2, packets arrive on core 1\n\
             poll 1     queue 3, port 40003, placed on core 2, driven on core 2, packets arrive on core 1\n"
        );
    }

    #[test]
    fn an_engine_has_a_line_instead_of_its_connections() {
        let engine = EngineStatus { path: "/run/sock".into(), core: 3 };
        let placement = Placement::new(vec![], &[]).at(Some(engine));
        assert_eq!(placement.to_text(), "engine     /run/sock, connections driven on its core 3\n");
        let json = serde_json::to_value(&placement).unwrap();
        assert_eq!(json["engine"], serde_json::json!({ "socket": "/run/sock", "core": 3 }));
        assert!(serde_json::to_value(placement.at(None)).unwrap().get("engine").is_none());
    }

    #[test]
    fn a_thread_that_is_pinned_says_so() {
        let here = std::thread::spawn(|| {
            let core = isolane_reactor::core::usable().unwrap()[0];
            isolane_reactor::core::pin(core).unwrap();
            (core, ThreadPlace::here())
        });
        let (core, here) = here.join().unwrap();
        assert_eq!((here.core, here.is_pinned), (core, true));
    }
}
