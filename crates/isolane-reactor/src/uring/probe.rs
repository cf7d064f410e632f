//! Ring setup. Features are probed and tried, never derived from a kernel version.

use super::Uring;
use super::raw::RawUring;
use io_uring::{Builder, IoUring};
use rustix::io::Errno;
use std::io;
use std::time::Duration;

/// Opens a ring with the best options that the kernel supports.
///
/// # Errors
/// The reason as text, for the user.
pub(crate) fn open() -> Result<Uring, String> {
    let ring = set_up().map_err(|error| refusal(&error, disabled_setting().as_deref()))?;
    check(&ring)?;
    let mut raw = RawUring::new(ring);
    raw.enter(Some(Some(Duration::ZERO))).map_err(|error| format!("first wait failed: {error}"))?;
    Ok(Uring::new(raw))
}

/// Options, best first: completions on demand only (6.1), without interrupts (5.19), default.
fn set_up() -> io::Result<IoUring> {
    let mut deferred = builder();
    deferred.setup_submit_all().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    let mut cooperative = builder();
    cooperative.setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
    let mut refused = None;
    for builder in [deferred, cooperative, builder()] {
        match builder.build(SUBMISSIONS) {
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => refused = Some(error),
            result => return result,
        }
    }
    Err(refused.unwrap_or_else(|| Errno::INVAL.into()))
}

fn builder() -> Builder {
    let mut builder = IoUring::builder();
    builder.dontfork().setup_clamp().setup_cqsize(COMPLETIONS);
    builder
}

/// Every ring with these features has the operations that the reactor uses.
fn check(ring: &IoUring) -> Result<(), String> {
    if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
        return Err("kernel too old: no wait with a timeout".into());
    }
    Ok(())
}

/// Reads `kernel.io_uring_disabled`, which kernels before 6.6 lack.
fn disabled_setting() -> Option<String> {
    let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    Some(setting.trim().to_owned()).filter(|setting| setting != "0")
}

fn refusal(error: &io::Error, disabled: Option<&str>) -> String {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    match (errno, disabled) {
        (Some(Errno::PERM), Some(setting)) => {
            format!("disabled by the administrator (kernel.io_uring_disabled = {setting})")
        }
        (Some(Errno::PERM | Errno::ACCESS), _) => {
            "permission denied (EPERM), probably by a container's seccomp profile".into()
        }
        (Some(Errno::NOSYS), _) => "not in this kernel, or hidden by a seccomp profile (ENOSYS)".into(),
        (Some(Errno::NOMEM), _) => "out of memory (ENOMEM); raise the limit of locked memory".into(),
        (Some(Errno::MFILE | Errno::NFILE), _) => format!("out of descriptors: {error}"),
        _ => error.to_string(),
    }
}

const SUBMISSIONS: u32 = 256;
const COMPLETIONS: u32 = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setup_errors_name_the_cause() {
        let forbidden = io::Error::from(Errno::PERM);
        assert!(refusal(&forbidden, None).contains("seccomp"));
        assert!(refusal(&forbidden, Some("2")).contains("kernel.io_uring_disabled = 2"));
        assert!(refusal(&Errno::NOSYS.into(), None).contains("ENOSYS"));
        assert!(refusal(&Errno::NOMEM.into(), None).contains("locked memory"));
    }
}
