//! Setting up an association: from a URI to connected queues and a known volume.
//!
//! Sequential code on sockets that wait with one deadline, because nothing else can happen meanwhile; a
//! client that has other things to do runs it on a thread of its own. The order of Fabrics 1.1 §3.3 and Base
//! §3.5: ICReq, Connect of the admin queue, CAP, CC.EN, CSTS.RDY, Identify Controller, Number of Queues,
//! Connect of each I/O queue, namespaces. Invariant: what is handed out is complete; on any error every
//! connection is closed.

mod admin;
mod connection;
mod features;
mod generation;
mod inventory;
mod io_queues;

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

use isolane_wire::Nqn;

pub(crate) use admin::{Admin, shutdown};
pub(crate) use connection::Connection;
pub(crate) use inventory::{has_no_descriptors, namespace};
pub(crate) use io_queues::probe;

use crate::classes::Classes;
use crate::client::RetryDelays;
use crate::discovery;
use crate::error::ConnectError;
use crate::info::{Info, Negotiated};
use crate::options::{FlushAfterLoss, Options};
use crate::predecessor::{Note, Predecessor, Witness};
use crate::uri::Uri;

/// Where to connect to, and how.
#[derive(Clone)]
pub(crate) struct Plan {
    pub uri: Uri,
    pub options: Options,
    /// Who keeps notes of the associations that are made.
    pub witness: Option<Arc<dyn Witness>>,
}

/// Connected queues and what the target told.
pub(crate) struct Association {
    /// When nobody had been asked for it yet.
    pub begun: Instant,
    pub admin: Connection,
    pub lanes: Vec<Connection>,
    pub info: Info,
    /// What the witness has.
    pub note: Option<Note>,
    /// AERL: async event requests that the target holds.
    pub async_events_max: usize,
    /// Delays that a status may select.
    pub retry_delays: RetryDelays,
}

impl Plan {
    /// What becomes of the first flush after a loss.
    pub(crate) fn flush_after_loss(&self) -> FlushAfterLoss {
        self.options.flush_after_loss.or(self.uri.flush_after_loss).unwrap_or_default()
    }

    /// What an association leaves behind if this process is killed.
    fn note(&self, info: &Info) -> Result<Option<Note>, ConnectError> {
        let Some(witness) = &self.witness else { return Ok(None) };
        let note = Note::make(witness, &Predecessor::of(info, &self.options));
        let what = "a note of the association, without which nothing may be written";
        note.map(Some).map_err(|source| ConnectError::System { what, source: Arc::new(source) })
    }
}

/// Makes an association with the first address of the host that serves one.
pub(crate) fn associate(plan: &Plan) -> Result<Association, ConnectError> {
    let deadline = Instant::now() + plan.options.connect_timeout;
    let mut failure = None;
    for address in resolve(&plan.uri)? {
        match associate_at(address, plan, deadline) {
            Ok(association) => return Ok(association),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| unresolved(&plan.uri, std::io::ErrorKind::NotFound.into())))
}

/// Asks a target who it is and what it has: connects, and shuts the controller down again.
///
/// # Errors
/// Why there is no connection, and what to do.
pub fn inspect(uri: &Uri, options: &Options) -> Result<Info, ConnectError> {
    let plan =
        |depth| Plan { uri: uri.clone(), options: Options { depth, ..options.clone() }, witness: None };
    let association = match associate(&plan(options.depth)) {
        // Nothing is going to be in flight, so the limit is only one more thing to know.
        Err(ConnectError::Depth { max, .. }) if max > 0 => associate(&plan(max))?,
        outcome => outcome?,
    };
    drop(association.lanes);
    if let Err(error) = shutdown(association.admin) {
        log::info!("{}: the controller was not shut down in order: {error}", association.info.address);
    }
    Ok(association.info)
}

/// The addresses of a URI's host, each once.
pub(crate) fn resolve(uri: &Uri) -> Result<Vec<SocketAddr>, ConnectError> {
    let found = (uri.host.as_str(), uri.port).to_socket_addrs().map_err(|error| unresolved(uri, error))?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

fn unresolved(uri: &Uri, error: std::io::Error) -> ConnectError {
    ConnectError::Resolve { host: uri.host.clone(), source: Arc::new(error) }
}

fn associate_at(address: SocketAddr, plan: &Plan, deadline: Instant) -> Result<Association, ConnectError> {
    let begun = Instant::now();
    let (address, nqn) = find_subsystem(address, plan, deadline)?;
    let mut admin = Admin::connect(address, &nqn, &plan.options, deadline)?;
    let controller = admin.enable_and_identify()?;
    admin.check_depth(plan.options.depth)?;
    let classes = features::grant_io_queues(&mut admin, plan.options.classes())?;
    features::ask_for_async_events(&mut admin)?;
    let retry_delays = features::enable_retry_delays(&mut admin)?;
    let lanes = io_queues::connect(&admin, &nqn, &plan.options, classes.total(), deadline)?;
    let namespaces = inventory::namespaces(&mut admin)?;
    let negotiated = negotiated(&admin, &lanes, classes, &plan.options);
    let info = Info { address, nqn, controller, namespaces, negotiated };
    Ok(Association {
        begun,
        async_events_max: admin.async_events_max(),
        retry_delays,
        note: plan.note(&info)?,
        info,
        admin: admin.into_connection(),
        lanes,
    })
}

/// The subsystem that the URI names, or the only one that discovery finds.
fn find_subsystem(
    address: SocketAddr,
    plan: &Plan,
    deadline: Instant,
) -> Result<(SocketAddr, Nqn), ConnectError> {
    match plan.uri.nqn {
        Some(nqn) => Ok((address, nqn)),
        None => discovery::only_subsystem(address, &plan.options, deadline),
    }
}

fn negotiated(admin: &Admin, lanes: &[Connection], classes: Classes, options: &Options) -> Negotiated {
    let transport = lanes.first().unwrap_or(&admin.connection).parameters();
    Negotiated {
        header_digest: transport.header_digest,
        data_digest: transport.data_digest,
        data_alignment_bytes: transport.data_alignment_bytes,
        h2c_data_bytes_max: transport.h2c_data_bytes_max,
        in_capsule_bytes_max: admin.in_capsule_bytes_max(),
        is_flow_control_disabled: lanes.iter().all(|lane| lane.is_flow_control_disabled),
        keep_alive: options.keep_alive,
        lanes: classes,
        depth: options.depth,
        transfer_bytes_max: admin.transfer_bytes_max(options.transfer_bytes_max),
    }
}
