//! Pinning of threads, and processor time of threads and processes.

use std::time::Duration;
use std::{fs, io};

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Pins the calling thread, and the threads that it starts, to a core; to core 0 if the machine lacks that core.
pub fn pin(core: usize) -> io::Result<()> {
    Ok(pin_to(core).or_else(|_| pin_to(0))?)
}

fn pin_to(core: usize) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set)
}

/// Returns the processor time of the calling thread.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the processor time of all running threads of a process.
pub fn process_time(process: u32) -> io::Result<Duration> {
    let mut total = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        let ns = text.split_whitespace().next().and_then(|number| number.parse().ok());
        total += Duration::from_nanos(ns.ok_or(io::ErrorKind::InvalidData)?);
    }
    Ok(total)
}

/// Returns the processor time of a process and its running children.
pub fn family_time(process: u32) -> io::Result<Duration> {
    children(process)?.into_iter().chain([process]).map(process_time).sum()
}

fn children(process: u32) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread that has ended has no children: its process got them.
        let Ok(text) = fs::read_to_string(thread?.path().join("children")) else { continue };
        found.extend(text.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use rustix::thread::sched_getaffinity;

    use super::*;

    #[test]
    fn pins_threads_again() {
        for core in [0, 1, 0] {
            if pin_to(core).is_ok() {
                pin(core).unwrap();
                assert!(sched_getaffinity(None).unwrap().is_set(core));
            }
        }
    }

    #[test]
    fn counts_time_of_threads_and_processes() {
        let start = thread_time();
        while thread_time() - start < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        // Threads of other tests start and end.
        assert!(process_time(std::process::id()).unwrap() > Duration::ZERO);
        assert!(process_time(u32::MAX).is_err());
    }

    #[test]
    fn finds_children() {
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let found = children(std::process::id()).unwrap().contains(&sleeper.id());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(found);
    }
}
