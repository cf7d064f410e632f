//! Opening an image.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use isolane_volume::spec::{BLOCK_SIZES, VolumeSpec};
use isolane_volume::{
    Generation, Identity, OpenError, RestartLoss, Volume, VolumeDescription, VolumeInfo, VolumeTree,
};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::address::Address;
use crate::connection::{Connection, Connections};
use crate::ffi::{self, Errno, Image, Library, Pool};
use crate::health::Health;
use crate::state::{Claim, Shared};
use crate::volume::RbdVolume;
use crate::watch;

/// Options of a specification, besides those of all nested volumes.
pub const OPTIONS: &[&str] = &["conf", "id", "keyring"];

/// Opens RBD volumes, which share connections.
pub struct Rbd {
    connections: Connections,
    /// Images that this program can write, while their claims exist.
    claims: Mutex<Vec<(Address, Weak<Claim>)>>,
    /// An image was opened, or was tried to be.
    has_opened: AtomicBool,
}

impl Rbd {
    /// Creates an opener whose connections serve up to `images_per_connection` images each.
    pub fn new(images_per_connection: usize) -> Rbd {
        Rbd {
            connections: Connections::new(images_per_connection),
            claims: Mutex::default(),
            has_opened: AtomicBool::new(false),
        }
    }

    /// Returns `None` if this program has the image open for writes: each would wait for the lock of the other.
    fn claim(&self, address: &Address) -> Option<Arc<Claim>> {
        let mut claims = self.claims.lock();
        claims.retain(|(_, claim)| claim.strong_count() > 0);
        if claims.iter().any(|(other, _)| other.is_same_image(address)) {
            return None;
        }
        let claim = Arc::new(Claim);
        claims.push((address.clone(), Arc::downgrade(&claim)));
        Some(claim)
    }

    /// Opens the volume of a specification `rbd:…`.
    ///
    /// # Errors
    /// The monitors, user, pool, and image, and the error of librados.
    pub fn open(&self, spec: &VolumeSpec) -> Result<Arc<dyn Volume>, OpenError> {
        let address = Address::new(spec)?;
        self.has_opened.store(true, Ordering::Relaxed);
        let fail = |reason: String, remedy: &str| OpenError::new(&address.name, reason, remedy);
        let is_read_only = spec.read_only || address.snapshot.is_some();
        let claim = if is_read_only { None } else { self.claim(&address) };
        if claim.is_none() && !is_read_only {
            let error = fail("this program already serves the image".to_owned(), "remove one of both");
            return Err(error.with_os_error(Some(libc::EBUSY)));
        }
        let library = Library::get().map_err(|error| fail(error, ""))?;
        let connection = self.connections.get(library, &address.login);
        let connection =
            connection.map_err(|error| fail(error, "give a readable file as conf=FILE or keyring=FILE"))?;
        let described = describe(&address, &connection);
        let limit = connection.mount_timeout + GRACE;
        let (sender, opened) = mpsc::channel();
        let (of_thread, spec) = (address.clone(), spec.clone());
        let run = move || {
            let on_lock = |owner| drop(sender.send(Progress::Locked { owner }));
            let opened = open(&of_thread, &spec, connection, claim, on_lock);
            // After the time limit, this closes the image.
            let _ = sender.send(Progress::Opened(opened.map(Arc::new)));
        };
        let thread = thread::Builder::new().name("rbd-open".to_owned()).spawn(run);
        thread.map_err(|error| fail(error.to_string(), "free some threads"))?;
        let no_response = |limit: Duration, remedy: &str| {
            Err(fail(format!("{described}: no response within {} s", limit.as_secs()), remedy))
        };
        let mut progress = opened.recv_timeout(limit);
        if let Ok(Progress::Locked { owner }) = &progress {
            log::info!("{}: waiting until {owner} releases its lock, or is dead", address.name);
            let next = opened.recv_timeout(LOCK_TIMEOUT);
            if next.is_err() {
                return no_response(LOCK_TIMEOUT, &format!("stop {owner}, which has the lock of the image"));
            }
            progress = next;
        }
        match progress {
            Ok(Progress::Opened(Ok(volume))) => Ok(volume),
            Ok(Progress::Opened(Err(Failure { step, error, remedy }))) => {
                Err(fail(format!("{described}: cannot {step}: {error}"), &remedy))
            }
            Ok(Progress::Locked { .. }) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                no_response(limit, "check that the OSDs of the pool are up (`ceph health detail`)")
            }
        }
    }

    /// Waits until all dropped volumes of this program are closed, for at most `timeout`. Memory that a cluster may still
    /// use stays allocated. Does nothing if this opener was not used.
    pub fn wait_for_closed(&self, timeout: Duration) {
        if !self.has_opened.load(Ordering::Relaxed) {
            return;
        }
        let count = ffi::wait_for_closed(timeout);
        if count > 0 {
            log::warn!(
                "{count} RBD images are not closed after {} s: their clusters do not respond",
                timeout.as_secs()
            );
        }
    }
}

