//! Public handle of a running target: start, counters, shutdown.
//!
//! Starts one thread per core; all other work is in [`core`](crate::core).

pub(crate) mod freeze;

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use isolane_observe::snapshot::Snapshot;
use isolane_proto::subsystem::{AssociationInfo, Port, PortConfig, SubsystemId};
use isolane_reactor::mailbox::Receiver as Mailbox;
use isolane_reactor::{Reactor, ReactorConfig, Waker, clock};
use isolane_volume::Volume;
use isolane_wire::Nqn;
use parking_lot::Mutex;

use self::freeze::Resumed;
pub use self::freeze::{Frozen, Refused};
use crate::apply::{TargetChange, TargetControl};
use crate::auth_threads;
use crate::changes::{Changed, Closing, NamespaceChange, NamespaceControl};
use crate::config::{Subsystem, TargetConfig};
use crate::connection_status::ConnectionStatus;
use crate::core::{Acceptor, Driver};
use crate::counters::{Counters, NamespaceCounters};
use crate::descriptors;
use crate::error::{NamespaceError, ShutdownReport, StartError};
use crate::limits::TargetLimits;
use crate::link::Link;
use crate::listen::is_dual_stack;
use crate::namespace::Namespaces;
use crate::observed::Turn;
use crate::page_thread;
use crate::port::TargetPort;
use crate::shared::{Message, Shared};
use crate::snapshot;
use crate::stall_times::StallTimes;

/// A running target. Dropping it stops it as [`Target::shutdown`] does, within [`Target::SHUTDOWN_TIMEOUT`].
pub struct Target {
    link: Link,
    shared: Arc<Shared>,
    threads: Vec<CoreThread>,
    page_thread: Option<JoinHandle<()>>,
    auth_threads: Vec<JoinHandle<()>>,
    local_addrs: Vec<SocketAddr>,
    io_description: String,
    started_ns: u64,
}

/// Source of snapshots of a target, for any thread.
#[derive(Clone)]
pub struct SnapshotSource {
    link: Link,
}

impl SnapshotSource {
    /// Returns what [`Target::snapshot`] returns, or `None` once the target has ended.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let linked = self.link.get();
        Some(snapshot::take(&*linked.shared().ok()?, linked.started_ns))
    }

    /// Lets reads of a mirror avoid a member, or ends that. `volume` is the ID of the member in a snapshot, or of a volume
    /// beneath it. Returns `false` if no volume above it can.
    pub fn avoid(&self, volume: u32, is_avoided: bool) -> bool {
        self.link.shared().is_ok_and(|shared| snapshot::avoid(&shared, volume as usize, is_avoided))
    }

    /// Returns the current turn of each core; none once the target has ended.
    pub fn turns(&self) -> Vec<Turn> {
        let shared = self.link.shared();
        let cores = shared.iter().flat_map(|shared| shared.observed.iter().enumerate());
        cores.map(|(index, cells)| cells.turn(index)).collect()
    }
}

/// The thread of a core.
struct CoreThread {
    thread: JoinHandle<()>,
    /// Receives the result of the core; disconnected once the core has released everything. Locked so that
    /// threads can share a target.
    report: Mutex<Receiver<ShutdownReport>>,
}

impl Target {
    /// Default time for commands in flight to finish.
    pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

    /// Starts the reactors and serves the volumes.
    ///
    /// # Errors
    /// If an address, a core, or a kernel interface is not available. Waits up to 5 s for an address in use.
    pub fn start(config: TargetConfig) -> Result<Target, StartError> {
        Target::start_with(config, None)
    }

