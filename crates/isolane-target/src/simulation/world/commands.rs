//! Commands of the hosts, and what their results may be.

use std::ops::Range;

use isolane_wire::io::{ReadCommand, WriteCommand, WriteZeroesCommand, flush};
use isolane_wire::{Sgl, Status, SubmissionEntry};

use super::super::host::Response;
use super::super::volume::{BLOCK_BYTES, BLOCKS, to_bytes, value_of};
use super::{DEPTH, Kind, NAMESPACES, Pending, Queue, SimulatedVolume, World};

impl World {
    pub(super) fn submit(&mut self) {
        let (host, queue) = self.any_queue();
        if self.hosts[host].queues[queue].pending.len() >= DEPTH {
            return self.turn_any(false);
        }
        let id = self.tick();
        let nsid = self.any_namespace();
        let lba = self.rng.u64(..BLOCKS);
        let blocks = self.rng.u64(1..=(BLOCKS - lba).min(4));
        let (slba, nlb, len) = (lba, blocks as u16 - 1, blocks as usize * BLOCK_BYTES);
        let (kind, value, entry, data) = match self.rng.u8(..12) {
            0..5 => {
                let entry = ReadCommand { nsid, slba, nlb, ..ReadCommand::default() }.entry();
                let sgl = Sgl::Transport { len: len as u32 };
                (Kind::Read, 0, SubmissionEntry { sgl, ..entry }, Vec::new())
            }
            5..10 => {
                let entry = WriteCommand { nsid, slba, nlb, ..WriteCommand::default() }.entry();
                (Kind::Write, id, entry, to_bytes(id).repeat(blocks as usize))
            }
            10 => {
                let entry = WriteZeroesCommand { nsid, slba, nlb, ..WriteZeroesCommand::default() }.entry();
                (Kind::Write, 0, entry, Vec::new())
            }
            _ => (Kind::Flush, 0, flush(nsid), Vec::new()),
        };
        let volume = self.namespaces[&nsid];
        let volumes: Vec<usize> = volume.into_iter().collect();
        let was_absent = volume.is_none();
        let command = Pending { kind, nsid, lba, blocks, id, value, submitted: id, volumes, was_absent };
        if kind == Kind::Write {
            for volume in &command.volumes {
                let history = &mut self.volumes[*volume].history;
                command.each_block().for_each(|block| history.submit(block, id, value, id));
            }
        }
        let is_in_capsule = data.is_empty() || self.rng.bool();
        let Queue { conn, pending } = &mut self.hosts[host].queues[queue];
        let cid = conn.send(entry, &data, is_in_capsule);
        assert!(pending.insert(cid, command).is_none(), "each ID is used once");
    }

    /// Mostly returns one with a volume.
    pub(super) fn any_namespace(&mut self) -> u32 {
        let served: Vec<u32> = self.namespaces.iter().filter_map(|(nsid, at)| at.map(|_| *nsid)).collect();
        match self.rng.choice(&served) {
            Some(nsid) if self.rng.u8(..16) > 0 => *nsid,
            _ => self.rng.u32(1..=NAMESPACES),
        }
    }

    pub(super) fn receive_all(&mut self) {
        for host in 0..self.hosts.len() {
            for queue in 0..self.hosts[host].queues.len() {
                let (responses, is_open) = self.hosts[host].queues[queue].conn.receive();
                assert!(is_open, "seed {}: the target closes queue {queue} of host {host}", self.seed);
                for response in responses {
                    self.handle(host, queue, &response);
                }
            }
        }
    }

    pub(super) fn handle(&mut self, host: usize, queue: usize, Response { entry, data }: &Response) {
        let seed = self.seed;
        let command = self.hosts[host].queues[queue].pending.remove(&entry.cid);
        let command = command.unwrap_or_else(|| panic!("seed {seed}: {} is completed twice", entry.cid));
        let code = u64::from(entry.cid) << 32 | (host as u64) << 8 | queue as u64;
        let values = data.chunks(BLOCK_BYTES).map(value_of);
        let parts = [code, u64::from(entry.status.0)].into_iter().chain(values);
        self.trace = parts
            .fold(self.trace, |hash, part| (hash.rotate_left(5) ^ part).wrapping_mul(0x517c_c1b7_2722_0a95));
        let time = self.tick();
        match entry.status {
            Status::SUCCESS => self.handle_success(&command, data, time),
            status if status.is(Status::NAMESPACE_NOT_READY) => {
                assert!(!status.dnr());
                self.statistics.not_ready += 1;
                self.fail(&command, time);
            }
            status if status.is(Status::INVALID_NAMESPACE) => {
                assert!(command.was_absent, "seed {seed}: namespace {} is unknown", command.nsid);
                self.statistics.unknown += 1;
                self.fail(&command, time);
            }
            status if status.is(Status::WRITE_FAULT) || status.is(Status::UNRECOVERED_READ_ERROR) => {
                self.statistics.failed += 1;
                self.fail(&command, time);
            }
            status => panic!("seed {seed}: {status:?}"),
        }
    }

    pub(super) fn handle_success(&mut self, command: &Pending, data: &[u8], time: u64) {
        let seed = self.seed;
        assert!(!command.volumes.is_empty(), "seed {seed}: success without a volume");
        match (command.kind, &command.volumes[..]) {
            (Kind::Read, volumes) => {
                self.statistics.reads += 1;
                let values: Vec<u64> = data.chunks(BLOCK_BYTES).map(value_of).collect();
                assert_eq!(values.len() as u64, command.blocks);
                let is_of = |volume: &&usize| {
                    let history = &self.volumes[**volume].history;
                    let mut read = command.each_block().zip(&values);
                    read.all(|(block, value)| history.allows_read(block, *value, command.submitted))
                };
                let Pending { nsid, lba, submitted, .. } = command;
                assert!(
                    volumes.iter().any(|volume| is_of(&volume)),
                    "seed {seed}: namespace {nsid} (volumes {volumes:?}), from block {lba}: {values:?} were read by a \
                     read of time {submitted}"
                );
            }
            (Kind::Write, [only]) => {
                self.statistics.writes += 1;
                let history = &mut self.volumes[*only].history;
                command.each_block().for_each(|block| history.acknowledge(block, command.id, time, true));
            }
            // Any of them can have executed it.
            (Kind::Write, _) => self.fail(command, time),
            (Kind::Flush, _) => {}
        }
    }

    /// The command is over: it was executed, or will be executed before all later commands, or never.
    pub(super) fn fail(&mut self, command: &Pending, time: u64) {
        for volume in &command.volumes {
            let SimulatedVolume { history, .. } = &mut self.volumes[*volume];
            command.each_block().for_each(|block| history.fail(block, command.id, time));
        }
    }
}

impl Pending {
    pub(super) fn each_block(&self) -> Range<u64> {
        self.lba..self.lba + self.blocks
    }
}
