//! Options of all subcommands that connect to a volume.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use isolane_host::{
    Client, FlushAfterLoss, IoChoice, Mode, Options, Reconnect, SocketOptions, Uri, WriteReplay,
};
use isolane_wire::Nqn;
use uuid::Uuid;

use crate::choice::{Choice, one_of};
use crate::control;
use crate::failure::{Context, Failure};
use crate::units::parse_time;

/// Identity of the host.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct IdentityArgs {
    /// Name of this host (default: from /etc/nvme/hostnqn, else derived from the machine ID)
    #[arg(long, value_name = "NQN", help_heading = "Connection")]
    pub host_nqn: Option<String>,
    /// ID of this host (default: from /etc/nvme/hostid, else derived from the machine ID)
    #[arg(long, value_name = "UUID", help_heading = "Connection")]
    pub host_id: Option<Uuid>,
    /// File with the key of this host, for targets that require authentication (default: from the URI)
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    pub key: Option<PathBuf>,
    /// File with the key by which the target must prove its identity (default: from the URI)
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    pub ctrl_key: Option<PathBuf>,
}

impl IdentityArgs {
    /// Returns `true` if a part of the identity was given.
    pub fn is_given(&self) -> bool {
        self.host_nqn.is_some() || self.host_id.is_some() || self.key.is_some() || self.ctrl_key.is_some()
    }

    /// Sets the identity in the options of the library.
    pub fn apply(&self, options: &mut Options) -> Result<(), Failure> {
        if let Some(nqn) = &self.host_nqn {
            options.host_nqn = parse_host_nqn(nqn)?;
        }
        if let Some(host_id) = self.host_id {
            options.host_id = host_id;
        }
        options.key.clone_from(&self.key);
        options.ctrl_key.clone_from(&self.ctrl_key);
        Ok(())
    }
}

/// Identity of the host, and options of its connections.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct HostArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// Protect headers with CRC32C
    #[arg(short = 'g', long)]
    pub hdr_digest: bool,
    /// Protect data with CRC32C
    #[arg(short = 'G', long)]
    pub data_digest: bool,
    /// Keep-alive timeout, 0 to disable
    #[arg(short = 'k', long, value_name = "TIME", default_value = "15s", value_parser = parse_time)]
    pub keep_alive: Duration,
    /// Reconnect for this long after a connection is lost, and repeat a command without an answer for this long, 0 to
    /// disable
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_time)]
    pub reconnect: Duration,
    /// Handling of writes whose result was lost with a connection
    #[arg(long, value_parser = one_of(&REPLAYS), default_value = "when-gone")]
    pub replay: WriteReplay,
    /// Time that the target needs, after the keep-alive timeout, to end the commands of a lost connection, if its
    /// controller reports none (CQT 0); required by `--replay after-timeout` in that case
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub quiesce: Option<Duration>,
    /// Handling of the first flush after a connection is lost with unflushed writes, if the target does not report
    /// whether it kept them (default: from the URI, else trust)
    #[arg(long, value_parser = one_of(&FLUSHES_AFTER_LOSS), value_name = "CHOICE")]
    pub flush_after_loss: Option<FlushAfterLoss>,
    /// Socket options, as priority=5,tos=0x68,congestion=bbr and busy-poll=US (microseconds),
    /// prefer-busy-poll=on, send-buffer=BYTES (128 KiB to a target on this machine), receive-buffer=BYTES,
    /// max-unsent=BYTES
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true)]
    pub socket: SocketOptions,
    /// Kernel interface for waiting
    #[arg(long, value_parser = one_of(&IO_CHOICES), default_value = "auto")]
    pub io: IoChoice,
}

/// Kernel interfaces for files, readiness, and sleep.
pub const IO_CHOICES: [Choice<IoChoice>; 3] = [
    ("auto", "Use io_uring if available, else epoll", IoChoice::Auto),
    ("uring", "Require io_uring", IoChoice::Uring),
    ("epoll", "Use epoll", IoChoice::Epoll),
];