    fn start_with(mut config: TargetConfig, mut resumed: Option<Resumed<'_>>) -> Result<Target, StartError> {
        config.check()?;
        let max_descriptors = descriptors::raise_limit();
        let mut given = std::mem::take(&mut config.sockets);
        let mut open = |port: &TargetPort| {
            if let Some(listener) = resumed.as_mut().and_then(|resumed| resumed.listener(port)) {
                return Ok(listener);
            }
            let listen = &port.listen;
            if let Some(socket) = given.iter().position(|socket| listen.has_address_of(socket)) {
                return listen.take(&given.swap_remove(socket));
            }
            let all = config.listen.iter().map(|port| port.listen.address);
            listen.open(is_dual_stack(listen.address, all))
        };
        let listeners = config.listen.iter().map(&mut open).collect::<Result<Vec<_>, _>>()?;
        for address in given.drain(..).filter_map(|socket| socket.local_addr().ok()) {
            log::warn!(
                "{address}: a socket that listens there was passed on, but no port does; hosts wait in it"
            );
        }
        let local_addrs: Vec<SocketAddr> =
            listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        let mut namespaces = Namespaces::new(&config.subsystems);
        if let Some(resumed) = &resumed {
            resumed.restore(&config, &mut namespaces);
        }
        let cores = spawn_cores(&config, listeners)?;
        let io_description = cores.first().map_or_else(String::new, |core| core.io_description.clone());
        let limits = descriptors::share(max_descriptors, config.max_connections, config.max_newcomers)?;
        let mut port = Port::new(port_config(&config, &local_addrs, &namespaces, limits.0))?;
        if let Some(resumed) = &resumed {
            resumed.resume(&mut port)?;
        }
        let wakers = cores.iter().map(|core| core.waker.clone());
        let (shared, mailboxes) = Shared::new(&config, port, namespaces, wakers, limits);
        let started_ns = clock::now();
        let mut target = Target {
            link: Link::new(&shared, started_ns),
            shared,
            threads: Vec::new(),
            page_thread: None,
            auth_threads: Vec::new(),
            local_addrs,
            io_description,
            started_ns,
        };
        let page_thread = page_thread::spawn(&target.shared, target.started_ns);
        target.page_thread = Some(page_thread.map_err(StartError::Thread)?);
        if target.shared.auth.is_some() {
            target.auth_threads = auth_threads::spawn(&target.shared).map_err(StartError::Thread)?;
        }
        for (core, mailbox) in cores.into_iter().zip(mailboxes) {
            // If it fails, dropping the target stops the cores that run already.
            let gone = |_| StartError::Thread(std::io::ErrorKind::Other.into());
            core.setup.send((Arc::clone(&target.shared), mailbox)).map_err(gone)?;
            target.threads.push(core.thread);
        }
        if let Some(resumed) = resumed {
            resumed.post_lanes(&target.shared);
        }
        Ok(target)
    }

