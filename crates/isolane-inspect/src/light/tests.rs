use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use isolane_observe::snapshot::{Device, Snapshot, Volume};
use rustix::fs::{CWD, FileType, Mode};

use super::*;
use crate::testing::Tree;

pub(crate) const NPEM_DRIVE: &str = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0/nvme0n1";
const VMD_DRIVE: &str = "/sys/devices/pci0000:00/0000:00:0e.0/pci10000:00/10000:01:00.0/nvme/nvme1/nvme1n1";
const SES_DRIVE: &str = "/sys/devices/pci0000:00/0000:00:02.0/host6/target6:0:1/6:0:1:0/block/sda";
const PLAIN_DRIVE: &str = "/sys/devices/pci0000:00/0000:00:03.0/ata1/host1/target1:0:0/1:0:0:0/block/sdb";

const DRIVES: [(&str, &str); 4] =
    [(NPEM_DRIVE, "259:0"), (VMD_DRIVE, "259:1"), (SES_DRIVE, "8:0"), (PLAIN_DRIVE, "8:16")];

pub(crate) const NPEM: &str = "/sys/class/leds/0000:00:01.0:enclosure:";
pub(crate) const SES: &str = "/sys/class/enclosure/6:0:20:0/Slot 03";
pub(crate) const VMD: &str = "/sys/bus/pci/slots/7/attention";

/// A drive of each interface, and one without lights.
pub(crate) fn tree() -> Tree {
    let tree = Tree::new(&[
        (&format!("{NPEM}ok/brightness"), "1\n"),
        (&format!("{NPEM}locate/brightness"), "0\n"),
        (&format!("{NPEM}fail/brightness"), "0\n"),
        ("/sys/class/leds/input3::capslock/brightness", "0\n"),
        (&format!("{SES}/locate"), "0\n"),
        // The kernel returns bits of the status.
        (&format!("{SES}/fault"), "4\n"),
        ("/sys/class/enclosure/6:0:20:0/Slot 04/fault", "0\n"),
        ("/sys/class/enclosure/6:0:20:0/components", "2\n"),
        (VMD, "15\n"),
        ("/sys/bus/pci/slots/7/address", "10000:01:00\n"),
        ("/sys/bus/pci/slots/8/attention", "0\n"),
        ("/sys/bus/pci/slots/8/address", "0000:00:03\n"),
        ("/proc/9/comm", "sh\n"),
    ]);
    for directory in ["/sys/class/block", "/sys/dev/block"] {
        fs::create_dir_all(tree.path(directory)).unwrap();
    }
    for (path, number) in DRIVES {
        add_disk(&tree, path, number);
    }
    tree.write_bytes(&format!("{NPEM_DRIVE}/nvme0n1p1/partition"), b"1\n");
    add_disk(&tree, &format!("{NPEM_DRIVE}/nvme0n1p1"), "259:2");
    tree.link(
        &format!("{SES}/device"),
        &format!("../../../../..{}", SES_DRIVE.trim_end_matches("/block/sda")),
    );
    tree
}

pub(crate) fn add_disk(tree: &Tree, path: &str, number: &str) {
    let name = path.rsplit('/').next().unwrap();
    tree.write_bytes(&format!("{path}/dev"), format!("{number}\n").as_bytes());
    tree.link(&format!("/sys/class/block/{name}"), &format!("../../..{path}"));
    tree.link(&format!("/sys/dev/block/{number}"), &format!("../../..{path}"));
}

fn find_for(tree: &Tree, name: &str) -> Result<Slot, LightError> {
    find(&tree.root(), &Drive::of_device(&tree.root(), name)?)
}

/// Adds an executable script. This process never opens it for writing: a child of another test could inherit the
/// descriptor, and the kernel does not start a program that is open for writing.
pub(crate) fn add_ledctl(tree: &Tree, script: &str) {
    tree.write_bytes("/usr/sbin/script", format!("#!/bin/sh\n{script}\n").as_bytes());
    fs::set_permissions(tree.path("/usr/sbin/script"), Permissions::from_mode(0o755)).unwrap();
    let paths = [tree.path("/usr/sbin/script"), tree.path("/usr/sbin/ledctl")];
    assert!(std::process::Command::new("cp").args(paths).status().unwrap().success());
}

