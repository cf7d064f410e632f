//! NVMe drives.

use super::*;

const CASES: &[Case] = &[
    Case {
        id: "nvme.power",
        other: &[("/sys/class/nvme/nvme0/address", "")],
        good: &[("/sys/module/nvme_core/parameters/default_ps_max_latency_us", "0\n")],
        bad: &[("/sys/module/nvme_core/parameters/default_ps_max_latency_us", "100000\n")],
    },
    Case {
        id: "nvme.health",
        other: &[],
        good: &[
            ("/sys/class/nvme/nvme0/state", "live\n"),
            ("/sys/class/nvme/nvme0/hwmon3/temp1_input", "35000\n"),
            ("/sys/class/nvme/nvme0/hwmon3/temp1_max", "84000\n"),
        ],
        bad: &[
            ("/sys/class/nvme/nvme0/state", "resetting\n"),
            ("/sys/class/nvme/nvme0/hwmon3/temp1_input", "84000\n"),
        ],
    },
];

#[test]
fn checks_drives() {
    CASES.iter().for_each(Case::test);
}

#[test]
fn drives_must_not_tolerate_latency() {
    let path = "/sys/class/nvme/nvme0/power/pm_qos_latency_tolerance_us";
    let tree = Tree::new(&[("/sys/module/nvme_core/parameters/default_ps_max_latency_us", "0\n")]);
    for (content, expected) in [
        ("0\n", State::Good),
        ("25000\n", State::Bad),
        ("auto\n", State::Bad),
        ("", State::Unseen),
        ("-1\n", State::Unseen),
    ] {
        tree.write_bytes(path, content.as_bytes());
        assert_eq!(state(&tree, "nvme.power"), expected, "{content}");
    }
    fs::remove_file(tree.path(path)).unwrap();
    assert_eq!(state(&tree, "nvme.power"), State::Good, "a drive without low-power states");
    fs::create_dir(tree.path(path)).unwrap();
    assert_eq!(state(&tree, "nvme.power"), State::Unseen);
}

#[test]
fn systems_without_drives_are_absent() {
    let tree = Tree::new(&[("/sys/class/net/x", "")]);
    for id in ["nvme.power", "nvme.health"] {
        assert_eq!(state(&tree, id), State::Absent, "{id}");
    }
}
