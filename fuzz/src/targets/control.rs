//! The control path: a port with several hosts at once.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use isolane_proto::subsystem::{
    Action, AssociationId, ConnectionInfo, ControlEvent, HostPage, ListenerId, NamespaceConfig,
    NamespaceGeometry, Port, PortConfig, SubsystemConfig, data_expected,
};
use isolane_wire::fabrics::{ConnectCommand, ConnectData};
use isolane_wire::{Nqn, SubmissionEntry};

use super::admin_commands::{configure, feature, identify, log_page, small};
use crate::input::Input;

/// MDTS, in bytes.
const MAX_TRANSFER_LEN: u32 = 1 << 20;

/// Decisions of hosts and of the driver of a port.
pub(crate) fn port(bytes: &[u8]) {
    play(bytes);
}

/// Returns the number of connected queues and of completions with data.
fn play(bytes: &[u8]) -> (usize, usize) {
    let mut input = Input::new(bytes);
    let mut harness = Harness::new();
    for _ in 0..200 {
        if input.is_empty() {
            break;
        }
        harness.step(&mut input);
        harness.drain_events();
    }
    let outcome = (harness.connected, harness.answered_with_data);
    harness.finish();
    outcome
}

struct Harness {
    port: Port,
    now: Instant,
    /// Connected queues: association and QID; and whether the connection still exists.
    queues: Vec<(AssociationId, u16, bool)>,
    flushes: Vec<AssociationId>,
    ended: Vec<AssociationId>,
    connected: usize,
    answered_with_data: usize,
}

impl Harness {
    fn new() -> Self {
        let config = PortConfig {
            subsystems: vec![subsystem()],
            listeners: vec![address().into()],
            advertise: Vec::new(),
            referrals: Vec::new(),
            max_associations: 4,
            generation_start: 7,
        };
        let port = Port::new(config).expect("the configuration is right");
        Self {
            port,
            now: Instant::now(),
            queues: Vec::new(),
            flushes: Vec::new(),
            ended: Vec::new(),
            connected: 0,
            answered_with_data: 0,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 16 {
            0 | 1 => self.connect_admin(input),
            2 => self.connect_io(input),
            3 => self.connect_with_anything(input),
            4 => self.command(input, |input| SubmissionEntry::decode(&input.array())),
            5 => self.command(input, identify),
            6 => self.command(input, log_page),
            7 => self.command(input, feature),
            8 | 9 => self.command(input, configure),
            10 => self.command(input, small),
            11 => self.pass_time(input),
            12 => self.disconnect(input),
            13 => self.drain(input),
            14 => self.flushed(input),
            _ => self.change_subsystem(input),
        }
    }

    fn connect_admin(&mut self, input: &mut Input<'_>) {
        let [host, kato] = input.array();
        let command =
            ConnectCommand { sqsize: 31, kato_ms: u32::from(kato) * 100, ..ConnectCommand::default() };
        let subnqn = if host & 8 != 0 { Nqn::discovery() } else { subsystem_nqn() };
        self.connect(&command, &connect_data(host % 4, 0xffff, subnqn).encode());
    }

    fn connect_io(&mut self, input: &mut Input<'_>) {
        let [host, qid, at] = input.array();
        let cntlid = self.queue(at).map_or(1, |(id, _)| id.cntlid);
        let command = ConnectCommand { qid: u16::from(qid % 5), sqsize: 127, ..ConnectCommand::default() };
        self.connect(&command, &connect_data(host % 4, cntlid, subsystem_nqn()).encode());
    }

    fn connect_with_anything(&mut self, input: &mut Input<'_>) {
        let command = ConnectCommand::parse(&SubmissionEntry::decode(&input.array()));
        let mut data = connect_data(0, 0xffff, subsystem_nqn()).encode().to_vec();
        for _ in 0..input.u8() % 4 {
            let at = usize::from(input.u16()) % data.len();
            data[at] = input.u8();
        }
        data.truncate(usize::from(input.pick(&[1024_u16, 1024, 1024, 1023, 0])));
        self.connect(&command, &data);
    }

    fn connect(&mut self, command: &ConnectCommand, data: &[u8]) {
        let from = ConnectionInfo { listener: ListenerId::at(0), local: address(), remote: address() };
        if let Ok(connected) = self.port.connect(&command.entry(), data, from, self.now) {
            assert!(connected.completion.is_success());
            assert!(!self.queues.iter().any(|&(id, qid, _)| (id, qid) == (connected.id, connected.qid)));
            self.queues.push((connected.id, connected.qid, true));
            self.connected += 1;
        }
    }

    fn queue(&self, at: u8) -> Option<(AssociationId, u16)> {
        let open: Vec<_> = self.queues.iter().filter(|&&(_, _, is_open)| is_open).collect();
        open.get(usize::from(at) % open.len().max(1)).map(|&&(id, qid, _)| (id, qid))
    }

    /// A command on some connection, mostly with as much data as it should have.
    fn command(&mut self, input: &mut Input<'_>, make: fn(&mut Input<'_>) -> SubmissionEntry) {
        let queue = self.queue(input.u8());
        let has_wrong_length = input.u8().is_multiple_of(16);
        let entry = make(input);
        let Some((id, qid)) = queue else { return };
        let expected = data_expected(&entry);
        let len = if has_wrong_length { input.u32() } else { u32::try_from(expected).unwrap_or(0) };
        let mut action = self.port.handle_command(id, qid, &entry, len, self.now);
        if let Action::CollectHostPage(host) = action {
            let page = HostPage { text: host.hostid.to_vec(), ..HostPage::default() };
            action = self.port.handle_host_page(id, &entry, len, &page, self.now);
        }
        match action {
            Action::CompleteWithData(data, _) => {
                assert_eq!(data.len() as u64, u64::from(len), "the data has the requested length");
                assert!(data.len() <= MAX_TRANSFER_LEN as usize, "MDTS is kept");
                self.answered_with_data += 1;
            }
            Action::Disconnect(_) => self.close(id, qid),
            Action::CollectHostPage(_) => panic!("the page was just collected"),
            Action::Complete(_) | Action::HoldAsyncEvent | Action::Flush(_) => {}
        }
    }

