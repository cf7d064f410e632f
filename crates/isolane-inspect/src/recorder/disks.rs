//! I/O of the disks beneath volumes, and the processes that use them in seconds with I/O of others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use isolane_observe::snapshot::{Device, Disk, DiskUser, Numbers, Snapshot};

use super::throttle::{Missing, PROCESSES_SHARE, Throttle};
use crate::system::{DiskStats, Root, decode_process_io};

const MAX_PROCESS_IO_BYTES: usize = 4096;
/// Longest time between two readings whose difference is reported.
const MAX_AGE: Duration = Duration::from_secs(10);
const MAX_USERS: usize = 16;

/// Work of disks and processes, as last read.
#[derive(Debug)]
pub struct Disks {
    disks: BTreeMap<String, DiskStats>,
    /// Operations and bytes of this program on each disk since then. A reading may cover several steps.
    own: BTreeMap<String, (u64, u64)>,
    processes: BTreeMap<u32, (u64, u64)>,
    read_at: Option<Instant>,
    disks_throttle: Throttle,
    users_throttle: Throttle,
}

impl Default for Disks {
    fn default() -> Disks {
        Disks {
            disks: BTreeMap::new(),
            own: BTreeMap::new(),
            processes: BTreeMap::new(),
            read_at: None,
            disks_throttle: Throttle::default(),
            users_throttle: Throttle::with_share(PROCESSES_SHARE),
        }
    }
}

impl Disks {
    /// Returns the work of the disks since the last reading, and their users.
    pub fn read(
        &mut self,
        root: &Root,
        snapshot: &Snapshot,
        step: &Numbers,
        missing: &mut Missing,
    ) -> (Vec<Disk>, Vec<DiskUser>) {
        if snapshot.devices.is_empty() {
            return Default::default();
        }
        for (name, work) in own_work(snapshot, step) {
            add(self.own.entry(name.to_owned()).or_default(), work);
        }
        let Some(read) = self.disks_throttle.run(|| DiskStats::read(root)) else { return Default::default() };
        let Some(read) = missing.check("I/O of disks", read) else { return Default::default() };
        let is_ours = |disk: &DiskStats| snapshot.devices.iter().any(|device| device.name == disk.name);
        let now: BTreeMap<String, DiskStats> =
            read.into_iter().filter(is_ours).map(|disk| (disk.name.clone(), disk)).collect();
        let own = std::mem::take(&mut self.own);
        let mut disks = Vec::new();
        for (name, disk) in &now {
            let Some(before) = self.disks.get(name) else { continue };
            let (own, own_bytes) = own.get(name).copied().unwrap_or_default();
            disks.extend(difference(disk, before, own, own_bytes));
        }
        self.disks = now;
        let has_others = disks.iter().any(|disk| disk.reads.saturating_add(disk.writes) > disk.own);
        let users = if has_others { self.users(root, missing) } else { Vec::new() };
        (disks, users)
    }

    fn users(&mut self, root: &Root, missing: &mut Missing) -> Vec<DiskUser> {
        let Some(read) = self.users_throttle.run(|| processes(root, missing)) else { return Vec::new() };
        let is_recent = self.read_at.replace(Instant::now()).is_some_and(|at| at.elapsed() < MAX_AGE);
        let before = std::mem::replace(&mut self.processes, read);
        if !is_recent {
            return Vec::new();
        }
        let own = std::process::id();
        let users = self.processes.iter().filter(|(pid, _)| **pid != own).map(|(pid, (reads, writes))| {
            let (read_before, written_before) = before.get(pid).copied().unwrap_or_default();
            DiskUser {
                pid: *pid,
                name: String::new(),
                read_bytes: reads.saturating_sub(read_before),
                written_bytes: writes.saturating_sub(written_before),
            }
        });
        let mut users: Vec<_> = users.filter(|user| user.read_bytes > 0 || user.written_bytes > 0).collect();
        users.sort_by_key(|user| std::cmp::Reverse(user.read_bytes.saturating_add(user.written_bytes)));
        users.truncate(MAX_USERS);
        for user in &mut users {
            user.name = root.word(&format!("/proc/{}/comm", user.pid)).unwrap_or_default();
        }
        users
    }
}

/// Returns the bytes that each process has read and written. Processes of other users need root.
fn processes(root: &Root, missing: &mut Missing) -> BTreeMap<u32, (u64, u64)> {
    let list = missing.check("other users of disks", root.list("/proc")).unwrap_or_default();
    let mut found = BTreeMap::new();
    let mut is_denied = false;
    for pid in list.iter().filter_map(|name| name.parse::<u32>().ok()) {
        match root.parse(&format!("/proc/{pid}/io"), MAX_PROCESS_IO_BYTES, decode_process_io) {
            Ok(io) => drop(found.insert(pid, (io.read_bytes, io.write_bytes))),
            Err(error) => is_denied |= error.reason == crate::system::Reason::NotPermitted,
        }
    }
    if is_denied {
        missing.add("disk I/O of processes of other users", &"root");
    }
    found
}

/// Returns the operations and bytes of this program on each disk, as far as the volumes tell.
fn own_work<'a>(snapshot: &'a Snapshot, step: &Numbers) -> BTreeMap<&'a str, (u64, u64)> {
    let mut work: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for volume in &snapshot.volumes {
        let Some(disk) = &volume.device else { continue };
        let series = step.series.iter().filter(|series| series.volume == volume.id);
        let sum = series.fold((0, 0), |(operations, bytes), series| {
            (series.total.count().saturating_add(operations), series.bytes.saturating_add(bytes))
        });
        for name in stack(&snapshot.devices, disk) {
            add(work.entry(name).or_default(), sum);
        }
    }
    work
}

