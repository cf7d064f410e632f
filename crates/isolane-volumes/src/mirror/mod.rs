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
mod progress;
mod record;
mod requests;
mod start;
mod state;

use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use isolane_volume::spec::{Source, VolumeSpec};
use isolane_volume::tree::MirrorState;
use isolane_volume::{
    Condition, Identity, NestedIo, OpenError, Outcome, Request, Volume, VolumeDescription, VolumeInfo,
};
use uuid::Uuid;

use self::decide::StartOptions;
use self::record::{LABEL_BYTES, Record};
use self::requests::{Mirror, WorkGuard};
use self::start::{Member, start};
use crate::driver::Driver;
use crate::nested_volume::{NestedVolume, Runner};
use crate::parts::Parts;

/// A mirror and its maintenance.
struct Maintained {
    mirror: Arc<Mirror>,
    /// Maintenance ends when its channel is closed.
    maintenance: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

/// Opens a mirror of two members, of which one can be missing.
pub(crate) fn open(parts: Parts, members: Vec<Member>) -> Result<Arc<dyn Volume>, OpenError> {
    let options = start_options(&parts)?;
    let path = parts.option("bitmap").ok_or_else(|| parts.error("no bitmap file", "add bitmap=FILE"))?.into();
    let info = member_info(&parts, &members)?;
    let members = <[Member; 2]>::try_from(members)
        .map_err(|members| parts.error(format!("{} members", members.len()), "name two volumes"))?;
    let open_bitmap = move |bytes| {
        let source = Source::Path { path, size: options.create.then_some(bytes) };
        let remedy = "check its path; for a new mirror, or to copy one member with keep=, add create=yes";
        isolane_volume::open(&VolumeSpec::new(source)).map_err(|error| OpenError {
            name: format!("bitmap file {}", error.name),
            remedy: remedy.to_owned(),
            ..error
        })
    };
    let resources =
        |error: std::io::Error| parts.system_error(&error, "free descriptors, threads, or memory");
    let mut driver = Driver::new().map_err(resources)?;
    let (name, new) = (parts.name.clone(), Record::new(&info, MIN_REGION_BYTES));
    let blocks = new.blocks;
    let started = driver.run(|io| start(io, name, members, new, open_bitmap, options));
    let mirror = started.map_err(|error| OpenError::from_error(&parts.name, error))??;
    let (sender, receiver) = mpsc::channel();
    let maintained = Arc::clone(&mirror);
    let maintain = move || maintain(&maintained, driver, &receiver);
    let thread = thread::Builder::new().name("isolane-mirror".to_owned()).spawn(maintain);
    let maintenance = Some((sender, thread.map_err(resources)?));
    let members = || mirror.members.iter().flatten();
    let deallocate = members().any(|member| member.info().deallocate);
    // The members have the same generation if they are, for example, files on one machine.
    let mut generations = members().map(|member| member.description().generation);
    let first = generations.next().flatten();
    Ok(Arc::new(NestedVolume {
        tree: parts.tree(),
        description: VolumeDescription {
            info: VolumeInfo { blocks, deallocate, zeroes_after_deallocate: true, ..info },
            identity: parts.identity(|| Identity { uuid: mirror.state.lock().record.mirror }),
            generation: first.filter(|_| generations.all(|other| other == first)),
            name: parts.name,
        },
        members: members().cloned().collect(),
        runner: Arc::new(Maintained { mirror, maintenance }),
    }))
}

/// Returns the features that the members have, and the size of one.
fn member_info(parts: &Parts, members: &[Member]) -> Result<VolumeInfo, OpenError> {
    if members.iter().all(Result::is_err) {
        let errors = || members.iter().flat_map(|member| member.as_ref().err());
        let reason = errors().map(OpenError::to_string).collect::<Vec<_>>().join("; ");
        let number = errors().find_map(|error| error.raw_os_error);
        return Err(parts.error(reason, "repair one of them").with_os_error(number));
    }
    let info = parts.common_info(members.iter().flatten())?;
    if info.read_only {
        return Err(parts.error("a member is read-only", "omit ro; read-only:(mirror:…) rejects writes"));
    }
    if info.bytes() <= LABEL_BYTES {
        return Err(parts.error("the members are too small", "use members of more than 64 KiB"));
    }
    Ok(info)
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
    let member_timeout = parts.option("member-timeout").map(|text| parts.duration(text)).transpose()?;
    let member_timeout = Some(member_timeout.unwrap_or(MEMBER_TIMEOUT)).filter(|timeout| !timeout.is_zero());
    Ok(StartOptions { create: is_yes("create")?, degraded: is_yes("degraded")?, keep, member_timeout })
}

/// Maintains the mirror. Once it is closed, the second of two searches finds all regions idle.
fn maintain(mirror: &Arc<Mirror>, mut driver: Driver, closed: &mpsc::Receiver<()>) {
    // After a panic, no region would be copied or cleared again.
    let guard = WorkGuard(mirror, "maintenance");
    let mut runs_after_close = 0;
    while runs_after_close < 3 {
        if let Err(error) = driver.run(|io| Arc::clone(mirror).maintain(io)).flatten() {
            log::error!("{}: maintenance: {error}", mirror.name);
        }
        let is_closed = closed.recv_timeout(INTERVAL) == Err(mpsc::RecvTimeoutError::Disconnected);
        runs_after_close += u32::from(is_closed);
    }
    guard.end();
}

impl Runner for Maintained {
    fn run(self: Arc<Self>, io: NestedIo, request: Request) -> impl Future<Output = Outcome> + Send {
        // A request does not keep the maintenance, whose end no core may wait for.
        Arc::clone(&self.mirror).run(io, request)
    }

    fn conditions(&self) -> Vec<Condition> {
        let state = self.mirror.state.lock();
        let text = state.progress.describe(state.record.states, state.error.is_some());
        let own = Condition { name: self.mirror.name.clone(), text, is_failure: false };
        [own].into_iter().chain(self.mirror.bitmap.conditions()).collect()
    }

    fn mirror_state(&self) -> Option<MirrorState> {
        let state = self.mirror.state.lock();
        Some(state.progress.state(state.record.states, state.error.is_some()))
    }

    fn avoid_member(&self, position: usize, is_avoided: bool) -> bool {
        // Without one member, the positions are not those of the specification, and reads have no choice.
        let is_complete = position < 2 && self.mirror.members.iter().all(Option::is_some);
        if is_complete {
            self.mirror.state.lock().avoid(position, is_avoided);
        }
        is_complete
    }
}

impl Drop for Maintained {
    fn drop(&mut self) {
        self.mirror.state.lock().is_closing = true;
        let Some((sender, thread)) = self.maintenance.take() else { return };
        drop(sender);
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        while !thread.is_finished() && Instant::now() < deadline {
            thread::sleep(CLOSE_INTERVAL);
        }
        if !thread.is_finished() {
            let name = &self.mirror.name;
            log::warn!("{name}: a member does not answer; the next start copies the last writes again");
        }
    }
}

/// Default time for a member to answer before the mirror continues without it.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the maintenance to end; without it, the next start copies idle regions.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which the close checks for the end of the maintenance.
const CLOSE_INTERVAL: Duration = Duration::from_millis(5);
/// Interval of the search for idle regions.
const INTERVAL: Duration = Duration::from_secs(5);
/// Smallest region: a sequential write waits for the bitmap once in each.
const MIN_REGION_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod silent_tests;
#[cfg(test)]
mod tests;
