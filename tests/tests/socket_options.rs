//! Options of sockets reach every connection of a host and of a target: asked of the kernel, over both
//! families.

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
    config.volumes = vec![(1, open(&spec::parse("mem:1M").unwrap()).unwrap())];
    config.listen = vec![Listen { address, options: options.parse().unwrap() }];
    config.mode = Mode::Sleep;
    Target::start(config).unwrap()
}

fn connect(address: SocketAddr, options: &str) -> Result<Client, ConnectError> {
    let socket = options.parse().unwrap();
    let uri = format!("nvme+tcp://{address}/{NQN}").parse().unwrap();
    Client::connect(&uri, Options { mode: Mode::Sleep, lanes: 2, socket, ..Options::default() })
}

/// Ends of connections with `address` that this process has: the target's (its own address), or the host's.
fn ends(address: SocketAddr, is_target: bool) -> Vec<OwnedFd> {
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = numbers.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let copies = numbers.filter_map(|number| pidfd_getfd(&this, number, PidfdGetfdFlags::empty()).ok());
    let is_wanted = |socket: &OwnedFd| {
        let socket = SockRef::from(socket);
        let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr()) else { return false };
        let address_there = if is_target { local } else { peer };
        address_there.as_socket() == Some(address)
    };
    copies.filter(is_wanted).collect()
}

/// What was asked for, out of what the kernel tells.
fn only_asked(told: SocketOptions) -> String {
    let told = SocketOptions { busy_poll_us: None, prefer_busy_poll: None, congestion_control: None, ..told };
    told.to_string()
}

#[test]
fn every_connection_of_a_listener_and_of_a_host_has_the_options_of_its_side() {
    let of_target = "priority=3,tos=0x20,receive-buffer=131072,send-buffer=262144,unsent-max=65536";
    let of_host = "priority=5,tos=0x68,receive-buffer=262144,send-buffer=131072,unsent-max=32768";
    for family in ["127.0.0.1:0", "[::1]:0"] {
        let address: SocketAddr = family.parse().unwrap();
        if TcpListener::bind(address).is_err() {
            eprintln!("this machine has no {family}");
            continue;
        }
        let target = serve(address, of_target);
        let address = target.local_addrs()[0];
        let client = connect(address, of_host).unwrap();
        for (is_target, asked) in [(true, of_target), (false, of_host)] {
            let ends = ends(address, is_target);
            assert_eq!(ends.len(), 3, "an admin queue and two I/O queues");
            for end in &ends {
                assert_eq!(only_asked(SocketOptions::of(end).unwrap()), asked, "{family}");
            }
        }
        client.close();
    }
}

#[test]
fn an_algorithm_that_is_not_there_is_named_by_either_side_before_it_connects() {
    let error = connect("127.0.0.1:1".parse().unwrap(), "congestion=nosuch").err().unwrap();
    assert!(matches!(error, ConnectError::SocketOption(_)), "{error}");
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.listen = vec!["127.0.0.1:0,congestion=nosuch".parse().unwrap()];
    let error = Target::start(config).err().unwrap().to_string();
    assert!(error.contains("this kernel has:"), "{error}");
}
