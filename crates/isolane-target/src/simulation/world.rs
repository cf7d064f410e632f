//! The simulated world: two hosts, a target of two cores, and volumes that come and go.

mod commands;
mod connections;
mod upgrade;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use fastrand::Rng;
use isolane_proto::subsystem::{Port, SubsystemId};
use isolane_reactor::{IoChoice, Mode, Reactor, ReactorConfig};
use isolane_sim::History;
use isolane_volume::Volume;
use isolane_wire::Nqn;
use isolane_wire::io::ReadCommand;
use isolane_wire::{Sgl, SubmissionEntry};

use super::host::Conn;
use super::volume::{BLOCK_BYTES, BLOCKS, SimVolume};
use crate::changes::NamespaceChange;
use crate::config::TargetConfig;
use crate::core::Driver;
use crate::namespace::Namespaces;
use crate::release::Release;
use crate::shared::{Message, Shared};
use crate::target::freeze::Resumed;
use crate::target::port_config;

/// The target, its hosts, and its volumes.
pub(super) struct World {
    rng: Rng,
    seed: u64,
    time: u64,
    config: TargetConfig,
    shared: Arc<Shared>,
    drivers: Vec<Driver>,
    is_frozen: bool,
    listener: TcpListener,
    address: SocketAddr,
    hosts: Vec<Host>,
    /// All volumes that have been served.
    volumes: Vec<SimulatedVolume>,
    /// Volume of each namespace, if it has one.
    namespaces: BTreeMap<u32, Option<usize>>,
    released: Receiver<usize>,
    release: mpsc::Sender<usize>,
    /// Volumes at positions that are released.
    closing: BTreeMap<usize, usize>,
    /// Writes of closed connections, until all cores know of the closes.
    lost: Vec<Pending>,
    /// Turns of each core until the lost writes are known everywhere.
    turns_left: Option<Vec<u32>>,
    statistics: Statistics,
    /// Hash of everything that hosts have received.
    trace: u64,
}

struct SimulatedVolume {
    volume: Arc<SimVolume>,
    history: History,
}

struct Host {
    nqn: Nqn,
    cntlid: u16,
    next_qid: u16,
    /// The admin queue comes first.
    queues: Vec<Queue>,
}

struct Queue {
    conn: Conn,
    pending: BTreeMap<u16, Pending>,
}

/// A command that has no response.
struct Pending {
    kind: Kind,
    nsid: u32,
    lba: u64,
    blocks: u64,
    /// ID and value of a write.
    id: u64,
    value: u64,
    submitted: u64,
    /// Volumes that can have executed it.
    volumes: Vec<usize>,
    /// The namespace had no volume for a part of the time.
    was_absent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
}

/// Events of a run, so that tests find out whether runs have any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Statistics {
    pub reads: usize,
    pub writes: usize,
    pub not_ready: usize,
    pub unknown: usize,
    pub failed: usize,
    pub orphans: usize,
    pub changes: usize,
    pub closed_volumes: usize,
    pub lost_connections: usize,
    pub upgrades: usize,
    pub refused_upgrades: usize,
}

