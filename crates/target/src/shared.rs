//! What the cores of one target share: the control path behind its lock, and each other's mailboxes.
//!
//! It is not on the data path: an I/O command takes nothing from here but the immutable list of namespaces.
//! Invariants: whatever the [`Port`] wants done beyond the caller's own connection is posted to the core that
//! owns the connection, under the same lock that made it happen; and no core ever waits for another.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use isolane_proto::subsystem::{AssociationId, CloseReason, Connected, ConnectionInfo, Event, Port, Refusal};
use isolane_reactor::mailbox::{Sender, Undelivered};
use isolane_wire::{Nqn, SubmissionEntry};
use parking_lot::Mutex;

use crate::connections::ConnectionStatus;
use crate::core::Traveller;
use crate::counters::CoreCounters;
use crate::namespace::Namespaces;
use crate::scheduler::CoreLoad;
use crate::seats::Seats;
use crate::table::Key;

/// A lane, as another core names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub core: usize,
    pub lane: Key,
}

/// What cores tell each other.
#[derive(Debug)]
pub(crate) enum Message {
    /// This connection is yours.
    Adopt { socket: std::net::TcpStream, peer: SocketAddr },
    /// Close this lane: its association, or its controller's I/O, has ended.
    Close { lane: Address, reason: &'static str },
    /// Answer held Async Event Requests of this lane; the port has their completions.
    AsyncEvents { lane: Address },
    /// CC.SHN was set: when none of `busy` is, flush all volumes and tell the port.
    Shutdown { id: AssociationId, busy: Vec<Arc<Busy>> },
    /// There is nothing to do: by dropping this, a core says that it sees what the port changed before.
    See(Arc<()>),
    /// Read what has arrived on all connections of this host, then answer with [`Message::HostRead`].
    ReadHost { host_nqn: Nqn, reply_to: Address },
    /// One core has read what a [`Message::ReadHost`] asked for; or not all of it in time.
    HostRead { lane: Key, is_settled: bool },
    /// An association has ended; the Connect of this lane may now be admitted.
    RetryConnect { lane: Key },
    /// To the first core: what another did lately.
    Load { core: usize, load: CoreLoad },
    /// Let this lane go to another core as soon as it can.
    Depart { lane: Address, to: usize },
    /// The same for the connection of this peer, if it is yours.
    DepartPeer { peer: SocketAddr, to: usize },
    /// This lane is yours.
    Arrive(Traveller),
    /// Tell about every connection; the sender is dropped when that is done.
    Describe(std::sync::mpsc::Sender<ConnectionStatus>),
    /// Finish what is in flight, close everything, flush; by then at the latest.
    Stop { deadline: Instant },
}

/// How many commands of one lane are at volumes. Written by the owning core alone.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    commands: AtomicU32,
    /// Those among them that may leave something in a volatile cache.
    volatile: AtomicU32,
}

impl Busy {
    pub(crate) fn set(&self, commands: u32, volatile: u32) {
        self.volatile.store(volatile, Ordering::Release);
        self.commands.store(commands, Ordering::Release);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.commands.load(Ordering::Acquire) == 0
    }

    /// No command is at a volume that may leave something in a volatile cache.
    pub(crate) fn is_durable(&self) -> bool {
        self.volatile.load(Ordering::Acquire) == 0
    }
}

/// What the cores of one target share.
pub(crate) struct Shared {
    pub namespaces: Namespaces,
    pub counters: Vec<Arc<CoreCounters>>,
    pub mailboxes: Vec<Sender<Message>>,
    pub connections_max: usize,
    /// Short commands pass long ones.
    pub scheduling: bool,
    pub seats: Seats,
    /// Cores whose lanes are all closed after [`Message::Stop`].
    pub cores_drained: AtomicUsize,
    control: Mutex<Control>,
}

/// What is decided about all cores before they begin.
pub(crate) struct Bounds {
    pub connections_max: usize,
    /// Lanes that one core may have.
    pub lanes_on_each: usize,
    /// Short commands pass long ones.
    pub scheduling: bool,
}

/// The port, and which lanes its associations have.
struct Control {
    port: Port,
    lanes: HashMap<AssociationId, Vec<LaneEntry>>,
    /// Lanes whose Connect waits for an association to end, each with what lives as long as it does.
    waiting: Vec<(Address, Weak<Busy>)>,
}

struct LaneEntry {
    qid: u16,
    host_nqn: Nqn,
    /// Its name.
    address: Address,
    /// The core that owns it now.
    core: usize,
    busy: Arc<Busy>,
}