    fn pass_time(&mut self, input: &mut Input<'_>) {
        self.now += Duration::from_millis(u64::from(input.u16()));
        self.port.handle_timeout(self.now);
        assert!(self.port.poll_timeout().is_none_or(|due| due > self.now), "a timer that is over is gone");
    }

    fn disconnect(&mut self, input: &mut Input<'_>) {
        if let Some((id, qid)) = self.queue(input.u8()) {
            self.close(id, qid);
        }
    }

    fn close(&mut self, id: AssociationId, qid: u16) {
        let closed = self.queues.iter_mut().find(|queue| (queue.0, queue.1, queue.2) == (id, qid, true));
        if let Some(queue) = closed {
            queue.2 = false;
            self.port.handle_disconnected(id, qid);
        }
    }

    fn drain(&mut self, input: &mut Input<'_>) {
        let waits = input.u8().is_multiple_of(4);
        let closed = self.queues.iter().position(|&(_, _, is_open)| !is_open);
        if let Some(at) = closed.filter(|_| !waits) {
            let (id, qid, _) = self.queues.remove(at);
            self.port.handle_drained(id, qid);
        }
    }

    fn flushed(&mut self, input: &mut Input<'_>) {
        let is_durable = input.u8() & 1 == 0;
        if let Some(id) = self.flushes.pop() {
            self.port.handle_flushed(id, is_durable);
        }
    }

