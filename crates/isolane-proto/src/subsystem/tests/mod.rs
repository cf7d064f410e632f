//! Scenarios of the control path with mock hosts.

mod association;
mod config;
mod connect;
mod discovery;
mod event;
mod failure;
mod feature;
mod garbage;
mod identify;
mod log;
mod masks;
mod namespaces;
mod ports;
mod property;
mod subsystems;

use std::time::{Duration, Instant};

use isolane_wire::admin::{GetFeaturesCommand, GetLogPageCommand, LogPage, SetFeaturesCommand};
use isolane_wire::fabrics::{
    CNTLID_DYNAMIC, ConnectCommand, ConnectData, PropertyGetCommand, PropertySetCommand, PropertySize,
};
use isolane_wire::feature::FeatureId;
use isolane_wire::log::RestartLoss;
use isolane_wire::registers::{Cc, Csts, offset};
use isolane_wire::{Nqn, NqnField, Status, SubmissionEntry};

use super::*;

const SUBNQN: &str = "nqn.2014-08.org.example:disk";
const HOSTNQN: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001";
const S: Duration = Duration::from_secs(1);

/// A completion with DNR.
fn rejected_with(status: Status) -> Completion {
    Completion::failed(status.with_dnr(true))
}

fn namespace(nsid: u32) -> NamespaceConfig {
    NamespaceConfig {
        nsid,
        hosts: None,
        geometry: NamespaceGeometry { block_shift: 9, blocks: 2048, read_only: false },
        uuid: [nsid as u8; 16],
        nguid: [0x80 | nsid as u8; 16],
        volatile_cache: true,
        deallocate: true,
        zeroes_after_deallocate: true,
        deallocate_blocks_preferred: 0,
        generation: Some(Generation { id: [0x40 | nsid as u8; 16], loses: RestartLoss::Cache }),
    }
}

fn config() -> PortConfig {
    PortConfig {
        subsystems: vec![SubsystemConfig {
            nqn: Nqn::new(SUBNQN).unwrap(),
            serial: "0123456789".into(),
            namespaces: vec![namespace(1), namespace(3)],
            max_io_queues: 4,
            ..SubsystemConfig::default()
        }],
        listeners: vec![listener("0.0.0.0:4420")],
        advertise: Vec::new(),
        referrals: Vec::new(),
        max_associations: 8,
        generation_start: 100,
    }
}

/// A port with a clock, and the actions of hosts.
struct Harness {
    port: Port,
    now: Instant,
}

impl Harness {
    fn new() -> Harness {
        Harness::with(config())
    }

    fn with(config: PortConfig) -> Harness {
        Harness { port: Port::new(config).unwrap(), now: Instant::now() }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.port.handle_timeout(self.now);
    }

    fn connect(&mut self, connect: &MockConnect) -> Result<Connected, ConnectRefusal> {
        self.port.connect(&connect.command.entry(), &connect.data.encode(), from(), self.now)
    }

    /// A host with an admin queue.
    fn admin(&mut self) -> AssociationId {
        self.connect(&MockConnect::admin()).unwrap().id
    }

    /// A host that has enabled its controller.
    fn ready(&mut self) -> AssociationId {
        let id = self.admin();
        assert_eq!(self.set_cc(id, Cc::enabled()), Completion::success());
        id
    }

    /// A host with an enabled discovery controller.
    fn discovery(&mut self) -> AssociationId {
        let id = self.connect(&MockConnect::discovery()).unwrap().id;
        self.set_cc(id, Cc::enabled());
        id
    }

    fn io_queue(&mut self, id: AssociationId, qid: u16) -> Result<Connected, ConnectRefusal> {
        self.connect(&MockConnect::io(id, qid))
    }

    /// Executes a command whose SGL describes `data_bytes`; [`data_expected`] returns the right length.
    fn execute(&mut self, id: AssociationId, entry: SubmissionEntry, data_bytes: u32) -> Action {
        self.port.handle_command(id, 0, &entry, data_bytes, self.now)
    }

    /// Executes a command without data.
    fn complete(&mut self, id: AssociationId, entry: SubmissionEntry) -> Completion {
        completion(self.execute(id, entry, 0))
    }

