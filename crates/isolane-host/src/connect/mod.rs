//! Connecting: from a URI to connected queues and a known volume.
//!
//! Sequential code on blocking sockets with one deadline; a client that must not block runs it on a separate
//! thread. The order follows Fabrics 1.1 §3.3 and Base §3.5: ICReq, Connect of the admin queue, its authentication, CAP, CC.EN,
//! CSTS.RDY, Identify Controller, Number of Queues, Connect of each I/O queue, namespaces. I/O queues that authenticate
//! connect at the same time.
//!
//! Invariant: a returned association is complete; on any error every connection is closed.

mod admin;
mod authenticate;
mod connect_queue;
mod connection;
pub(crate) mod discovery;
pub(crate) mod expiry;
mod features;
pub mod fence;
pub(crate) mod host_page;
mod inventory;
pub(crate) mod journal;
mod parallel;

use std::collections::HashSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

use isolane_wire::Nqn;

use admin::Admin;
pub(crate) use admin::{RetryDelays, shutdown};
use connect_queue::{QueueSpec, connect_queue};
pub(crate) use connection::{BlockingConnection, describe};
pub(crate) use inventory::{has_no_descriptors, namespace};

use crate::error::ConnectError;
use crate::info::{Info, Negotiated};
use crate::lane_class::LaneCounts;
use crate::options::{FlushAfterLoss, Options};
use crate::uri::Uri;
use journal::{AssociationJournal, JournalEntry, StaleAssociation};

/// Target and options of a connection.
#[derive(Clone)]
pub(crate) struct Plan {
    pub uri: Uri,
    pub options: Options,
    /// Journal of the associations.
    pub journal: Option<Arc<dyn AssociationJournal>>,
}

/// Connected queues, and a description of the target.
pub(crate) struct Association {
    /// Time before the first connection was opened.
    pub started_at: Instant,
    pub admin: BlockingConnection,
    pub lanes: Vec<BlockingConnection>,
    pub info: Info,
    /// Its journal entry.
    pub note: Option<JournalEntry>,
    /// AERL: maximum number of asynchronous event requests.
    pub max_async_events: usize,
    /// Delays that a status can select.
    pub retry_delays: RetryDelays,
}

impl Plan {
    pub(crate) fn new(uri: &Uri, options: Options) -> Plan {
        Plan { uri: uri.clone(), options: uri.add_keys(options), journal: None }
    }

    /// Returns the result of the first flush after a loss.
    pub(crate) fn flush_after_loss(&self) -> FlushAfterLoss {
        self.options.flush_after_loss.or(self.uri.flush_after_loss).unwrap_or_default()
    }

    /// Records an association in the journal.
    fn note(&self, info: &Info) -> Result<Option<JournalEntry>, ConnectError> {
        let Some(journal) = &self.journal else { return Ok(None) };
        let note = JournalEntry::make(journal, &StaleAssociation::of(info, &self.options));
        note.map(Some).map_err(|source| ConnectError::system("a journal entry, which writes need", source))
    }
}

/// Connects to the first usable address of the host.
pub(crate) fn associate(plan: &Plan) -> Result<Association, ConnectError> {
    let deadline = Instant::now() + plan.options.connect_timeout;
    at_first_address(&plan.uri, |address| associate_at(address, plan, deadline))
}

/// Connects to a target, describes it, and disconnects.
///
/// # Errors
/// [`ConnectError`].
pub fn inspect(uri: &Uri, options: &Options) -> Result<Info, ConnectError> {
    // Inspection sends no commands that need the depth.
    let association = associate(&Plan::new(uri, Options { exact_depth: false, ..options.clone() }))?;
    drop(association.lanes);
    if let Err(error) = shutdown(association.admin) {
        log::info!("{}: controller not shut down cleanly: {error}", association.info.address);
    }
    Ok(association.info)
}

