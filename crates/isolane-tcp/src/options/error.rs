//! Error type of socket options.

use rustix::io::Errno;
use std::io;
use std::sync::Arc;

/// A socket option that the kernel did not set as requested.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot set {option}={value}: {}; {}", self.cause(), self.remedy())]
pub struct SocketOptionError {
    option: &'static str,
    value: String,
    error: Arc<io::Error>,
}

impl SocketOptionError {
    pub(super) fn new(option: &'static str, value: String, error: io::Error) -> SocketOptionError {
        SocketOptionError { option, value, error: Arc::new(error) }
    }

    /// Returns the name of the option, as in its text form.
    pub fn option(&self) -> &'static str {
        self.option
    }

    fn cause(&self) -> String {
        match self.errno() {
            Some(Errno::NOENT) if self.option == "congestion" => String::from("unknown algorithm"),
            _ => self.error.to_string(),
        }
    }

    fn remedy(&self) -> String {
        let not_permitted = self.errno() == Some(Errno::PERM);
        match self.option {
            "congestion" if not_permitted => format!(
                "without CAP_NET_ADMIN only {} are allowed; grant the capability, or add the algorithm \
                 to net.ipv4.tcp_allowed_congestion_control",
                list("allowed")
            ),
            "congestion" => {
                format!("choose one of {}, or load the module tcp_{}", list("available"), self.value)
            }
            "priority" if not_permitted => String::from("grant CAP_NET_ADMIN, or choose 0 to 6"),
            "busy-poll" if not_permitted => {
                String::from("grant CAP_NET_ADMIN, or raise net.core.busy_read to this value")
            }
            "prefer-busy-poll" if not_permitted => String::from("grant CAP_NET_ADMIN"),
            "receive-buffer" => String::from("choose less, or raise net.core.rmem_max"),
            "send-buffer" => String::from("choose less, or raise net.core.wmem_max"),
            _ => String::from("omit the option"),
        }
    }

    fn errno(&self) -> Option<Errno> {
        self.error.raw_os_error().map(Errno::from_raw_os_error)
    }
}

/// Lists the `available` or `allowed` congestion control algorithms.
fn list(which: &str) -> String {
    let path = format!("/proc/sys/net/ipv4/tcp_{which}_congestion_control");
    std::fs::read_to_string(path).map_or_else(|_| String::from("(unknown)"), |names| names.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_errors_name_the_privilege() {
        for (option, remedy) in [
            ("priority", "CAP_NET_ADMIN, or choose 0 to 6"),
            ("busy-poll", "net.core.busy_read"),
            ("prefer-busy-poll", "CAP_NET_ADMIN"),
            ("congestion", "tcp_allowed_congestion_control"),
        ] {
            let refused = io::Error::from_raw_os_error(Errno::PERM.raw_os_error());
            let error = SocketOptionError::new(option, String::from("7"), refused).to_string();
            assert!(error.starts_with(&format!("cannot set {option}=7: ")), "{error}");
            assert!(error.contains(remedy), "{error}");
        }
    }
}