    /// Executes a command that returns data.
    fn fetch(&mut self, id: AssociationId, entry: SubmissionEntry) -> Result<Vec<u8>, Status> {
        let bytes = data_expected(&entry);
        assert_ne!(bytes, 0, "returns no data");
        let mut action = self.execute(id, entry, bytes as u32);
        if let Action::CollectHostPage(host) = action {
            action = self.port.handle_host_page(id, &entry, bytes as u32, &self.page_of(*host), self.now);
        }
        match action {
            Action::CompleteWithData(data, completion) => {
                assert_eq!(data.len() as u64, bytes);
                assert!(completion.is_success());
                Ok(data)
            }
            action => Err(completion(action).status),
        }
    }

    /// A page that has the host and the time in its text.
    fn page_of(&self, host: Host) -> HostPage {
        let text = format!("{host} {:?} {:?}", host.hostid, self.now);
        HostPage { text: text.into(), connections_left_out: 1, slow_left_out: 2 }
    }

    fn log(&mut self, id: AssociationId, page: LogPage, offset: u64, len: u32) -> Result<Vec<u8>, Status> {
        self.fetch(id, GetLogPageCommand::new(page, offset, len).entry())
    }

    fn feature(&mut self, id: AssociationId, feature: FeatureId) -> Completion {
        self.complete(id, GetFeaturesCommand { fid: feature.code(), ..Default::default() }.entry())
    }

    fn set_feature(&mut self, id: AssociationId, feature: FeatureId, cdw11: u32) -> Completion {
        self.complete(id, SetFeaturesCommand { fid: feature.code(), cdw11, ..Default::default() }.entry())
    }

    fn property(&mut self, id: AssociationId, offset: u32, size: PropertySize) -> Result<u64, Status> {
        let completion = self.complete(id, PropertyGetCommand { size, offset }.entry());
        let value = u64::from(completion.dw1) << 32 | u64::from(completion.dw0);
        if completion.is_success() { Ok(value) } else { Err(completion.status) }
    }

    fn csts(&mut self, id: AssociationId) -> Csts {
        Csts(self.property(id, offset::CSTS, PropertySize::Bytes4).unwrap() as u32)
    }

    fn set_cc(&mut self, id: AssociationId, cc: Cc) -> Completion {
        let size = PropertySize::Bytes4;
        self.complete(id, PropertySetCommand { size, offset: offset::CC, value: cc.0.into() }.entry())
    }

    fn events(&mut self) -> Vec<ControlEvent> {
        std::iter::from_fn(|| self.port.poll_event()).collect()
    }

    /// Ends the connection of a queue and its I/O.
    fn drop_queue(&mut self, id: AssociationId, qid: u16) {
        self.port.handle_disconnected(id, qid);
        self.port.handle_drained(id, qid);
    }
}

/// A Connect that the test can modify.
#[derive(Clone, Debug)]
struct MockConnect {
    command: ConnectCommand,
    data: ConnectData,
}

impl MockConnect {
    fn admin() -> MockConnect {
        let nqn = |text| NqnField::from(Nqn::new(text).unwrap());
        let command = ConnectCommand { sqsize: 31, kato_ms: 5000, ..ConnectCommand::default() };
        let data = ConnectData {
            hostid: [7; 16],
            cntlid: CNTLID_DYNAMIC,
            subnqn: nqn(SUBNQN),
            hostnqn: nqn(HOSTNQN),
        };
        MockConnect { command, data }
    }

    fn discovery() -> MockConnect {
        let mut connect = MockConnect::admin();
        connect.data.subnqn = NqnField::from(Nqn::discovery());
        connect.command.kato_ms = 0;
        connect
    }

    fn io(id: AssociationId, qid: u16) -> MockConnect {
        let mut connect = MockConnect::admin();
        (connect.command.qid, connect.command.sqsize) = (qid, 127);
        connect.data.cntlid = id.cntlid;
        connect
    }
}

fn from() -> ConnectionInfo {
    ConnectionInfo {
        listener: ListenerId::at(0),
        local: "192.0.2.1:4420".parse().unwrap(),
        remote: "192.0.2.9:50000".parse().unwrap(),
    }
}

fn listener(address: &str) -> Listener {
    Listener::from(address.parse::<SocketAddr>().unwrap())
}

fn completion(action: Action) -> Completion {
    match action {
        Action::Complete(completion) => completion,
        action => panic!("not a plain answer: {action:?}"),
    }
}

fn rejected(result: Result<Connected, ConnectRefusal>) -> Completion {
    match result.map(|connected| connected.id) {
        Err(ConnectRefusal { completion, .. }) => completion,
        other => panic!("not rejected: {other:?}"),
    }
}
