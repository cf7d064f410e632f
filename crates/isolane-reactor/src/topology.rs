//! CPU topology from `/sys/devices/system/cpu`.

use std::fs;
use std::path::Path;

/// Neighbors of every core: cores that share its execution units, its last-level cache, and its
/// package.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    cores: Vec<[Vec<usize>; LEVELS]>,
}

impl Topology {
    /// Reads this machine's topology. Missing entries mean no neighbors.
    pub fn read() -> Topology {
        Topology::read_from(Path::new("/sys/devices/system/cpu"))
    }

    /// Reads a topology from a directory of the same layout.
    pub fn read_from(root: &Path) -> Topology {
        let list =
            |path: &str| fs::read_to_string(root.join(path)).map_or_else(|_| Vec::new(), |text| parse(&text));
        let last = list("possible").into_iter().max();
        let cores = (0..last.map_or(0, |last| last + 1)).map(|core| {
            let cores_in = |file: &str| list(&format!("cpu{core}/{file}"));
            [
                cores_in("topology/core_cpus_list"),
                last_cache(&cores_in),
                cores_in("topology/package_cpus_list"),
            ]
        });
        Topology { cores: cores.collect() }
    }

    /// Returns groups of neighbors of a core, nearest first; each includes the previous.
    pub fn neighbors(&self, core: usize) -> impl Iterator<Item = &[usize]> {
        self.cores.get(core).into_iter().flatten().map(Vec::as_slice)
    }

    /// Returns the number of possible cores.
    pub fn len(&self) -> usize {
        self.cores.len()
    }

    /// Whether the kernel provides no topology.
    pub fn is_empty(&self) -> bool {
        self.cores.is_empty()
    }
}

fn last_cache(cores_in: &impl Fn(&str) -> Vec<usize>) -> Vec<usize> {
    let caches = (0..MAX_CACHES).map(|index| cores_in(&format!("cache/index{index}/shared_cpu_list")));
    caches.filter(|cores| !cores.is_empty()).last().unwrap_or_default()
}

/// Parses a list such as `0-3,8,10-11`.
fn parse(text: &str) -> Vec<usize> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?.min(crate::cpu::MAX_CORES))
    });
    ranges.flatten().collect()
}

const LEVELS: usize = 3;
const MAX_CACHES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn parses_kernel_core_lists() {
        assert_eq!(parse("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse("5\n"), [5]);
        assert_eq!(parse("\n"), [0usize; 0]);
        assert_eq!(parse("many"), [0usize; 0]);
    }

    #[test]
    fn neighbors_are_ordered_by_distance() {
        let root = tempfile::tempdir().expect("a directory");
        write(root.path(), "possible", "0-7\n");
        write(root.path(), "cpu5/topology/core_cpus_list", "4-5\n");
        write(root.path(), "cpu5/cache/index0/shared_cpu_list", "5\n");
        write(root.path(), "cpu5/cache/index3/shared_cpu_list", "4-7\n");
        write(root.path(), "cpu5/topology/package_cpus_list", "0-7\n");
        let topology = Topology::read_from(root.path());
        let near: Vec<_> = topology.neighbors(5).collect();
        assert_eq!(near, [&[4, 5][..], &[4, 5, 6, 7], &[0, 1, 2, 3, 4, 5, 6, 7]]);
        assert_eq!(topology.neighbors(2).flatten().count(), 0, "nothing is known about it");
        assert_eq!(topology.neighbors(99).count(), 0);
    }

    #[test]
    fn core_is_its_own_neighbor() {
        let topology = Topology::read();
        let core = crate::cpu::current();
        let mut groups = topology.neighbors(core).filter(|group| !group.is_empty());
        assert!(groups.all(|group| group.contains(&core)), "{topology:?}");
    }
}
