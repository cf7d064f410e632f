//! Two threads of each connection, which look once per second for changes that librbd does not report with a request.
//!
//! One reads the size and the lock of each image; it waits while the cluster does not respond. The other finds out why
//! requests do not complete: full pools, monitors that do not respond, or an invalid key.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use crate::address::Address;
use crate::connection::{Connection, Connections};
use crate::ffi::{Errno, Library, Pool};
use crate::health::Progress;
use crate::state::{Full, Shared};

/// Starts the threads of a connection, which end with it.
pub(crate) fn spawn(connection: &Arc<Connection>) {
    let mut rounds = 0_u64;
    every_second("rbd-images", connection, move |connection| {
        rounds += 1;
        for image in connection.open_images() {
            check_image(&image, rounds.is_multiple_of(LOCK_ROUNDS));
        }
    });
    let mut stalls = Stalls::default();
    every_second("rbd-stalls", connection, move |connection| stalls.check(connection));
}

fn every_second(
    name: &str,
    connection: &Arc<Connection>,
    mut check: impl FnMut(&Connection) + Send + 'static,
) {
    let connection = Arc::downgrade(connection);
    let run = move || {
        loop {
            thread::sleep(Duration::from_secs(1));
            let Some(connection) = connection.upgrade() else { return };
            check(&connection);
        }
    };
    if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn(run) {
        log::error!("no thread to watch RBD images: {error}");
    }
}

