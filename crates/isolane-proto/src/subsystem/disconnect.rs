//! Ends of associations that an operator requests, and the names that an operator reads.

use std::net::SocketAddr;

use isolane_wire::Nqn;

use super::{CloseReason, Port, SubsystemId};

impl Port {
    /// Requests that all associations of a host close cleanly, also those with the discovery service. Returns their
    /// number. The host can connect again.
    pub fn disconnect_host(&mut self, host: &Nqn) -> usize {
        self.disconnect_if(|association, _| association.as_ref() == Some(host))
    }

    /// Requests that the associations close cleanly whose admin queue has this address. Returns their number. The host
    /// can connect again.
    pub fn disconnect_address(&mut self, remote: SocketAddr) -> usize {
        self.disconnect_if(|_, address| address == remote)
    }

    fn disconnect_if(&mut self, is_named: impl Fn(&Option<Nqn>, SocketAddr) -> bool) -> usize {
        let mut count = 0;
        for subsystem in self.nvm.values_mut().chain([&mut self.discovery]) {
            for association in subsystem.associations.values_mut() {
                if is_named(&association.host.nqn, association.connection.remote) {
                    count += usize::from(association.retire(CloseReason::Requested, &mut self.events));
                }
            }
        }
        count
    }

    /// Returns the name of a subsystem, also of one that was removed and still has associations.
    pub fn subsystem_nqn(&self, id: SubsystemId) -> Option<&Nqn> {
        let subsystem = if id.is_discovery() { Some(&self.discovery) } else { self.nvm.get(&id) };
        subsystem.map(|subsystem| &subsystem.profile.config.nqn)
    }
}
