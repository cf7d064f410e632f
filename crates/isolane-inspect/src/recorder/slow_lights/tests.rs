use std::fs;
use std::io::Read;

use isolane_observe::snapshot::{Device, Volume};

use super::*;
use crate::light::Interface;
use crate::light::tests::{
    NPEM, NPEM_DRIVE, SES, VMD, add_disk, add_ledctl, block_file, set, tree as tree_of_drives,
};
use crate::testing::Tree;

const LONG: Duration = Duration::from_secs(600);
const DEVICES: [(&str, &str); 5] =
    [("nvme0n1", "259:0"), ("nvme1n1", "259:1"), ("sda", "8:0"), ("sdb", "8:16"), ("nvme0n2", "259:9")];

/// Lights of a tree, and the lines so far.
struct Lights {
    tree: Tree,
    lights: SlowLights,
    lines: Vec<String>,
}

/// Returns a program with a volume on each drive, in the order of [`DEVICES`], and one in memory.
fn snapshot() -> Snapshot {
    let volume = |id: usize, device: Option<&str>| Volume {
        id: id as u32,
        name: format!("v{id}"),
        device: device.map(str::to_owned),
        ..Volume::default()
    };
    let mut volumes: Vec<Volume> =
        DEVICES.iter().enumerate().map(|(id, (name, _))| volume(id, Some(name))).collect();
    volumes.push(volume(DEVICES.len(), None));
    let device = |(name, number): &(&str, &str)| Device {
        name: (*name).into(),
        number: (*number).into(),
        ..Device::default()
    };
    Snapshot { volumes, devices: DEVICES.iter().map(device).collect(), ..Snapshot::default() }
}

impl Lights {
    fn new(tree: Tree, limit: fn(Interface) -> Duration) -> Lights {
        let path = tree.path("/");
        let start = move || Writer::with_times(Root::open(&path)?, Duration::ZERO, limit);
        Lights { tree, lights: SlowLights::with_writers(start), lines: Vec::new() }
    }

    /// Does one step, in which these volumes are slow.
    fn step(&mut self, slow: &[u32]) {
        let state = |id: u32| DeviceState {
            volume: format!("v{id}"),
            id,
            disk: None,
            level: if slow.contains(&id) { Level::Slow } else { Level::Suspect },
            ratios: [None; 3],
        };
        let states: Vec<DeviceState> = (0..=DEVICES.len() as u32).map(state).collect();
        let lines = self.lights.apply(&self.tree.root(), &states, &snapshot());
        self.lines.extend(lines.into_iter().map(|line| line.text));
    }

    /// Does steps until the log has as many lines.
    fn run(&mut self, slow: &[u32], lines: usize) {
        while self.lines.len() < lines {
            self.step(slow);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.lines.len(), lines, "{:?}", self.lines);
    }

    fn word(&self, path: &str) -> String {
        self.tree.root().word(path).unwrap()
    }

    fn words(&self) -> [String; 5] {
        [
            &format!("{NPEM}locate/brightness"),
            VMD,
            &format!("{SES}/locate"),
            &format!("{NPEM}fail/brightness"),
            &format!("{SES}/fault"),
        ]
        .map(|path| self.word(path))
    }

    fn end(self, limit: Duration) -> (Tree, Vec<String>) {
        let lines = self.lights.end(limit).into_iter().map(|line| line.text).collect();
        (self.tree, lines)
    }
}

/// The fault lights, which nothing here changes, are off and on.
fn words(locate: [&str; 3]) -> [String; 5] {
    [locate[0], locate[1], locate[2], "0", "4"].map(str::to_owned)
}

fn tree() -> Tree {
    let tree = tree_of_drives();
    // A second namespace in the same slot.
    add_disk(&tree, &NPEM_DRIVE.replace("nvme0n1", "nvme0n2"), "259:9");
    tree
}

#[test]
fn lights_only_slots_of_slow_devices() {
    let mut lights = Lights::new(tree(), |_| LONG);
    lights.step(&[]);
    lights.run(&[0], 1);
    assert_eq!(lights.words(), words(["1", "15", "0"]));
    lights.run(&[1, 2], 4);
    assert_eq!(lights.words(), words(["0", "7", "1"]));
    lights.run(&[0, 1, 2], 5);
    assert_eq!(lights.words(), words(["1", "7", "1"]));
    lights.lines.sort();
    lights.lines.dedup();
    assert_eq!(
        lights.lines,
        [
            "v0: switched off the locate light of NPEM slot 0000:00:01.0 (--on-slow light)",
            "v0: switched on the locate light of NPEM slot 0000:00:01.0 (--on-slow light)",
            "v1: switched on the locate light of VMD slot 7 (--on-slow light)",
            "v2: switched on the locate light of SES slot 6:0:20:0/Slot 03 (--on-slow light)",
        ]
    );
}

#[test]
fn switches_off_all_lights_at_end() {
    let mut lights = Lights::new(tree(), |_| LONG);
    lights.run(&[0, 1, 2], 3);
    let (tree, lines) = lights.end(LONG);
    assert_eq!(lines.len(), 3, "{lines:?}");
    let after = Lights::new(tree, |_| LONG);
    assert_eq!(after.words(), words(["0", "15", "0"]));
}

