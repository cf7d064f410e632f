//! TCP state of connections: some in turn each second, and connections of slow operations.

use std::collections::{BTreeMap, BTreeSet};

use isolane_observe::snapshot::{Connection, Snapshot, Tcp};

use super::sock_diag::SockDiag;

/// Connections that are read in each step, in turn.
const IN_TURN: usize = 64;
/// Connections of slow operations that are read in each step.
const OF_SLOW: usize = 64;

/// State of the connections, as last read.
#[derive(Debug)]
pub struct Connections {
    diag: Option<SockDiag>,
    states: BTreeMap<u64, Tcp>,
    /// The last one that was read in turn.
    last: u64,
    /// Completion of the latest slow operation of the step before.
    slow_until_us: u64,
}

impl Connections {
    pub fn new() -> Connections {
        let diag = SockDiag::open();
        let diag = diag.inspect_err(|error| log::info!("no TCP state of connections: {error}")).ok();
        Connections { diag, states: BTreeMap::new(), last: 0, slow_until_us: 0 }
    }

    /// Reads the state of some connections.
    pub fn read(&mut self, snapshot: &Snapshot) {
        let open: BTreeMap<u64, &Connection> =
            snapshot.numbers.connections.iter().map(|at| (at.id, at)).collect();
        self.states.retain(|id, _| open.contains_key(id));
        for id in self.choose(snapshot, &open) {
            let Some(diag) = &mut self.diag else { return };
            let Some(connection) = open.get(&id) else { continue };
            let Ok((local, peer)) =
                connection.local.parse().and_then(|local| Ok((local, connection.peer.parse()?)))
            else {
                continue;
            };
            match diag.tcp_info(local, peer) {
                Ok(Some(tcp)) => drop(self.states.insert(id, tcp)),
                Ok(None) => {}
                Err(error) => return log::debug!("TCP state of {peer}: {error}"),
            }
        }
    }

    /// Sets the state of each connection that has been read.
    pub fn fill(&self, snapshot: &mut Snapshot) {
        for connection in &mut snapshot.numbers.connections {
            connection.tcp = self.states.get(&connection.id).copied();
        }
    }

    fn choose(&mut self, snapshot: &Snapshot, open: &BTreeMap<u64, &Connection>) -> BTreeSet<u64> {
        let after = open.keys().copied().filter(|id| *id > self.last);
        let in_turn: Vec<u64> =
            after.chain(open.keys().copied().filter(|id| *id <= self.last)).take(IN_TURN).collect();
        self.last = in_turn.last().copied().unwrap_or(0);
        let until_us = self.slow_until_us;
        let new = snapshot.slow.iter().filter(|slow| slow.at_unix_us > until_us);
        let of_slow: BTreeSet<u64> = new.map(|slow| slow.connection).collect();
        self.slow_until_us = snapshot.slow.iter().map(|slow| slow.at_unix_us).max().unwrap_or(0);
        in_turn.into_iter().chain(of_slow.into_iter().take(OF_SLOW)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(count: u64) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.numbers.connections =
            (1..=count).map(|id| Connection { id, ..Connection::default() }).collect();
        snapshot
    }

    #[test]
    fn reads_all_connections_in_turn() {
        let snapshot = snapshot(200);
        let open: BTreeMap<u64, &Connection> =
            snapshot.numbers.connections.iter().map(|at| (at.id, at)).collect();
        let mut connections = Connections::new();
        let mut seen = BTreeSet::new();
        for _ in 0..4 {
            let chosen = connections.choose(&snapshot, &open);
            assert!(chosen.len() <= IN_TURN);
            seen.extend(chosen);
        }
        assert_eq!(seen.len(), 200);
    }

    #[test]
    fn reads_connections_of_slow_operations() {
        let mut snapshot = snapshot(200);
        snapshot.slow = vec![super::super::tests::slow(5_000, 150)];
        let open: BTreeMap<u64, &Connection> =
            snapshot.numbers.connections.iter().map(|at| (at.id, at)).collect();
        let mut connections = Connections::new();
        assert!(connections.choose(&snapshot, &open).contains(&150));
        assert!(!connections.choose(&snapshot, &open).contains(&150), "only once");
    }

    #[test]
    fn ignores_malformed_addresses() {
        let mut snapshot = snapshot(2);
        let mut connections = Connections::new();
        connections.read(&snapshot);
        connections.fill(&mut snapshot);
        assert!(snapshot.numbers.connections.iter().all(|at| at.tcp.is_none()));
    }
}
