//! Checks of limits.

use super::check::{Check, Severity};
use super::context::Context;
use super::survey::Survey;
use crate::system::{ReadError, Reason, SMALL, decode_file_limit, decode_number, decode_status_field};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "lim.files",
        severity: Severity::Warning,
        reads: "/proc/PID/limits: hard limit of Max open files",
        good: "the number of connections and 1,024 more",
        reason: "each connection needs a descriptor, and a target without one rejects hosts",
        is_sampled: false,
        run: files,
    },
    Check {
        id: "lim.ring",
        severity: Severity::Warning,
        reads: "/proc/sys/kernel/io_uring_disabled, /proc/PID/status: Seccomp",
        good: "io_uring is allowed",
        reason: "without io_uring, 4 file threads for each core do the I/O of files",
        is_sampled: false,
        run: ring,
    },
];

fn files(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let connections = context.snapshot()?.map_or(0, |snapshot| snapshot.numbers.connections.len() as u64);
    let needed = 1_024 + connections;
    let path = format!("/proc/{}/limits", context.process()?);
    let limit = context.root.parse(&path, SMALL, decode_file_limit)?;
    let value = limit.map_or("unlimited".into(), |limit| format!("{limit}"));
    survey.judge(
        limit.is_none_or(|limit| limit >= needed),
        format!("{value}, {connections} connections"),
        format!("# in the unit of the service: LimitNOFILE={}", needed.next_power_of_two()),
    );
    Ok(())
}

fn ring(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let path = "/proc/sys/kernel/io_uring_disabled";
    match context.root.parse(path, SMALL, decode_number) {
        // The setting exists since Linux 6.6; before, io_uring cannot be disabled.
        Err(error) if error.reason == Reason::Missing => survey.unseen(error),
        value => {
            let value = value?;
            survey.judge(
                value == 0,
                format!("io_uring_disabled: {value}"),
                "sysctl -w kernel.io_uring_disabled=0",
            );
        }
    }
    let status = format!("/proc/{}/status", context.process()?);
    let mode =
        context.root.parse(&status, SMALL, |text| decode_number(decode_status_field(text, "Seccomp")?))?;
    if mode == 0 {
        survey.good("no seccomp filter");
    } else {
        survey.unseen(
            "rules of the seccomp filter; the sandbox must allow io_uring_setup, _enter, and _register",
        );
    }
    Ok(())
}