/// A message of the thread that opens an image.
enum Progress {
    /// A client has the lock. It responds at once, unless it is dead: then Ceph must notice that first.
    Locked {
        owner: String,
    },
    Opened(Result<Arc<RbdVolume>, Failure>),
}

/// A step that failed.
struct Failure {
    step: &'static str,
    error: Errno,
    remedy: String,
}

impl Failure {
    fn new(step: &'static str, error: Errno, remedy: impl Into<String>) -> Failure {
        Failure { step, error, remedy: remedy.into() }
    }
}

fn describe(address: &Address, connection: &Connection) -> String {
    let Address { pool, namespace, image, snapshot, .. } = address;
    let slash = if namespace.is_empty() { "" } else { "/" };
    let snapshot = snapshot.as_ref().map(|name| format!(", snapshot {name}")).unwrap_or_default();
    let (monitors, user) = (&connection.monitors, connection.user());
    format!("monitors {monitors}, user {user}, pool {pool}{slash}{namespace}, image {image}{snapshot}")
}

/// Opens a volume. Blocks. Calls `on_lock` with the client that has the lock, before it waits for that.
fn open(
    address: &Address,
    spec: &VolumeSpec,
    connection: Arc<Connection>,
    claim: Option<Arc<Claim>>,
    on_lock: impl Fn(String),
) -> Result<RbdVolume, Failure> {
    let read_only = spec.read_only || address.snapshot.is_some();
    let image = open_image(address, &connection, read_only)?;
    let read = |error| Failure::new("read the image", error, "check the cluster (`ceph health detail`)");
    let has_lock = !read_only && lock(&image, address, on_lock)?;
    let (bytes, id) = (image.bytes().map_err(read)?, image.id().map_err(read)?);
    let (pool_id, pools) = pools(address, &connection, &image).map_err(read)?;
    let has_cache = !read_only && image.has_cache().map_err(read)?;
    let fsid = connection.cluster.fsid().map_err(read)?;
    let Address { namespace, snapshot, .. } = address;
    // The same on each server.
    let mut name = format!("{fsid} {pool_id} {namespace} {id}");
    snapshot.iter().for_each(|snapshot| name += &format!("@{snapshot}"));
    let store = Uuid::new_v5(&NAMESPACE, name.as_bytes());
    let block_size = BLOCK_SIZES[0];
    if bytes < u64::from(block_size) {
        let remedy = format!("it has {bytes} bytes; set a size with `rbd resize --allow-shrink --size 10G`");
        return Err(Failure::new("serve the image", Errno(libc::EINVAL), remedy));
    }
    if !bytes.is_multiple_of(u64::from(block_size)) {
        log::warn!(
            "{}: the last {} bytes are no block, and not served",
            address.name,
            bytes % u64::from(block_size)
        );
    }
    let description = VolumeDescription {
        name: address.name.clone(),
        info: VolumeInfo {
            block_size,
            blocks: bytes / u64::from(block_size),
            read_only,
            volatile_cache: has_cache,
            deallocate: true,
            // librbd ignores parts that are smaller than its granularity.
            zeroes_after_deallocate: false,
        },
        identity: Identity { uuid: spec.uuid.unwrap_or(store) },
        generation: Some(if has_cache {
            Generation { id: Uuid::new_v4(), loses: RestartLoss::Cache }
        } else {
            Generation { id: store, loses: RestartLoss::Nothing }
        }),
    };
    let tree = VolumeTree { group: spec.group.clone(), ..VolumeTree::new(&address.name, KIND) };
    let shared = Arc::new(Shared {
        image: Arc::new(image),
        address: address.clone(),
        health: Health::new(bytes),
        pools,
        cluster: Arc::clone(&connection.state),
        has_lock,
    });
    connection.images.lock().push(Arc::downgrade(&shared));
    Ok(RbdVolume { shared, description, tree, store, _claim: claim })
}

