//! Dispatch of commands, and the commands of the control path: admin and fabrics commands.
//!
//! The port decides about commands of the control path, behind its lock.

use isolane_memory::{Buffer, Payload};
use isolane_observe::stage::Stage;
use isolane_proto::subsystem::{
    Action, AssociationId, Host, HostPage, data_expected, invalid_transfer_status, takes_data,
};
use isolane_proto::target::{Permit, Transfer};
use isolane_proto::{Completion, Failure};
use isolane_wire::opcode::{FabricsType, IoOpcode};
use isolane_wire::{Status, SubmissionEntry};

use super::Core;
use super::authentication::AuthenticationCommand;
use super::control_data::take_small_data;
use super::flush::AfterFlush;
use crate::host_page::PageRequest;
use crate::lane::{Lane, WaitingForPage};

impl Core {
    /// Handles a command before its data has arrived.
    pub(super) fn on_command(&mut self, lane: &mut Lane, permit: Permit, transfer: Transfer) {
        if lane.conn.is_held(permit.cid()) {
            self.replace_async_event(lane, permit.cid());
        }
        let entry = lane.conn.entry(&permit);
        if let Transfer::Invalid(status) = transfer {
            let is_io_queue = lane.association.as_ref().is_some_and(|association| association.qid != 0);
            let status = invalid_transfer_status(entry, is_io_queue, status);
            return self.fail(lane, permit, status);
        }
        let is_fabrics = is_fabrics(entry);
        match &lane.association {
            Some(association) if association.serves_io && !is_fabrics => {
                self.on_io_command(lane, permit, transfer);
            }
            None if lane.connecting.is_some() || !is_fabrics => {
                self.fail(lane, permit, Failure::Sequence);
            }
            _ => self.on_control_command(lane, permit, transfer),
        }
    }

    /// Handles the complete data of a command.
    pub(super) fn on_data(&mut self, lane: &mut Lane, permit: Permit, buffer: Buffer, digest_ok: bool) {
        let entry = lane.conn.entry(&permit);
        let is_io =
            lane.association.as_ref().is_some_and(|association| association.qid != 0) && !is_fabrics(entry);
        let transfer = lane.marks.end_transfer(permit.slot());
        if let Some((position, _)) = transfer {
            self.on_expected_data(lane, position, buffer.len());
        }
        if !digest_ok {
            self.counters.digest_errors.add(1);
            log::limited!(Warn, "{}: wrong data digest of command {:#06x}", lane.peer(), permit.cid());
            self.memory.pool.recycle_buffer(buffer);
            lane.end_authentication_data(&permit);
            return self.fail(lane, permit, Failure::DataDigest);
        }
        match &lane.association {
            Some(_) if is_io => match transfer {
                Some((position, mut timeline)) => {
                    timeline.enter(Stage::Batch, lane.received_at);
                    self.on_io_data(lane, permit, position, buffer, timeline);
                }
                None => self.on_resumed_data(lane, permit, buffer),
            },
            // The target requests only the data of a Connect, of an Authentication Send, and of commands that take
            // data.
            Some(association) if takes_data(lane.conn.entry(&permit)) => {
                let (id, entry, now) = (association.id, *lane.conn.entry(&permit), self.now);
                let data = buffer.to_vec();
                let action = self.shared.control(|port| port.handle_data(id, &entry, &data, now));
                self.respond(lane, id, permit, action);
            }
            Some(_) => self.on_authentication_data(lane, permit, &buffer.to_vec()),
            None => {
                let entry = *lane.conn.entry(&permit);
                self.begin_connect(lane, permit, entry, buffer.to_vec());
            }
        }
    }

    /// Completes held Async Event Requests for which the port has completions.
    pub(super) fn complete_async_events(&mut self, lane: &mut Lane) {
        let Some(id) = lane.association.as_ref().map(|association| association.id) else { return };
        while let Some((cid, completion)) = self.shared.control(|port| port.poll_async_event(id)) {
            lane.conn.complete_held(cid, completion);
            self.sends.add(lane);
        }
    }

    /// Handles a new command with the CID of a held Async Event Request.
    #[cold]
    fn replace_async_event(&mut self, lane: &mut Lane, cid: u16) {
        let Some(id) = lane.association.as_ref().map(|association| association.id) else { return };
        match self.shared.control(|port| port.replace_async_event(id, cid)) {
            Some(completion) => {
                lane.conn.complete_held(cid, completion);
                self.sends.add(lane);
            }
            None => lane.conn.replace_held(cid),
        }
    }

    /// Completes a command with a status.
    pub(super) fn fail(&mut self, lane: &mut Lane, permit: Permit, status: impl Into<Status>) {
        self.complete(lane, permit, Completion::failed(status.into()));
    }