/// Replaces a file by one that waits for the other end when it is opened. Returns its path.
pub(crate) fn block_file(tree: &Tree, path: &str) -> std::path::PathBuf {
    let path = tree.path(path);
    fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    path
}

fn writer(tree: &Tree, limit: fn(Interface) -> Duration) -> Writer {
    Writer::with_times(tree.root(), Duration::ZERO, limit).unwrap()
}

/// Switches a light on or off, without a limit that a loaded machine can exceed.
pub(crate) fn set(tree: &Tree, name: &str, light: Light, on: bool) -> Result<(), LightError> {
    writer(tree, |_| Duration::from_secs(600)).set(&find_for(tree, name)?, light, on).wait()
}

fn lit(tree: &Tree, name: &str) -> Option<Vec<Light>> {
    let slot = find_for(tree, name).unwrap();
    writer(tree, |_| Duration::from_secs(600)).read(&slot).wait().unwrap()
}

#[test]
fn finds_slot_by_first_interface() {
    let tree = tree();
    for (name, interface, slot) in [
        ("nvme0n1", Interface::Npem, "0000:00:01.0"),
        ("/dev/nvme0n1p1", Interface::Npem, "0000:00:01.0"),
        ("sda", Interface::Ses, "6:0:20:0/Slot 03"),
        ("nvme1n1", Interface::Vmd, "7"),
    ] {
        let found = find_for(&tree, name).unwrap();
        assert_eq!((found.interface, &*found.name), (interface, slot), "{name}");
    }
    tree.write_bytes("/sys/class/leds/10000:01:00.0:enclosure:locate/brightness", b"0\n");
    assert_eq!(find_for(&tree, "nvme1n1").unwrap().interface, Interface::Npem);
}

#[test]
fn prefers_lights_nearest_to_the_drive() {
    let tree = tree();
    tree.write_bytes("/sys/class/leds/0000:01:00.0:enclosure:locate/brightness", b"0\n");
    assert_eq!(find_for(&tree, "nvme0n1").unwrap().name, "0000:01:00.0");
}

#[test]
fn switches_only_the_requested_light() {
    let tree = tree();
    let word = |path: &str| tree.root().word(path).unwrap();
    let (locate, fail) = (format!("{NPEM}locate/brightness"), format!("{NPEM}fail/brightness"));
    set(&tree, "nvme0n1", Light::Locate, true).unwrap();
    assert_eq!((word(&locate), word(&fail), word(VMD)), ("1".into(), "0".into(), "15".into()));
    assert_eq!(lit(&tree, "nvme0n1"), Some(vec![Light::Locate]));
    set(&tree, "nvme0n1", Light::Locate, false).unwrap();
    set(&tree, "nvme0n1", Light::Fault, true).unwrap();
    assert_eq!((word(&locate), word(&fail)), ("0".into(), "1".into()));
    assert_eq!(lit(&tree, "nvme0n1"), Some(vec![Light::Fault]));
    assert_eq!(word(&format!("{NPEM}ok/brightness")), "1");
}

#[test]
fn switches_lights_of_enclosure_and_vmd() {
    let tree = tree();
    let word = |path: &str| tree.root().word(path).unwrap();
    assert_eq!(lit(&tree, "sda"), Some(vec![Light::Fault]));
    set(&tree, "sda", Light::Fault, false).unwrap();
    set(&tree, "sda", Light::Locate, true).unwrap();
    assert_eq!((word(&format!("{SES}/fault")), word(&format!("{SES}/locate"))), ("0".into(), "1".into()));
    for (light, on, value) in
        [(Light::Fault, true, "13"), (Light::Locate, true, "7"), (Light::Locate, false, "15")]
    {
        set(&tree, "nvme1n1", light, on).unwrap();
        assert_eq!(word(VMD), value);
        assert_eq!(lit(&tree, "nvme1n1"), Some(if on { vec![light] } else { Vec::new() }));
    }
    assert_eq!(word("/sys/bus/pci/slots/8/attention"), "0", "not behind a VMD");
}