fn open_image(address: &Address, connection: &Arc<Connection>, read_only: bool) -> Result<Image, Failure> {
    connection.connect(|| watch::spawn(connection)).map_err(|error| {
        let remedy = match error.0 {
            _ if connection.monitors.is_empty() => "set mon_host in the configuration",
            libc::ETIMEDOUT => "check that the monitors run and can be reached",
            _ => "check id= and keyring=, and that the user has the capability `mon 'profile rbd'`",
        };
        Failure::new("connect", error, remedy)
    })?;
    let remedy = |error: Errno, missing: String| {
        match error.0 {
        libc::EPERM | libc::EACCES => {
            "give the user the capabilities `mon 'profile rbd' osd 'profile rbd pool=NAME'`, or serve the image with ro"
                .to_owned()
        }
        libc::ENOENT => missing,
        _ => "check the cluster (`ceph health detail`)".to_owned(),
    }
    };
    let pool = Pool::open(&connection.cluster, &address.pool, &address.namespace);
    let pool = pool.map_err(|error| {
        Failure::new("open the pool", error, remedy(error, "`ceph osd pool ls` lists the pools".to_owned()))
    })?;
    let snapshot = address.snapshot.as_deref();
    let image = pool.open_image(&address.image, snapshot, read_only, Arc::clone(connection) as _);
    image.map_err(|error| {
        let Address { pool, namespace, .. } = address;
        let missing = if namespace.is_empty() {
            format!("`rbd ls {pool}` lists the images, `rbd snap ls` the snapshots")
        } else {
            format!("`rbd namespace ls {pool}` lists the namespaces, `rbd ls {pool}/{namespace}` the images")
        };
        Failure::new("open the image", error, remedy(error, missing))
    })
}

/// Takes the lock of an image. Returns `false` if the image has none.
fn lock(image: &Image, address: &Address, on_lock: impl Fn(String)) -> Result<bool, Failure> {
    let read = |error| Failure::new("read the image", error, "check the cluster (`ceph health detail`)");
    if !image.has_exclusive_lock().map_err(read)? {
        log::warn!(
            "{}: the image has no exclusive lock, so nothing prevents that other clients write; run `rbd feature enable \
             IMAGE exclusive-lock`",
            address.name
        );
        return Ok(false);
    }
    image.lock_owner().map_err(read)?.into_iter().for_each(on_lock);
    image.lock().map(|()| true).map_err(|error| {
        let remedy = match image.lock_owner().ok().flatten() {
            Some(owner) => format!("stop {owner}, which has it"),
            None => {
                "if it mirrors another image, promote it (`rbd mirror image promote`), or serve it with ro"
                    .to_owned()
            }
        };
        Failure::new("take the lock of the image", error, remedy)
    })
}

/// Returns the ID of the pool of an image, and the names of all pools that its writes need.
fn pools(address: &Address, connection: &Connection, image: &Image) -> Result<(i64, Vec<String>), Errno> {
    let pool_id = Pool::open(&connection.cluster, &address.pool, "")?.id();
    let mut pools = vec![address.pool.clone()];
    let data_pool = image.data_pool_id();
    if data_pool >= 0 && data_pool != pool_id {
        pools.push(connection.cluster.pool_name(data_pool)?);
    }
    Ok((pool_id, pools))
}

const KIND: &str = "rbd";
/// Time beyond the mount timeout, in which librados reports its own timeout.
const GRACE: Duration = Duration::from_secs(1);
/// Time for a lock of another client. Ceph notices that a client is dead after 30 s by default.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// UUID namespace of images, chosen at random.
const NAMESPACE: Uuid = Uuid::from_u128(0x3d5a_8d0e_61b7_4c0f_9a8a_27d1_c9f4_0b6e);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_opener_does_not_wait_for_images_of_others() {
        let _closing = ffi::Closing::new();
        let (sender, waited) = mpsc::channel();
        thread::spawn(move || {
            Rbd::new(1).wait_for_closed(Duration::MAX);
            let _ = sender.send(());
        });
        assert!(waited.recv_timeout(Duration::from_secs(60)).is_ok());
    }
}
