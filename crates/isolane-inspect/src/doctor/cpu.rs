//! Checks of processors.

use isolane_observe::snapshot::Core;

use super::check::{Check, Severity};
use super::context::{Context, unexpected};
use super::survey::{Survey, quoted};
use crate::system::{
    Cgroup, CpuTimes, ReadError, Reason, SMALL, decode_cfs_quota, decode_counter, decode_cpu_list,
    decode_cpu_max, decode_number, decode_schedstat, show_cpus, tasks,
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "cpu.quota",
        severity: Severity::Error,
        reads: "cgroup v2 cpu.max, or v1 cpu.cfs_quota_us with cpu.cfs_period_us; cpu.stat",
        good: "no quota below the number of cores, and no throttling",
        reason: "a quota stops a polling core for the rest of a period",
        is_sampled: true,
        run: quota,
    },
    Check {
        id: "cpu.allowed",
        severity: Severity::Error,
        reads: "/proc/PID/status: Cpus_allowed_list",
        good: "all cores of the reactors",
        reason: "a reactor cannot run on a core that is not allowed",
        is_sampled: false,
        run: allowed,
    },
    Check {
        id: "cpu.steal",
        severity: Severity::Warning,
        reads: "/proc/stat, twice",
        good: "less than 0.5 %",
        reason: "the hypervisor runs other guests on the core, and I/O waits for them",
        is_sampled: true,
        run: steal,
    },
    Check {
        id: "cpu.thieves",
        severity: Severity::Warning,
        reads: "/proc/PID/task/TID/stat, schedstat of the reactors of a running target, twice",
        good: "no other thread uses 2 % of a core of a reactor, and no reactor waits 0.1 % of the time",
        reason: "a reactor waits while another thread runs on its core",
        is_sampled: true,
        run: thieves,
    },
    Check {
        id: "cpu.isolated",
        severity: Severity::Information,
        reads: "/sys/devices/system/cpu/isolated, nohz_full",
        good: "the cores of reactors that poll",
        reason: "the kernel then puts no other thread, timer, or interrupt on them",
        is_sampled: false,
        run: isolated,
    },
    Check {
        id: "cpu.siblings",
        severity: Severity::Warning,
        reads: "/sys/devices/system/cpu/cpu*/topology/thread_siblings_list",
        good: "no two reactors on one physical core",
        reason: "hardware threads share a core, and each is slower while the other runs",
        is_sampled: false,
        run: siblings,
    },
    Check {
        id: "cpu.governor",
        severity: Severity::Warning,
        reads: "/sys/devices/system/cpu/cpu*/cpufreq: scaling_governor, energy_performance_preference",
        good: "performance; any for the first core of a target with --scheduler dynamic, which sets its clock",
        reason: "a core that sleeps between I/O is clocked down, and the next I/O is slow",
        is_sampled: false,
        run: governor,
    },
    Check {
        id: "cpu.idle",
        severity: Severity::Warning,
        reads: "/sys/devices/system/cpu/cpu*/cpuidle/state*: latency, disable",
        good: "no enabled state above 50 µs",
        reason: "a core in a deep state needs its latency to wake up",
        is_sampled: false,
        run: idle,
    },
    Check {
        id: "cpu.throttle",
        severity: Severity::Warning,
        reads: "/sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count, twice",
        good: "not rising",
        reason: "a hot core is clocked down",
        is_sampled: true,
        run: throttle,
    },
    Check {
        id: "cpu.clock",
        severity: Severity::Warning,
        reads: "/sys/devices/system/clocksource/clocksource0/current_clocksource",
        good: "tsc or arch_sys_counter",
        reason: "other clocks are slow to read, and need a system call or an exit to the hypervisor",
        is_sampled: false,
        run: clock,
    },
];

fn quota(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let root = &context.root;
    let cores = context.cores()?.len() as f64;
    let group = Cgroup::find(root, &context.process()?, "cpu")?;
    for level in group.levels() {
        let limit = if group.version == 1 { quota_v1(context, level) } else { quota_v2(context, level) };
        let limit = match limit {
            // The root of the hierarchy has no file.
            Err(error) if error.reason == Reason::Missing => continue,
            limit => limit?,
        };
        let throttled =
            root.parse(&format!("{level}/cpu.stat"), SMALL, |text| decode_counter(text, "nr_throttled"))?;
        let throttled = context.rise(level, throttled);
        let show = limit.map_or("no quota".into(), |cpus| format!("quota of {cpus:.2} CPUs"));
        let value = format!("{level}: {show}, throttled {throttled} times {}", context.period());
        let is_good = limit.is_none_or(|cpus| cpus >= cores) && throttled == 0;
        survey.judge(is_good, value, lift_quota(level, group.version));
    }
    if survey.is_empty() {
        survey.unseen(format!("no limit of {} or a group above it", group.path));
    }
    Ok(())
}

