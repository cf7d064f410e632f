//! The mock's controllers: Connect, properties and the admin commands that this host uses.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use isolane_memory::Payload;
use isolane_proto::Completion;
use isolane_proto::target::{Connection, Permit};
use isolane_wire::admin::{AsyncEvent, Cns, GetLogPageCommand, IdentifyCommand, LogPage, Notice};
use isolane_wire::fabrics::{
    CNTLID_DYNAMIC, ConnectCommand, ConnectData, ConnectRejection, PropertyGetCommand, PropertySetCommand,
};
use isolane_wire::feature::HostBehaviorSupport;
use isolane_wire::identify::{
    self, Descriptor, DescriptorList, LbaFormat, Namespace, NamespaceList, Oaes, Oncs, VendorPages,
    VolatileCache,
};
use isolane_wire::log::SIGNATURE;
use isolane_wire::opcode::{AdminOpcode, FabricsType};
use isolane_wire::registers::{Cap, Cc, Csts, Vs, offset};
use isolane_wire::{Ascii, CompletionEntry, Status, SubmissionEntry};

use super::{Fault, NQN, Script, Shared};

/// The controller's view from one connection.
pub(super) struct Controller {
    shared: Arc<Shared>,
    cntlid: u16,
    qid: Option<u16>,
    cc: Cc,
    held_event: Option<Permit>,
    /// Notices sent so far.
    notices: u64,
}

impl Controller {
    pub(super) fn new(shared: Arc<Shared>) -> Controller {
        let notices = shared.notices.load(Ordering::SeqCst);
        Controller { shared, cntlid: 0, qid: None, cc: Cc(0), held_event: None, notices }
    }

    pub(super) fn is_io(&self) -> bool {
        self.qid.is_some_and(|qid| qid != 0)
    }

    pub(super) fn qid(&self) -> u16 {
        self.qid.unwrap_or_default()
    }

    pub(super) fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// The connection is gone.
    pub(super) fn leave(&mut self, _generation: u64) {
        self.held_event.take().into_iter().for_each(Permit::forfeit);
        let Some(qid) = self.qid else { return };
        let keeps = self.shared.script.lock().keeps_controllers;
        let mut controllers = self.shared.controllers.lock();
        if let Some(queues) = controllers.get_mut(&self.cntlid) {
            queues.remove(&qid);
            if queues.is_empty() && !keeps {
                controllers.remove(&self.cntlid);
            }
        }
    }

    /// Data of Connect or of Set Features has arrived.
    pub(super) fn on_data(
        &mut self,
        queue: &mut Connection,
        permit: Permit,
        entry: &SubmissionEntry,
        data: &[u8],
    ) {
        if AdminOpcode::decode(entry.opcode) != Some(AdminOpcode::SetFeatures) {
            return self.on_connect(queue, permit, entry, data);
        }
        if !self.shared.script.lock().knows_host_behavior {
            return queue.complete(permit, Completion::failed(Status::INVALID_FIELD.with_dnr(true)));
        }
        let behavior = HostBehaviorSupport::decode_prefix(data).unwrap();
        self.shared.retry_delays_enabled.fetch_add(u64::from(behavior.acre), Ordering::SeqCst);
        queue.complete(permit, Completion::success());
    }

    fn on_connect(&mut self, queue: &mut Connection, permit: Permit, entry: &SubmissionEntry, data: &[u8]) {
        let command = ConnectCommand::parse(entry);
        let data = ConnectData::decode_prefix(data).unwrap();
        let script = self.shared.script.lock().clone();
        match self.judge(&command, &data, &script) {
            Ok(cntlid) => {
                self.cntlid = cntlid;
                self.qid = Some(command.qid);
                let is_disabled =
                    command.attributes.disable_sq_flow_control() && script.confirms_flow_control;
                queue.set_connected(command.qid, command.sqsize, is_disabled);
                queue.complete(permit, Completion::with_dw0(u32::from(cntlid)));
            }
            Err(CompletionEntry { status, dw0, dw1, .. }) => {
                queue.complete(permit, Completion { status, dw0, dw1 })
            }
        }
    }

