//! Connections of the hosts: they come, break, and come again.

use std::collections::BTreeMap;
use std::net::TcpStream;

use isolane_wire::fabrics::{
    ConnectAttributes, ConnectCommand, ConnectData, PropertySetCommand, PropertySize,
};
use isolane_wire::pdu::IcReq;
use isolane_wire::registers::Cc;
use isolane_wire::{CompletionEntry, Nqn, Status, SubmissionEntry};

use super::super::host::{Conn, Response};
use super::{CORES, Host, MAX_QID, NQN, Queue, World};

impl World {
    pub(super) fn dial(&mut self) -> Conn {
        let stream = TcpStream::connect(self.address).expect("a connection");
        let (accepted, peer) = self.listener.accept().expect("a connection");
        let conn = Conn::new(stream, accepted.try_clone().expect("a descriptor"));
        let core = self.rng.usize(..CORES);
        self.drivers[core].adopt_accepted(accepted, peer);
        conn
    }

    /// Connects a host with its admin queue and an I/O queue.
    pub(super) fn connect(&mut self, host: usize) {
        self.hosts[host].next_qid = 1;
        self.connect_queue(host, 0);
        let value = u64::from(Cc::enabled().0);
        let enable = PropertySetCommand { size: PropertySize::Bytes4, offset: 0x14, value }.entry();
        self.exchange(host, 0, enable, &[]);
        self.add_queue(host);
    }

    pub(super) fn add_queue(&mut self, host: usize) {
        let qid = self.hosts[host].next_qid;
        self.hosts[host].next_qid += 1;
        self.connect_queue(host, qid);
    }

    pub(super) fn connect_queue(&mut self, host: usize, qid: u16) {
        let mut conn = self.dial();
        conn.write(&IcReq::default().encode());
        let queue = self.hosts[host].queues.len();
        self.hosts[host].queues.push(Queue { conn, pending: BTreeMap::new() });
        self.wait_for(host, queue);
        let Host { nqn, cntlid, .. } = self.hosts[host];
        let cntlid = if qid == 0 { 0xffff } else { cntlid };
        let subnqn: Nqn = NQN.parse().expect("a name");
        let data =
            ConnectData { hostid: [host as u8 + 1; 16], cntlid, subnqn: subnqn.into(), hostnqn: nqn.into() };
        let attributes = ConnectAttributes(0);
        let entry = ConnectCommand { recfmt: 0, qid, sqsize: 31, attributes, kato_ms: 0 }.entry();
        let completion = self.exchange(host, queue, entry, &data.encode());
        if qid == 0 {
            self.hosts[host].cntlid = completion.dw0 as u16;
        }
    }

    /// Runs a command of the control path.
    pub(super) fn exchange(
        &mut self,
        host: usize,
        queue: usize,
        entry: SubmissionEntry,
        data: &[u8],
    ) -> CompletionEntry {
        self.hosts[host].queues[queue].conn.send(entry, data, true);
        let completion = self.wait_for(host, queue);
        assert_eq!(completion.status, Status::SUCCESS, "seed {}", self.seed);
        completion
    }

    /// Returns the only response of a queue on which nothing else is running.
    pub(super) fn wait_for(&mut self, host: usize, queue: usize) -> CompletionEntry {
        for _ in 0..2000 {
            self.turn_all();
            let (mut responses, is_open) = self.hosts[host].queues[queue].conn.receive();
            assert!(is_open, "seed {}: the target closes the connection", self.seed);
            if let Some(Response { entry, .. }) = responses.pop() {
                return entry;
            }
        }
        panic!("seed {}: no response", self.seed);
    }

    /// Breaks the connection of an I/O queue, and connects another queue.
    pub(super) fn lose_queue(&mut self) {
        let (host, queue) = self.any_queue();
        if self.hosts[host].next_qid >= MAX_QID {
            return;
        }
        let queue = self.hosts[host].queues.remove(queue);
        self.lose(queue);
        self.add_queue(host);
        if self.rng.bool() && self.hosts[host].queues.len() < 4 {
            self.add_queue(host);
        }
    }

    /// Breaks all connections of a host, which connects again.
    pub(super) fn lose_host(&mut self) {
        let host = self.rng.usize(..self.hosts.len());
        let mut queues = std::mem::take(&mut self.hosts[host].queues);
        self.rng.shuffle(&mut queues);
        queues.into_iter().for_each(|queue| self.lose(queue));
        self.connect(host);
    }

    pub(super) fn lose(&mut self, Queue { conn, pending }: Queue) {
        conn.close(self.rng.bool());
        self.lost.extend(pending.into_values());
        self.turns_left = None;
        self.statistics.lost_connections += 1;
    }

    /// Once all cores know of the end of the lost connections, later commands follow their writes.
    pub(super) fn settle_lost(&mut self, core: usize) {
        if self.lost.is_empty() {
            return;
        }
        if let Some(turns_left) = &mut self.turns_left {
            turns_left[core] = turns_left[core].saturating_sub(1);
            if turns_left.iter().all(|left| *left == 0) {
                self.turns_left = None;
                let time = self.tick();
                std::mem::take(&mut self.lost).iter().for_each(|command| self.fail(command, time));
            }
            return;
        }
        let open: u64 = self.shared.counters.iter().map(|core| core.connections_open.value()).sum();
        let known: usize = self.hosts.iter().map(|host| host.queues.len()).sum();
        if open <= known as u64 {
            self.turns_left = Some(vec![2; CORES]);
        }
    }

    /// Returns a time between all events before and all later ones.
    pub(super) fn tick(&mut self) -> u64 {
        self.time += 2;
        self.time - 1
    }
}