impl Statistics {
    pub(super) fn add(&mut self, other: &Statistics) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.not_ready += other.not_ready;
        self.unknown += other.unknown;
        self.failed += other.failed;
        self.orphans += other.orphans;
        self.changes += other.changes;
        self.closed_volumes += other.closed_volumes;
        self.lost_connections += other.lost_connections;
        self.upgrades += other.upgrades;
        self.refused_upgrades += other.refused_upgrades;
    }
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut config = TargetConfig::new(NQN.parse().expect("a name"));
        config.listen.push("127.0.0.1:0".parse().expect("an address"));
        config.max_pool_pages = 1024;
        config.cores = vec![0; CORES];
        config.observe = false;
        (config.stall_after, config.answer_within) = Default::default();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (shared, drivers) = start(&config, address, None);
        let (release, released) = mpsc::channel();
        let mut world = World {
            rng: Rng::with_seed(seed),
            seed,
            time: 1,
            config,
            shared,
            drivers,
            is_frozen: false,
            listener,
            address,
            hosts: Vec::new(),
            volumes: Vec::new(),
            namespaces: (1..=NAMESPACES).map(|nsid| (nsid, None)).collect(),
            released,
            release,
            closing: BTreeMap::new(),
            lost: Vec::new(),
            turns_left: None,
            statistics: Statistics::default(),
            trace: 0,
        };
        (1..=NAMESPACES).for_each(|nsid| world.add_volume(nsid));
        for number in 0..HOSTS {
            let nqn = format!("nqn.2014-08.org.example:host{number}").parse().expect("a name");
            world.hosts.push(Host { nqn, cntlid: 0, next_qid: 1, queues: Vec::new() });
            world.connect(number);
        }
        world
    }

    /// Runs `steps` steps, then ends everything, and checks the rest.
    pub(super) fn run(mut self, steps: usize) -> Statistics {
        (0..steps).for_each(|_| self.step());
        self.finish();
        self.statistics
    }

    /// Does the same. Returns everything that has happened.
    pub(super) fn trace(mut self, steps: usize) -> (Statistics, u64) {
        (0..steps).for_each(|_| self.step());
        self.finish();
        (self.statistics, self.trace)
    }

    fn step(&mut self) {
        self.time += 1;
        match self.rng.u16(..1000) {
            0..350 => self.turn_any(false),
            350..360 => self.turn_any(true),
            360..600 => self.submit(),
            600..880 => self.progress(),
            880..930 => self.grant(),
            930..950 => self.toggle_stall(),
            950..960 => self.change(),
            960..968 => self.lose_queue(),
            968..970 => self.lose_host(),
            970..975 => self.upgrade(),
            _ => self.receive_all(),
        }
    }

    fn turn_any(&mut self, is_tick_due: bool) {
        let core = self.rng.usize(..CORES);
        self.turn(core, is_tick_due);
        self.receive_all();
    }

    fn turn(&mut self, core: usize, is_tick_due: bool) {
        let has_messages = is_tick_due || self.rng.u8(..4) > 0;
        if has_messages {
            self.drivers[core].step(is_tick_due);
        } else {
            self.drivers[core].step_before_messages();
        }
        self.hosts.iter_mut().flat_map(|host| &mut host.queues).for_each(|queue| queue.conn.drain());
        if !self.is_frozen {
            self.free_released();
        }
        if has_messages {
            self.settle_lost(core);
        }
    }

    /// Gives each core some turns.
    fn turn_all(&mut self) {
        for _ in 0..2 * CORES {
            let core = self.rng.usize(..CORES);
            self.turn(core, false);
        }
    }

    /// Turns until a condition holds.
    fn until(&mut self, what: &str, is_done: impl Fn(&mut World) -> bool) {
        for _ in 0..2000 {
            if is_done(self) {
                return;
            }
            self.turn_all();
            self.receive_all();
        }
        let work: Vec<String> = self.drivers.iter().map(Driver::unfinished_work).collect();
        panic!("seed {}: {what}: never; {work:#?}", self.seed);
    }

    fn progress(&mut self) {
        if !self.volumes.is_empty() {
            let volume = self.rng.usize(..self.volumes.len());
            self.volumes[volume].volume.progress();
        }
    }

    fn toggle_stall(&mut self) {
        if !self.volumes.is_empty() {
            let volume = self.rng.usize(..self.volumes.len());
            self.volumes[volume].volume.set_stalled(self.rng.bool());
        }
    }

    fn grant(&mut self) {
        let (host, queue) = self.any_queue();
        self.hosts[host].queues[queue].conn.send_granted();
    }

    /// Returns an I/O queue, of which each host has one at least.
    fn any_queue(&mut self) -> (usize, usize) {
        let host = self.rng.usize(..self.hosts.len());
        (host, self.rng.usize(1..self.hosts[host].queues.len()))
    }
}

/// Namespaces.
impl World {
    fn add_volume(&mut self, nsid: u32) {
        let number = self.volumes.len();
        let volume = SimVolume::new(number, &mut self.rng);
        let history = History::new(vec![0; BLOCKS as usize]);
        self.volumes.push(SimulatedVolume { volume: Arc::clone(&volume), history });
        let has_namespace = self.shared.namespaces().locate(SubsystemId::FIRST, nsid).is_ok()
            || self.shared.namespaces().is_offline(SubsystemId::FIRST, nsid);
        self.make(if has_namespace {
            NamespaceChange::Replace { nsid, volume, may_shrink: true }
        } else {
            NamespaceChange::Add { nsid: Some(nsid), volume }
        });
        self.serve(nsid, Some(number));
    }