impl Shared {
    pub(crate) fn new(
        port: Port,
        namespaces: Namespaces,
        counters: Vec<Arc<CoreCounters>>,
        mailboxes: Vec<Sender<Message>>,
        bounds: Bounds,
    ) -> Shared {
        let control = Control { port, lanes: HashMap::new(), waiting: Vec::new() };
        Shared {
            namespaces,
            counters,
            seats: Seats::new(mailboxes.len(), bounds.lanes_on_each),
            mailboxes,
            connections_max: bounds.connections_max,
            scheduling: bounds.scheduling,
            cores_drained: AtomicUsize::new(0),
            control: Mutex::new(control),
        }
    }

    /// Leaves a message with a core. A core that has stopped needs none.
    pub(crate) fn post(&self, core: usize, message: Message) {
        if self.mailboxes[core].send(message).is_err() {
            log::debug!("core {core} has stopped and took no message");
        }
    }

    /// Leaves a message with every core.
    pub(crate) fn post_to_all(&self, message: impl Fn() -> Message) {
        (0..self.mailboxes.len()).for_each(|core| self.post(core, message()));
    }

    /// Calls the port and delivers whatever it wants done elsewhere.
    pub(crate) fn control<R>(&self, call: impl FnOnce(&mut Port) -> R) -> R {
        let mut control = self.control.lock();
        let result = call(&mut control.port);
        self.deliver_events(&mut control);
        result
    }

    /// Asks the port to admit a connection, and enters it into the list of lanes if it is.
    pub(crate) fn connect(
        &self,
        entry: &SubmissionEntry,
        data: &[u8],
        from: ConnectionInfo,
        lane: (Address, &Arc<Busy>),
        now: Instant,
    ) -> Result<Connected, Refusal> {
        let (address, busy) = lane;
        let mut control = self.control.lock();
        let result = control.port.connect(entry, data, from, now);
        match &result {
            Ok(connected) => {
                let (qid, host_nqn) = (connected.qid, connected.host_nqn);
                let core = address.core;
                let entry = LaneEntry { qid, host_nqn, address, core, busy: Arc::clone(busy) };
                control.lanes.entry(connected.id).or_default().push(entry);
            }
            Err(Refusal::Wait) => control.wait(address, busy),
            Err(Refusal::Rejected(_)) => {}
        }
        self.deliver_events(&mut control);
        result
    }

    /// A connection of an association is gone.
    pub(crate) fn disconnect(&self, id: AssociationId, qid: u16) {
        let mut control = self.control.lock();
        if let Some(lanes) = control.lanes.get_mut(&id) {
            lanes.retain(|lane| lane.qid != qid);
        }
        control.port.handle_disconnected(id, qid);
        self.deliver_events(&mut control);
    }

    /// The loads of all lanes of an association.
    pub(crate) fn busy_of(&self, id: AssociationId) -> Vec<Arc<Busy>> {
        self.control.lock().lanes_of(id).map(|lane| Arc::clone(&lane.busy)).collect()
    }

    /// Asks the cores that own connections of this host to read them; returns how many will answer. The lock
    /// is held until all are asked, so that no connection moves meanwhile.
    pub(crate) fn ask_to_read(&self, host_nqn: Nqn, reply_to: Address) -> usize {
        let control = self.control.lock();
        let lanes = control.lanes.values().flatten().filter(|lane| lane.host_nqn == host_nqn);
        let mut cores: Vec<usize> = lanes.map(|lane| lane.core).collect();
        cores.sort_unstable();
        cores.dedup();
        cores.iter().for_each(|core| self.post(*core, Message::ReadHost { host_nqn, reply_to }));
        cores.len()
    }

    /// Gives a lane to another core, unless its old core has unread messages: all that concern the lane are
    /// sent under this lock, so from then on they go to the new core, behind the lane.
    ///
    /// # Errors
    /// The lane comes back.
    pub(crate) fn hand_over(
        &self,
        id: AssociationId,
        name: Address,
        to: usize,
        traveller: Traveller,
        is_mailbox_empty: impl FnOnce() -> bool,
    ) -> Result<(), Traveller> {
        let mut control = self.control.lock();
        let mut lanes = control.lanes.get_mut(&id).into_iter().flatten();
        let Some(entry) = lanes.find(|lane| lane.address == name).filter(|_| is_mailbox_empty()) else {
            return Err(traveller);
        };
        match self.mailboxes[to].send(Message::Arrive(traveller)) {
            Ok(()) => {
                entry.core = to;
                Ok(())
            }
            Err(Undelivered::Full(Message::Arrive(back)) | Undelivered::Closed(Message::Arrive(back))) => {
                Err(back)
            }
            Err(_) => unreachable!("another message came back than was sent"),
        }
    }

