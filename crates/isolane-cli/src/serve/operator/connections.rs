//! Connections of hosts, for operators: `/v1/connections`.

use std::net::SocketAddr;

use isolane_inspect::program::{Reply, Request};
use isolane_target::{ConnectionPhase, ConnectionStatus, Disconnected};
use isolane_wire::Nqn;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Operator, invalid, read};

/// Names of the connections that end. One of the fields is set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Disconnect {
    /// NQN of a host: all of its associations end.
    host: Option<String>,
    /// Address of a host, with the port: this connection ends, and with an admin queue its association.
    address: Option<SocketAddr>,
}

/// Connections with one name.
enum Named {
    Host(Nqn),
    Address(SocketAddr),
}

impl Operator {
    /// `path` follows `/v1/connections`.
    pub(super) fn execute_connections(&self, request: &Request, path: &str) -> Option<Reply> {
        let reply = match (request.method.as_str(), path) {
            ("GET", "") => Ok(self.list_connections()),
            ("POST", "/disconnect") => read(request).and_then(|body| self.disconnect(body)),
            (_, "" | "/disconnect") => {
                let detail = format!("{} is not possible for {}", request.method, request.path);
                Err(Reply::problem(405, "wrong method", detail))
            }
            _ => return None,
        };
        Some(reply.unwrap_or_else(|problem| problem))
    }

    fn list_connections(&self) -> Reply {
        let connections: Vec<Value> = self.target.connections().iter().map(to_json).collect();
        Reply::ok(json!({ "connections": connections }))
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
        Ok(Reply::ok(json!({ "associations": associations, "connections": connections })))
    }
}

fn to_json(status: &ConnectionStatus) -> Value {
    let nqn = |nqn: &Option<Nqn>| nqn.as_ref().map(|nqn| nqn.as_str().to_owned());
    json!({
        "address": status.peer.to_string(),
        "port": status.port,
        "host": nqn(&status.host_nqn),
        "subsystem": nqn(&status.subsystem_nqn),
        "cntlid": status.cntlid,
        "qid": status.qid,
        "state": match status.phase {
            ConnectionPhase::Connecting => "connecting",
            ConnectionPhase::Authenticating => "authenticating",
            ConnectionPhase::Connected => "connected",
            ConnectionPhase::Closing => "closing",
        },
        "authenticated": status.is_authenticated,
        "core": status.core,
        "age_s": status.age.as_secs(),
        "commands": status.commands,
        "moved_bytes": status.moved_bytes,
    })
}
