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
fn systems_without_drives_are_absent() {
    let tree = Tree::new(&[("/sys/class/net/x", "")]);
    for id in ["nvme.power", "nvme.health"] {
        assert_eq!(state(&tree, id), State::Absent, "{id}");
    }
}