    fn deliver_events(&self, control: &mut Control) {
        while let Some(event) = control.port.poll_event() {
            self.deliver(control, event);
        }
    }

    fn deliver(&self, control: &mut Control, event: Event) {
        match event {
            Event::AsyncEvents { id } => {
                for lane in control.lanes_of(id).filter(|lane| lane.qid == 0) {
                    self.post(lane.core, Message::AsyncEvents { lane: lane.address });
                }
            }
            Event::CloseIoQueues { id } => {
                let lanes = control.lanes_of(id).filter(|lane| lane.qid != 0);
                lanes.for_each(|lane| self.post_close(lane, "the host disabled the controller"));
            }
            Event::Close { id, reason } => {
                control.lanes_of(id).for_each(|lane| self.post_close(lane, reason_text(reason)));
            }
            Event::Shutdown { id } => self.post_shutdown(control, id),
            Event::Ended { id } => {
                control.lanes.remove(&id);
                for (address, _) in control.waiting.drain(..) {
                    self.post(address.core, Message::RetryConnect { lane: address.lane });
                }
            }
        }
    }

    fn post_close(&self, lane: &LaneEntry, reason: &'static str) {
        self.post(lane.core, Message::Close { lane: lane.address, reason });
    }

    /// The core of the admin queue sees to the flush.
    fn post_shutdown(&self, control: &Control, id: AssociationId) {
        let busy = control.lanes_of(id).map(|lane| Arc::clone(&lane.busy)).collect();
        if let Some(admin) = control.lanes_of(id).find(|lane| lane.qid == 0) {
            self.post(admin.core, Message::Shutdown { id, busy });
        }
    }
}

impl Control {
    /// Lanes that have given up are forgotten here: an association may take long to end, and its host try
    /// often.
    fn wait(&mut self, address: Address, busy: &Arc<Busy>) {
        self.waiting.retain(|(other, lane)| *other != address && lane.strong_count() > 0);
        self.waiting.push((address, Arc::downgrade(busy)));
    }

    fn lanes_of(&self, id: AssociationId) -> impl Iterator<Item = &LaneEntry> {
        self.lanes.get(&id).into_iter().flatten()
    }
}

fn reason_text(reason: CloseReason) -> &'static str {
    match reason {
        CloseReason::AdminQueueLost => "the association's admin connection is gone",
        CloseReason::KeepAliveExpired => "the host was silent for longer than its keep-alive timeout",
    }
}

#[cfg(test)]
mod tests {
    use isolane_proto::subsystem::{PortConfig, SubsystemConfig};
    use isolane_wire::NqnField;
    use isolane_wire::fabrics::{CNTLID_DYNAMIC, ConnectAttributes, ConnectCommand, ConnectData};

    use super::*;
    use crate::table::Table;

    /// One core that nobody runs.
    fn shared(nqn: Nqn) -> Shared {
        let subsystem = SubsystemConfig { nqn, ..SubsystemConfig::default() };
        let config =
            PortConfig { subsystem, advertise: Vec::new(), associations_max: 8, generation_start: 0 };
        let bounds = Bounds { connections_max: 8, lanes_on_each: 8, scheduling: true };
        Shared::new(Port::new(config).unwrap(), Namespaces::new(Vec::new()), Vec::new(), Vec::new(), bounds)
    }

    #[test]
    fn lanes_that_wait_for_an_association_to_end_are_forgotten_with_their_end() {
        let nqn: Nqn = "nqn.2014-08.org.example:disk".parse().unwrap();
        let shared = shared(nqn);
        let attributes = ConnectAttributes(0);
        let entry = ConnectCommand { recfmt: 0, qid: 0, sqsize: 31, attributes, kato_ms: 0 }.entry();
        let name = NqnField::from(&nqn);
        let data =
            ConnectData { hostid: [7; 16], cntlid: CNTLID_DYNAMIC, subnqn: name, hostnqn: name }.encode();
        let any = SocketAddr::from(([127, 0, 0, 1], 4420));
        let mut lanes = Table::default();
        let mut connect = |busy: &Arc<Busy>| {
            let address = Address { core: 0, lane: lanes.insert(()) };
            let from = ConnectionInfo { local: any, remote: any };
            shared.connect(&entry, &data, from, (address, busy), Instant::now())
        };
        let first = connect(&Arc::default()).unwrap();
        shared.disconnect(first.id, 0);
        let patient = Arc::default();
        assert!(matches!(connect(&patient), Err(Refusal::Wait)));
        for _ in 0..100 {
            assert!(matches!(connect(&Arc::default()), Err(Refusal::Wait)));
        }
        // The first, and the last, whose end nobody has seen yet.
        assert_eq!(shared.control.lock().waiting.len(), 2);
    }
}
