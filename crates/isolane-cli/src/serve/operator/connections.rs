//! Connections of hosts, for operators: `/v1/connections`.

use std::net::SocketAddr;

use isolane_inspect::program::{Reply, Request};
use isolane_target::{ConnectionPhase, ConnectionStatus, Disconnected};
use isolane_wire::Nqn;

use super::bodies::{ConnectionEntry, ConnectionList, Disconnect, DisconnectedCount, reply};
use super::{Operator, invalid, read};

/// Connections with one name.
enum Named {
    Host(Nqn),
    Address(SocketAddr),
}

impl Operator {
    /// `path` follows `/v1/connections`.
    pub(super) fn execute_connections(&self, request: &Request, path: &str) -> Option<Reply> {
        let executed = match (request.method.as_str(), path) {
            ("GET", "") => Ok(self.list_connections()),
            ("POST", "/disconnect") => read(request).and_then(|body| self.disconnect(body)),
            _ => return None,
        };
        Some(executed.unwrap_or_else(|problem| problem))
    }

    fn list_connections(&self) -> Reply {
        let connections = self.target.connections().iter().map(describe).collect();
        reply(200, &ConnectionList { connections })
    }

    fn disconnect(&self, Disconnect { host, address }: Disconnect) -> Result<Reply, Reply> {
        let named = match (host, address) {
            (Some(host), None) => Named::Host(host.parse().map_err(invalid)?),
            (None, Some(address)) => Named::Address(address),
            _ => return Err(invalid("name a host, or the address of one connection")),
        };
        let ended = match &named {
            Named::Host(host) => self.target.disconnect_host(host),
            Named::Address(address) => self.target.disconnect_address(*address),
        };
        let Disconnected { associations, connections } =
            ended.map_err(|error| Reply::problem(409, "not possible", error))?;
        let name = match &named {
            Named::Host(host) => host.to_string(),
            Named::Address(address) => address.to_string(),
        };
        if associations + connections == 0 {
            let detail = format!("{name} has no connection; see `isolane ctl connections`");
            return Err(Reply::problem(404, "unknown connection", detail));
        }
        log::info!(
            "{name}: an operator has disconnected {associations} associations and {connections} other connections"
        );
        Ok(reply(200, &DisconnectedCount { associations, connections }))
    }
}

fn describe(status: &ConnectionStatus) -> ConnectionEntry {
    let nqn = |nqn: &Option<Nqn>| nqn.as_ref().map(|nqn| nqn.as_str().to_owned());
    ConnectionEntry {
        address: status.peer.to_string(),
        port: status.port.clone(),
        host: nqn(&status.host_nqn),
        subsystem: nqn(&status.subsystem_nqn),
        cntlid: status.cntlid,
        qid: status.qid,
        state: match status.phase {
            ConnectionPhase::Connecting => "connecting",
            ConnectionPhase::Authenticating => "authenticating",
            ConnectionPhase::Connected => "connected",
            ConnectionPhase::Closing => "closing",
        },
        authenticated: status.is_authenticated,
        core: status.core,
        age_s: status.age.as_secs(),
        commands: status.commands,
        moved_bytes: status.moved_bytes,
    }
}
