//! Connections to clusters, each shared by several images.
//!
//! One connection for all images does not scale, and each costs threads, so a connection has a maximum number of images.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::address::Login;
use crate::ffi::{Cluster, Errno, Library};
use crate::state::{Shared, State};

/// A connection to a cluster. Dropping the last reference may block, so callbacks must not have any.
pub(crate) struct Connection {
    login: Login,
    pub cluster: Cluster,
    /// Addresses of the monitors.
    pub monitors: String,
    /// Maximum time to open an image.
    pub mount_timeout: Duration,
    connected: OnceLock<Result<(), Errno>>,
    pub state: Arc<State>,
    /// Open images.
    pub images: Mutex<Vec<Weak<Shared>>>,
}

/// The connections of a program.
pub(crate) struct Connections {
    images_per_connection: usize,
    list: Mutex<Vec<Weak<Connection>>>,
}

impl Connections {
    pub fn new(images_per_connection: usize) -> Connections {
        Connections { images_per_connection, list: Mutex::new(Vec::new()) }
    }

    /// Returns a connection for one more image. It is connected by [`Connection::connect`].
    pub fn get(&self, library: &'static Library, login: &Login) -> Result<Arc<Connection>, String> {
        let mut list = self.list.lock();
        list.retain(|connection| connection.strong_count() > 0);
        let free = list.iter().filter(|connection| connection.strong_count() < self.images_per_connection);
        let mut free = free.filter_map(Weak::upgrade).filter(|connection| connection.login == *login);
        if let Some(connection) = free.find(|connection| !matches!(connection.connected.get(), Some(Err(_))))
        {
            return Ok(connection);
        }
        let connection = Arc::new(Connection::new(library, login)?);
        list.push(Arc::downgrade(&connection));
        Ok(connection)
    }
}

impl Connection {
    /// Reads the configuration.
    fn new(library: &'static Library, login: &Login) -> Result<Connection, String> {
        let fail = |what: &str, error| format!("{what}: {error}");
        let cluster = Cluster::new(library, &login.id).map_err(|error| fail("invalid id=", error))?;
        let conf = login.conf.as_deref();
        for path in [&login.conf, &login.keyring].into_iter().flatten() {
            check_file(path).map_err(|error| format!("{path}: {error}"))?;
        }
        cluster.read_file(conf).map_err(|error| match conf {
            Some(path) => fail(path, error),
            None => fail("no configuration at Ceph's default places", error),
        })?;
        let set = |option, value| cluster.set(option, value).map_err(|error| fail(option, error));
        if let Some(keyring) = &login.keyring {
            set("keyring", keyring)?;
        }
        for (option, value) in SETTINGS {
            set(option, value)?;
        }
        let timeout = cluster.setting(MOUNT_TIMEOUT).unwrap_or_default();
        // Whole seconds, possibly as a fraction.
        let seconds = timeout.parse::<f64>().ok().filter(|seconds| *seconds != CEPH_MOUNT_TIMEOUT_S);
        let seconds = seconds.filter(|seconds| (0.0..MAX_MOUNT_TIMEOUT_S).contains(seconds));
        let mount_timeout = seconds.map_or(DEFAULT_MOUNT_TIMEOUT, Duration::from_secs_f64);
        set(MOUNT_TIMEOUT, &mount_timeout.as_secs().max(1).to_string())?;
        Ok(Connection {
            login: login.clone(),
            monitors: cluster.setting("mon_host").unwrap_or_default(),
            mount_timeout,
            cluster,
            connected: OnceLock::new(),
            state: Arc::default(),
            images: Mutex::default(),
        })
    }

    /// Connects, if no other image has, and calls `on_connected` then. Blocks for at most the mount timeout.
    pub fn connect(&self, on_connected: impl FnOnce()) -> Result<(), Errno> {
        *self.connected.get_or_init(|| self.cluster.connect().map(|()| on_connected()))
    }

    /// User of the connection, as Ceph names it.
    pub fn user(&self) -> String {
        format!("client.{}", self.login.id)
    }
}

fn check_file(path: &str) -> std::io::Result<()> {
    let is_directory = std::fs::File::open(path)?.metadata()?.is_dir();
    if is_directory { Err(std::io::ErrorKind::IsADirectory.into()) } else { Ok(()) }
}

/// Settings of every connection, which override its configuration file.
const SETTINGS: [(&str, &str); 6] = [
    // Without a cache, a write is on its OSDs when it completes. Images and pools can override this.
    ("rbd_cache", "false"),
    // The pool of each core bounds what is in flight. librbd would block its threads at a limit, also for reads, if
    // writes wait for a full pool.
    ("objecter_inflight_ops", "0"),
    ("objecter_inflight_op_bytes", "0"),
    // Commands of `watch.rs`, which report that monitors do not respond.
    ("rados_mon_op_timeout", "5"),
    // Failures are in our log.
    ("log_to_stderr", "false"),
    ("err_to_stderr", "false"),
];

const MOUNT_TIMEOUT: &str = "client_mount_timeout";
const DEFAULT_MOUNT_TIMEOUT: Duration = Duration::from_secs(10);
/// Ceph's default, which is too long for a start. A configuration that sets the same cannot be distinguished from it.
const CEPH_MOUNT_TIMEOUT_S: f64 = 300.0;
const MAX_MOUNT_TIMEOUT_S: f64 = 86_400.0;