    /// Commands without a response can be executed by the old volume or by the new one.
    fn serve(&mut self, nsid: u32, volume: Option<usize>) {
        self.namespaces.insert(nsid, volume);
        let queues = self.hosts.iter_mut().flat_map(|host| &mut host.queues);
        let pending = queues.flat_map(|queue| queue.pending.values_mut()).chain(&mut self.lost);
        for command in pending.filter(|command| command.nsid == nsid) {
            match volume {
                None => command.was_absent = true,
                Some(volume) => {
                    command.volumes.push(volume);
                    if command.kind == Kind::Write {
                        let history = &mut self.volumes[volume].history;
                        command.each_block().for_each(|block| {
                            history.submit(block, command.id, command.value, command.submitted);
                        });
                    }
                }
            }
        }
    }

    fn change(&mut self) {
        let nsid = self.rng.u32(1..=NAMESPACES);
        self.statistics.changes += 1;
        if self.namespaces[&nsid].is_none() || self.rng.bool() {
            return self.add_volume(nsid);
        }
        let is_offline = self.rng.bool();
        self.make(if is_offline {
            NamespaceChange::Offline { nsid }
        } else {
            NamespaceChange::Remove { nsid }
        });
        self.serve(nsid, None);
    }

    /// Makes a change. Each core uses it after its next turn at the latest.
    fn make(&mut self, change: NamespaceChange) {
        let mut table = Namespaces::clone(&self.shared.namespaces());
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        table.apply(SubsystemId::FIRST, change, &mut added, &mut removed).expect("a possible change");
        let old = self.shared.namespaces();
        for position in &removed {
            let name = old.at(*position).volume.name().to_owned();
            let volume = self.volumes.iter().position(|one| one.volume.name() == name);
            self.closing.insert(*position, volume.expect("a volume of this world"));
        }
        let configs = table.to_configs(SubsystemId::FIRST);
        self.publish(table);
        self.shared
            .control(|port| port.set_namespaces(SubsystemId::FIRST, configs))
            .expect("valid namespaces");
        for position in removed {
            let release = Arc::new(Release { position, is_flushed: false, released: self.release.clone() });
            self.shared.post_to_all(|| Message::Release(Arc::clone(&release)));
        }
    }

    fn publish(&mut self, table: Namespaces) {
        let (_before, _seen) = self.shared.post_table(table);
        // Commands that are sent from now on go to the new volume.
        let mut cores: Vec<usize> = (0..CORES).collect();
        self.rng.shuffle(&mut cores);
        cores.into_iter().for_each(|core| self.drivers[core].step(false));
    }

    /// Closes volumes that no core uses.
    fn free_released(&mut self) {
        while let Ok(position) = self.released.try_recv() {
            let volume = self.closing.remove(&position).expect("a removed namespace");
            let in_flight = self.volumes[volume].volume.in_flight();
            assert_eq!(in_flight, 0, "seed {}: volume {volume} is closed", self.seed);
            self.statistics.closed_volumes += 1;
            let mut table = Namespaces::clone(&self.shared.namespaces());
            table.free(position);
            self.shared.unflushed.forget(position);
            self.publish(table);
        }
    }
}

/// The end.
impl World {
    fn finish(&mut self) {
        let orphans = |world: &World, position| world.shared.orphans.list(position).len();
        let end = self.shared.namespaces().end();
        self.statistics.orphans = (0..end).map(|position| orphans(self, position)).sum();
        self.volumes.iter().for_each(|one| one.volume.set_stalled(false));
        // Without a tick: the end of each operation must release the commands that wait for it.
        let served: BTreeSet<u32> =
            self.namespaces.iter().filter(|(_, volume)| volume.is_some()).map(|(nsid, _)| *nsid).collect();
        self.until("all commands of served namespaces complete", |world| {
            world.work();
            let mut queues = world.hosts.iter().flat_map(|host| &host.queues);
            !queues
                .any(|queue| queue.pending.values().any(|one| served.contains(&one.nsid) && !one.was_absent))
        });
        // Commands of namespaces without a volume end in ticks.
        self.until("all commands complete", |world| {
            world.work();
            (0..CORES).for_each(|core| world.turn(core, true));
            world.hosts.iter().flat_map(|host| &host.queues).all(|queue| queue.pending.is_empty())
        });
        self.until("all volumes are closed", |world| {
            world.work();
            // Positions are released in ticks.
            (0..CORES).for_each(|core| world.turn(core, true));
            world.closing.is_empty()
        });
        self.until("the lost connections end", |world| {
            world.work();
            world.lost.is_empty()
        });
        self.read_everything();
        self.until("all operations end", |world| {
            world.work();
            (0..CORES).for_each(|core| world.turn(core, true));
            world.drivers.iter().all(|driver| driver.unfinished_work().is_empty())
        });
        (0..CORES).for_each(|core| self.turn(core, true));
        for (core, driver) in self.drivers.iter().enumerate() {
            assert_eq!(driver.unfinished_work(), "", "seed {}", self.seed);
            assert_eq!(driver.held_bytes(), 0, "seed {}: core {core}", self.seed);
        }
        let end = self.shared.namespaces().end();
        assert!((0..end).all(|position| orphans(self, position) == 0), "seed {}", self.seed);
        let hosts = std::mem::take(&mut self.hosts);
        hosts.into_iter().flat_map(|host| host.queues).for_each(|queue| queue.conn.close(true));
    }