fn quota_v1(context: &Context, level: &str) -> Result<Option<f64>, ReadError> {
    let quota = context.root.parse(&format!("{level}/cpu.cfs_quota_us"), SMALL, decode_cfs_quota)?;
    let Some(quota) = quota else { return Ok(None) };
    let period = context.root.parse(&format!("{level}/cpu.cfs_period_us"), SMALL, decode_number)?;
    Ok(Some(quota as f64 / period.max(1) as f64))
}

fn quota_v2(context: &Context, level: &str) -> Result<Option<f64>, ReadError> {
    context.root.parse(&format!("{level}/cpu.max"), SMALL, decode_cpu_max)
}

fn lift_quota(level: &str, version: u8) -> String {
    let unit = level.rsplit('/').next().unwrap_or_default();
    if [".service", ".slice", ".scope"].iter().any(|ending| unit.ends_with(ending)) {
        return format!("systemctl set-property {} CPUQuota=", quoted(unit));
    }
    let (value, file) = if version == 1 { ("-1", "cpu.cfs_quota_us") } else { ("max", "cpu.max") };
    format!("echo {value} > {}", quoted(&format!("{level}/{file}")))
}

fn allowed(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let (allowed, cores) = (context.allowed()?, context.cores()?);
    let missing: Vec<u32> = cores.iter().copied().filter(|core| !allowed.contains(core)).collect();
    let value = format!("{} allowed, reactors on {}", show_cpus(&allowed), show_cpus(&cores));
    let remedy = format!("systemctl set-property isolane.service AllowedCPUs={}", show_cpus(&cores));
    survey.judge(missing.is_empty(), value, remedy);
    Ok(())
}

fn steal(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let cores = context.cores()?;
    let times = CpuTimes::read(&context.root)?;
    let times: Vec<_> = times.iter().filter(|times| cores.contains(&times.cpu)).collect();
    let sum =
        |part: fn(&CpuTimes) -> u64| times.iter().fold(0_u64, |sum, times| sum.saturating_add(part(times)));
    let total = context.rise("cpu total", sum(CpuTimes::total));
    let stolen = context.rise("cpu steal", sum(|times| times.steal));
    if total == 0 {
        survey.unseen("/proc/stat: no time of these cores");
        return Ok(());
    }
    let share = 100.0 * stolen as f64 / total as f64;
    // One tick is 1 % of a second.
    survey.judge(
        share < 0.5 || stolen < 2,
        format!("{share:.1} % of the time of cores {} {}", show_cpus(&cores), context.period()),
        "# give this guest dedicated CPUs",
    );
    Ok(())
}

fn thieves(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let cores = context.cores()?;
    // This process is another one in a copy.
    let own = context.root.resolve("/proc/self").ok();
    let own = own.and_then(|path| path.rsplit('/').next()?.parse().ok());
    let ours = [context.pid()?, own];
    let mut found = Vec::new();
    for task in tasks(&context.root)?.into_iter().filter(|task| !ours.contains(&Some(task.pid))) {
        let ticks = context.rise(&format!("task {} {}", task.pid, task.stat.tid), task.stat.ticks);
        if ticks >= 2 && cores.contains(&task.stat.cpu) {
            found.push((ticks, task));
        }
    }
    let waited = waits_of_reactors(context)?;
    if !context.has_two_readings() {
        survey.unseen("the system does not run below this root");
        return Ok(());
    }
    for (cpu, nanoseconds) in &waited {
        let share = *nanoseconds as f64 / 1e7;
        survey.judge(
            share < 0.1,
            format!("reactor of core {cpu} waited {share:.1} % of the time"),
            THIEF_REMEDY,
        );
    }
    found.sort_by_key(|(ticks, _)| std::cmp::Reverse(*ticks));
    for (ticks, task) in &found {
        let value = format!("{} (PID {}): {ticks} % of core {}", task.stat.name, task.pid, task.stat.cpu);
        survey.bad(value, format!("# taskset -a -p -c OTHER_CORES {}", task.pid));
    }
    if survey.is_empty() {
        survey.good(format!("no other thread used 2 % of cores {} in 1 s", show_cpus(&cores)));
    }
    Ok(())
}

const THIEF_REMEDY: &str = "# kernel parameter: isolcpus=managed_irq,domain,CORES";

/// Returns the time in nanoseconds that each reactor of the target waited for its core.
fn waits_of_reactors(context: &Context) -> Result<Vec<(u32, u64)>, ReadError> {
    let Some(snapshot) = context.snapshot()? else { return Ok(Vec::new()) };
    let wait = |core: &Core| {
        let path = format!("/proc/{}/task/{}/schedstat", snapshot.program.pid, core.thread);
        let waited = context.root.parse(&path, SMALL, decode_schedstat)?.waited_ns;
        Ok((core.cpu.unwrap_or(core.index), context.rise(&path, waited)))
    };
    snapshot.numbers.cores.iter().map(wait).collect()
}

