//! Time of each CPU: `/proc/stat`.

use super::fields::Fields;
use super::read_error::{Malformed, ReadError};
use super::root::Root;

/// Limit in bytes: with 512 CPUs and 4,096 interrupts, the file has less than 200 KiB.
const MAX_BYTES: usize = 4 << 20;

/// Time of a CPU since the start of the system, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Number of the CPU.
    pub cpu: u32,
    /// Time in programs, with low priority also.
    pub user: u64,
    /// Time in the kernel.
    pub system: u64,
    /// Time without work, while waiting for disks also.
    pub idle: u64,
    /// Time in interrupt handlers.
    pub irq: u64,
    /// Time in deferred interrupt work.
    pub softirq: u64,
    /// Time in which the hypervisor ran another guest.
    pub steal: u64,
}

impl CpuTimes {
    /// Reads the times of all online CPUs.
    ///
    /// # Errors
    /// The file and the reason.
    pub fn read(root: &Root) -> Result<Vec<CpuTimes>, ReadError> {
        root.parse("/proc/stat", MAX_BYTES, decode_cpu_times)
    }

    /// Returns the sum of all times.
    pub fn total(&self) -> u64 {
        let parts = [self.user, self.system, self.idle, self.irq, self.softirq, self.steal];
        parts.iter().fold(0, |sum, part| sum.saturating_add(*part))
    }

    /// Returns the times since an earlier reading. A counter that decreased counts as 0.
    pub fn since(&self, earlier: &CpuTimes) -> CpuTimes {
        CpuTimes {
            cpu: self.cpu,
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            idle: self.idle.saturating_sub(earlier.idle),
            irq: self.irq.saturating_sub(earlier.irq),
            softirq: self.softirq.saturating_sub(earlier.softirq),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }
}

/// Decodes `/proc/stat`.
///
/// # Errors
/// A line of a CPU lacks a time, or there is no CPU.
pub fn decode_cpu_times(text: &str) -> Result<Vec<CpuTimes>, Malformed> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(cpu) = line.strip_prefix("cpu").filter(|rest| !rest.starts_with(' ')) else { continue };
        let mut fields = Fields::new(index, cpu);
        let cpu = fields.number("the number of a CPU")?;
        let mut time = || fields.number::<u64>("a time");
        let (user, nice, system, idle, iowait) = (time()?, time()?, time()?, time()?, time()?);
        let (irq, softirq, steal) = (time()?, time()?, time()?);
        let (user, idle) = (user.saturating_add(nice), idle.saturating_add(iowait));
        found.push(CpuTimes { cpu, user, system, idle, irq, softirq, steal });
    }
    if found.is_empty() { Err(Malformed::at(0, "a CPU")) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_times_of_cpus() {
        let text = "cpu  1 2 3 4 5 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu12 0 0 0 0 0 0 0 1\nintr 5 1\n";
        let times = decode_cpu_times(text).unwrap();
        assert_eq!(times[0], CpuTimes { cpu: 0, user: 3, system: 3, idle: 9, irq: 6, softirq: 7, steal: 8 });
        assert_eq!((times[1].cpu, times[1].total(), times.len()), (12, 1, 2));
        assert_eq!(times[1].since(&times[0]).total(), 0);
    }

    #[test]
    fn rejects_malformed_times() {
        for text in
            ["", "cpu  1 2 3\n", "cpu0 1 2 3 4 5 6 7\n", "cpu0 1 2 3 4 5 6 7 x\n", "cpux 1 2 3 4 5 6 7 8\n"]
        {
            assert!(decode_cpu_times(text).is_err(), "{text}");
        }
    }
}