    /// Returns the listening addresses in the order of the configuration, with their actual ports.
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.local_addrs.clone()
    }

    /// Describes the kernel interface in use, and the reason for it.
    pub fn io_description(&self) -> &str {
        &self.io_description
    }

    /// Returns the counters since the start.
    pub fn counters(&self) -> Counters {
        let table = self.shared.namespaces();
        let namespaces = table.iter().map(|(position, namespace)| {
            let ages = self.shared.counters.iter().map(|core| core.oldest_commands[position].age());
            let oldest_command = ages.max().flatten();
            NamespaceCounters { nsid: namespace.nsid, oldest_command, ..Default::default() }
        });
        let mut sum = Counters { namespaces: namespaces.collect(), ..Counters::default() };
        self.shared.counters.iter().for_each(|core| core.add_to(&mut sum));
        let by_number: HashMap<u32, usize> =
            table.iter().enumerate().map(|(index, (_, namespace))| (namespace.number, index)).collect();
        for (core, cells) in self.shared.observed.iter().enumerate() {
            for series in cells.copy(core) {
                by_number.get(&series.volume).into_iter().for_each(|index| sum.add(*index, &series));
            }
        }
        sum.connections_before_connect = self.shared.newcomers.len() as u64;
        sum.connections_unauthenticated = self.shared.unauthenticated.len() as u64;
        sum
    }

    /// Returns everything that the target has recorded since its start, as plain data. It reads memory only: no core
    /// is asked, and no other reader is affected.
    pub fn snapshot(&self) -> Snapshot {
        snapshot::take(&self.shared, self.started_ns)
    }

    /// Returns a source of snapshots that other threads can keep. It does not keep the target running.
    pub fn source(&self) -> SnapshotSource {
        SnapshotSource { link: self.link.clone() }
    }

    /// Returns all associations.
    pub fn associations(&self) -> Vec<AssociationInfo> {
        self.shared.control(|port| port.associations())
    }

    /// Returns the state of every connection, ordered by peer. Leaves out a core that does not reply in time.
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        self.shared.connections()
    }

    /// Returns a handle for changes of namespaces of the first subsystem that other threads can keep.
    pub fn namespace_control(&self) -> NamespaceControl {
        NamespaceControl::new(&self.link, SubsystemId::FIRST)
    }

    /// Returns a handle for changes of the target that other threads can keep.
    pub fn control(&self) -> TargetControl {
        TargetControl { link: self.link.clone() }
    }

    /// Makes all handles of another target lead to this one, which continues it. A handle of a subsystem leads to the one
    /// with the same name.
    pub fn take_place_of(&mut self, ended: &TargetControl) {
        self.link = ended.link.clone();
        self.link.set(&self.shared, self.started_ns);
    }

    /// Adds a subsystem while hosts use others, and notifies discovery controllers of its hosts.
    ///
    /// # Errors
    /// If its name, a namespace, or the identity of a volume is in use, or has a value that hosts cannot see.
    pub fn add_subsystem(&self, subsystem: Subsystem) -> Result<(), NamespaceError> {
        self.shared.apply_one(TargetChange::AddSubsystem(subsystem)).map(drop)
    }

    /// Removes a subsystem: ends its associations, and notifies discovery controllers of its hosts. Commands that have
    /// started complete, then its volumes are flushed and closed.
    ///
    /// # Errors
    /// If no subsystem has this name.
    pub fn remove_subsystem(&self, nqn: &Nqn) -> Result<Closing, NamespaceError> {
        Ok(self.shared.apply_one(TargetChange::RemoveSubsystem(*nqn))?.closing)
    }

    /// Replaces the hosts that can connect to a subsystem; `None`: all. Ends the associations of the others.
    ///
    /// # Errors
    /// If no subsystem has this name.
    pub fn set_allowed_hosts(&self, nqn: &Nqn, hosts: Option<Vec<Nqn>>) -> Result<(), NamespaceError> {
        self.shared.apply_one(TargetChange::SetHosts { subsystem: *nqn, hosts }).map(drop)
    }

    /// Replaces the limits of connections. Connections above the new ones stay; a Connect above a limit is refused as
    /// busy, and counted in [`Counters::limits_reached`].
    pub fn set_limits(&self, limits: TargetLimits) {
        self.shared.set_limits(limits);
    }

    /// Replaces the times after which the target does not wait for its volumes. They apply to present commands also, within
    /// 250 ms.
    pub fn set_stall_times(&self, times: StallTimes) {
        self.shared.stall_times.replace(times);
    }

    /// Changes namespaces of the first subsystem while hosts use them: all changes, or none if there is an error. Each host gets one notice.
    /// A core makes the changes between two commands; commands that have started keep their volume. Waits up to 1 s
    /// for all cores.
    ///
    /// # Errors
    /// The first change that is not possible.
    pub fn change_namespaces(&self, changes: Vec<NamespaceChange>) -> Result<Changed, NamespaceError> {
        self.shared.change(SubsystemId::FIRST, changes)
    }

    /// Serves a volume in the first subsystem, under this ID or the next one that no namespace has had, and returns the ID.
    ///
    /// # Errors
    /// As [`Target::change_namespaces`].
    pub fn add_namespace(&self, nsid: Option<u32>, volume: Arc<dyn Volume>) -> Result<u32, NamespaceError> {
        let changed = self.change_namespaces(vec![NamespaceChange::Add { nsid, volume }])?;
        changed.added.first().copied().ok_or(NamespaceError::Full)
    }

    /// Ends a namespace of the first subsystem. Its volume is flushed and closed once the last command that has started is complete.
    ///
    /// # Errors
    /// As [`Target::change_namespaces`].
    pub fn remove_namespace(&self, nsid: u32) -> Result<Closing, NamespaceError> {
        Ok(self.change_namespaces(vec![NamespaceChange::Remove { nsid }])?.closing)
    }

    /// Sets or ends the write protection of a namespace of the first subsystem. Writes that a core has accepted before still complete.
    ///
    /// # Errors
    /// As [`Target::change_namespaces`].
    pub fn set_read_only(&self, nsid: u32, read_only: bool) -> Result<(), NamespaceError> {
        self.change_namespaces(vec![NamespaceChange::ReadOnly { nsid, read_only }]).map(drop)
    }

    /// Adopts the present size of the volume of a namespace of the first subsystem, or `bytes` of it, and returns the size in bytes. A file
    /// that is shorter grows; a volume that shrinks serves less of it.
    ///
    /// # Errors
    /// If the namespace does not exist, or its volume cannot have this size: see [`Volume::resize`].
    pub fn resize_namespace(
        &self,
        nsid: u32,
        bytes: Option<u64>,
        may_shrink: bool,
    ) -> Result<u64, NamespaceError> {
        self.shared.resize((SubsystemId::FIRST, nsid), bytes, may_shrink)
    }

    /// Moves the connection of this peer to another reactor once it is quiescent, if that
    /// is soon. Requires [`TargetConfig::rebalance_interval`]; the scheduler can move the connection again.
    pub fn relocate(&self, peer: SocketAddr, reactor: usize) {
        if reactor < self.shared.mailboxes.len() {
            self.shared.post_to_all(|| Message::MigratePeer { peer, to: reactor });
        }
    }

    /// Stops accepting connections, gives commands in flight `within` to finish (not async events and
    /// half-received transfers), closes connections, and flushes volumes. Waits for hung volumes until
    /// [`TargetConfig::stuck_after`] later, then leaves their cores running.
    pub fn shutdown(mut self, within: Duration) -> ShutdownReport {
        self.stop(within)
    }

    fn stop(&mut self, within: Duration) -> ShutdownReport {
        let deadline = Instant::now() + within;
        if !self.threads.is_empty() {
            (0..self.threads.len()).for_each(|core| self.shared.post(core, Message::Stop { deadline }));
        }
        let mut report = ShutdownReport::default();
        let join_deadline = deadline + self.shared.stuck_after + JOIN_TIMEOUT;
        for core in self.threads.drain(..) {
            core.end(join_deadline, &mut report);
        }
        self.shared.page_requests.close();
        self.shared.auth_requests.close();
        for thread in self.page_thread.take().into_iter().chain(self.auth_threads.drain(..)) {
            // A panic there affects pages and handshakes only.
            let _ = thread.join();
        }
        report
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.stop(Target::SHUTDOWN_TIMEOUT);
    }
}