fn isolated(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let cores = context.cores()?;
    for (name, parameter) in [("isolated", "isolcpus=managed_irq,domain,"), ("nohz_full", "nohz_full=")] {
        let path = format!("/sys/devices/system/cpu/{name}");
        // Old kernels print "(null)" for an empty list.
        let read = context
            .root
            .parse(&path, SMALL, |text| decode_cpu_list(if text.trim() == "(null)" { "" } else { text }));
        let Some(cpus) = survey.take(read) else { continue };
        survey.judge(
            cores.iter().all(|core| cpus.contains(core)),
            format!("{name}: {}", if cpus.is_empty() { "none".into() } else { show_cpus(&cpus) }),
            format!("# kernel parameter: {parameter}{}", show_cpus(&cores)),
        );
    }
    Ok(())
}

fn siblings(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let cores = context.cores()?;
    for core in &cores {
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        let Some(siblings) = survey.take(context.root.parse(&path, SMALL, decode_cpu_list)) else { continue };
        if !siblings.contains(core) {
            survey.unseen(unexpected(&path, "a list with the core"));
        }
        let shared: Vec<u32> = siblings.into_iter().filter(|cpu| cores.contains(cpu)).collect();
        if shared.first() == Some(core) || shared.len() < 2 {
            survey.judge(
                shared.len() < 2,
                format!("{} on one physical core", show_cpus(&shared)),
                "# serve with --cores, and one core of each pair of siblings",
            );
        }
    }
    Ok(())
}

fn governor(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let remedy = "cpupower frequency-set -g performance";
    let limits = context.snapshot()?.map(|snapshot| &snapshot.program.limits);
    let is_dynamic =
        limits.and_then(|limits| limits.get("scheduler-dynamic")).is_some_and(|dynamic| *dynamic > 0);
    for (position, core) in context.cores()?.into_iter().enumerate() {
        if position == 0 && is_dynamic {
            survey.good(format!("core {core}: the target sets the clock"));
            continue;
        }
        let dir = format!("/sys/devices/system/cpu/cpu{core}");
        if !has_entry(context, &dir, "cpufreq")? {
            survey.absent(format!("the kernel does not set the frequency of core {core}"));
            continue;
        }
        let Some(governor) = survey.take(context.root.word(&format!("{dir}/cpufreq/scaling_governor")))
        else {
            continue;
        };
        survey.judge(governor == "performance", format!("core {core}: governor {governor}"), remedy);
        if has_entry(context, &format!("{dir}/cpufreq"), "energy_performance_preference")? {
            let preference = context.root.word(&format!("{dir}/cpufreq/energy_performance_preference"));
            let Some(preference) = survey.take(preference) else { continue };
            let remedy = "cpupower set --epp performance";
            survey.judge(
                preference == "performance",
                format!("core {core}: preference {preference}"),
                remedy,
            );
        }
    }
    Ok(())
}

fn idle(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    const MAX_LATENCY_US: u64 = 50;
    for core in context.cores()? {
        let dir = format!("/sys/devices/system/cpu/cpu{core}");
        if !has_entry(context, &dir, "cpuidle")? {
            survey.absent(format!("core {core} has no idle states"));
            continue;
        }
        let Some(states) = survey.take(context.root.list(&format!("{dir}/cpuidle"))) else { continue };
        for state in states.iter().filter(|name| name.starts_with("state")) {
            let number =
                |name| context.root.parse(&format!("{dir}/cpuidle/{state}/{name}"), SMALL, decode_number);
            let values = number("latency").and_then(|latency| Ok((latency, number("disable")?)));
            let Some((latency, disabled)) = survey.take(values) else { continue };
            survey.judge(
                latency <= MAX_LATENCY_US || disabled != 0,
                format!(
                    "core {core}, {state}: {latency} µs{}",
                    if disabled == 0 { "" } else { ", disabled" }
                ),
                format!("cpupower idle-set -D {MAX_LATENCY_US}"),
            );
        }
    }
    Ok(())
}

fn throttle(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for core in context.cores()? {
        let dir = format!("/sys/devices/system/cpu/cpu{core}");
        if !has_entry(context, &dir, "thermal_throttle")? {
            survey.absent(format!("core {core} does not count"));
            continue;
        }
        let path = format!("{dir}/thermal_throttle/core_throttle_count");
        let Some(count) = survey.take(context.root.parse(&path, SMALL, decode_number)) else { continue };
        let count = context.rise(&path, count);
        let value = format!("core {core}: {count} times {}", context.period());
        survey.judge(count == 0, value, "# improve the cooling");
    }
    Ok(())
}

fn clock(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let clock = context.root.word("/sys/devices/system/clocksource/clocksource0/current_clocksource")?;
    survey.judge(["tsc", "arch_sys_counter"].contains(&&*clock), clock, "# kernel parameter: tsc=reliable");
    Ok(())
}

/// Returns `true` if a directory that can be read has an entry.
fn has_entry(context: &Context, dir: &str, name: &str) -> Result<bool, ReadError> {
    Ok(context.root.list(dir)?.iter().any(|entry| entry == name))
}
