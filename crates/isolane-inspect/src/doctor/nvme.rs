//! Checks of NVMe drives.

use super::check::{Check, Severity};
use super::context::{Context, unexpected};
use super::survey::{Survey, quoted};
use crate::system::{ReadError, Reason, SMALL, decode_number};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "nvme.power",
        severity: Severity::Information,
        reads: "/sys/module/nvme_core/parameters/default_ps_max_latency_us; /sys/class/nvme/*/power/pm_qos_latency_tolerance_us",
        good: "0 in a server",
        reason: "a drive in a low-power state needs up to this time to wake up",
        is_sampled: false,
        run: power,
    },
    Check {
        id: "nvme.health",
        severity: Severity::Error,
        reads: "/sys/class/nvme/*: state, hwmon*/temp1_input, hwmon*/temp1_max",
        good: "live, below the warning temperature",
        reason: "a hot drive slows down, and a drive that resets completes nothing",
        is_sampled: false,
        run: health,
    },
];

/// Returns the names of all controllers of drives, none if the kernel has no such driver.
fn controllers(context: &Context) -> Result<Vec<String>, ReadError> {
    if !context.root.list("/sys/class")?.iter().any(|name| name == "nvme") {
        return Ok(Vec::new());
    }
    context.root.list("/sys/class/nvme")
}

fn power(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    if controllers(context)?.is_empty() {
        survey.absent("no NVMe drive");
        return Ok(());
    }
    let path = "/sys/module/nvme_core/parameters/default_ps_max_latency_us";
    let latency = context.root.parse(path, SMALL, decode_number)?;
    let remedy = "# kernel parameter: nvme_core.default_ps_max_latency_us=0";
    survey.judge(latency == 0, format!("{latency} µs"), remedy);
    for name in controllers(context)? {
        let path = format!("/sys/class/nvme/{name}/power/pm_qos_latency_tolerance_us");
        match context.root.word(&path) {
            // The drive has no low-power states.
            Err(error) if error.reason == Reason::Missing => {}
            read => {
                let Some(value) = survey.take(read) else { continue };
                if !["auto", "any"].contains(&&*value) && value.parse::<u64>().is_err() {
                    survey.unseen(unexpected(&path, "a number, auto, or any"));
                    continue;
                }
                let remedy = format!("echo 0 > {}", quoted(&path));
                survey.judge(value == "0", format!("{name}: tolerates {value} µs"), remedy);
            }
        }
    }
    Ok(())
}

fn health(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for name in controllers(context)? {
        let dir = format!("/sys/class/nvme/{name}");
        if let Some(state) = survey.take(context.root.word(&format!("{dir}/state"))) {
            survey.judge(
                state == "live",
                format!("{name}: {state}"),
                "# read the log of the kernel, replace the drive",
            );
        }
        let sensors = survey.take(context.root.list(&dir)).unwrap_or_default();
        for sensor in sensors.iter().filter(|sensor| sensor.starts_with("hwmon")) {
            let read = |file| context.root.parse(&format!("{dir}/{sensor}/{file}"), SMALL, decode_number);
            let values = read("temp1_input").and_then(|now| Ok((now, read("temp1_max")?)));
            let Some((now, max)) = survey.take(values) else { continue };
            let value = format!("{name}: {} °C of {} °C", now / 1_000, max / 1_000);
            survey.judge(now < max, value, "# improve the airflow");
        }
    }
    if survey.is_empty() {
        survey.absent("no NVMe drive");
    }
    Ok(())
}