    /// Adds or removes the subsystem, or changes its hosts.
    fn change_subsystem(&mut self, input: &mut Input<'_>) {
        let Some(id) = self.port.find_subsystem(&subsystem_nqn()) else {
            self.port.add_subsystem(subsystem()).expect("the name is free");
            return;
        };
        let hosts = match input.u8() % 8 {
            0 => return self.port.remove_subsystem(id).expect("it exists"),
            1 => None,
            host => Some(vec![host_nqn(host % 4)]),
        };
        self.port.set_allowed_hosts(id, hosts).expect("it exists");
    }

    fn drain_events(&mut self) {
        while let Some(event) = self.port.poll_event() {
            match event {
                ControlEvent::CloseIoQueues(id) => self.close_all(id, 1),
                ControlEvent::Close { id, .. } | ControlEvent::Retire { id, .. } => self.close_all(id, 0),
                ControlEvent::Shutdown(id) => self.flushes.push(id),
                ControlEvent::Ended(id) => {
                    assert!(!self.queues.iter().any(|queue| queue.0 == id), "drained before it ended");
                    assert!(!self.ended.contains(&id), "an association ends once");
                    self.ended.push(id);
                }
                ControlEvent::AsyncEvents(id) => {
                    assert!(!self.ended.contains(&id));
                    while self.port.poll_async_event(id).is_some() {}
                }
            }
        }
    }

    fn close_all(&mut self, id: AssociationId, min_qid: u16) {
        let open: Vec<u16> = self
            .queues
            .iter()
            .filter(|queue| queue.0 == id && queue.1 >= min_qid && queue.2)
            .map(|queue| queue.1)
            .collect();
        open.into_iter().for_each(|qid| self.close(id, qid));
    }

    /// Everything disconnects and is drained: no association may be left.
    fn finish(mut self) {
        while let Some((id, qid)) = self.queue(0) {
            self.close(id, qid);
            self.drain_events();
        }
        while let Some((id, qid, _)) = self.queues.pop() {
            self.port.handle_drained(id, qid);
            self.drain_events();
        }
        for id in std::mem::take(&mut self.flushes) {
            self.port.handle_flushed(id, true);
        }
        self.drain_events();
        assert!(self.port.associations().is_empty(), "no association outlives its connections");
    }
}

fn address() -> SocketAddr {
    ([127, 0, 0, 1], 4420).into()
}

fn subsystem_nqn() -> Nqn {
    Nqn::new("nqn.2014-08.org.example:fuzz").expect("it is a name")
}

fn host_nqn(host: u8) -> Nqn {
    Nqn::new(&format!("nqn.2014-08.org.example:host{host}")).expect("it is a name")
}

fn subsystem() -> SubsystemConfig {
    SubsystemConfig {
        nqn: subsystem_nqn(),
        serial: "serial".into(),
        namespaces: vec![namespace(1, 9), namespace(7, 12)],
        max_transfer_bytes: MAX_TRANSFER_LEN,
        ..SubsystemConfig::default()
    }
}

fn connect_data(host: u8, cntlid: u16, subnqn: Nqn) -> ConnectData {
    ConnectData { hostid: [host + 1; 16], cntlid, subnqn: subnqn.into(), hostnqn: host_nqn(host).into() }
}

fn namespace(nsid: u32, block_shift: u8) -> NamespaceConfig {
    NamespaceConfig {
        nsid,
        hosts: None,
        geometry: NamespaceGeometry { block_shift, blocks: 1 << 20, read_only: false },
        uuid: [nsid as u8; 16],
        nguid: [0; 16],
        volatile_cache: true,
        deallocate: true,
        zeroes_after_deallocate: true,
        deallocate_blocks_preferred: 8,
        generation: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;

    /// Otherwise all mutated dialogues would end in Connect.
    #[test]
    fn corpus_reaches_the_end() {
        let least = [(2, 10), (1, 2), (3, 0)];
        for (dialogue, (connected, answered)) in corpus::port_dialogues().iter().zip(least) {
            let outcome = play(dialogue);
            assert!(
                outcome.0 >= connected && outcome.1 >= answered,
                "queues connected, answers with data: {outcome:?}"
            );
        }
    }
}
