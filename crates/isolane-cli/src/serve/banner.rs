//! Output of `serve` once it is ready: listeners, volumes, and commands for users.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use isolane_target::{StartError, TargetPort};
use isolane_volume::shell::quoted;

use super::subsystem::{Described, Opened};
use crate::failure::Failure;

/// The data of the banner.
pub struct Banner<'a> {
    /// The ports.
    pub ports: &'a [TargetPort],
    /// Address of the listener of each port.
    pub listeners: &'a [SocketAddr],
    /// The subsystems and their volumes.
    pub subsystems: &'a [Opened],
    /// Name of this program.
    pub program: &'a str,
}

impl Banner<'_> {
    /// Returns one `listening on` line per listener, one line per volume, and commands for a Linux host and for this
    /// program.
    pub fn to_text(&self) -> String {
        let Banner { ports, listeners, subsystems, program } = self;
        let reachable: Vec<Vec<SocketAddr>> = listeners.iter().map(|one| reachable(one, listeners)).collect();
        let mut text = String::new();
        for (listener, addresses) in listeners.iter().zip(&reachable) {
            let _ = writeln!(text, "listening on {listener}");
            for address in addresses.iter().filter(|address| *address != listener) {
                let _ = writeln!(text, "  hosts connect to {address}");
            }
        }
        for Opened { subsystem, volumes, .. } in *subsystems {
            if subsystems.len() > 1 {
                let _ = writeln!(text, "subsystem {}", subsystem.nqn);
            }
            for Described { nsid, text: description, .. } in volumes {
                let _ = writeln!(text, "namespace {nsid}: {description}");
            }
        }
        let first = subsystems.iter().find_map(|one| Some((one, one.volumes.first()?)));
        let Some((Opened { subsystem, volumes, .. }, Described { nsid, .. })) = first else { return text };
        let mut there = ports.iter().zip(&reachable).filter(|(port, _)| subsystem.is_at(port));
        let Some(to) = there.find_map(|(_, addresses)| addresses.first()) else { return text };
        let nqn = subsystem.nqn;
        // Others are not admitted.
        let host = subsystem.allowed_hosts.as_ref().and_then(|hosts| hosts.first());
        let host = host.map(|host| quoted(host.as_str()));
        let as_host =
            |option: &str| host.as_ref().map_or_else(String::new, |host| format!(" {option} {host}"));
        let (of_kernel, of_program) = (as_host("--hostnqn"), as_host("--host-nqn"));
        let at = format!("-t tcp -a {} -s {}", to.ip(), to.port());
        let subsystem = format!("nvme+tcp://{to}/{nqn}");
        let volume = if volumes.len() > 1 { format!("{subsystem}?nsid={nsid}") } else { subsystem.clone() };
        let (subsystem, volume) = (quoted(&subsystem), quoted(&volume));
        let _ = write!(
            text,
            "\nfrom a Linux host:\n  sudo modprobe nvme-tcp\n  sudo nvme discover {at}{of_kernel}\n  sudo nvme connect {at} -n {nqn}{of_kernel}\n  \
             sudo nvme disconnect -n {nqn}\n\
             \nfrom user space:\n  {program} info{of_program} {subsystem}\n  {program} bench{of_program} {volume}\n",
        );
        text
    }
}

/// Returns the failure to start a target. `setting` has its addresses.
pub fn cannot_start(error: &StartError, setting: &str) -> Failure {
    let failure = Failure::new("cannot start the target", error);
    match error {
        StartError::Listen { .. } | StartError::SameAddress(_) => {
            failure.with_hint(format_args!("the addresses are {setting}"))
        }
        _ => failure,
    }
}

/// Returns the addresses that reach a listener: for the wildcard address, all of this machine, loopback last.
fn reachable(listener: &SocketAddr, all: &[SocketAddr]) -> Vec<SocketAddr> {
    let any = listener.ip();
    if !any.is_unspecified() {
        return vec![*listener];
    }
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let up = interfaces.iter().filter(|interface| interface.is_oper_up()).map(if_addrs::Interface::ip);
    let mut addresses: Vec<IpAddr> = match any {
        IpAddr::V4(_) => up.filter(IpAddr::is_ipv4).collect(),
        IpAddr::V6(_) => {
            let has_ipv4 = isolane_target::is_dual_stack(*listener, all.iter().copied());
            let is_reachable = |ip: &IpAddr| match ip {
                IpAddr::V4(_) => has_ipv4,
                IpAddr::V6(ip) => !ip.is_unicast_link_local(),
            };
            up.filter(is_reachable).collect()
        }
    };
    addresses.sort_by_key(|address| (address.is_loopback(), *address));
    addresses.dedup();
    addresses.into_iter().map(|address| SocketAddr::new(address, listener.port())).collect()
}