/// Idle behaviors of a core.
pub const MODES: [Choice<Mode>; 3] = [
    ("poll", "Spin: lowest latency, one core always busy", Mode::Poll),
    ("adaptive", "Spin briefly after work, then sleep", Mode::Adaptive),
    ("sleep", "Sleep immediately", Mode::Sleep),
];

/// Handling of writes with an unknown result.
const REPLAYS: [Choice<WriteReplay>; 3] = [
    (
        "when-gone",
        "Repeat them once the target reports that the old association is gone",
        WriteReplay::WhenGone,
    ),
    (
        "after-timeout",
        "Repeat them only after the keep-alive timeout, regardless of reports",
        WriteReplay::AfterTimeout,
    ),
    ("never", "Fail them", WriteReplay::Never),
];

/// Handling of the first flush after a loss.
const FLUSHES_AFTER_LOSS: [Choice<FlushAfterLoss>; 2] = [
    ("trust", "Trust the target's response, as Linux does", FlushAfterLoss::Trust),
    ("fail", "Fail it", FlushAfterLoss::Fail),
];

impl HostArgs {
    /// Returns the options of the library, with defaults for the others.
    pub fn options(&self) -> Result<Options, Failure> {
        let mut options = Options {
            header_digest: self.hdr_digest,
            data_digest: self.data_digest,
            keep_alive: self.keep_alive,
            io: self.io,
            socket: self.socket.clone(),
            flush_after_loss: self.flush_after_loss,
            reconnect: Reconnect {
                timeout: Some(self.reconnect),
                writes: self.replay,
                quiesce: self.quiesce,
                ..Reconnect::default()
            },
            ..Options::default()
        };
        self.identity.apply(&mut options)?;
        Ok(options)
    }
}

/// Parses the name of a host.
pub fn parse_host_nqn(text: &str) -> Result<Nqn, Failure> {
    parse_standard_nqn(text, &format!("`{text}` is not a host NQN"), "host")
}

/// Parses a name in the standard format; `what` is the failed action, and `example` the end of a valid name.
pub fn parse_standard_nqn(text: &str, what: &str, example: &str) -> Result<Nqn, Failure> {
    let nqn: Nqn = text.parse().context(what)?;
    if nqn.has_standard_format() {
        Ok(nqn)
    } else {
        Err(Failure::new(what, "not an NVMe qualified name").with_hint(format!(
            "write nqn.YEAR-MONTH.DOMAIN:NAME with your domain, such as nqn.2014-08.org.example:{example}"
        )))
    }
}

/// Returns the parts of PDUs that have digests.
pub fn show_digests(header: bool, data: bool) -> &'static str {
    match (header, data) {
        (true, true) => "header and data",
        (true, false) => "header",
        (false, true) => "data",
        (false, false) => "none",
    }
}

/// Parses a volume URI.
pub fn parse_uri(text: &str) -> Result<Uri, Failure> {
    text.parse().context("cannot use the volume")
}

/// Connects to a volume, which readers of the control socket see.
pub fn connect(uri: &Uri, options: Options) -> Result<Client, Failure> {
    let client = Client::connect(uri, options).context(format!("cannot connect to {uri}"))?;
    control::add(&client);
    Ok(client)
}

/// Returns `true` for `nvme+tcp:…`, an IP address, or a host with a port.
pub fn is_like_address(text: &str) -> bool {
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    let has_port = text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && is_port(port));
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let has_scheme = ["nvme+tcp:", "nvme:", "tcp:"].iter().any(|scheme| text.starts_with(scheme));
    has_scheme || !text.contains('/') && (has_port || bare.parse::<IpAddr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_addresses_from_file_names() {
        for address in [
            "127.0.0.1:4440",
            "host:4420",
            "[::1]:4420",
            "::1",
            "10.0.0.1",
            "nvme+tcp:HOST",
            "nvme+tcp:/h/nqn",
        ] {
            assert!(is_like_address(address), "{address}");
        }
        for file in [
            "disk.img",
            "./127.0.0.1:4440",
            "/dev/disk/by-path/pci-0000:00",
            "a:b",
            "2026-01-01T10:20:30Z",
            ":1",
        ] {
            assert!(!is_like_address(file), "{file}");
        }
    }
}
