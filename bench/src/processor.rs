//! Processor time: of the calling thread, and of processes, as the kernel counts it.

use std::fs;
use std::io;
use std::thread::sleep;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Waits so long, and says what share of a core a process took meanwhile, in percent.
pub fn percent(process: u32, seconds: f64) -> io::Result<f64> {
    let begun = ticks(process)?;
    sleep(Duration::from_secs_f64(seconds));
    let ticks = ticks(process)? - begun;
    Ok(ticks * 100.0 / (rustix::param::clock_ticks_per_second() as f64 * seconds))
}

/// What the calling thread has taken.
pub fn of_thread() -> Duration {
    let taken = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(taken.tv_sec as u64, taken.tv_nsec as u32)
}

/// What all threads of a process have taken that have not ended.
pub fn of_process(process: u32) -> io::Result<Duration> {
    let mut all = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let path = thread?.path().join("schedstat");
        let text = fs::read_to_string(path)?;
        let taken_ns = text.split_whitespace().next().and_then(|number| number.parse().ok());
        all += Duration::from_nanos(taken_ns.ok_or(io::ErrorKind::InvalidData)?);
    }
    Ok(all)
}

/// The processes that a process has started and that still run.
pub fn children(process: u32) -> io::Result<Vec<u32>> {
    let processes = fs::read_dir("/proc")?.flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    Ok(numbers.filter(|number| parent(*number) == Some(process)).collect())
}

fn parent(process: u32) -> Option<u32> {
    statistics(process).ok()?.get(1)?.parse().ok()
}

/// User and system time of the whole process, of threads that have ended, too.
fn ticks(process: u32) -> io::Result<f64> {
    Ok(statistics(process)?.iter().skip(11).take(2).flat_map(|field| field.parse::<f64>()).sum())
}

/// What the kernel tells of a process, behind its name.
fn statistics(process: u32) -> io::Result<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    Ok(fields.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_not_there_is_an_error_and_one_that_sleeps_takes_little() {
        assert!(percent(u32::MAX, 0.0).is_err());
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let taken = percent(sleeper.id(), 0.2);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(taken.unwrap() < 50.0);
    }

    #[test]
    fn a_thread_that_works_takes_time_and_so_does_its_process() {
        let begun = of_thread();
        while of_thread() - begun < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        // Threads of other tests come and go.
        assert!(of_process(std::process::id()).unwrap() > Duration::ZERO);
        assert!(of_process(u32::MAX).is_err());
    }

    #[test]
    fn a_process_that_was_started_is_found() {
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let found = children(std::process::id()).unwrap().contains(&sleeper.id());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(found);
    }
}
