//! How every subcommand that uses a volume connects to it: the options they share.

use std::net::IpAddr;
use std::time::Duration;

use clap::ValueEnum;
use isolane_host::{
    Client, FlushAfterLoss, IoChoice, Mode, Options, Reconnect, SocketOptions, Uri, WriteReplay,
};
use isolane_wire::Nqn;
use uuid::Uuid;

use crate::failure::{Context, Failure};
use crate::units::parse_time;

/// Who we are to the target, and how we talk to it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct HostArgs {
    /// Name of this host (default: the machine's, as in /etc/nvme/hostnqn)
    #[arg(long, value_name = "NQN")]
    pub host_nqn: Option<String>,
    /// Identity of this host (default: the machine's, as in /etc/nvme/hostid)
    #[arg(long, value_name = "UUID")]
    pub host_id: Option<Uuid>,
    /// Protect every header with a CRC32C
    #[arg(short = 'g', long)]
    pub hdr_digest: bool,
    /// Protect all data with a CRC32C
    #[arg(short = 'G', long)]
    pub data_digest: bool,
    /// Keep-alive timeout; 0 for none
    #[arg(short = 'k', long, value_name = "TIME", default_value = "15s", value_parser = parse_time)]
    pub keep_alive: Duration,
    /// How long to try to reconnect after a connection was lost; 0 for not at all
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_time)]
    pub reconnect: Duration,
    /// What to do with writes whose fate a lost connection left open
    #[arg(long, value_enum, default_value_t = ReplayArg::WhenGone)]
    pub replay: ReplayArg,
    /// How long the target takes at most to end the commands of a lost connection after its keep-alive
    /// timeout, if its controller reports no such time (CQT 0); `--replay after-timeout` needs one of the two
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub quiesce: Option<Duration>,
    /// What becomes of the first flush after a connection was lost with unflushed writes, where the target does not
    /// report whether it kept them (default: trust, or what the URI says)
    #[arg(long, value_enum, value_name = "CHOICE")]
    pub flush_after_loss: Option<FlushAfterLossArg>,
    /// Options of the sockets, as priority=5,tos=0x68,congestion=bbr; also busy-poll=US (microseconds),
    /// prefer-busy-poll=on, send-buffer=BYTES (128 KiB to a target on this machine), receive-buffer=BYTES,
    /// unsent-max=BYTES
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true)]
    pub socket: SocketOptions,
    /// Which interface of the kernel the host sleeps in
    #[arg(long, value_enum, default_value_t = IoArg::Auto)]
    pub io: IoArg,
}

/// Which interface of the kernel carries sleep, readiness and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IoArg {
    /// io_uring where it is usable, else epoll
    Auto,
    /// io_uring, or an error
    Uring,
    /// epoll
    Epoll,
}

/// What a core does when there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// Spin for ever: least latency, one core always busy
    Poll,
    /// Spin a little after work, then sleep
    Adaptive,
    /// Sleep at once
    Sleep,
}

/// What happens to writes whose fate is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReplayArg {
    /// Repeat them once the target says that the old association is gone
    WhenGone,
    /// Repeat them only after the keep-alive timeout, whatever the target says
    AfterTimeout,
    /// Fail them
    Never,
}

/// What becomes of the first flush after a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FlushAfterLossArg {
    /// Take the target's answer, as Linux does
    Trust,
    /// Fail it
    Fail,
}

impl IoArg {
    /// The reactor's word for it.
    pub fn choice(self) -> IoChoice {
        match self {
            IoArg::Auto => IoChoice::Auto,
            IoArg::Uring => IoChoice::Uring,
            IoArg::Epoll => IoChoice::Epoll,
        }
    }
}

impl ModeArg {
    /// The reactor's word for it.
    pub fn mode(self) -> Mode {
        match self {
            ModeArg::Poll => Mode::Poll,
            ModeArg::Adaptive => Mode::Adaptive,
            ModeArg::Sleep => Mode::Sleep,
        }
    }
}

impl HostArgs {
    /// The library's options, all else at its defaults.
    pub fn options(&self) -> Result<Options, Failure> {
        let mut options = Options {
            header_digest: self.hdr_digest,
            data_digest: self.data_digest,
            keep_alive: self.keep_alive,
            io: self.io.choice(),
            socket: self.socket.clone(),
            ..Options::default()
        };
        if let Some(nqn) = &self.host_nqn {
            options.host_nqn = parse_host_nqn(nqn)?;
        }
        if let Some(host_id) = self.host_id {
            options.host_id = host_id;
        }
        options.flush_after_loss = self.flush_after_loss.map(|choice| match choice {
            FlushAfterLossArg::Trust => FlushAfterLoss::Trust,
            FlushAfterLossArg::Fail => FlushAfterLoss::Fail,
        });
        options.reconnect = Reconnect {
            give_up_after: Some(self.reconnect),
            writes: match self.replay {
                ReplayArg::WhenGone => WriteReplay::WhenGone,
                ReplayArg::AfterTimeout => WriteReplay::AfterTimeout,
                ReplayArg::Never => WriteReplay::Never,
            },
            quiesce: self.quiesce,
            ..Reconnect::default()
        };
        Ok(options)
    }
}

/// Parses the name of a host.
pub fn parse_host_nqn(text: &str) -> Result<Nqn, Failure> {
    let what = || format!("`{text}` is not a host NQN");
    let nqn: Nqn = text.parse().context(what())?;
    match nqn.has_standard_format() {
        true => Ok(nqn),
        false => Err(Failure::new(what(), "it is not an NVMe qualified name")
            .remedy("write nqn.YEAR-MONTH.DOMAIN:NAME, such as nqn.2014-08.org.example:host")),
    }
}

/// Parses a volume URI.
pub fn parse_uri(text: &str) -> Result<Uri, Failure> {
    text.parse().context("cannot use the volume")
}

/// Connects to a volume.
pub fn connect(uri: &Uri, options: Options) -> Result<Client, Failure> {
    Client::connect(uri, options).context(format!("cannot connect to {uri}"))
}

/// Whether a text is `nvme+tcp:…`, an IP address, or a host with a port.
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
    fn tells_addresses_from_names_of_files() {
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
