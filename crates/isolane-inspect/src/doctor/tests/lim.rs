//! Limits.

use super::*;

const CASES: &[Case] = &[
    Case {
        id: "lim.files",
        other: &[],
        good: &[(
            "/proc/self/limits",
            "Max open files            1024                 4096                 files\n",
        )],
        bad: &[("/proc/self/limits", "Max open files 1024 1023 files\n")],
    },
    Case {
        id: "lim.ring",
        other: &[],
        good: &[("/proc/sys/kernel/io_uring_disabled", "0\n"), ("/proc/self/status", "Seccomp:\t0\n")],
        bad: &[("/proc/sys/kernel/io_uring_disabled", "2\n")],
    },
];

#[test]
fn checks_limits() {
    CASES.iter().for_each(Case::test);
}

#[test]
fn seccomp_filters_are_not_good() {
    let tree = Tree::new(CASES[1].good);
    tree.write_bytes("/proc/self/status", b"Seccomp:\t2\n");
    assert_eq!(state(&tree, "lim.ring"), State::Unseen);
}