fn add((operations, bytes): &mut (u64, u64), more: (u64, u64)) {
    *operations = operations.saturating_add(more.0);
    *bytes = bytes.saturating_add(more.1);
}

/// Returns a disk and the single disks beneath it. The work of several disks beneath one is not known.
fn stack<'a>(devices: &'a [Device], disk: &str) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    let mut next = devices.iter().find(|device| device.name == disk);
    while let Some(device) = next.filter(|device| !found.contains(&&*device.name)) {
        found.push(&device.name);
        next = match &*device.beneath {
            [beneath] => devices.iter().find(|device| device.name == *beneath),
            _ => None,
        };
    }
    found
}

fn difference(now: &DiskStats, before: &DiskStats, own: u64, own_bytes: u64) -> Option<Disk> {
    let disk = Disk {
        name: now.name.clone(),
        reads: now.reads.saturating_sub(before.reads),
        writes: now.writes.saturating_sub(before.writes),
        read_bytes: now.read_bytes.saturating_sub(before.read_bytes),
        written_bytes: now.written_bytes.saturating_sub(before.written_bytes),
        time_ms: now.read_ms.saturating_sub(before.read_ms) + now.write_ms.saturating_sub(before.write_ms),
        own,
        own_bytes,
    };
    Some(disk).filter(|disk| disk.reads > 0 || disk.writes > 0)
}

#[cfg(test)]
mod tests {
    use isolane_observe::snapshot::Volume;

    use super::super::tests::series;
    use super::*;
    use crate::testing::Tree;

    fn device(name: &str, beneath: &[&str]) -> Device {
        let beneath = beneath.iter().map(|name| (*name).to_owned()).collect();
        Device { name: name.to_owned(), beneath, ..Device::default() }
    }

    fn snapshot() -> Snapshot {
        let volume = Volume { id: 4, device: Some("dm-0".into()), ..Volume::default() };
        let devices = vec![device("dm-0", &["sda"]), device("sda", &[])];
        Snapshot { volumes: vec![volume], devices, ..Snapshot::default() }
    }

    fn write(tree: &Tree, sda_reads: u64, dd_bytes: u64) {
        let line = format!(
            "8 0 sda {sda_reads} 0 {} 5 0 0 0 0 0 5\n9 0 sdb {sda_reads} 0 0 0 0 0 0 0 0 0\n",
            sda_reads * 8
        );
        tree.write_bytes("/proc/diskstats", line.as_bytes());
        let io = format!("read_bytes: {dd_bytes}\nwrite_bytes: 0\n");
        tree.write_bytes("/proc/77/io", io.as_bytes());
        tree.write_bytes("/proc/77/comm", b"dd\n");
    }

    #[test]
    fn lists_users_only_with_work_of_others() {
        let tree = Tree::new(&[]);
        let (root, mut disks) = (tree.root(), Disks::default());
        let step = Numbers { series: vec![series(4, 10)], ..Numbers::default() };
        let mut read = |reads, bytes| {
            write(&tree, reads, bytes);
            disks.disks_throttle = Throttle::default();
            disks.users_throttle = Throttle::default();
            disks.read(&root, &snapshot(), &step, &mut Missing::default())
        };
        assert_eq!(read(100, 0).0, [], "nothing to compare with");
        let (found, users) = read(110, 0);
        assert_eq!((found[0].reads, found[0].own, found[0].read_bytes, found.len()), (10, 10, 40960, 1));
        assert!(users.is_empty());
        assert!(read(150, 0).1.is_empty(), "nothing to compare with");
        let (found, users) = read(200, 4096);
        assert_eq!((found[0].reads, found[0].own), (50, 10));
        assert_eq!((&*users[0].name, users[0].pid, users[0].read_bytes), ("dd", 77, 4096));
    }

    #[test]
    fn counts_own_work_of_skipped_readings() {
        let tree = Tree::new(&[]);
        let (root, mut disks) = (tree.root(), Disks::default());
        let step = Numbers { series: vec![series(4, 10)], ..Numbers::default() };
        let mut read = |reads, throttle| {
            write(&tree, reads, 0);
            disks.disks_throttle = throttle;
            disks.read(&root, &snapshot(), &step, &mut Missing::default()).0
        };
        let skipping = || {
            let mut throttle = Throttle::default();
            throttle.run(|| std::thread::sleep(Duration::from_millis(50)));
            throttle
        };
        read(100, Throttle::default());
        assert_eq!((read(110, skipping()), read(120, skipping())), (vec![], vec![]));
        let found = read(130, Throttle::default());
        assert_eq!((found[0].reads, found[0].own, found[0].own_bytes), (30, 30, 122_880));
    }

    #[test]
    fn reads_nothing_without_disks() {
        let tree = Tree::new(&[]);
        let mut missing = Missing::default();
        let found =
            Disks::default().read(&tree.root(), &Snapshot::default(), &Numbers::default(), &mut missing);
        assert_eq!(found, Default::default());
    }

    #[test]
    fn disks_beneath_each_other_end() {
        let devices = [device("a", &["b"]), device("b", &["a"])];
        assert_eq!(stack(&devices, "a"), ["a", "b"]);
        assert_eq!(stack(&devices, "x"), [""; 0]);
    }
}
