//! Placement of side threads.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Moves the calling thread to the CPUs that no reactor uses, if there are any.
pub fn avoid(cpus: &[u32]) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut others = allowed;
    cpus.iter().filter(|cpu| (**cpu as usize) < CpuSet::MAX_CPU).for_each(|cpu| others.unset(*cpu as usize));
    if others.count() > 0 && others.count() < allowed.count() {
        // Without it, the thread runs wherever the kernel chooses.
        let _ = sched_setaffinity(None, &others);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_a_cpu_if_all_are_used() {
        let run = || {
            let before = sched_getaffinity(None).unwrap();
            let cpus: Vec<u32> = (0..CpuSet::MAX_CPU as u32 + 8).collect();
            let first = cpus.iter().find(|cpu| before.is_set(**cpu as usize)).unwrap();
            avoid(&cpus);
            assert_eq!(sched_getaffinity(None).unwrap(), before);
            avoid(&[*first]);
            let after = sched_getaffinity(None).unwrap();
            assert_eq!(after.is_set(*first as usize), before.count() == 1);
        };
        std::thread::spawn(run).join().unwrap();
    }
}
