//! Processors.

use super::*;

const CASES: &[Case] = &[
    Case {
        id: "cpu.quota",
        other: &[],
        good: &[
            ("/proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("/proc/self/cgroup", "0::/a.service\n"),
            ("/sys/fs/cgroup/a.service/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/a.service/cpu.stat", "nr_periods 0\nnr_throttled 0\n"),
        ],
        bad: &[
            ("/sys/fs/cgroup/a.service/cpu.max", "150000 100000\n"),
            ("/sys/fs/cgroup/a.service/cpu.stat", "nr_throttled 7\n"),
        ],
    },
    Case {
        id: "cpu.quota",
        other: &[],
        good: &[
            ("/proc/self/mountinfo", "41 31 0:38 / /cg rw - cgroup cgroup rw,cpu\n"),
            ("/proc/self/cgroup", "3:cpu,cpuacct:/a\n0::/a\n"),
            ("/cg/a/cpu.cfs_quota_us", "400000\n"),
            ("/cg/a/cpu.cfs_period_us", "100000\n"),
            ("/cg/a/cpu.stat", "nr_throttled 0\n"),
        ],
        bad: &[("/cg/a/cpu.cfs_quota_us", "50000\n")],
    },
    Case {
        id: "cpu.allowed",
        other: &[],
        good: &[("/proc/self/status", "Cpus_allowed_list:\t0-3\n")],
        bad: &[("/proc/self/status", "Cpus_allowed_list:\t0,2-3\n")],
    },
    Case {
        id: "cpu.steal",
        other: &[],
        good: &[("/proc/stat", "cpu0 900 0 0 99 0 0 0 1\ncpu1 900 0 0 99 0 0 0 1\ncpu2 0 0 0 0 0 0 0 99\n")],
        bad: &[("/proc/stat", "cpu0 900 0 0 90 0 0 0 10\ncpu1 900 0 0 99 0 0 0 1\n")],
    },
    Case {
        id: "cpu.isolated",
        other: &[],
        good: &[
            ("/sys/devices/system/cpu/isolated", "0-1\n"),
            ("/sys/devices/system/cpu/nohz_full", "0-2\n"),
        ],
        bad: &[("/sys/devices/system/cpu/isolated", "\n"), ("/sys/devices/system/cpu/nohz_full", "(null)\n")],
    },
    Case {
        id: "cpu.siblings",
        other: &[],
        good: &[
            ("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,2\n"),
            ("/sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1,3\n"),
        ],
        bad: &[("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1\n")],
    },
    Case {
        id: "cpu.governor",
        // An entry that drivers without preferences lack.
        other: &[("/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference", "performance\n")],
        good: &[
            ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n"),
        ],
        bad: &[
            ("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n"),
            ("/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference", "power\n"),
        ],
    },
    Case {
        id: "cpu.idle",
        other: &[],
        good: &[
            ("/sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "50\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "0\n"),
            ("/sys/devices/system/cpu/cpu1/cpuidle/state9/latency", "500\n"),
            ("/sys/devices/system/cpu/cpu1/cpuidle/state9/disable", "1\n"),
        ],
        bad: &[
            ("/sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "51\n"),
            ("/sys/devices/system/cpu/cpu1/cpuidle/state9/disable", "0\n"),
        ],
    },
    Case {
        id: "cpu.throttle",
        other: &[],
        good: &[
            ("/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "0\n"),
            ("/sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "0\n"),
        ],
        bad: &[("/sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "3\n")],
    },
    Case {
        id: "cpu.clock",
        other: &[],
        good: &[("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n")],
        bad: &[("/sys/devices/system/clocksource/clocksource0/current_clocksource", "kvm-clock\n")],
    },
];

#[test]
fn checks_processors() {
    CASES.iter().for_each(Case::test);
}

#[test]
fn names_threads_on_cores_of_reactors() {
    let stat = |ticks: u64| {
        format!(
            "31 (dd\n) R 1 1 1 0 -1 4 1 0 0 0 {ticks} 0 0 0 20 0 1 0 19 31 40 18 9 9 9 0 0 0 0 0 0 0 0 0 17 1 0\n"
        )
    };
    let tree = Tree::new(&[("/proc/31/task/31/stat", &stat(5))]);
    assert_eq!(state(&tree, "cpu.thieves"), State::Unseen);
    let mut context = Context::new(tree.root(), Some(vec![0, 1]));
    let check = select("cpu.thieves").unwrap()[0];
    let mut run = |ticks| {
        tree.write_bytes("/proc/31/task/31/stat", stat(ticks).as_bytes());
        let finding = super::super::survey(&context, check);
        context.start_second_reading();
        finding
    };
    run(5);
    assert_eq!(run(6).state, State::Good);
    let finding = run(25);
    assert_eq!((finding.state, &*finding.value), (State::Bad, "dd\\u{a} (PID 31): 20 % of core 1"));
}

#[test]
fn systems_without_frequencies_are_absent() {
    let tree = Tree::new(&[
        ("/sys/devices/system/cpu/cpu0/online", "1"),
        ("/sys/devices/system/cpu/cpu1/online", "1"),
    ]);
    for id in ["cpu.governor", "cpu.idle", "cpu.throttle"] {
        assert_eq!(state(&tree, id), State::Absent, "{id}");
    }
}

#[test]
fn limits_of_groups_above_count() {
    let tree = Tree::new(CASES[0].good);
    tree.write_bytes("/proc/self/cgroup", b"0::/a.service/b\n");
    assert_eq!(state(&tree, "cpu.quota"), State::Good);
    tree.write_bytes("/sys/fs/cgroup/a.service/cpu.max", b"100000 100000\n");
    let finding = find(&tree, "cpu.quota");
    assert_eq!(
        (finding.state, &*finding.remedy[0]),
        (State::Bad, "systemctl set-property a.service CPUQuota=")
    );
}
