//! Fabrics Connect of a queue, and as a probe for an old association.
//!
//! Connect requests no submission queue flow control (CATTR bit 2). A target that does not know this bit gets
//! a second Connect without it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use isolane_memory::Buffer;
use isolane_proto::host::{Completed, Data};
use isolane_wire::fabrics::{ConnectAttributes, ConnectCommand, ConnectData, ConnectRejection};
use isolane_wire::{CompletionEntry, Nqn, Status};

use super::Plan;
use super::authenticate::authenticate;
use super::connection::BlockingConnection;
use super::expiry::Probe;
use super::journal::StaleAssociation;
use crate::error::{ConnectError, Step};
use crate::options::Options;

/// Timeout of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Queue ID of a probe. No controller has such a queue, so a probe changes nothing: a living controller
/// refuses the ID.
const QID_PROBE: u16 = 0xfffe;

/// SQHD of a Connect whose queue has no flow control (Base 2.0 §6.3, Connect response).
const SQHD_FLOW_CONTROL_DISABLED: u16 = 0xffff;

/// Parameters of a Connect.
#[derive(Clone)]
pub(crate) struct QueueSpec {
    pub nqn: Nqn,
    pub qid: u16,
    pub entries: u16,
    pub cntlid: u16,
}

impl QueueSpec {
    fn step(&self) -> Step {
        if self.qid == 0 { Step::ConnectAdmin } else { Step::ConnectIo }
    }
}

/// Opens a connection, connects its queue, and authenticates it.
pub(crate) fn connect_queue(
    address: SocketAddr,
    spec: &QueueSpec,
    options: &Options,
    deadline: Instant,
) -> Result<(BlockingConnection, CompletionEntry), ConnectError> {
    let (mut connection, mut entry) = try_connect(address, spec, options, deadline, true)?;
    if rejects_flow_control_bit(&entry) {
        (connection, entry) = try_connect(address, spec, options, deadline, false)?;
    }
    if !entry.status.is_success() {
        return Err(connection.refused(spec.step(), &entry));
    }
    authenticate(&mut connection, &entry, &spec.nqn, options)?;
    Ok((connection, entry))
}

/// Probes the target for the controller of an old association, as the host that it belonged to: see
/// [`crate::fence`].
pub(crate) fn probe(plan: &Plan, old: &StaleAssociation) -> Probe {
    let spec = QueueSpec { nqn: old.nqn, qid: QID_PROBE, entries: 2, cntlid: old.cntlid };
    let deadline = Instant::now() + PROBE_TIMEOUT;
    let options = Options { host_nqn: old.host_nqn, host_id: old.host_id, ..plan.options.clone() };
    // Without the flow control bit, which an old target would refuse first.
    match try_connect(old.address, &spec, &options, deadline, false) {
        Ok((_, entry)) => outcome_of_probe(&entry),
        Err(_) => Probe::Unclear,
    }
}

/// Classifies the response to a probe.
fn outcome_of_probe(entry: &CompletionEntry) -> Probe {
    use ConnectRejection::{Command, Data};

    match ConnectRejection::parse(entry) {
        Some(Data(ConnectData::CNTLID)) => Probe::Gone,
        Some(Data(ConnectData::HOSTNQN | ConnectData::HOSTID)) => Probe::Reassigned,
        Some(Command(ConnectCommand::QID)) => Probe::Alive,
        None if entry.status.is(Status::CONNECT_CONTROLLER_BUSY) => Probe::Alive,
        // A target that has given the controller a queue of this id still has the controller.
        None if entry.status.is_success() => Probe::Alive,
        Some(_) | None => Probe::Unclear,
    }
}

fn try_connect(
    address: SocketAddr,
    spec: &QueueSpec,
    options: &Options,
    deadline: Instant,
    disable_flow_control: bool,
) -> Result<(BlockingConnection, CompletionEntry), ConnectError> {
    let mut connection = BlockingConnection::open(address, options, deadline)?;
    // Only the admin queue has a keep alive.
    let kato_ms = if spec.qid == 0 { options.kato_ms() } else { 0 };
    let command = ConnectCommand {
        qid: spec.qid,
        sqsize: spec.entries - 1,
        attributes: ConnectAttributes(0).with_disable_sq_flow_control(disable_flow_control),
        kato_ms,
        ..ConnectCommand::default()
    };
    let Completed { entry, .. } =
        connection.execute(spec.step(), command.entry(), connect_data(spec, options))?;
    connection.flow_control_disabled = disable_flow_control && entry.sqhd == SQHD_FLOW_CONTROL_DISABLED;
    // This host does not track SQHD, so it accepts the SUCCESS flag also from targets that send it without
    // having confirmed in SQHD that flow control is off.
    connection.queue.set_connected(u32::from(spec.entries), disable_flow_control);
    Ok((connection, entry))
}

fn connect_data(spec: &QueueSpec, options: &Options) -> Data {
    let data = ConnectData {
        hostid: *options.host_id.as_bytes(),
        cntlid: spec.cntlid,
        subnqn: spec.nqn.into(),
        hostnqn: options.host_nqn.into(),
    };
    let mut buffer = Buffer::contiguous(ConnectData::LEN);
    buffer.copy_in(0, &data.encode());
    Data::Write(buffer)
}

/// Returns whether the target may have refused the flow control bit.
fn rejects_flow_control_bit(entry: &CompletionEntry) -> bool {
    ConnectRejection::parse(entry) == Some(ConnectRejection::Command(ConnectCommand::CATTR))
        || entry.status.is(Status::INVALID_FIELD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_each_response_to_a_probe() {
        let rejected = |rejection: ConnectRejection| outcome_of_probe(&rejection.completion());
        let failed = |status| outcome_of_probe(&CompletionEntry { status, ..CompletionEntry::default() });
        assert_eq!(rejected(ConnectRejection::Data(ConnectData::CNTLID)), Probe::Gone);
        assert_eq!(rejected(ConnectRejection::Data(ConnectData::HOSTNQN)), Probe::Reassigned);
        assert_eq!(rejected(ConnectRejection::Data(ConnectData::HOSTID)), Probe::Reassigned);
        assert_eq!(rejected(ConnectRejection::Command(ConnectCommand::QID)), Probe::Alive);
        assert_eq!(failed(Status::CONNECT_CONTROLLER_BUSY), Probe::Alive);
        assert_eq!(failed(Status::SUCCESS), Probe::Alive);
        // QID and CNTLID as offsets into the other structure.
        assert_eq!(rejected(ConnectRejection::Data(ConnectCommand::QID)), Probe::Unclear);
        assert_eq!(rejected(ConnectRejection::Command(ConnectData::CNTLID)), Probe::Unclear);
        assert_eq!(rejected(ConnectRejection::Data(ConnectData::SUBNQN)), Probe::Unclear);
        assert_eq!(rejected(ConnectRejection::Command(ConnectCommand::SQSIZE)), Probe::Unclear);
        for status in [
            Status::CONNECT_INVALID_HOST,
            Status::AUTHENTICATION_REQUIRED,
            Status::COMMAND_SEQUENCE_ERROR,
            Status::INVALID_FIELD,
            Status::INTERNAL_ERROR,
        ] {
            assert_eq!(failed(status.with_dnr(true)), Probe::Unclear, "{status}");
        }
    }
}
