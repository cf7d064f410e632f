//! Mirror of two volumes, with a bitmap file of the regions in which they can differ.
//!
//! `docs/DURABILITY.md` has the guarantees. A write sets the bit of its region in the bitmap file before it reaches a
//! member. After a crash, the regions of set bits are copied from one member to the other, and read from the source
//! until then. The last 64 KiB of each member hold its label: a copy of the mirror's record.
//!
//! Invariant: two reads of a block return the same data unless a write was submitted before the second one ended.

mod bits;
mod decide;
mod maintain;
mod record;
mod requests;
mod start;
mod state;

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use isolane_memory::Pool;
use isolane_volume::spec;
use isolane_volume::{Generation, Identity, OpenError, Request, Step, Volume, VolumeInfo};
use uuid::Uuid;

use self::decide::StartOptions;
use self::requests::Mirror;
use self::start::{Member, start};
use crate::driver::Driver;
use crate::parts::Parts;

/// A mirror of two volumes.
pub struct MirrorVolume {
    info: VolumeInfo,
    identity: Identity,
    generation: Option<Generation>,
    mirror: Arc<Mirror>,
    /// Maintenance ends when its channel is closed.
    maintenance: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

/// Opens a mirror of two members, of which one can be missing.
pub(crate) fn open(parts: Parts, members: Vec<Member>) -> Result<Arc<dyn Volume>, OpenError> {
    let options = start_options(&parts)?;
    let Some(path) = parts.option("bitmap").map(Path::new) else {
        return Err(parts.error("no bitmap file", "add bitmap=FILE"));
    };
    parts.check_distinct(members.iter().flatten())?;
    let members = <[Member; 2]>::try_from(members)
        .map_err(|members| parts.error(format!("{} members", members.len()), "name two volumes"))?;
    let resources =
        |error: std::io::Error| parts.error(error.to_string(), "free descriptors, threads, or memory");
    let mut driver = Driver::new().map_err(resources)?;
    let bitmap = |bytes| open_bitmap(&parts.name, path, bytes, options.create);
    let mut run = |step| driver.run(step);
    let mirror = Arc::new(start(&parts.name, members, bitmap, options, MIN_REGION_BYTES, &mut run)?);
    let (sender, receiver) = mpsc::channel();
    let maintained = Arc::clone(&mirror);
    let maintain = move || maintain(&maintained, driver, &receiver);
    let thread =
        std::thread::Builder::new().name("isolane-mirror".to_owned()).spawn(maintain).map_err(resources)?;
    Ok(Arc::new(MirrorVolume {
        info: info(&mirror),
        identity: parts.identity(|| Identity { uuid: mirror.state.lock().record.mirror }),
        generation: generation(&mirror),
        mirror,
        maintenance: Some((sender, thread)),
    }))
}

/// Returns the options of a start.
fn start_options(parts: &Parts) -> Result<StartOptions, OpenError> {
    let invalid = |name: &str, value: &str, remedy: &str| {
        parts.error(format!("invalid value {value:?} of {name}="), remedy)
    };
    let is_yes = |name: &str| match parts.option(name) {
        None | Some("no") => Ok(false),
        Some("yes") => Ok(true),
        Some(value) => Err(invalid(name, value, "use yes or no")),
    };
    let keep = |text: &str| {
        let remedy = "use a generation that the error of a refused start names";
        Uuid::parse_str(text).map_err(|_| invalid("keep", text, remedy))
    };
    let keep = parts.option("keep").map(keep).transpose()?;
    Ok(StartOptions { create: is_yes("create")?, degraded: is_yes("degraded")?, keep })
}

/// Opens the bitmap file, and creates it if that is requested.
fn open_bitmap(mirror: &str, path: &Path, bytes: u64, create: bool) -> Member {
    let size = if create { format!(",size={bytes}") } else { String::new() };
    // Relative paths start with a dot, so that none is a volume of another kind.
    let path = Path::new(".").join(path).display().to_string().replace(',', ",,");
    let spec = spec::parse(&format!("{path}{size}")).map_err(|error| error.to_string());
    let opened = spec.and_then(|spec| isolane_volume::open(&spec).map_err(|error| error.reason));
    let remedy = "check its path; for a new mirror, or to copy one member with keep=, add create=yes";
    opened.map_err(|reason| OpenError::new(mirror, format!("bitmap file {path}: {reason}"), remedy))
}

fn info(mirror: &Mirror) -> VolumeInfo {
    let record = &mirror.state.lock().record;
    let any = |has: fn(&VolumeInfo) -> bool| mirror.members.iter().flatten().any(|member| has(member.info()));
    VolumeInfo {
        block_size: record.block_size,
        blocks: record.blocks,
        read_only: false,
        volatile_cache: any(|info| info.volatile_cache),
        deallocate: any(|info| info.deallocate),
        zeroes_after_deallocate: true,
    }
}

/// Returns the generation if all members have the same, such as files on one machine.
fn generation(mirror: &Mirror) -> Option<Generation> {
    let mut generations = mirror.members.iter().flatten().map(|member| member.generation());
    let first = generations.next()?;
    generations.all(|other| other == first).then_some(first)?
}

/// Maintains the mirror. Once it is closed, the second of two searches finds all regions idle.
fn maintain(mirror: &Arc<Mirror>, mut driver: Driver, closed: &mpsc::Receiver<()>) {
    // After a panic, no region would be copied or cleared again.
    let guard = mirror.guard("maintenance");
    let mut runs_after_close = 0;
    while runs_after_close < 3 {
        let maintained = Arc::clone(mirror);
        if let Err(error) = driver.run(Step::nested(Request::Flush, |io, _| maintained.maintain(io))) {
            log::error!("{}: maintenance: {error}", mirror.name);
        }
        let is_closed = closed.recv_timeout(INTERVAL) == Err(mpsc::RecvTimeoutError::Disconnected);
        runs_after_close += u32::from(is_closed);
    }
    guard.end();
}

impl Drop for MirrorVolume {
    fn drop(&mut self) {
        self.mirror.state.lock().is_closing = true;
        if let Some((sender, thread)) = self.maintenance.take() {
            drop(sender);
            // A panic was reported by its thread.
            let _ = thread.join();
        }
    }
}

impl Volume for MirrorVolume {
    fn info(&self) -> &VolumeInfo {
        &self.info
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn generation(&self) -> Option<Generation> {
        self.generation
    }

    fn name(&self) -> &str {
        &self.mirror.name
    }

    fn reads_into_pool(&self) -> bool {
        self.mirror.members.iter().flatten().any(|member| member.reads_into_pool())
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        match request.check(&self.info) {
            Ok(()) => Step::nested(request, |io, request| Arc::clone(&self.mirror).run(io, request)),
            Err(error) => request.fail(error, pool),
        }
    }
}

/// Interval of the search for idle regions.
const INTERVAL: Duration = Duration::from_secs(5);
/// Smallest region: a sequential write waits for the bitmap once in each.
const MIN_REGION_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod tests;