#[test]
fn falls_back_to_ledctl() {
    let tree = tree();
    let error = find_for(&tree, "sdb").unwrap_err().to_string();
    assert!(error.starts_with("sdb: ") && error.contains("install the package ledmon"), "{error}");
    let log = tree.path("/log");
    add_ledctl(&tree, &format!("echo \"$@\" >> {}", log.display()));
    assert_eq!(lit(&tree, "sdb"), None);
    for (light, on) in
        [(Light::Locate, true), (Light::Locate, false), (Light::Fault, true), (Light::Fault, false)]
    {
        set(&tree, "sdb", light, on).unwrap();
    }
    let lines =
        ["locate=", "locate_off=", "failure=", "off="].map(|at| format!("--listed-only {at}/dev/sdb\n"));
    assert_eq!(fs::read_to_string(log).unwrap(), lines.concat());
}

#[test]
fn reports_failed_ledctl() {
    let tree = tree();
    add_ledctl(&tree, "echo 'sdb: not supported' >&2; exit 4");
    let error = set(&tree, "sdb", Light::Locate, true).unwrap_err().to_string();
    assert!(error.contains("exit status: 4: sdb: not supported; run as root"), "{error}");
    fs::set_permissions(tree.path("/usr/sbin/ledctl"), Permissions::from_mode(0o644)).unwrap();
    let error = set(&tree, "sdb", Light::Locate, true).unwrap_err().to_string();
    assert!(error.contains("cannot be started"), "{error}");
}

