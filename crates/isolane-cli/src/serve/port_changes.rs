//! Changes of the ports, referrals, limits, and times of a running target.
//!
//! New addresses are bound, and new ports come, before all other changes, so that subsystems can be there, and this is
//! undone if the changes fail. Other addresses of ports follow after them, and old ports go last.

use isolane_config::{Config, Name, ObjectId, locate};
use isolane_inspect::program::Reply;
use isolane_target::{BoundPorts, PortChanges, PortsError, TargetControl, TargetPort};

use super::from_file::{ports, referrals};
use super::live_config::LiveConfig;
use super::state::State;
use super::{limits, times};

/// Ports that come, go, or change.
pub struct ChangedPorts {
    changes: PortChanges,
    has_other_referrals: bool,
}

impl ChangedPorts {
    pub fn new(old: &Config, new: &Config) -> ChangedPorts {
        let (before, after) = (ports(old), ports(new));
        let is_in = |all: &[TargetPort], port: &TargetPort| all.iter().any(|other| other.name == port.name);
        let removed = before.iter().filter(|port| !is_in(&after, port));
        let removed = removed.filter_map(|port| port.name.clone()).collect();
        let (known, added): (Vec<_>, Vec<_>) = after.into_iter().partition(|port| is_in(&before, port));
        let replaced = known.into_iter().filter(|port| !before.contains(port)).collect();
        ChangedPorts {
            changes: PortChanges { added, replaced, removed },
            has_other_referrals: referrals(old) != referrals(new),
        }
    }

    /// Gives the new ports the IDs of their names.
    pub fn number(&mut self, state: &State) {
        state.number(&mut self.changes.added);
        state.number(&mut self.changes.replaced);
    }

    /// Binds the addresses of new and changed ports, and adds the new ones. `text` is that of the file with these ports, if
    /// it gets them.
    pub fn bind(
        &self,
        target: &TargetControl,
        file: &LiveConfig,
        text: Option<&str>,
    ) -> Result<BoundPorts, Reply> {
        let bound = target.bind_ports(self.changes.clone());
        bound.map_err(|error| {
            let detail = text.map_or_else(|| error.to_string(), |text| placed(&error, file, text));
            Reply::problem(409, "unusable port", detail)
        })
    }

    /// Sets referrals, limits, and times, changes the ports, and removes the old ones, after everything else has changed.
    /// Returns the error of a port that could not change; the others have.
    pub fn finish(&self, bound: BoundPorts, target: &TargetControl, new: &Config) -> Option<PortsError> {
        let addresses = bound.addresses().to_vec();
        let failed = bound.finish().err();
        if let Some(error) = &failed {
            log::error!("{error}");
        } else {
            self.changes.removed.iter().for_each(|name| log::info!("port {name}: removed"));
            for (name, address) in addresses {
                log::info!("port {name}: listening on {address}");
            }
        }
        let referred = if self.has_other_referrals { target.set_referrals(referrals(new)) } else { Ok(()) };
        let limited = referred.and_then(|()| target.set_limits(limits::plan(new)));
        if let Err(error) = limited.and_then(|()| target.set_stall_times(times::plan(new))) {
            log::error!("{error}");
        }
        failed
    }
}

/// Returns an error with the place of its value in the file.
fn placed(error: &PortsError, file: &LiveConfig, text: &str) -> String {
    let name = error.name.as_deref().and_then(|name| Name::new(name).ok());
    let found = name.and_then(|name| locate(text, &ObjectId::Port(name), "listen"));
    found.map_or_else(
        || error.to_string(),
        |(line, value)| {
            let (path, name) = (file.path().display(), error.name.as_deref().unwrap_or_default());
            format!("{path}:{line}: port {name}: listen = {value}: {}", error.error)
        },
    )
}
