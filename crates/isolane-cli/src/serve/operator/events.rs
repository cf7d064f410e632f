//! Events of the target, for clients of the control socket.
//!
//! Hosts and applied configurations are events when they happen. A thread compares states of namespaces and counters of
//! limits, so that nothing is added to the path of an I/O; it may miss a state of less than its interval.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use isolane_target::{LimitKind, LimitScope, NamespaceState, TargetEvent};
use isolane_wire::Nqn;
use serde_json::json;

use super::Operator;
use super::bodies::state_name;
use crate::failure::{Context, Failure};

/// States of the target that were published.
#[derive(Default)]
struct Seen {
    /// State and volume, by subsystem and namespace ID.
    namespaces: BTreeMap<(String, u32), (NamespaceState, String)>,
    limits: BTreeMap<(LimitScope, LimitKind), u64>,
}

impl Operator {
    /// Begins to publish events, until the operator is dropped.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn publish_events(operator: &Arc<Operator>) -> Result<(), Failure> {
        operator.receive_events();
        let watched = Arc::downgrade(operator);
        let mut seen = Seen::default();
        operator.publish_changes(&mut seen, false);
        let thread = thread::Builder::new().name("events".into()).spawn(move || watch(&watched, &mut seen));
        thread.map(drop).context("cannot publish events")
    }

    /// Publishes the events of hosts of the present target.
    pub fn receive_events(&self) {
        let events = self.events.clone();
        self.target.on_event(move |event| match event {
            TargetEvent::Connected { peer, host, subsystem, cntlid } => {
                let (host, subsystem) = (text(host), text(subsystem));
                let fields =
                    json!({ "address": peer, "host": host, "subsystem": subsystem, "cntlid": cntlid });
                events.publish("connected", fields);
            }
            TargetEvent::Disconnected { host, subsystem, cntlid, reason } => {
                let (host, subsystem) = (text(host), text(subsystem));
                let fields =
                    json!({ "host": host, "subsystem": subsystem, "cntlid": cntlid, "reason": reason });
                events.publish("disconnected", fields);
            }
        });
    }

    /// Publishes the differences from the states before, or only records the states.
    fn publish_changes(&self, seen: &mut Seen, is_published: bool) {
        let namespaces = self.namespace_states();
        // It is between two targets, in an upgrade that fails.
        if self.target.discovery_generation().is_err() {
            return;
        }
        let limits = self.target.limits_reached();
        let before = std::mem::replace(seen, Seen { namespaces, limits });
        if !is_published {
            return;
        }
        for ((subsystem, nsid), (state, volume)) in &seen.namespaces {
            let old = before.namespaces.get(&(subsystem.clone(), *nsid));
            let what = match old {
                Some((_, name)) if name != volume => "replaced",
                Some((old, _)) if old == state => continue,
                Some(_) => state_name(*state),
                None => "added",
            };
            self.publish_namespace(what, subsystem, *nsid, volume);
        }
        for ((subsystem, nsid), (_, volume)) in &before.namespaces {
            if !seen.namespaces.contains_key(&(subsystem.clone(), *nsid)) {
                self.publish_namespace("removed", subsystem, *nsid, volume);
            }
        }
        for ((scope, kind), count) in &seen.limits {
            let refused = count - before.limits.get(&(*scope, *kind)).copied().unwrap_or(0).min(*count);
            if refused > 0 {
                let fields = json!({ "scope": scope.name(), "limit": kind.name(), "refused": refused });
                self.events.publish("limit-exceeded", fields);
            }
        }
    }

    fn publish_namespace(&self, what: &str, subsystem: &str, nsid: u32, volume: &str) {
        let fields = json!({ "subsystem": subsystem, "nsid": nsid, "volume": volume });
        self.events.publish(&format!("namespace-{what}"), fields);
    }

    fn namespace_states(&self) -> BTreeMap<(String, u32), (NamespaceState, String)> {
        let operators: Vec<_> = self.all().iter().map(|(nqn, one)| (nqn.clone(), Arc::clone(one))).collect();
        let mut states = BTreeMap::new();
        for (nqn, operator) in operators {
            let list = operator.target.list().into_iter();
            let served = list.filter(|status| status.state != NamespaceState::Closing);
            states.extend(served.map(|status| ((nqn.clone(), status.nsid), (status.state, status.volume))));
        }
        states
    }
}

fn watch(operator: &Weak<Operator>, seen: &mut Seen) {
    loop {
        thread::sleep(INTERVAL);
        let Some(operator) = operator.upgrade() else { return };
        operator.publish_changes(seen, true);
    }
}

fn text(nqn: Option<Nqn>) -> Option<String> {
    nqn.map(|nqn| nqn.to_string())
}

/// Interval of comparisons; ages of commands are as old.
const INTERVAL: Duration = Duration::from_millis(250);
