//! Control groups, version 1 and 2, and pressure (PSI).

use super::decode::decode_number;
use super::fields::Fields;
use super::read_error::{Malformed, ReadError, Reason};
use super::root::{Root, SMALL};

/// Limit in bytes of `/proc/PID/mountinfo`.
const MAX_MOUNTS_BYTES: usize = 4 << 20;

/// Directory of the control group of a process, for one controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    /// Path below the root.
    pub path: String,
    /// Where the hierarchy is mounted. Limits of all directories between it and `path` apply.
    pub mount: String,
    /// Version of control groups, 1 or 2.
    pub version: u8,
}

impl Cgroup {
    /// Finds the control group of a process (`self`, or an ID) for a controller such as `cpu`.
    ///
    /// # Errors
    /// A file cannot be read, or the hierarchy is not mounted.
    pub fn find(root: &Root, process: &str, controller: &str) -> Result<Cgroup, ReadError> {
        let mounts = format!("/proc/{process}/mountinfo");
        let mounts = root.parse(&mounts, MAX_MOUNTS_BYTES, decode_cgroup_mounts)?;
        let file = format!("/proc/{process}/cgroup");
        let groups = root.parse(&file, SMALL, decode_cgroup_membership)?;
        let has_controller = |names: &[String]| names.iter().any(|name| name == controller);
        let group = groups.iter().find(|group| has_controller(&group.controllers));
        let version = if group.is_some() { 1 } else { 2 };
        let group = group.or(groups.iter().find(|group| group.controllers.is_empty()));
        let mount = mounts.iter().find(|mount| match version {
            1 => mount.version == 1 && has_controller(&mount.controllers),
            _ => mount.version == 2,
        });
        let missing = || ReadError { path: file, reason: Reason::Missing };
        let (group, mount) = group.zip(mount).ok_or_else(missing)?;
        // A namespace mounts a part of the hierarchy.
        let below = group.path.strip_prefix(mount.root.trim_end_matches('/')).unwrap_or(&group.path);
        let path = format!("{}{}", mount.path, below.trim_end_matches('/'));
        Ok(Cgroup { path, mount: mount.path.clone(), version })
    }

    /// Returns the directory and all above it, up to the mount.
    pub fn levels(&self) -> Vec<&str> {
        let mut levels = vec![&*self.path];
        let mut path = &*self.path;
        while path != self.mount
            && let Some((parent, _)) = path.rsplit_once('/')
            && parent.starts_with(&*self.mount)
        {
            levels.push(parent);
            path = parent;
        }
        levels
    }
}

/// A line of `/proc/PID/cgroup`.
#[derive(Debug, PartialEq, Eq)]
pub struct Membership {
    /// Controllers of version 1, none for version 2.
    pub controllers: Vec<String>,
    /// Path in the hierarchy.
    pub path: String,
}

/// Decodes `/proc/PID/cgroup`.
///
/// # Errors
/// A line has no three fields.
pub fn decode_cgroup_membership(text: &str) -> Result<Vec<Membership>, Malformed> {
    let line = |(index, line): (usize, &str)| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) =
            fields.next().zip(fields.next()).ok_or(Malformed::at(index, "ID:CONTROLLERS:PATH"))?;
        Ok(Membership { controllers: names(controllers), path: path.to_owned() })
    };
    text.lines().enumerate().map(line).collect()
}

/// A mounted hierarchy of control groups.
#[derive(Debug, PartialEq, Eq)]
pub struct CgroupMount {
    /// The mounted part of the hierarchy.
    pub root: String,
    /// Where it is mounted.
    pub path: String,
    /// Version, 1 or 2.
    pub version: u8,
    /// Controllers of version 1.
    pub controllers: Vec<String>,
}

/// Decodes the hierarchies of control groups in `/proc/PID/mountinfo`.
///
/// # Errors
/// A line lacks a field.
pub fn decode_cgroup_mounts(text: &str) -> Result<Vec<CgroupMount>, Malformed> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (place, system) = line.split_once(" - ").ok_or(Malformed::at(index, "a file system"))?;
        let (mut place, mut system) = (Fields::new(index, place), Fields::new(index, system));
        let version = match system.word("a file system")? {
            "cgroup" => 1,
            "cgroup2" => 2,
            _ => continue,
        };
        place.skip(3, "a mount")?;
        let (root, path) = (unescape(place.word("a mount")?), unescape(place.word("a mount")?));
        let _source = system.word("a source")?;
        let controllers = names(system.word("options")?);
        found.push(CgroupMount { root, path, version, controllers });
    }
    Ok(found)
}

fn names(text: &str) -> Vec<String> {
    text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Replaces the escapes of the kernel for space, tab, newline, and backslash.
fn unescape(path: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(path.to_owned(), |path, (escape, letter)| path.replace(escape, letter))
}

/// Returns a counter of a file with lines of a name and a number: `cpu.stat`, `memory.events`.
///
/// # Errors
/// The name is missing or its number malformed.
pub fn decode_counter(text: &str, name: &str) -> Result<u64, Malformed> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(value).ok_or(Malformed::at(text.lines().count(), "a counter that is missing"))
}

/// Decodes `cpu.max` of version 2. Returns the quota in CPUs, `None` without a quota.
///
/// # Errors
/// The text is not a quota and a period.
pub fn decode_cpu_max(text: &str) -> Result<Option<f64>, Malformed> {
    let malformed = || Malformed::at(0, "a quota and a period");
    let mut fields = Fields::new(0, text);
    let quota = fields.word("a quota and a period")?;
    let period: u64 = fields.number("a quota and a period")?;
    if quota == "max" {
        return Ok(None);
    }
    let quota: u64 = quota.parse().map_err(|_| malformed())?;
    if period == 0 { Err(malformed()) } else { Ok(Some(quota as f64 / period as f64)) }
}