impl Connection {
    fn open_images(&self) -> Vec<Arc<Shared>> {
        let mut images = self.images.lock();
        images.retain(|image| image.strong_count() > 0);
        images.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Compares size and lock of an image with those at its open. May block.
fn check_image(shared: &Arc<Shared>, with_lock: bool) {
    let Shared { image, health, address, .. } = &**shared;
    let name = &address.name;
    if with_lock && shared.has_lock && !health.is_lost() {
        match image.is_locked() {
            Ok(true) => {}
            Ok(false) => health.lose(Errno(libc::EROFS)),
            Err(Errno(libc::ESHUTDOWN)) => health.lose(Errno(libc::ESHUTDOWN)),
            Err(error) => log::limited!(Warn, "{name}: cannot check its lock: {error}"),
        }
    }
    if health.take_unreported_loss() {
        let owner = lock_owner(address).unwrap_or_else(|error| format!("unknown ({error})"));
        log::error!(
            "{name}: lost the lock of its image, or was blocklisted; the lock has {owner}; all changes fail until this \
             target is restarted"
        );
    }
    let Ok(bytes) = image.bytes() else { return };
    let Some(previous) = health.resize(bytes) else { return };
    let (served, _) = health.sizes();
    if bytes < served {
        log::error!(
            "{name}: the image shrank from {previous} to {bytes} bytes; requests beyond fail until its size is restored"
        );
    } else {
        log::warn!(
            "{name}: the image has {bytes} bytes, was {previous}; `isolane ctl namespace resize` serves them"
        );
    }
}

/// Returns the client that has the lock of an image, by a new connection. Blocks.
fn lock_owner(address: &Address) -> Result<String, String> {
    let connection = Connections::new(1).get(Library::get()?, &address.login)?;
    let owner = || {
        connection.connect(|| ())?;
        let pool = Pool::open(&connection.cluster, &address.pool, &address.namespace)?;
        pool.open_image(&address.image, None, true, Arc::clone(&connection) as _)?.lock_owner()
    };
    let owner = owner().map_err(|error: Errno| error.to_string())?;
    Ok(owner.unwrap_or_else(|| "no client".to_owned()))
}

/// Images whose requests do not complete.
#[derive(Default)]
struct Stalls {
    /// Progress of each image in the last round, and the rounds without any.
    seen: Vec<(Weak<Shared>, Progress, u32)>,
}

impl Stalls {
    fn check(&mut self, connection: &Connection) {
        let stalled = self.update(connection.open_images());
        let state = &connection.state;
        let was_in_trouble = state.trouble.lock().is_some();
        let was_full = state.full.lock().values().any(|full| full.is_full);
        if stalled.is_empty() && !was_in_trouble && !was_full {
            return;
        }
        match connection.cluster.monitor_command(POOLS) {
            Err(error) => on_no_response(connection, error),
            Ok(text) => {
                if state.trouble.lock().take().is_some() {
                    log::info!("{}: monitors respond again", connection.monitors);
                }
                update_full_pools(connection, &stalled, &full_pools(&text));
            }
        }
    }

    /// Returns the images whose requests have not completed for some rounds.
    fn update(&mut self, images: Vec<Arc<Shared>>) -> Vec<Arc<Shared>> {
        let mut stalled = Vec::new();
        let previous = std::mem::take(&mut self.seen);
        for image in images {
            let progress = image.health.progress();
            let entry = previous.iter().find(|(other, ..)| std::ptr::eq(other.as_ptr(), &*image));
            let rounds = match entry {
                Some((_, before, rounds)) if progress.is_busy && before.finished == progress.finished => {
                    rounds + 1
                }
                _ => 0,
            };
            self.seen.push((Arc::downgrade(&image), progress, rounds));
            if rounds >= STALL_ROUNDS {
                stalled.push(image);
            }
        }
        stalled
    }
}

fn on_no_response(connection: &Connection, error: Errno) {
    let text = if [libc::EACCES, libc::EPERM].contains(&error.0) {
        format!("monitors reject the key of {} ({error}): requests wait; restore the key", connection.user())
    } else {
        format!("monitors {} do not respond ({error}): requests wait", connection.monitors)
    };
    let previous = connection.state.trouble.lock().replace(text.clone());
    if previous.as_ref() != Some(&text) {
        log::warn!("{text}");
    }
}

/// Records which pools of images are full, and logs each change.
fn update_full_pools(connection: &Connection, stalled: &[Arc<Shared>], full: &[String]) {
    let mut known = connection.state.full.lock();
    for (pool, state) in known.iter_mut().filter(|(pool, state)| state.is_full && !full.contains(pool)) {
        state.is_full = false;
        log::info!("pool {pool} has space again: writes continue");
    }
    let changing = stalled.iter().filter(|image| image.health.progress().is_changing);
    for pool in changing.flat_map(|image| &image.pools).filter(|pool| full.contains(pool)) {
        let state: &mut Full = known.entry(pool.clone()).or_default();
        if !state.is_full {
            *state = Full { is_full: true, times: state.times + 1 };
            log::warn!("pool {pool} is full, or its quota is used up: writes wait until it has space");
        }
    }
}

/// Returns the names of full pools in the output of [`POOLS`].
fn full_pools(text: &[u8]) -> Vec<String> {
    let pools: Vec<serde_json::Value> = serde_json::from_slice(text).unwrap_or_default();
    let is_full = |pool: &&serde_json::Value| {
        let flags = pool["flags_names"].as_str().unwrap_or_default();
        flags.split(',').any(|flag| flag == "full")
    };
    pools.iter().filter(is_full).filter_map(|pool| Some(pool["pool_name"].as_str()?.to_owned())).collect()
}

const POOLS: &str = r#"{"prefix": "osd pool ls", "detail": "detail", "format": "json"}"#;
/// Rounds without a completion after which a cause is looked for.
const STALL_ROUNDS: u32 = 3;
/// Rounds from one check of the lock to the next: each is a request to an OSD.
const LOCK_ROUNDS: u64 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_full_pools() {
        let text = br#"[{"pool_name": "a", "flags_names": "hashpspool,full,full_quota"},
            {"pool_name": "b", "flags_names": "hashpspool,full_quota_unknown"}, {"pool_name": 3}]"#;
        assert_eq!(full_pools(text), ["a"]);
        assert!(full_pools(b"no JSON").is_empty());
    }
}
