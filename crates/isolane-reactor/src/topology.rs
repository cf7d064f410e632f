//! Which cores are near to each other, as the kernel tells it under `/sys/devices/system/cpu`.

use std::fs;
use std::path::Path;

/// The neighbours of every core: those that share its execution units, then its last cache, then its package.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    cores: Vec<[Vec<usize>; LEVELS]>,
}

impl Topology {
    /// What this machine is like. What the kernel does not tell is taken for far away.
    pub fn read() -> Topology {
        Topology::read_from(Path::new("/sys/devices/system/cpu"))
    }

    /// The same from a directory of that shape.
    pub fn read_from(root: &Path) -> Topology {
        let list =
            |path: &str| fs::read_to_string(root.join(path)).map_or_else(|_| Vec::new(), |text| parse(&text));
        let last = list("possible").into_iter().max();
        let cores = (0..last.map_or(0, |last| last + 1)).map(|core| {
            let of = |what: &str| list(&format!("cpu{core}/{what}"));
            [of("topology/core_cpus_list"), last_cache(&of), of("topology/package_cpus_list")]
        });
        Topology { cores: cores.collect() }
    }

    /// Groups of neighbours of a core, the nearest first; each holds those before it.
    pub fn neighbours(&self, core: usize) -> impl Iterator<Item = &[usize]> {
        self.cores.get(core).into_iter().flatten().map(Vec::as_slice)
    }

    /// Cores are numbered below this.
    pub fn len(&self) -> usize {
        self.cores.len()
    }

    /// Whether the kernel told nothing.
    pub fn is_empty(&self) -> bool {
        self.cores.is_empty()
    }
}

fn last_cache(of: &impl Fn(&str) -> Vec<usize>) -> Vec<usize> {
    let caches = (0..CACHES_MAX).map(|index| of(&format!("cache/index{index}/shared_cpu_list")));
    caches.filter(|cores| !cores.is_empty()).last().unwrap_or_default()
}

/// `0-3,8,10-11`.
fn parse(text: &str) -> Vec<usize> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?.min(crate::core::CORES_MAX))
    });
    ranges.flatten().collect()
}

const LEVELS: usize = 3;
const CACHES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn lists_of_cores_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse("5\n"), [5]);
        assert_eq!(parse("\n"), [0usize; 0]);
        assert_eq!(parse("many"), [0usize; 0]);
    }

    #[test]
    fn neighbours_come_from_near_to_far() {
        let root = tempfile::tempdir().expect("a directory");
        write(root.path(), "possible", "0-7\n");
        write(root.path(), "cpu5/topology/core_cpus_list", "4-5\n");
        write(root.path(), "cpu5/cache/index0/shared_cpu_list", "5\n");
        write(root.path(), "cpu5/cache/index3/shared_cpu_list", "4-7\n");
        write(root.path(), "cpu5/topology/package_cpus_list", "0-7\n");
        let topology = Topology::read_from(root.path());
        let near: Vec<_> = topology.neighbours(5).collect();
        assert_eq!(near, [&[4, 5][..], &[4, 5, 6, 7], &[0, 1, 2, 3, 4, 5, 6, 7]]);
        assert_eq!(topology.neighbours(2).flatten().count(), 0, "nothing is known about it");
        assert_eq!(topology.neighbours(99).count(), 0);
    }

    #[test]
    fn a_core_of_this_machine_is_its_own_neighbour() {
        let topology = Topology::read();
        let core = crate::core::current();
        let mut groups = topology.neighbours(core).filter(|group| !group.is_empty());
        assert!(groups.all(|group| group.contains(&core)), "{topology:?}");
    }
}