/// Decodes `cpu.cfs_quota_us` of version 1, in microseconds. Returns `None` for -1, no quota.
///
/// # Errors
/// The text is not a number.
pub fn decode_cfs_quota(text: &str) -> Result<Option<u64>, Malformed> {
    if text.trim() == "-1" { Ok(None) } else { decode_number(text).map(Some) }
}

/// Share of time in which tasks waited for a resource: `/proc/pressure`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pressure {
    /// At least one task waited, in percent of the last 10 s.
    pub some_avg10: f64,
    /// At least one task waited, in microseconds since the start of the system.
    pub some_us: u64,
    /// All tasks waited, in percent of the last 10 s. CPUs of old kernels have none.
    pub full_avg10: Option<f64>,
    /// All tasks waited, in microseconds.
    pub full_us: Option<u64>,
}

/// Decodes a file of `/proc/pressure`, or of a control group.
///
/// # Errors
/// A value is missing.
pub fn decode_pressure(text: &str) -> Result<Pressure, Malformed> {
    let line =
        |kind: &str| text.lines().enumerate().find_map(|(at, line)| Some((at, line.strip_prefix(kind)?)));
    let value = |(index, line): (usize, &str), name: &str| {
        let field =
            line.split_ascii_whitespace().find_map(|field| field.strip_prefix(name).map(str::to_owned));
        field.ok_or(Malformed::at(index, "a pressure"))
    };
    let share = |line| {
        let share: f64 = value(line, "avg10=")?.parse().map_err(|_| Malformed::at(line.0, "a share"))?;
        if (0.0..=100.0).contains(&share) { Ok(share) } else { Err(Malformed::at(line.0, "a share")) }
    };
    let time = |line| value(line, "total=")?.parse().map_err(|_| Malformed::at(line.0, "a time"));
    let some = line("some ").ok_or(Malformed::at(0, "some"))?;
    let full = line("full ");
    Ok(Pressure {
        some_avg10: share(some)?,
        some_us: time(some)?,
        full_avg10: full.map(share).transpose()?,
        full_us: full.map(time).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const MOUNTS: &str = "23 1 254:0 / / rw - ext4 /dev/vda rw\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
        41 31 0:38 / /sys/fs/cgroup/uni\\040fied rw shared:1 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn finds_groups_of_both_versions() {
        let tree = Tree::new(&[
            ("/proc/self/mountinfo", MOUNTS),
            ("/proc/self/cgroup", "3:cpu,cpuacct:/a/b\n0::/c:d\n"),
            ("/proc/7/mountinfo", "41 31 0:38 /pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("/proc/7/cgroup", "0::/pod/x\n"),
        ]);
        let root = tree.root();
        let group = Cgroup::find(&root, "self", "cpu").unwrap();
        assert_eq!((&*group.path, group.version), ("/sys/fs/cgroup/cpu/a/b", 1));
        assert_eq!(group.levels(), ["/sys/fs/cgroup/cpu/a/b", "/sys/fs/cgroup/cpu/a", "/sys/fs/cgroup/cpu"]);
        let group = Cgroup::find(&root, "self", "memory").unwrap();
        assert_eq!((&*group.path, group.version), ("/sys/fs/cgroup/uni fied/c:d", 2));
        assert_eq!(Cgroup::find(&root, "7", "cpu").unwrap().path, "/sys/fs/cgroup/x");
        assert!(Cgroup::find(&root, "8", "cpu").is_err());
    }

    #[test]
    fn rejects_malformed_groups() {
        assert!(decode_cgroup_mounts("1 2 0:1 /\n").is_err());
        assert!(decode_cgroup_mounts("1 2 - cgroup2 cgroup2 rw\n").is_err());
        assert!(decode_cgroup_membership("0:/\n").is_err());
        assert!(decode_cgroup_membership("").unwrap().is_empty());
    }

    #[test]
    fn finds_counters() {
        assert_eq!(decode_counter("nr_throttled 7\nnr_throttled_x 8\n", "nr_throttled"), Ok(7));
        for text in ["", "nr_throttled\n", "nr_throttled x\n", "nr_throttledx 1\n"] {
            assert!(decode_counter(text, "nr_throttled").is_err(), "{text}");
        }
    }

    #[test]
    fn decodes_quotas_of_both_versions() {
        assert_eq!(decode_cpu_max("150000 100000\n"), Ok(Some(1.5)));
        assert_eq!(decode_cpu_max("max 100000\n"), Ok(None));
        for text in ["", "max", "1", "1 0", "x 1", "1 x"] {
            assert!(decode_cpu_max(text).is_err(), "{text}");
        }
        assert_eq!((decode_cfs_quota("-1\n"), decode_cfs_quota("500\n")), (Ok(None), Ok(Some(500))));
        assert!(decode_cfs_quota("-2").is_err());
    }

    #[test]
    fn decodes_pressure_of_resources() {
        let text =
            "some avg10=91.09 avg60=87.18 avg300=76.00 total=7645\nfull avg10=0.50 avg60=0.00 total=2\n";
        let pressure = decode_pressure(text).unwrap();
        assert_eq!((pressure.some_avg10, pressure.full_avg10, pressure.some_us), (91.09, Some(0.5), 7645));
        assert_eq!(decode_pressure(text.lines().next().unwrap()).unwrap().full_avg10, None);
        for text in
            ["", "full avg10=1 total=1", "some avg10=x total=1", "some avg10=NaN total=1", "some avg10=1"]
        {
            assert!(decode_pressure(text).is_err(), "{text}");
        }
    }
}
