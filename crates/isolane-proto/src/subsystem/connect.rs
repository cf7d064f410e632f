//! Fabrics Connect: admits a connection as the admin queue of a new controller or as one of its I/O
//! queues.
//!
//! Checks every reason to refuse in a fixed order, each with the offending field (Fabrics 1.1
//! §3.3). It does not authenticate: the identity of a host is its claim, and a name (HOSTNQN) is
//! required only if the configuration lists the allowed hosts.
//!
//! Invariant: a CNTLID names one association at a time and is not reused soon; a QID of a
//! controller is one connection.

use std::sync::Arc;
use std::time::Instant;

use isolane_wire::fabrics::{
    CNTLID_DYNAMIC, ConnectCommand, ConnectData, ConnectRejection, ConnectResponse, MAX_CNTLID,
};
use isolane_wire::{Nqn, NqnError, SubmissionEntry};

use super::association::Association;
use super::associations::Subsystem;
use super::{AssociationId, ConnectRefusal, Connected, ConnectionInfo, Host, IoCounters, MAX_ADMIN_ENTRIES};
use crate::completion::Completion;
use crate::failure::Failure;

/// A decoded Connect; its names are text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connect {
    pub(super) command: ConnectCommand,
    pub(super) cntlid: u16,
    pub(super) subnqn: Nqn,
    pub(super) host: Host,
}

/// Decodes the command and its data in the order of the specification: the format, then the fields.
pub(super) fn parse(entry: &SubmissionEntry, data: &[u8]) -> Result<Connect, ConnectRefusal> {
    let command = ConnectCommand::parse(entry);
    if command.recfmt != 0 {
        return Err(refusal(Failure::RecordFormat.into()));
    }
    let data: &[u8; ConnectData::LEN] = data.try_into().map_err(|_| refusal(Failure::SglLength.into()))?;
    let data = ConnectData::decode(data);
    let subnqn = data.subnqn.parse().map_err(|_| bad_data(ConnectData::SUBNQN))?;
    let host = host(&data).ok_or(bad_data(ConnectData::HOSTNQN))?;
    Ok(Connect { command, cntlid: data.cntlid, subnqn, host })
}

/// Returns the host in the data of a Connect, for log lines; `None` if its name is not valid.
pub fn parse_host(data: &[u8]) -> Option<Host> {
    host(&ConnectData::decode_prefix(data)?)
}

fn host(data: &ConnectData) -> Option<Host> {
    let nqn = match data.hostnqn.parse() {
        Ok(nqn) => Some(nqn),
        Err(NqnError::Empty) => None,
        Err(_) => return None,
    };
    Some(Host { nqn, hostid: data.hostid })
}

impl Subsystem {
    /// Admits a queue. `is_full`: the port holds the maximum number of associations.
    pub(super) fn connect(
        &mut self,
        connect: &Connect,
        from: ConnectionInfo,
        is_full: bool,
        now: Instant,
    ) -> Result<Connected, ConnectRefusal> {
        if !self.profile.is_allowed(&connect.host) {
            return Err(refusal(Failure::HostNotAllowed.into()));
        }
        match connect.command.qid {
            0 => self.connect_admin(connect, from, is_full, now),
            _ => self.connect_io(connect, from),
        }
    }

    fn connect_admin(
        &mut self,
        connect: &Connect,
        from: ConnectionInfo,
        is_full: bool,
        now: Instant,
    ) -> Result<Connected, ConnectRefusal> {
        // Dynamic controllers only: the host cannot request a particular one (Fabrics 1.1 §3.3).
        if connect.cntlid != CNTLID_DYNAMIC {
            return Err(bad_data(ConnectData::CNTLID));
        }
        check_sqsize(connect, MAX_ADMIN_ENTRIES)?;
        let cntlid = self.allocate_cntlid().filter(|_| !is_full).ok_or_else(busy)?;
        self.serial += 1;
        let id = AssociationId { subsystem: self.id, cntlid, serial: self.serial };
        let kato_ms = connect.command.kato_ms;
        let mut association = Association::new(id, connect.host, from, &self.profile, kato_ms, now);
        let counters = association.add_queue(0, from.listener);
        let connected = connected(&association, connect, counters);
        self.associations.insert(cntlid, association);
        Ok(connected)
    }

    fn connect_io(&mut self, connect: &Connect, from: ConnectionInfo) -> Result<Connected, ConnectRefusal> {
        let association = self.associations.get_mut(&connect.cntlid).ok_or(bad_data(ConnectData::CNTLID))?;
        if association.host.nqn != connect.host.nqn {
            return Err(bad_data(ConnectData::HOSTNQN));
        }
        if association.host.hostid != connect.host.hostid {
            return Err(bad_data(ConnectData::HOSTID));
        }
        if association.ending || association.retiring {
            return Err(busy());
        }
        let qid = connect.command.qid;
        if qid > association.features.granted_queues() {
            return Err(bad_command(ConnectCommand::QID));
        }
        check_sqsize(connect, self.profile.config.max_queue_entries)?;
        if !association.registers.is_ready() {
            return Err(refusal(Failure::Sequence.into()));
        }
        if association.has_queue(qid) {
            return Err(qid_in_use());
        }
        let counters = association.add_queue(qid, from.listener);
        Ok(connected(association, connect, counters))
    }

    /// The next free CNTLID, counted from the last one so that none is reused soon.
    fn allocate_cntlid(&mut self) -> Option<u16> {
        for _ in 0..=MAX_CNTLID {
            let cntlid = self.next_cntlid;
            let cntlids = &self.profile.config.cntlids;
            self.next_cntlid = if cntlid >= *cntlids.end() { *cntlids.start() } else { cntlid + 1 };
            if !self.associations.contains_key(&cntlid) {
                return Some(cntlid);
            }
        }
        None
    }
}

fn connected(association: &Association, connect: &Connect, counters: Arc<IoCounters>) -> Connected {
    let response = ConnectResponse(0).with_cntlid(association.id.cntlid);
    Connected {
        id: association.id,
        qid: connect.command.qid,
        sqsize: connect.command.sqsize,
        flow_control_disabled: connect.command.attributes.disable_sq_flow_control(),
        host: association.host,
        status: association.status.clone(),
        counters,
        completion: Completion::with_dw0(response.0),
    }
}

/// SQSIZE is 0's based, and a queue has at least two entries (Fabrics 1.1 §3.3).
fn check_sqsize(connect: &Connect, max_entries: u16) -> Result<(), ConnectRefusal> {
    if (1..max_entries).contains(&connect.command.sqsize) {
        return Ok(());
    }
    Err(bad_command(ConnectCommand::SQSIZE))
}

fn refusal(completion: Completion) -> ConnectRefusal {
    ConnectRefusal { completion, is_qid_in_use: false }
}

fn qid_in_use() -> ConnectRefusal {
    ConnectRefusal { completion: Failure::QidInUse.into(), is_qid_in_use: true }
}

fn busy() -> ConnectRefusal {
    refusal(Failure::Busy.into())
}

fn bad_command(offset: u16) -> ConnectRefusal {
    refusal(ConnectRejection::Command(offset).completion().into())
}

/// The refusal of the field at `offset` of the data.
pub(super) fn bad_data(offset: u16) -> ConnectRefusal {
    refusal(ConnectRejection::Data(offset).completion().into())
}