/// Tries the addresses of the URI's host until one succeeds.
fn at_first_address<T>(
    uri: &Uri,
    attempt: impl Fn(SocketAddr) -> Result<T, ConnectError>,
) -> Result<T, ConnectError> {
    let unresolved = |error| ConnectError::Resolve { host: uri.host.clone(), source: Arc::new(error) };
    let mut failure = unresolved(std::io::ErrorKind::NotFound.into());
    let mut tried = HashSet::new();
    for address in (uri.host.as_str(), uri.port).to_socket_addrs().map_err(unresolved)? {
        if tried.insert(address) {
            match attempt(address) {
                Ok(found) => return Ok(found),
                Err(error) => failure = error,
            }
        }
    }
    Err(failure)
}

fn associate_at(address: SocketAddr, plan: &Plan, deadline: Instant) -> Result<Association, ConnectError> {
    let started_at = Instant::now();
    let (address, nqn) = match plan.uri.nqn {
        Some(nqn) => (address, nqn),
        None => discovery::only_subsystem(address, &plan.options, deadline)?,
    };
    let mut admin = Admin::connect(address, &nqn, &plan.options, deadline)?;
    let controller = admin.enable_and_identify()?;
    let options = Options { depth: admin.negotiate_depth(&plan.options)?, ..plan.options.clone() };
    let classes = features::negotiate_io_queues(&mut admin, plan.options.classes())?;
    features::enable_async_events(&mut admin)?;
    let retry_delays = features::enable_retry_delays(&mut admin)?;
    let lanes = connect_lanes(&admin, &nqn, &options, classes.total(), deadline)?;
    let namespaces = inventory::namespaces(&mut admin)?;
    let negotiated = negotiated(&admin, &lanes, classes, &options);
    let info = Info { address, nqn, controller, namespaces, negotiated };
    Ok(Association {
        started_at,
        // AERL is 0's based.
        max_async_events: usize::from(admin.controller.aerl) + 1,
        retry_delays,
        note: plan.note(&info)?,
        info,
        admin: admin.connection,
        lanes,
    })
}

/// Connects the queue of every lane.
fn connect_lanes(
    admin: &Admin,
    nqn: &Nqn,
    options: &Options,
    lanes: usize,
    deadline: Instant,
) -> Result<Vec<BlockingConnection>, ConnectError> {
    let (address, cntlid, entries) = (admin.connection.address, admin.cntlid, options.depth + 1);
    let max_in_capsule = admin.max_in_capsule_bytes() as usize;
    let connect = |qid| {
        let spec = QueueSpec { nqn: *nqn, qid, entries, cntlid };
        let (mut connection, _) = connect_queue(address, &spec, options, deadline)?;
        connection.queue.set_max_in_capsule(max_in_capsule);
        Ok(connection)
    };
    let lanes = u16::try_from(lanes).unwrap_or(u16::MAX);
    // The exponentiations of a queue overlap with those of the target for another one.
    let threads = if options.key.is_some() { MAX_CONNECT_THREADS } else { 1 };
    parallel::connect_each(lanes, threads, connect)
}

/// Queues that authenticate at the same time: targets bound the number of all hosts together.
const MAX_CONNECT_THREADS: u16 = 8;

fn negotiated(
    admin: &Admin,
    lanes: &[BlockingConnection],
    classes: LaneCounts,
    options: &Options,
) -> Negotiated {
    let transport = lanes.first().unwrap_or(&admin.connection).response;
    Negotiated {
        header_digest: transport.digests.header(),
        data_digest: transport.digests.data(),
        data_alignment_bytes: (usize::from(transport.cpda) + 1) * 4,
        max_h2c_data_bytes: transport.maxh2cdata,
        max_in_capsule_bytes: admin.max_in_capsule_bytes(),
        flow_control_disabled: lanes.iter().all(|lane| lane.flow_control_disabled),
        keep_alive: options.keep_alive,
        lanes: classes,
        depth: options.depth,
        max_transfer_bytes: admin.max_transfer_bytes(options.max_transfer_bytes),
    }
}