#[test]
fn ends_ledctl_that_hangs() {
    let tree = tree();
    // The child of the script keeps its stderr open.
    add_ledctl(&tree, "sleep 600 & echo $! > \"$(dirname \"$0\")/pid\"; wait");
    let slot = find_for(&tree, "sdb").unwrap();
    let error = writer(&tree, |_| Duration::from_millis(500)).set(&slot, Light::Locate, true).wait();
    let error = error.unwrap_err();
    assert!(error.to_string().contains("ended after 500ms without a result"), "{error}");
    let pid = fs::read_to_string(tree.path("/usr/sbin/pid")).unwrap_or_default();
    if let Some(pid) = pid.trim().parse().ok().and_then(rustix::process::Pid::from_raw) {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}

#[test]
fn reports_slot_that_hangs() {
    let tree = tree();
    let path = block_file(&tree, &format!("{NPEM}locate/brightness"));
    let slot = find_for(&tree, "nvme0n1").unwrap();
    let pending = writer(&tree, |_| Duration::from_millis(100)).set(&slot, Light::Locate, true);
    let error = pending.wait().unwrap_err().to_string();
    assert!(error.starts_with("NPEM slot 0000:00:01.0: no response within 100ms; "), "{error}");
    assert_eq!(fs::read_to_string(path).unwrap(), "1", "the thread ends");
}

#[test]
fn reports_slot_that_vanishes_or_fails() {
    let tree = tree();
    let slot = find_for(&tree, "nvme0n1").unwrap();
    let write = || writer(&tree, |_| Duration::from_secs(600)).set(&slot, Light::Locate, true).wait();
    let path = tree.path(&format!("{NPEM}locate/brightness"));
    fs::remove_file(&path).unwrap();
    let error = write().unwrap_err().to_string();
    assert!(
        error.ends_with("brightness: does not exist; the slot has vanished: run `isolane light list`"),
        "{error}"
    );
    fs::create_dir(&path).unwrap();
    let error = write().unwrap_err().to_string();
    assert!(error.contains("directory") && error.contains("dmesg"), "{error}");
    assert!(writer(&tree, |_| Duration::from_secs(600)).read(&slot).wait().is_err());
    fs::remove_file(tree.path(&format!("{SES}/locate"))).unwrap();
    let error = set(&tree, "sda", Light::Locate, true).unwrap_err().to_string();
    assert!(error.contains("6:0:20:0/Slot 03: no locate light"), "{error}");
}

#[test]
fn rejects_devices_that_are_no_drive() {
    let tree = tree();
    add_disk(&tree, "/sys/devices/virtual/block/loop0", "7:0");
    add_disk(&tree, "/sys/devices/virtual/block/md0", "9:0");
    fs::create_dir_all(tree.path("/sys/devices/virtual/block/md0/slaves")).unwrap();
    for path in [NPEM_DRIVE, SES_DRIVE] {
        let name = path.rsplit('/').next().unwrap();
        let link = format!("/sys/devices/virtual/block/md0/slaves/{name}");
        tree.link(&link, &format!("../../../../../..{path}"));
    }
    let error = |name: &str| Drive::of_device(&tree.root(), name).unwrap_err().to_string();
    assert!(error("sdz").starts_with("sdz: no such block device"));
    assert!(error("../dev").starts_with("../dev: no such block device"));
    assert!(error("loop0").contains("not on a drive of this machine"));
    let several = error("md0");
    assert!(
        several.contains("uses 2 drives") && several.contains("nvme0n1") && several.contains("sda"),
        "{several}"
    );
}

#[test]
fn finds_drive_with_several_controllers() {
    let tree = tree();
    let subsystem = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0";
    add_disk(&tree, &format!("{subsystem}/nvme2n1"), "259:7");
    tree.link(
        &format!("{subsystem}/nvme1"),
        &format!("../../../../..{}", VMD_DRIVE.trim_end_matches("/nvme1n1")),
    );
    assert_eq!(find_for(&tree, "nvme2n1").unwrap().interface, Interface::Vmd);
}

#[test]
fn finds_drive_of_volume() {
    let tree = tree();
    let volume = |id, parent, device: Option<&str>| Volume {
        id,
        parent,
        name: format!("v{id}"),
        device: device.map(str::to_owned),
        ..Volume::default()
    };
    let device =
        |name: &str, number: &str| Device { name: name.into(), number: number.into(), ..Device::default() };
    let snapshot = Snapshot {
        volumes: vec![
            volume(0, None, None),
            volume(1, Some(0), Some("sda")),
            volume(2, Some(0), Some("nvme0n1")),
            volume(3, None, None),
            volume(4, Some(3), Some("sda")),
            volume(5, Some(3), Some("sda")),
            volume(6, Some(6), None),
        ],
        devices: vec![device("sda", "8:0"), device("nvme0n1", "259:0")],
        ..Snapshot::default()
    };
    let find = |at: usize| Drive::of_volume(&tree.root(), &snapshot, &snapshot.volumes[at]);
    assert_eq!(find(2).unwrap().name, "nvme0n1");
    assert_eq!(find(3).unwrap().name, "sda", "both members are on it");
    assert!(matches!(find(0), Err(LightError::SeveralDrives { .. })));
    assert!(matches!(find(6), Err(LightError::NoDrive(_))));
}

#[test]
fn lists_slots_and_drives() {
    let tree = tree();
    let drives: Vec<String> = Drive::all(&tree.root()).unwrap().into_iter().map(|drive| drive.name).collect();
    assert_eq!(drives, ["nvme0n1", "nvme1n1", "sda", "sdb"]);
    let slots: Vec<String> = slots(&tree.root()).unwrap().iter().map(Slot::to_string).collect();
    let expected =
        ["NPEM slot 0000:00:01.0", "SES slot 6:0:20:0/Slot 03", "SES slot 6:0:20:0/Slot 04", "VMD slot 7"];
    assert_eq!(slots, expected);
    assert!(super::slots(&Tree::new(&[]).root()).unwrap().is_empty());
}

#[test]
fn finds_running_ledmon() {
    let tree = tree();
    assert_eq!(ledmon(&tree.root()).unwrap(), None);
    tree.write_bytes("/proc/70/comm", b"ledmon\n");
    assert_eq!(ledmon(&tree.root()).unwrap(), Some(70));
}
