//! Faults of namespaces, which operators set on purpose. They end with the program, or with the volume.

use isolane_inspect::program::Reply;
use isolane_target::{Fault, NamespaceChange};

use super::bodies::{FaultKind, Faulty, SetFault, reply};
use super::{SubsystemOperator, refused};

impl SubsystemOperator {
    pub(super) fn set_fault(&self, nsid: u32, SetFault { fault }: &SetFault) -> Result<Reply, Reply> {
        let _one_at_a_time = self.specs();
        let (set, what) = match fault {
            FaultKind::Stall => (Some(Fault::Stall), "stalls on purpose"),
            FaultKind::Fail => (Some(Fault::Fail), "fails on purpose"),
            FaultKind::Clear => (None, "has no fault on purpose any longer"),
        };
        self.target.change(vec![NamespaceChange::Fault { nsid, fault: set }]).map_err(refused)?;
        log::warn!("namespace {nsid}: {what}");
        Ok(reply(200, &Faulty { nsid, fault: *fault }))
    }
}

/// Returns the cause of the state of a namespace with a fault.
pub fn reason(nsid: u32, fault: Option<Fault>) -> Option<String> {
    let what = match fault? {
        Fault::Stall => "stalls",
        Fault::Fail => "fails",
    };
    Some(format!("{what} on purpose; end that with `isolane ctl namespace fault {nsid} clear`"))
}

/// Returns the fault as in a response.
pub fn kind(fault: Fault) -> FaultKind {
    match fault {
        Fault::Stall => FaultKind::Stall,
        Fault::Fail => FaultKind::Fail,
    }
}