#[test]
fn keeps_slot_of_two_devices_lit() {
    let mut lights = Lights::new(tree(), |_| LONG);
    lights.run(&[0, 4], 1);
    (0..20).for_each(|_| lights.step(&[4]));
    assert_eq!(lights.words(), words(["1", "15", "0"]));
    lights.run(&[], 2);
    assert_eq!(lights.words(), words(["0", "15", "0"]));
}

#[test]
fn leaves_light_of_operator_alone() {
    let mut lights = Lights::new(tree(), |_| LONG);
    set(&lights.tree, "nvme0n1", Light::Locate, true).unwrap();
    set(&lights.tree, "nvme1n1", Light::Locate, true).unwrap();
    lights.run(&[0, 1], 2);
    assert!(lights.lines[0].contains("is already on"), "{:?}", lights.lines);
    (0..20).for_each(|_| lights.step(&[1]));
    let (tree, lines) = lights.end(LONG);
    assert_eq!(lines, [""; 0]);
    assert_eq!(Lights::new(tree, |_| LONG).words(), words(["1", "7", "0"]));
}

#[test]
fn reports_device_without_light_once() {
    let mut lights = Lights::new(tree(), |_| LONG);
    fs::remove_file(lights.tree.path(&format!("{SES}/locate"))).unwrap();
    for _ in 0..3 {
        lights.step(&[2, 3, 5]);
        lights.step(&[]);
    }
    assert_eq!(lights.lines.len(), 3, "{:?}", lights.lines);
    assert!(lights.lines[0].contains("has no locate light"), "{:?}", lights.lines);
    assert!(lights.lines[1].contains("install the package ledmon"), "{:?}", lights.lines);
    assert_eq!(lights.lines[2], "v5: no light (--on-slow light): not on a drive of this machine");
}

#[test]
fn uses_ledctl_without_other_interface() {
    let lights_tree = tree();
    let log = lights_tree.path("/log");
    add_ledctl(&lights_tree, &format!("echo \"$@\" >> {}", log.display()));
    let mut lights = Lights::new(lights_tree, |_| LONG);
    lights.run(&[3], 1);
    lights.run(&[], 2);
    let text = fs::read_to_string(log).unwrap();
    assert_eq!(text, "--listed-only locate=/dev/sdb\n--listed-only locate_off=/dev/sdb\n");
}

#[test]
fn reports_light_that_fails_or_vanishes() {
    let fails = tree();
    add_ledctl(&fails, "echo 'sdb: not supported' >&2; exit 4");
    let mut lights = Lights::new(fails, |_| LONG);
    lights.run(&[1, 3], 2);
    lights.lines.sort();
    assert!(lights.lines[1].starts_with("v3: ledctl: /dev/sdb: exit status: 4"), "{:?}", lights.lines);
    (0..20).for_each(|_| lights.step(&[1, 3]));
    assert_eq!(lights.lines.len(), 2, "{:?}", lights.lines);
    fs::remove_file(lights.tree.path(VMD)).unwrap();
    lights.run(&[], 3);
    let line = &lights.lines[2];
    assert!(line.starts_with("v1: the locate light can still be on: VMD slot 7: "), "{line}");
    assert!(line.contains("the slot has vanished"), "{line}");
    assert_eq!(lights.end(LONG).1, [""; 0]);
}

#[test]
fn delays_no_slot_by_another() {
    let mut lights = Lights::new(tree(), |_| LONG);
    lights.run(&[0, 1], 2);
    let hangs = block_file(&lights.tree, &format!("{NPEM}locate/brightness"));
    lights.run(&[], 3);
    assert!(lights.lines[2].starts_with("v1: switched off"), "{:?}", lights.lines);
    let (_tree, lines) = lights.end(Duration::from_millis(50));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("can still be on: NPEM slot 0000:00:01.0: no response within 50ms"),
        "{lines:?}"
    );
    assert_eq!(fs::read_to_string(hangs).unwrap(), "0", "the thread ends");
}

#[test]
fn switches_off_light_without_response() {
    let mut lights = Lights::new(tree(), |_| Duration::from_millis(20));
    lights.step(&[0]);
    // The light is read before the slot hangs.
    let lamp = lights.lights.lamps.values_mut().next().unwrap();
    let State::Reads(pending) = &lamp.state else { panic!("not requested") };
    let _ = pending.wait_for(LONG);
    let hangs = block_file(&lights.tree, &format!("{NPEM}locate/brightness"));
    assert_eq!(lamp.light(Ok(Some(Vec::new()))), None);
    lights.run(&[0], 1);
    assert!(lights.lines[0].contains("no response within 20ms"), "{:?}", lights.lines);
    lights.step(&[]);
    let mut words = [0; 2];
    let mut file = fs::File::options().read(true).write(true).open(hangs).unwrap();
    file.read_exact(&mut words).unwrap();
    assert_eq!(&words, b"10");
}

#[test]
fn leaves_light_that_it_cannot_read() {
    let mut lights = Lights::new(tree(), |_| LONG);
    let path = block_file(&lights.tree, &format!("{NPEM}locate/brightness"));
    lights.run(&[0], 1);
    assert!(lights.lines[0].contains("not a regular file"), "{:?}", lights.lines);
    (0..20).for_each(|_| lights.step(&[0]));
    assert_eq!(lights.lines.len(), 1);
    fs::remove_file(path).unwrap();
    assert_eq!(lights.end(LONG).1, [""; 0]);
}
