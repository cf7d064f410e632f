//! Side thread that collects the page of a host for a core, and posts it back.
//!
//! Invariant: the thread ends with the target, and no core waits for it.

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use isolane_observe::snapshot::{Program, Volume};
use isolane_proto::subsystem::{Host, HostPage, SubsystemId};
use isolane_reactor::clock;

use crate::host_page::{MAX_VOLUMES, PageRequest, to_page};
use crate::shared::{Message, Shared};
use crate::snapshot;

/// Most pages that wait. A host cannot fill memory with reads and new connections.
const MAX_REQUESTS: usize = 256;

/// Starts the thread that collects pages.
///
/// # Errors
/// The error of the system.
pub(crate) fn spawn(shared: &Arc<Shared>, started_ns: u64) -> std::io::Result<JoinHandle<()>> {
    let (sender, requests) = mpsc::sync_channel(MAX_REQUESTS);
    let weak = Arc::downgrade(shared);
    let thread = thread::Builder::new().name("isolane-page".to_owned());
    let thread = thread.spawn(move || serve(&weak, started_ns, &requests))?;
    shared.page_requests.open(sender);
    Ok(thread)
}

fn serve(shared: &Weak<Shared>, started_ns: u64, requests: &Receiver<PageRequest>) {
    for PageRequest { host, subsystem, lane, core } in requests {
        let Some(shared) = shared.upgrade().filter(|shared| shared.page_requests.is_open()) else { return };
        let page = collect(&shared, started_ns, &host, subsystem);
        shared.post(core, Message::HostPage { lane, page });
    }
}

/// Collects the numbers of a host. A host without a name has none, because any host can send an empty name.
fn collect(shared: &Shared, started_ns: u64, host: &Host, subsystem: SubsystemId) -> HostPage {
    let connections = if host.nqn.is_some() { shared.connections.copy_of(host) } else { Vec::new() };
    let now_ns = clock::now();
    let slow = snapshot::slow(shared, snapshot::unix_offset_ns(now_ns));
    let program = Program {
        name: String::from("serve"),
        version: String::from(env!("CARGO_PKG_VERSION")),
        uptime_ms: now_ns.saturating_sub(started_ns) / 1_000_000,
        clock: clock::source().to_owned(),
        ..Program::default()
    };
    to_page(program, volumes(shared, subsystem, host), connections, slow)
}

/// The namespaces of a subsystem that a host sees, without names and paths of the target.
fn volumes(shared: &Shared, subsystem: SubsystemId, host: &Host) -> Vec<Volume> {
    let table = shared.namespaces();
    let position = table.mask_host(host);
    let is_visible = |nsid| table.find_for(subsystem, nsid, position).is_some();
    let seen = table.iter_of(subsystem).filter(|(_, namespace)| is_visible(namespace.nsid));
    let volumes = seen.map(|(_, namespace)| Volume {
        id: namespace.number,
        nsid: Some(namespace.nsid),
        name: format!("namespace {}", namespace.nsid),
        bytes: namespace.geometry.blocks << namespace.geometry.block_shift,
        ..Volume::default()
    });
    volumes.take(MAX_VOLUMES).collect()
}