    fn judge(
        &self,
        command: &ConnectCommand,
        data: &ConnectData,
        script: &Script,
    ) -> Result<u16, CompletionEntry> {
        if command.attributes.disable_sq_flow_control() && !script.knows_flow_control {
            return Err(ConnectRejection::Command(ConnectCommand::CATTR).completion());
        }
        if data.subnqn.parse().unwrap().as_str() != NQN {
            return Err(ConnectRejection::Data(ConnectData::SUBNQN).completion());
        }
        let mut controllers = self.shared.controllers.lock();
        if command.qid == 0 {
            assert_eq!(data.cntlid, CNTLID_DYNAMIC);
            let mut next = self.shared.cntlid_next.lock();
            let cntlid = *next;
            *next += u16::from(!script.reuses_numbers);
            controllers.insert(cntlid, [0].into());
            return Ok(cntlid);
        }
        if let Some(response) = script.probe_response.filter(|_| command.qid > script.max_lanes) {
            return Err(response);
        }
        let queues = controllers.get_mut(&data.cntlid);
        let queues = queues.ok_or_else(|| ConnectRejection::Data(ConnectData::CNTLID).completion())?;
        if command.qid > script.max_lanes {
            return Err(ConnectRejection::Command(ConnectCommand::QID).completion());
        }
        if queues.insert(command.qid) {
            Ok(data.cntlid)
        } else {
            Err(CompletionEntry { status: Status::COMMAND_SEQUENCE_ERROR, ..CompletionEntry::default() })
        }
    }

    pub(super) fn on_admin(&mut self, queue: &mut Connection, permit: Permit, entry: &SubmissionEntry) {
        let script = self.shared.script.lock().clone();
        match AdminOpcode::decode(entry.opcode) {
            Some(AdminOpcode::Fabrics) => self.on_property(queue, permit, entry, &script),
            Some(AdminOpcode::Identify) => {
                let command = IdentifyCommand::parse(entry);
                if command.cns == Cns::NamespaceDescriptors.code()
                    && let Some(status) = self.shared.script.lock().descriptor_statuses.pop_front()
                {
                    return queue.complete(permit, Completion::failed(status));
                }
                match identify(&command, self.cntlid, &script) {
                    Some(data) => {
                        queue.complete_with_data(permit, Payload::from(data), Completion::success())
                    }
                    None => queue.complete(permit, Completion::failed(Status::INVALID_FIELD)),
                }
            }
            Some(AdminOpcode::SetFeatures) => {
                let granted = u32::from(script.max_lanes - 1);
                queue.complete(permit, Completion::with_dw0(granted << 16 | granted));
            }
            Some(AdminOpcode::KeepAlive) if script.ignores_keep_alive => permit.forfeit(),
            Some(AdminOpcode::KeepAlive) => {
                self.shared.keep_alives.fetch_add(1, Ordering::SeqCst);
                queue.complete(permit, Completion::success());
            }
            Some(AdminOpcode::AsyncEventRequest) => self.on_event_request(queue, permit),
            Some(AdminOpcode::GetLogPage) if GetLogPageCommand::parse(entry).lid == GENERATION => {
                match &script.generation {
                    Some(page) => {
                        let data = Payload::from(page.encode().to_vec());
                        queue.complete_with_data(permit, data, Completion::success());
                    }
                    None => {
                        queue.complete(permit, Completion::failed(Status::INVALID_LOG_PAGE.with_dnr(true)));
                    }
                }
            }
            Some(AdminOpcode::GetLogPage) => {
                self.shared.log_reads.fetch_add(1, Ordering::SeqCst);
                let len = entry.sgl.len().unwrap() as usize;
                queue.complete_with_data(permit, Payload::zeroes(len), Completion::success());
            }
            _ => queue.complete(permit, Completion::failed(Status::INVALID_OPCODE)),
        }
    }

    /// Holds the request, or reports immediately that the namespace grows.
    fn on_event_request(&mut self, queue: &mut Connection, permit: Permit) {
        let grows = self.shared.script.lock().fault == Some((0, Fault::Grow));
        if grows {
            let mut script = self.shared.script.lock();
            script.fault = None;
            script.blocks *= 2;
            self.shared.notices.fetch_add(1, Ordering::SeqCst);
        }
        self.held_event.replace(permit).into_iter().for_each(Permit::forfeit);
        self.send_notice(queue);
    }

