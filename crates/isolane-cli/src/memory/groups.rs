//! Limits of the memory of the control groups of this process, of versions 1 and 2.

use std::fs;
use std::path::{Path, PathBuf};

/// What the control groups of a process allow, in bytes; `u64::MAX` without a limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Groups {
    /// The smallest limit.
    pub limit: u64,
    /// The least memory that is left, with the page cache that can be dropped.
    pub left: u64,
}

impl Groups {
    /// No limit.
    pub const UNLIMITED: Groups = Groups { limit: u64::MAX, left: u64::MAX };

    /// Reads the limits of the groups of this process, and of those above them.
    pub fn read() -> Groups {
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let mut all = Groups::UNLIMITED;
        for (directory, files) in directories(&read(Path::new("/proc/self/cgroup"))) {
            let [limit, used, stat] = files.map(|file| read(&directory.join(file)));
            let group = Groups::parse(&limit, &used, &stat);
            all = Groups { limit: all.limit.min(group.limit), left: all.left.min(group.left) };
        }
        all
    }

    /// Parses the texts of the files of a group, which may be missing.
    fn parse(limit: &str, used: &str, stat: &str) -> Groups {
        let Ok(limit) = limit.trim().parse::<u64>() else { return Groups::UNLIMITED };
        let used = used.trim().parse::<u64>().unwrap_or(0);
        // Version 1 has fields of the group alone and, as "total_", with those below. Version 2 has the latter only.
        let is_total = stat.contains("total_");
        let names = if is_total { TOTAL_FILES } else { FILES };
        let cached = stat.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            names.contains(&name).then(|| bytes.trim().parse::<u64>().ok()).flatten()
        });
        let cached = cached.fold(0, u64::saturating_add);
        Groups { limit, left: limit.saturating_sub(used.saturating_sub(cached)) }
    }
}

/// Returns the directories of the groups in `/proc/self/cgroup`, and of those above them, with the names of the files of
/// their limit, use, and statistics.
fn directories(groups: &str) -> Vec<(PathBuf, [&'static str; 3])> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, files) = match controllers {
            "" => (ROOT, VERSION_2),
            _ if controllers.split(',').any(|one| one == "memory") => (ROOT_1, VERSION_1),
            _ => continue,
        };
        // In a container, the directory may be absent; that of the root is its own then.
        let ancestors = Path::new(path.trim_start_matches('/')).ancestors();
        found.extend(ancestors.map(|path| (Path::new(root).join(path), files)));
    }
    found
}

const ROOT: &str = "/sys/fs/cgroup";
const ROOT_1: &str = "/sys/fs/cgroup/memory";
const VERSION_1: [&str; 3] = ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"];
const VERSION_2: [&str; 3] = ["memory.max", "memory.current", "memory.stat"];
/// Fields of the page cache, which is no memory file.
const FILES: [&str; 2] = ["inactive_file", "active_file"];
const TOTAL_FILES: [&str; 2] = ["total_inactive_file", "total_active_file"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_cache_is_left() {
        let stat = "anon 300\nfile 500\nshmem 100\ninactive_file 150\nactive_file 250\n";
        assert_eq!(Groups::parse("1000\n", "800\n", stat), Groups { limit: 1000, left: 600 });
        let stat = "inactive_file 1\nactive_file 2\ntotal_inactive_file 30\ntotal_active_file 20\n";
        assert_eq!(Groups::parse("1000\n", "800\n", stat), Groups { limit: 1000, left: 250 });
        assert_eq!(Groups::parse("1000\n", "1200\n", ""), Groups { limit: 1000, left: 0 });
        assert_eq!(Groups::parse("max\n", "800\n", stat), Groups::UNLIMITED);
        assert_eq!(Groups::parse("", "", ""), Groups::UNLIMITED);
    }

    #[test]
    fn groups_above_count() {
        let found = directories("4:cpu,memory:/a/b\n3:cpuset:/x\n0::/system.slice/isolane.service\nhalf\n");
        let found: Vec<_> =
            found.iter().map(|(path, files)| format!("{} {}", path.display(), files[0])).collect();
        let expected = [
            "/sys/fs/cgroup/memory/a/b memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/a memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/ memory.limit_in_bytes",
            "/sys/fs/cgroup/system.slice/isolane.service memory.max",
            "/sys/fs/cgroup/system.slice memory.max",
            "/sys/fs/cgroup/ memory.max",
        ];
        assert_eq!(found, expected);
    }
}
