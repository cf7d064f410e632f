//! Dedicated threads: each drives the lanes of all devices of this process that name its core, without ever sleeping.
//!
//! Invariant: a process has at most one dedicated thread for each core.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, ThreadId};

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::contention;
use super::progress::Progress;

/// A device at its thread. Dropping it waits until the thread no longer drives the device.
pub(super) struct DedicatedDriver {
    progress: Arc<Progress>,
    thread: ThreadId,
    /// Disconnected when the thread has dropped the device.
    ended: Mutex<Receiver<Infallible>>,
}

/// The thread of a core.
struct Thread {
    core: usize,
    /// A child of a fork has no threads of its parent.
    process: u32,
    id: ThreadId,
    devices: Sender<DrivenDevice>,
}

/// A device, as its thread sees it.
struct DrivenDevice {
    progress: Arc<Progress>,
    _ended: Sender<Infallible>,
}

static THREADS: Mutex<Vec<Thread>> = Mutex::new(Vec::new());

impl DedicatedDriver {
    /// Makes the thread of `core` drive a device; starts it if it does not exist.
    ///
    /// # Errors
    /// If this process may not use the core, or the system refuses a thread.
    pub(super) fn start(progress: &Arc<Progress>, core: usize) -> io::Result<DedicatedDriver> {
        let progress = Arc::clone(progress);
        let (sender, ended) = channel();
        let ended = Mutex::new(ended);
        let driven = DrivenDevice { progress: Arc::clone(&progress), _ended: sender };
        let mut threads = THREADS.lock();
        let process = std::process::id();
        threads.retain(|thread| thread.process == process);
        if let Some(found) = threads.iter().find(|thread| thread.core == core) {
            // It receives until it is not in the list.
            let _ = found.devices.send(driven);
            return Ok(DedicatedDriver { progress, thread: found.id, ended });
        }
        let (devices, new) = channel();
        let id = spawn(core, driven, new)?;
        threads.push(Thread { core, process, id, devices });
        Ok(DedicatedDriver { progress, thread: id, ended })
    }
}

impl Drop for DedicatedDriver {
    fn drop(&mut self) {
        self.progress.stop();
        if thread::current().id() != self.thread {
            let _ = self.ended.get_mut().recv();
        }
    }
}

/// Starts the thread of a core.
fn spawn(core: usize, first: DrivenDevice, new: Receiver<DrivenDevice>) -> io::Result<ThreadId> {
    let (sender, pinned) = channel();
    let builder = thread::Builder::new().name(format!("isolane-core{core}"));
    let thread = builder.spawn(move || {
        let is_pinned = pin(core);
        let runs = is_pinned.is_ok();
        let _ = sender.send(is_pinned);
        if runs {
            run(vec![first], &new);
        }
    })?;
    match pinned.recv() {
        Ok(Err(error)) => Err(io::Error::new(error.kind(), format!("core {core} cannot be used: {error}"))),
        _ => Ok(thread.thread().id()),
    }
}

/// Pins the calling thread to one core.
fn pin(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Drives devices until none is left.
fn run(mut devices: Vec<DrivenDevice>, new: &Receiver<DrivenDevice>) {
    while !devices.is_empty() || !ends(&mut devices, new) {
        devices.iter().for_each(|driven| driven.progress.turn_dedicated());
        contention::relax(false);
        devices.retain(|driven| !driven.progress.has_stopped());
        devices.extend(new.try_iter());
    }
}

/// Removes the calling thread from the list, unless a device has arrived.
fn ends(devices: &mut Vec<DrivenDevice>, new: &Receiver<DrivenDevice>) -> bool {
    let mut threads = THREADS.lock();
    devices.extend(new.try_iter());
    if devices.is_empty() {
        threads.retain(|thread| thread.id != thread::current().id());
    }
    devices.is_empty()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use isolane_reactor::cpu;

    use super::*;
    use crate::device::{Device, DeviceConfig, ProgressMode};

    fn device(core: usize) -> io::Result<Device> {
        Device::open(DeviceConfig { progress: ProgressMode::Dedicated { core }, ..DeviceConfig::default() })
    }

    /// Number of threads of this process with the name of a core's thread.
    fn threads_of(core: usize) -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name.trim() == format!("isolane-core{core}")).count()
    }

    #[test]
    fn drives_all_devices_on_one_thread() {
        let core = *cpu::allowed().unwrap().last().unwrap();
        for _ in 0..3 {
            let _devices: Vec<Device> = (0..3).map(|_| device(core).unwrap()).collect();
            // The thread of the last round can be ending.
            let deadline = Instant::now() + Duration::from_secs(60);
            while threads_of(core) != 1 {
                assert!(Instant::now() < deadline, "core {core} has {} threads", threads_of(core));
                thread::yield_now();
            }
        }
    }

    #[test]
    fn refuses_core_that_does_not_exist() {
        for core in [cpu::MAX_CORES - 1, cpu::MAX_CORES, usize::MAX] {
            let error = device(core).err().unwrap().to_string();
            assert!(error.contains(&format!("core {core} cannot be used")), "{error}");
        }
    }
}
