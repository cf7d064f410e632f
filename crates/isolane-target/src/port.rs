//! The ports of a target: listeners with names.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::str::FromStr;
use std::sync::mpsc::Sender;

use isolane_proto::subsystem::{Listener, ListenerId};
use isolane_reactor::SocketOptions;

use crate::listen::Listen;

/// A listener, with a name for the subsystems that are not at all ports. As text: as [`Listen`], without a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPort {
    /// Name for [`Subsystem::ports`](crate::Subsystem::ports), which no other port has; `None`: only subsystems without
    /// a list are there.
    pub name: Option<String>,
    /// Its address and socket options.
    pub listen: Listen,
    /// Hosts reach only the discovery service there.
    pub discovery_only: bool,
    /// PORTID in the discovery log, which no other port has; `None`: the one that its name had before, or the next.
    pub id: Option<u16>,
}

impl TargetPort {
    /// Returns a port for subsystems that list its name, and for those without a list.
    pub fn named(name: &str, listen: Listen) -> TargetPort {
        TargetPort { name: Some(name.to_owned()), ..TargetPort::from(listen) }
    }

    /// Returns the description for the control path, with the address that the listener has.
    pub(crate) fn to_listener(&self, address: SocketAddr) -> Listener {
        Listener { name: self.name.clone(), address, discovery_only: self.discovery_only, port_id: self.id }
    }
}

impl From<Listen> for TargetPort {
    fn from(listen: Listen) -> TargetPort {
        TargetPort { name: None, listen, discovery_only: false, id: None }
    }
}

impl From<SocketAddr> for TargetPort {
    fn from(address: SocketAddr) -> TargetPort {
        Listen::from(address).into()
    }
}

impl FromStr for TargetPort {
    type Err = String;

    fn from_str(text: &str) -> Result<TargetPort, String> {
        text.parse::<Listen>().map(TargetPort::from)
    }
}

/// A listener for the core that accepts.
pub(crate) struct NewListener {
    pub socket: TcpListener,
    pub id: ListenerId,
    /// Socket options of its connections.
    pub options: SocketOptions,
    /// Gets the result; dropped if the target stops.
    pub result: Sender<io::Result<()>>,
}