impl CoreThread {
    /// Waits until a core has ended or `deadline` has passed.
    fn end(self, deadline: Instant, sum: &mut ShutdownReport) {
        let report = self.report.into_inner();
        let next = || report.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let has_ended = match next() {
            Ok(core) => {
                sum.add(core);
                matches!(next(), Err(RecvTimeoutError::Disconnected))
            }
            Err(RecvTimeoutError::Disconnected) => {
                sum.cores_failed += 1;
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
        };
        if has_ended {
            // A panic is already counted.
            let _ = self.thread.join();
        } else {
            sum.cores_stuck += 1;
        }
    }
}

/// A thread that has its reactor and waits for its setup.
struct Spawned {
    thread: CoreThread,
    waker: Waker,
    io_description: String,
    setup: Sender<Setup>,
}

/// The shared state, and the mailbox of the core.
type Setup = (Arc<Shared>, Mailbox<Message>);

/// The first core gets the listeners and accepts for all.
fn spawn_cores(config: &TargetConfig, listeners: Vec<TcpListener>) -> Result<Vec<Spawned>, StartError> {
    let cores: Vec<Option<usize>> = match config.cores.as_slice() {
        [] => vec![None],
        cores => cores.iter().copied().map(Some).collect(),
    };
    let mut listeners = Some(listeners);
    let spawned = cores.into_iter().enumerate();
    spawned.map(|(index, core)| spawn_core((index, core), listeners.take(), config)).collect()
}

fn spawn_core(
    (index, core): (usize, Option<usize>),
    listeners: Option<Vec<TcpListener>>,
    config: &TargetConfig,
) -> Result<Spawned, StartError> {
    // Without volumes: a thread that never runs must not keep them.
    let config = TargetConfig { subsystems: Vec::new(), ..config.clone() };
    let (ready, made) = mpsc::channel();
    let (setup, later) = mpsc::channel();
    let (reports, report) = mpsc::channel();
    let thread = thread::Builder::new()
        .name(format!("isolane-core-{index}"))
        .spawn(move || run_core((index, core), listeners, &config, &ready, &later, &reports))
        .map_err(StartError::Thread)?;
    let made = made.recv().map_err(|_| StartError::Thread(std::io::ErrorKind::Other.into()))?;
    let (waker, io_description) = made?;
    let thread = CoreThread { thread, report: Mutex::new(report) };
    Ok(Spawned { thread, waker, io_description, setup })
}

fn run_core(
    (index, core): (usize, Option<usize>),
    listeners: Option<Vec<TcpListener>>,
    config: &TargetConfig,
    ready: &Sender<Result<(Waker, String), StartError>>,
    later: &Receiver<Setup>,
    reports: &Sender<ShutdownReport>,
) {
    let accepts = listeners.is_some();
    let reactor = match open_reactor(core, listeners, config) {
        Ok(reactor) => reactor,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok((reactor.waker(), reactor.backend_description().to_owned())));
    // No setup arrives if another core could not start.
    let Ok((shared, mailbox)) = later.recv() else { return };
    let acceptor = accepts.then(|| Acceptor::new(config));
    shared.observed[index].thread.set(rustix::thread::gettid().as_raw_nonzero().get() as u64);
    let namespaces = shared.namespaces();
    let mut driver = Driver::new((index, core), (shared, namespaces), reactor, mailbox, acceptor, config);
    // Sent before the driver waits for operations in flight.
    let _ = reports.send(driver.run());
}

fn open_reactor(
    core: Option<usize>,
    listeners: Option<Vec<TcpListener>>,
    config: &TargetConfig,
) -> Result<Reactor, StartError> {
    let mut reactor =
        Reactor::new(ReactorConfig { io: config.io, mode: config.mode, spin: config.spin, core })?;
    for listener in listeners.into_iter().flatten() {
        reactor.listen(listener).map_err(StartError::Begin)?;
    }
    Ok(reactor)
}

pub(crate) fn port_config(
    config: &TargetConfig,
    listeners: &[SocketAddr],
    namespaces: &Namespaces,
    max_connections: usize,
) -> PortConfig {
    let template = config.subsystem_template(max_connections);
    let to_config = |(index, subsystem): (usize, &Subsystem)| {
        subsystem.to_config(&template, namespaces.to_configs(SubsystemId::at(index)))
    };
    let since_epoch = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    PortConfig {
        subsystems: config.subsystems.iter().enumerate().map(to_config).collect(),
        listeners: config.listen.iter().zip(listeners).map(|(port, at)| port.to_listener(*at)).collect(),
        advertise: config.advertise.clone(),
        referrals: config.referrals.clone(),
        max_associations: config.max_connections.clamp(1, 0xf000),
        generation_start: config.discovery_generation.unwrap_or_else(since_epoch),
    }
}

/// Time for the cores to end once no operation hangs.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);
