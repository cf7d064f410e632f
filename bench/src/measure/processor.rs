//! Processor time of a process, as the kernel counts it.

use std::fs;
use std::io;
use std::thread::sleep;
use std::time::Duration;

/// Waits so long, and says what share of a core a process took meanwhile, in percent.
pub fn percent(process: u32, seconds: f64) -> io::Result<f64> {
    let begun = ticks(process)?;
    sleep(Duration::from_secs_f64(seconds));
    let ticks = ticks(process)? - begun;
    Ok(ticks * 100.0 / (rustix::param::clock_ticks_per_second() as f64 * seconds))
}

/// User and system time of the whole process.
fn ticks(process: u32) -> io::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields = stat.rsplit(") ").next().unwrap_or_default().split_whitespace();
    Ok(fields.skip(11).take(2).flat_map(str::parse::<f64>).sum())
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
}
