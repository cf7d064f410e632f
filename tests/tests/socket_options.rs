//! Socket options apply to every connection of a host and of a target, over IPv4 and IPv6.

use std::net::{SocketAddr, TcpListener};

use isolane_host::{Client, ConnectError, Mode, Options, SocketOptions};
use isolane_target::{Listen, Target, TargetConfig};
use isolane_volume::{open, spec};
use rustix::fd::OwnedFd;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use socket2::SockRef;

const NQN: &str = "nqn.2024-01.org.example:socket-options";

fn serve(address: SocketAddr, options: &str) -> Target {
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.subsystems[0].volumes = vec![(1, open(&spec::parse("mem:1M").unwrap()).unwrap())];
    config.listen = vec![Listen { address, options: options.parse().unwrap() }.into()];
    config.mode = Mode::Sleep;
    Target::start(config).unwrap()
}

fn connect(address: SocketAddr, options: &str) -> Result<Client, ConnectError> {
    let socket = options.parse().unwrap();
    let uri = format!("nvme+tcp://{address}/{NQN}").parse().unwrap();
    Client::connect(&uri, Options { mode: Mode::Sleep, lanes: 2, socket, ..Options::default() })
}

/// Sockets of this process with `address`, of the target or of the host.
fn ends(address: SocketAddr, target_side: bool) -> Vec<OwnedFd> {
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = numbers.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let copies = numbers.filter_map(|number| pidfd_getfd(&this, number, PidfdGetfdFlags::empty()).ok());
    let matches = |socket: &OwnedFd| {
        let socket = SockRef::from(socket);
        let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr()) else { return false };
        let end = if target_side { local } else { peer };
        end.as_socket() == Some(address)
    };
    copies.filter(matches).collect()
}

/// Only the options that the test sets.
fn requested_only(options: SocketOptions) -> String {
    let options =
        SocketOptions { busy_poll_us: None, prefer_busy_poll: None, congestion_control: None, ..options };
    options.to_string()
}

#[test]
fn every_connection_has_the_options_of_its_side() {
    let of_target = "priority=3,tos=0x20,receive-buffer=131072,send-buffer=262144,max-unsent=65536";
    let of_host = "priority=5,tos=0x68,receive-buffer=262144,send-buffer=131072,max-unsent=32768";
    for family in ["127.0.0.1:0", "[::1]:0"] {
        let address: SocketAddr = family.parse().unwrap();
        if TcpListener::bind(address).is_err() {
            eprintln!("this machine has no {family}");
            continue;
        }
        let target = serve(address, of_target);
        let address = target.local_addrs()[0];
        let client = connect(address, of_host).unwrap();
        for (target_side, requested) in [(true, of_target), (false, of_host)] {
            let ends = ends(address, target_side);
            assert_eq!(ends.len(), 3, "an admin queue and two I/O queues");
            for end in &ends {
                assert_eq!(requested_only(SocketOptions::from_socket(end).unwrap()), requested, "{family}");
            }
        }
        client.close();
    }
}

#[test]
fn rejects_unknown_congestion_control() {
    let error = connect("127.0.0.1:1".parse().unwrap(), "congestion=nosuch").err().unwrap();
    assert!(matches!(error, ConnectError::SocketOption(_)), "{error}");
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.listen = vec!["127.0.0.1:0,congestion=nosuch".parse().unwrap()];
    let error = Target::start(config).err().unwrap().to_string();
    assert!(error.contains("choose one of"), "{error}");
}
