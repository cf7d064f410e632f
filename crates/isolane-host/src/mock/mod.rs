//! A target for this crate's tests: correct by default, and wrong in one chosen way on request.
//!
//! One thread for each connection, on loopback, over the real [`isolane_proto::target::Connection`]; what a
//! well-behaved queue cannot send goes to the socket as bytes. It remembers the order in which writes landed.

mod connection;
mod controller;
mod script;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use isolane_wire::Status;
use parking_lot::Mutex;

pub(crate) use script::{Fault, Script};

use crate::uri::Uri;

/// The subsystem's name.
pub(crate) const NQN: &str = "nqn.2024-01.org.example:mock";

/// How long a test waits for what must happen: far beyond what anything takes, so that only what hangs fails
/// by it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A running target. Dropping it closes every connection.
pub(crate) struct Target {
    pub address: SocketAddr,
    pub shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// State shared by its connections.
pub(crate) struct Shared {
    pub script: Mutex<Script>,
    pub disk: Mutex<Vec<u8>>,
    /// Living controllers and their queues.
    pub controllers: Mutex<BTreeMap<u16, BTreeSet<u16>>>,
    pub cntlid_next: Mutex<u16>,
    /// First byte and block of each write in the order of landing.
    pub landed: Mutex<Vec<(u64, u8)>>,
    /// Opcodes of I/O commands and the blocks of each.
    pub commands: Mutex<Vec<(u8, u32)>>,
    /// Queue ids and opcodes of I/O commands.
    pub queues: Mutex<Vec<(u16, u8)>>,
    /// Controllers and queue ids of I/O commands.
    pub ways: Mutex<Vec<(u16, u16)>>,
    /// Controllers whose connections close.
    pub dropped: Mutex<BTreeSet<u16>>,
    pub keep_alives: AtomicU64,
    pub log_reads: AtomicU64,
    /// Times that a host enabled the delays of retries (ACRE).
    pub retry_delays_enabled: AtomicU64,
    /// First block of each Write with FUA.
    pub forced: Mutex<Vec<u64>>,
    /// Notices of changed namespaces requested by the test.
    pub notices: AtomicU64,
    pub shutdowns: AtomicU64,
    pub terminations: AtomicU64,
    /// Connections of an earlier generation close.
    pub generation: AtomicU64,
    pub refusing: AtomicBool,
    is_stopped: AtomicBool,
}

impl Target {
    pub(crate) fn start(script: Script) -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let disk = vec![0; script.blocks as usize * script.block_bytes as usize];
        let shared = Arc::new(Shared {
            script: Mutex::new(script),
            disk: Mutex::new(disk),
            controllers: Mutex::default(),
            cntlid_next: Mutex::new(1),
            landed: Mutex::default(),
            commands: Mutex::default(),
            queues: Mutex::default(),
            ways: Mutex::default(),
            dropped: Mutex::default(),
            keep_alives: AtomicU64::new(0),
            log_reads: AtomicU64::new(0),
            retry_delays_enabled: AtomicU64::new(0),
            forced: Mutex::default(),
            notices: AtomicU64::new(0),
            shutdowns: AtomicU64::new(0),
            terminations: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            refusing: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || accept(&listener, &accepting));
        Target { address, shared, acceptor: Some(acceptor) }
    }

    pub(crate) fn uri(&self) -> Uri {
        format!("nvme+tcp://{}/{NQN}", self.address).parse().unwrap()
    }

    /// From now on one thing goes wrong.
    pub(crate) fn inject(&self, after_commands: u32, fault: Fault) {
        self.shared.script.lock().fault = Some((after_commands, fault));
    }

    /// Changes the configuration, and notifies every controller of a changed namespace.
    pub(crate) fn change_namespace(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.shared.script.lock());
        self.shared.notices.fetch_add(1, Ordering::SeqCst);
    }

    /// The next I/O commands complete with these statuses.
    pub(crate) fn refuse(&self, statuses: impl IntoIterator<Item = Status>) {
        self.shared.script.lock().statuses.extend(statuses);
    }

    /// Closes every connection there is.
    pub(crate) fn drop_connections(&self) {
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Closes the connections of one controller.
    pub(crate) fn drop_controller(&self, cntlid: u16) {
        self.shared.dropped.lock().insert(cntlid);
    }

    /// The bytes of a range of blocks.
    pub(crate) fn blocks(&self, lba: u64, blocks: u64) -> Vec<u8> {
        let block_bytes = u64::from(self.shared.script.lock().block_bytes);
        let start = (lba * block_bytes) as usize;
        self.shared.disk.lock()[start..start + (blocks * block_bytes) as usize].to_vec()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        self.drop_connections();
        self.acceptor.take().map(JoinHandle::join);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.is_stopped.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((stream, _)) if !shared.refusing.load(Ordering::SeqCst) => {
                let shared = Arc::clone(shared);
                std::thread::spawn(move || connection::serve(stream, &shared));
            }
            Ok(_) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
