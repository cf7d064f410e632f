//! Changes of the ports, referrals, limits, and times of a running target.
//!
//! New ports come before all other changes, so that subsystems can be there, and go again if these fail. Old ports go last.

use isolane_config::Config;
use isolane_inspect::program::Reply;
use isolane_target::{TargetControl, TargetPort};

use super::from_file::{ports, referrals};
use super::state::State;
use super::{limits, times};

/// Ports that come and go.
pub struct PortChanges {
    added: Vec<TargetPort>,
    removed: Vec<String>,
    has_other_referrals: bool,
}

/// Ports that were added, and go again unless they are kept.
pub struct AddedPorts<'a> {
    target: &'a TargetControl,
    names: Vec<String>,
}

impl PortChanges {
    /// # Errors
    /// A port keeps its name, and gets another address: both cannot be there at the same time.
    pub fn new(old: &Config, new: &Config) -> Result<PortChanges, Reply> {
        let (before, after) = (ports(old), ports(new));
        let changed = after.iter().find(|port| before.iter().any(|it| it.name == port.name && it != *port));
        if let Some(name) = changed.and_then(|port| port.name.as_ref()) {
            let detail = format!(
                "port {name}: the address of a port in use cannot change; add another port, and remove this one"
            );
            return Err(Reply::problem(409, "not possible", detail));
        }
        let is_in = |all: &[TargetPort], port: &TargetPort| all.iter().any(|other| other.name == port.name);
        let removed = before.iter().filter(|port| !is_in(&after, port));
        Ok(PortChanges {
            removed: removed.filter_map(|port| port.name.clone()).collect(),
            added: after.into_iter().filter(|port| !is_in(&before, port)).collect(),
            has_other_referrals: referrals(old) != referrals(new),
        })
    }

    /// Gives the new ports the IDs of their names.
    pub fn number(&mut self, state: &State) {
        state.number(&mut self.added);
    }

    /// Adds the new ports.
    pub fn add<'a>(&self, target: &'a TargetControl) -> Result<AddedPorts<'a>, Reply> {
        let mut added = AddedPorts { target, names: Vec::new() };
        for port in &self.added {
            let address = target.add_port(port.clone());
            let address = address.map_err(|error| Reply::problem(409, "unusable port", error))?;
            let name = port.name.clone().unwrap_or_default();
            log::info!("port {name}: listening on {address}");
            added.names.push(name);
        }
        Ok(added)
    }

    /// Sets referrals, limits, and times, and removes the old ports, after everything else has changed.
    pub fn finish(&self, target: &TargetControl, new: &Config) {
        for name in &self.removed {
            match target.remove_port(name) {
                Ok(()) => log::info!("port {name}: removed"),
                Err(error) => log::error!("port {name}: {error}"),
            }
        }
        let referred = if self.has_other_referrals { target.set_referrals(referrals(new)) } else { Ok(()) };
        let limited = referred.and_then(|()| target.set_limits(limits::plan(new)));
        if let Err(error) = limited.and_then(|()| target.set_stall_times(times::plan(new))) {
            log::error!("{error}");
        }
    }
}

impl AddedPorts<'_> {
    /// Keeps them.
    pub fn keep(mut self) {
        self.names.clear();
    }
}

impl Drop for AddedPorts<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            if let Err(error) = self.target.remove_port(name) {
                log::error!("port {name}: {error}");
            }
        }
    }
}