#[cfg(test)]
mod tests {
    use isolane_target::Subsystem;

    use super::*;

    fn subsystem(nqn: &str, volumes: &[(u32, &str)]) -> Opened {
        let described = volumes.iter().map(|(nsid, text)| Described {
            nsid: *nsid,
            spec: "mem:1G".parse().unwrap(),
            text: (*text).to_owned(),
        });
        let subsystem = Subsystem::new(nqn.parse().unwrap());
        Opened { subsystem, volumes: described.collect(), missing: Vec::new() }
    }

    fn show(listeners: &[&str], subsystems: &[Opened]) -> String {
        let listeners: Vec<SocketAddr> = listeners.iter().map(|address| address.parse().unwrap()).collect();
        let ports: Vec<_> = listeners.iter().map(|address| TargetPort::from(*address)).collect();
        Banner { ports: &ports, listeners: &listeners, subsystems, program: "./isolane" }.to_text()
    }

    fn text(listeners: &[&str], volumes: &[(u32, &str)]) -> String {
        show(listeners, &[subsystem("nqn.x", volumes)])
    }

    #[test]
    fn lists_volumes_by_subsystem() {
        let subsystems = [subsystem("nqn.a", &[(1, "x"), (2, "y")]), subsystem("nqn.b", &[(1, "z")])];
        let text = show(&["127.0.0.1:4420"], &subsystems);
        let volumes = "subsystem nqn.a\nnamespace 1: x\nnamespace 2: y\nsubsystem nqn.b\nnamespace 1: z\n";
        assert!(text.contains(volumes), "{text}");
        assert!(text.contains("4420/nqn.a?nsid=1"), "{text}");
    }

    #[test]
    fn has_listeners_volumes_and_commands() {
        let text = text(&["127.0.0.1:4420", "[::1]:4421"], &[(1, "disk.img, file, 1.0 GiB, read-only")]);
        assert!(text.starts_with(
            "listening on 127.0.0.1:4420\nlistening on [::1]:4421\nnamespace 1: disk.img, file"
        ));
        assert!(text.contains("nvme discover -t tcp -a 127.0.0.1 -s 4420\n"));
        assert!(text.contains("nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.x\n"));
        assert!(text.contains("nvme disconnect -n nqn.x\n"));
        assert!(text.contains("  ./isolane bench nvme+tcp://127.0.0.1:4420/nqn.x\n"));
    }

    #[test]
    fn names_a_host_that_is_admitted() {
        let mut one = subsystem("nqn.x", &[(1, "mem:1G")]);
        one.subsystem.allowed_hosts = Some(vec!["nqn.db1".parse().unwrap(), "nqn.db2".parse().unwrap()]);
        let text = show(&["127.0.0.1:4420"], &[one]);
        assert!(
            text.contains("nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.x --hostnqn nqn.db1\n"),
            "{text}"
        );
        assert!(text.contains("nvme discover -t tcp -a 127.0.0.1 -s 4420 --hostnqn nqn.db1\n"), "{text}");
        assert!(
            text.contains("  ./isolane info --host-nqn nqn.db1 nvme+tcp://127.0.0.1:4420/nqn.x\n"),
            "{text}"
        );
        assert!(
            text.contains("  ./isolane bench --host-nqn nqn.db1 nvme+tcp://127.0.0.1:4420/nqn.x\n"),
            "{text}"
        );
    }

    #[test]
    fn measures_one_volume_with_quoted_uri() {
        let text = text(&["127.0.0.1:4420"], &[(3, "mem:1G"), (4, "mem:1G")]);
        assert!(text.contains("bench 'nvme+tcp://127.0.0.1:4420/nqn.x?nsid=3'\n"), "{text}");
        assert!(text.contains("info nvme+tcp://127.0.0.1:4420/nqn.x\n"), "{text}");
    }

    #[test]
    fn brackets_ipv6_only_in_uris() {
        let text = text(&["[::1]:4420"], &[(1, "mem:1G")]);
        assert!(text.contains("-a ::1 -s 4420") && text.contains("'nvme+tcp://[::1]:4420/nqn.x'"));
    }

    #[test]
    fn expands_wildcard_addresses() {
        let any = ["0.0.0.0:4420".parse().unwrap(), "[::]:4420".parse().unwrap()];
        let has_ipv4 = |all: &[SocketAddr]| reachable(&any[1], all).iter().any(SocketAddr::is_ipv4);
        assert!(has_ipv4(&any[1..]) && !has_ipv4(&any));
        let reachable = reachable(&any[0], &any);
        assert!(!reachable.is_empty() && reachable.iter().all(|address| !address.ip().is_unspecified()));
        assert!(reachable.is_sorted_by_key(|address| address.ip().is_loopback()), "{reachable:?}");
    }
}