    /// Lets volumes and hosts do everything that they can.
    fn work(&mut self) {
        for volume in &self.volumes {
            (0..4).for_each(|_| volume.volume.progress());
        }
        self.hosts.iter_mut().flat_map(|host| &mut host.queues).for_each(|queue| queue.conn.send_granted());
    }

    fn read_everything(&mut self) {
        let served: Vec<u32> = self.namespaces.iter().filter_map(|(nsid, at)| at.map(|_| *nsid)).collect();
        for nsid in served {
            let id = self.tick();
            let nlb = BLOCKS as u16 - 1;
            let entry = ReadCommand { nsid, slba: 0, nlb, ..ReadCommand::default() }.entry();
            let sgl = Sgl::Transport { len: (BLOCKS as usize * BLOCK_BYTES) as u32 };
            let volumes = self.namespaces[&nsid].into_iter().collect();
            let (kind, lba, blocks, value, was_absent) = (Kind::Read, 0, BLOCKS, 0, false);
            let command = Pending { kind, nsid, lba, blocks, id, value, submitted: id, volumes, was_absent };
            let Queue { conn, pending } = &mut self.hosts[0].queues[1];
            let cid = conn.send(SubmissionEntry { sgl, ..entry }, &[], true);
            pending.insert(cid, command);
        }
        self.until("the last reads complete", |world| {
            world.work();
            world.hosts.iter().flat_map(|host| &host.queues).all(|queue| queue.pending.is_empty())
        });
    }
}

/// Starts the cores of a target, which continues another one if there is a state.
fn start(
    config: &TargetConfig,
    address: SocketAddr,
    resumed: Option<Resumed<'_>>,
) -> (Arc<Shared>, Vec<Driver>) {
    let mut table = Namespaces::new(&config.subsystems);
    resumed.iter().for_each(|resumed| resumed.restore(config, &mut table));
    let limits = (64, 64);
    let mut port = Port::new(port_config(config, &[address], &table, limits.0)).expect("a valid port");
    resumed.iter().for_each(|resumed| resumed.resume(&mut port).expect("a valid state"));
    let reactor = || {
        let spin = config.spin;
        Reactor::new(ReactorConfig { io: IoChoice::Epoll, mode: Mode::Sleep, spin, core: None })
    };
    let reactors: Vec<Reactor> = (0..CORES).map(|_| reactor().expect("epoll")).collect();
    let wakers = reactors.iter().map(Reactor::waker);
    let (shared, mailboxes) = Shared::new(config, port, table, wakers, limits);
    let drivers = reactors.into_iter().zip(mailboxes).enumerate().map(|(index, (reactor, mailbox))| {
        let shared = (Arc::clone(&shared), shared.namespaces());
        Driver::new((index, None), shared, reactor, mailbox, None, config)
    });
    let drivers = drivers.collect();
    resumed.into_iter().for_each(|resumed| resumed.post_lanes(&shared));
    (shared, drivers)
}

const NQN: &str = "nqn.2014-08.org.example:simulated";
const CORES: usize = 2;
const HOSTS: usize = 2;
const NAMESPACES: u32 = 3;
/// Commands of one queue.
const DEPTH: usize = 16;
const MAX_QID: u16 = 60;