    /// Reports a changed namespace if the test requests it.
    pub(super) fn send_notice(&mut self, queue: &mut Connection) {
        let notices = self.shared.notices.load(Ordering::SeqCst);
        if notices == self.notices {
            return;
        }
        if let Some(permit) = self.held_event.take() {
            self.notices = notices;
            let event = AsyncEvent::notice(Notice::NamespaceAttributeChanged, LogPage::ChangedNamespaces);
            queue.complete(permit, Completion::with_dw0(event.0));
        }
    }

    fn on_property(
        &mut self,
        queue: &mut Connection,
        permit: Permit,
        entry: &SubmissionEntry,
        script: &Script,
    ) {
        if entry.fctype() == FabricsType::PropertySet.code() {
            self.cc = Cc(PropertySetCommand::parse(entry).value as u32);
            let is_shutdown = self.cc.shn() != Cc::SHN_NONE;
            self.shared.shutdowns.fetch_add(u64::from(is_shutdown), Ordering::SeqCst);
            return queue.complete(permit, Completion::success());
        }
        let value = match PropertyGetCommand::parse(entry).offset {
            offset::CAP => Cap(0).with_mqes(script.mqes).with_to(2).with_css(1).0,
            offset::VS => u64::from(Vs::V1_4.0),
            offset::CSTS if self.cc.shn() != 0 && script.completes_shutdown => {
                u64::from(Csts(0).with_shst(Csts::SHST_COMPLETE).0)
            }
            offset::CSTS => u64::from(Csts(0).with_rdy(self.cc.en()).0),
            _ => 0,
        };
        let CompletionEntry { dw0, dw1, status, .. } = PropertyGetCommand::completion(value);
        queue.complete(permit, Completion { status, dw0, dw1 });
    }
}

fn identify(command: &IdentifyCommand, cntlid: u16, script: &Script) -> Option<Vec<u8>> {
    match Cns::decode(command.cns)? {
        Cns::Controller => Some(controller(cntlid, script).encode().to_vec()),
        Cns::ActiveNamespaces => {
            let nsids = script.nsids.iter().copied().filter(|&nsid| nsid > command.nsid);
            Some(NamespaceList::new(nsids).encode().to_vec())
        }
        Cns::Namespace => Some(namespace(script).encode().to_vec()),
        Cns::NamespaceDescriptors => {
            let own = if script.has_many_volumes { u128::from(cntlid) << 64 } else { 0 };
            let uuid = Descriptor::Uuid((script.uuid + own + u128::from(command.nsid)).to_be_bytes());
            let nguid = script.nguid.map(|nguid| Descriptor::Nguid(nguid.to_be_bytes()));
            let eui64 = script.eui64.map(|eui64| Descriptor::Eui64(eui64.to_be_bytes()));
            let list: Vec<_> = [Some(uuid), nguid, eui64].into_iter().flatten().collect();
            Some(DescriptorList::encode(&list).to_vec())
        }
        _ => None,
    }
}

fn controller(cntlid: u16, script: &Script) -> identify::Controller {
    identify::Controller {
        sn: Ascii::lossy("serial"),
        mn: Ascii::lossy("mock"),
        fr: Ascii::lossy("1"),
        mdts: script.mdts,
        cntlid,
        oaes: Oaes(0).with_namespace_attribute(true),
        oncs: Oncs(0).with_write_zeroes(true).with_dataset_management(true),
        cqt_ms: script.cqt_ms,
        crdt: script.crdt,
        ioccsz: 4 + script.in_capsule_bytes / 16,
        iorcsz: 1,
        vwc: VolatileCache(0).with_present(script.has_cache),
        vendor_signature: if script.isolane { SIGNATURE } else { [0xff; 16] },
        vendor_pages: VendorPages(u32::MAX),
        ..identify::Controller::default()
    }
}

fn namespace(script: &Script) -> Namespace {
    let mut namespace = Namespace { nsze: script.blocks, ncap: script.blocks, ..Namespace::default() };
    let format = LbaFormat(0).with_lbads(script.block_bytes.trailing_zeros() as u8);
    namespace.lbaf[0] = format.with_ms(script.metadata_bytes);
    namespace
}

const GENERATION: u8 = LogPage::Generation.code();
