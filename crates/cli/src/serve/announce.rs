//! What `serve` prints when it is ready: where it listens, and what to paste.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// One `listening on` line for each listener, then the lines for a Linux host and for ours, which is called
/// as `program`.
pub fn lines(addresses: &[SocketAddr], nqn: &str, program: &str) -> String {
    let mut text = String::new();
    for address in addresses {
        let _ = writeln!(text, "listening on {address}");
    }
    let Some(&first) = addresses.first() else { return text };
    let to = SocketAddr::new(reachable(first.ip()), first.port());
    let _ = write!(
        text,
        "\nfrom a Linux host:\n  sudo modprobe nvme-tcp\n  sudo nvme connect -t tcp -a {} -s {} -n {nqn}\n\
         \nfrom user space:\n  {program} info nvme+tcp://{to}/{nqn}\n  {program} bench nvme+tcp://{to}/{nqn}\n",
        to.ip(),
        to.port(),
    );
    text
}

/// An address to connect to: loopback stands for "any".
fn reachable(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(any) if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(any) if any.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listener_has_a_line_and_the_first_is_pasted() {
        let text =
            lines(&["127.0.0.1:4420".parse().unwrap(), "[::1]:4421".parse().unwrap()], "nqn.x", "./isolane");
        assert!(text.starts_with("listening on 127.0.0.1:4420\nlistening on [::1]:4421\n"));
        assert!(text.contains("nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.x\n"));
        assert!(text.contains("  ./isolane bench nvme+tcp://127.0.0.1:4420/nqn.x\n"));
    }

    #[test]
    fn ipv6_stands_in_brackets_in_a_uri_only() {
        let text = lines(&["[::]:4420".parse().unwrap()], "nqn.x", "isolane");
        assert!(text.contains("-a ::1 -s 4420") && text.contains("nvme+tcp://[::1]:4420/nqn.x"));
    }
}
