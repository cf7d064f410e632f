//! `isolane light`, with a fake slot.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Stdio;

use crate::{fail, kill, program, succeed, text};

const DRIVE: &str = "sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1";

/// A drive with the lights of NPEM.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        for light in ["locate", "fail"] {
            tree.write(&format!("sys/class/leds/0000:01:00.0:enclosure:{light}/brightness"), "0\n");
        }
        tree.write(&format!("{DRIVE}/dev"), "259:0\n");
        tree.write("proc/70/comm", "ledmon\n");
        for directory in ["sys/class/block/nvme0n1", "sys/dev/block/259:0"] {
            let link = tree.0.path().join(directory);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(format!("../../../{DRIVE}"), link).unwrap();
        }
        tree
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn brightness(&self, light: &str) -> PathBuf {
        self.0.path().join(format!("sys/class/leds/0000:01:00.0:enclosure:{light}/brightness"))
    }

    fn is_on(&self, light: &str) -> bool {
        fs::read_to_string(self.brightness(light)).unwrap().trim() == "1"
    }

    fn root(&self) -> &str {
        text(self.0.path())
    }
}

#[test]
fn light_goes_off_after_signal() {
    let tree = Tree::new();
    let mut command = program();
    command.args(["light", "/dev/nvme0n1", "locate", "--root", tree.root()]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.next().unwrap();
    assert!(first.contains("NPEM slot 0000:01:00.0") && first.contains("locate light on"), "{first}");
    assert!(tree.is_on("locate") && !tree.is_on("fail"));
    kill(&child, "TERM");
    assert!(child.wait().unwrap().success());
    assert!(!tree.is_on("locate"));
}

#[test]
fn light_goes_off_after_its_time() {
    let tree = Tree::new();
    let output = program()
        .args(["light", "nvme0n1", "fault", "--for", "10ms", "--root", tree.root()])
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("fault light off"));
    let warning = String::from_utf8_lossy(&output.stderr);
    assert!(warning.contains("ledmon (PID 70)") && warning.contains("systemctl stop ledmon"), "{warning}");
    assert!(!tree.is_on("fail"));
}

#[test]
fn lights_are_listed_and_switched_off() {
    let tree = Tree::new();
    fs::write(tree.brightness("fail"), "1\n").unwrap();
    let list = succeed(&["light", "list", "--root", tree.root()]);
    assert!(list.contains("nvme0n1          NPEM slot 0000:01:00.0: has fault, locate; on: fault"), "{list}");
    assert!(list.contains("ledctl is not installed"), "{list}");
    succeed(&["light", "nvme0n1", "off", "--root", tree.root()]);
    assert!(!tree.is_on("fail"));
}

#[test]
fn errors_of_lights_name_the_remedy() {
    let tree = Tree::new();
    let error = fail(&["light", "nvme7n1", "locate", "--root", tree.root(), "--socket", "/no/socket"]);
    assert!(error.contains("/no/socket"), "{error}");
    assert!(fail(&["light", "/dev/sdz", "locate", "--root", tree.root()]).contains("`isolane light list`"));
    assert!(fail(&["light", "nvme0n1", "--root", tree.root()]).contains("write locate, fault, or off"));
    fs::remove_dir_all(tree.0.path().join("sys/class/leds")).unwrap();
    assert!(fail(&["light", "nvme0n1", "locate", "--root", tree.root()]).contains("ledmon"));
}