    /// Completes a command without data.
    pub(super) fn complete(&mut self, lane: &mut Lane, permit: Permit, completion: Completion) {
        lane.release_guaranteed(&permit);
        if !lane.is_open() {
            return lane.conn.abandon(permit);
        }
        lane.conn.complete(permit, completion);
        self.sends.add(lane);
    }

    /// Handles a command of the control path. Data that no command takes is skipped.
    fn on_control_command(&mut self, lane: &mut Lane, permit: Permit, transfer: Transfer) {
        self.counters.admin_commands.add(1);
        let (len, entry) = (data_len(transfer), *lane.conn.entry(&permit));
        if let Some(association) = &lane.association {
            association.status.record_traffic();
            if association.auth.is_some() {
                if let Some(command) = AuthenticationCommand::parse(&entry) {
                    return self.on_authentication(lane, permit, command, transfer);
                }
                if association.is_locked() && !is_served_while_locked(&entry) {
                    return self.fail(lane, permit, Failure::Authentication);
                }
            }
            if let Transfer::FromHost { len, place } = transfer
                && association.qid == 0
                && takes_data(&entry)
                && data_expected(&entry) == u64::from(len)
            {
                return take_small_data(lane, permit, len, place);
            }
            let (id, qid, now) = (association.id, association.qid, self.now);
            let action = self.shared.control(|port| port.handle_command(id, qid, &entry, len, now));
            if let Action::CollectHostPage(host) = action {
                return self.collect_host_page(lane, *host, WaitingForPage { permit, entry, len });
            }
            return self.respond(lane, id, permit, action);
        }
        match transfer {
            Transfer::FromHost { len, place }
                if is_connect(&entry) && data_expected(&entry) == u64::from(len) =>
            {
                take_small_data(lane, permit, len, place);
            }
            _ if is_connect(&entry) => self.begin_connect(lane, permit, entry, Vec::new()),
            _ => self.fail(lane, permit, Failure::Sequence),
        }
    }

    #[cold]
    fn collect_host_page(&mut self, lane: &mut Lane, host: Host, waiting: WaitingForPage) {
        let Some(subsystem) = lane.association.as_ref().map(|it| it.id.subsystem) else {
            return self.fail(lane, waiting.permit, Failure::Internal);
        };
        let request = PageRequest { host, subsystem, lane: lane.id, core: self.index };
        if self.shared.page_requests.send(request) {
            lane.waiting_for_page = Some(waiting);
        } else {
            self.fail(lane, waiting.permit, Failure::Internal);
        }
    }

    /// Handles the page of a host.
    pub(super) fn on_host_page(&mut self, lane: &mut Lane, page: &HostPage) {
        let Some(WaitingForPage { permit, entry, len }) = lane.waiting_for_page.take() else { return };
        let Some(id) = lane.association.as_ref().map(|association| association.id) else {
            return self.fail(lane, permit, Failure::Internal);
        };
        let now = self.now;
        let action = self.shared.control(|port| port.handle_host_page(id, &entry, len, page, now));
        self.respond(lane, id, permit, action);
    }

    fn respond(&mut self, lane: &mut Lane, id: AssociationId, permit: Permit, action: Action) {
        match action {
            Action::Complete(completion) => self.complete(lane, permit, completion),
            Action::CompleteWithData(data, completion) => {
                lane.conn.complete_with_data(permit, Payload::from(data), completion);
                self.sends.add(lane);
            }
            // The port requires a page only once for a command.
            Action::CollectHostPage(_) => self.fail(lane, permit, Failure::Internal),
            Action::HoldAsyncEvent => lane.conn.hold(permit),
            Action::Flush(completion) => {
                lane.begin(false);
                let then = AfterFlush::Complete { lane: lane.key, permit, completion };
                self.plan_flush(id.subsystem, self.shared.in_flight_of(id), None, then);
            }
            Action::Disconnect(completion) => {
                self.complete(lane, permit, completion);
                self.close_gracefully(lane, "the host disconnected it");
            }
        }
    }
}

/// Whether a command is served before the host has authenticated, apart from those of authentication: Connect, which
/// fails on a connected queue, and Disconnect.
fn is_served_while_locked(entry: &SubmissionEntry) -> bool {
    let served = [FabricsType::Connect, FabricsType::Disconnect];
    is_fabrics(entry) && served.iter().any(|fctype| entry.fctype() == fctype.code())
}

/// Returns the data length in the SGL of the host.
pub(super) fn data_len(transfer: Transfer) -> u32 {
    match transfer {
        Transfer::FromHost { len, .. } | Transfer::ToHost { len } => len,
        Transfer::None | Transfer::Invalid(_) => 0,
    }
}

fn is_connect(entry: &SubmissionEntry) -> bool {
    is_fabrics(entry) && entry.fctype() == FabricsType::Connect.code()
}

fn is_fabrics(entry: &SubmissionEntry) -> bool {
    entry.opcode == IoOpcode::Fabrics.code()
}
