//! Network.

use isolane_observe::snapshot::{Connection, Tcp};

use super::*;

const CARD: &str = "/sys/devices/pci0000:00/0000:00:02.0/net/eth0";

/// Files with which all checks of the network are good, with a bad content for each deciding file.
const FILES: &[(&str, &str, &str, &str)] = &[
    ("net.softnet", "/proc/net/softnet_stat", SOFTNET, "1 0 7 0 0 0 0 0 0 0\n"),
    ("net.softnet", "/proc/net/softnet_stat", SOFTNET, "1 7 0 0 0 0 0 0 0 0\n"),
    ("net.rings", "@/statistics/rx_missed_errors", "0\n", "1\n"),
    ("net.rings", "/isolane/ethtool/eth0/rings", "rx 256\nrx_max 4096\n", ""),
    ("net.coalesce", "/isolane/ethtool/eth0/coalescing", "adaptive_rx 0\nrx_us 20\n", "rx_us 21\n"),
    (
        "net.coalesce",
        "/isolane/ethtool/eth0/coalescing",
        "adaptive_rx 0\nrx_us 8\n",
        "adaptive_rx 1\nrx_us 8\n",
    ),
    ("net.offload", "/isolane/ethtool/eth0/features", FEATURES, "tx-tcp-segmentation 1\nrx-gro 1\n"),
    ("net.offload", "/isolane/ethtool/eth0/features", FEATURES, "rx-gro 0\n"),
    (
        "net.link",
        "/isolane/ethtool/eth0/link",
        "speed 25000\nmax_speed 25000\n",
        "speed 10000\nmax_speed 25000\n",
    ),
    ("net.steering", "@/queues/rx-0/rps_cpus", "0\n", "3\n"),
    ("net.steering", "@/queues/rx-1/rps_cpus", "0\n", "3\n"),
    ("net.steering", "@/queues/tx-0/xps_cpus", "00000003\n", "00000001\n"),
    ("net.errors", "@/statistics/rx_errors", "0\n", "1\n"),
    ("net.errors", "@/statistics/tx_errors", "0\n", "1\n"),
    ("net.errors", "@/statistics/rx_dropped", "0\n", "1\n"),
    ("net.errors", "@/statistics/tx_dropped", "0\n", "1\n"),
    ("net.errors", "@/statistics/rx_missed_errors", "0\n", "1\n"),
    ("net.errors", "/proc/net/snmp", SNMP, "Tcp: OutSegs RetransSegs\nTcp: 9000 10\n"),
    ("net.listen", "/proc/net/netstat", NETSTAT, "TcpExt: ListenOverflows TCPMemoryPressures\nTcpExt: 1 0\n"),
    ("net.listen", "/proc/sys/net/core/somaxconn", "4096\n", "128\n"),
    ("net.listen", "/proc/sys/net/ipv4/tcp_max_syn_backlog", "1024\n", "512\n"),
    ("net.memory", "/proc/net/netstat", NETSTAT, "TcpExt: ListenOverflows TCPMemoryPressures\nTcpExt: 0 1\n"),
    ("net.memory", "/proc/net/sockstat", "TCP: inuse 7 mem 55\n", "TCP: inuse 7 mem 200\n"),
    ("net.memory", "/proc/sys/net/ipv4/tcp_mem", "100 200 300\n", "10 50 300\n"),
    ("net.buffers", "/proc/sys/net/ipv4/tcp_rmem", "4096 131072 6291456\n", "4096 131072 1000000\n"),
    ("net.buffers", "/proc/sys/net/ipv4/tcp_wmem", "4096 16384 4194304\n", "4096 16384 1000000\n"),
    ("net.idle", "/proc/sys/net/ipv4/tcp_slow_start_after_idle", "0\n", "1\n"),
    ("net.link", "@/carrier_changes", "2\n", "3\n"),
    ("net.mtu", "@/mtu", "9000\n", "1500\n"),
    ("net.conntrack", "/proc/sys/net/netfilter/nf_conntrack_count", "7\n", "80\n"),
    ("net.conntrack", "/proc/sys/net/netfilter/nf_conntrack_max", "100\n", "8\n"),
];

const FEATURES: &str = "tx-tcp-segmentation 1\ntx-generic-segmentation 1\nrx-gro 1\n";
const SOFTNET: &str = "1 0 0 0 0 0 0 0 0 0\n1 0 0 0 0 0 0 0 0 0\n";
const SNMP: &str = "Tcp: OutSegs RetransSegs\nTcp: 9000 1\n";
const NETSTAT: &str = "TcpExt: ListenOverflows TCPMemoryPressures\nTcpExt: 0 0\n";

fn path(path: &str) -> String {
    path.replace('@', CARD)
}

/// A network card with two queues, and one that is down.
pub(super) fn tree() -> Tree {
    let other =
        [("@/operstate", "up\n"), ("@/speed", "25000\n"), ("/sys/devices/pci1/eth1/operstate", "down\n")];
    let tree = Tree::new(&[("/sys/class/net/x", ""), ("/sys/block/x", "")]);
    fs::remove_file(tree.path("/sys/class/net/x")).unwrap();
    fs::remove_file(tree.path("/sys/block/x")).unwrap();
    for (file, content) in other.into_iter().chain(FILES.iter().map(|(_, file, good, _)| (*file, *good))) {
        tree.write_bytes(&path(file), content.as_bytes());
    }
    tree.link("/sys/class/net/eth0", "../../devices/pci0000:00/0000:00:02.0/net/eth0");
    tree.link("/sys/class/net/eth1", "../../devices/pci1/eth1");
    tree
}

#[test]
fn checks_the_network() {
    for (id, file, _, bad) in FILES {
        let good = find(&tree(), id);
        assert_eq!(good.state, State::Good, "{good:?}");
        let (tree, path) = (tree(), path(file));
        // A small ring is bad only with missed packets.
        if !bad.is_empty() {
            tree.write_bytes(&path, bad.as_bytes());
            let finding = find(&tree, id);
            assert!(finding.state == State::Bad && !finding.remedy.is_empty(), "{file}: {finding:?}");
        }
        for malformed in [&b""[..], b"\xff\0[ -", &[b'9'; 70 << 10]] {
            tree.write_bytes(&path, malformed);
            assert_eq!(state(&tree, id), State::Unseen, "{id}: {file}");
        }
        fs::remove_file(tree.path(&path)).unwrap();
        // A card with one queue has no such file, and a system that tracks no connections no such setting.
        let is_optional = path.ends_with("xps_cpus") || path.ends_with("nf_conntrack_max");
        assert_eq!([State::Good, State::Absent].contains(&state(&tree, id)), is_optional, "{id}: {file}");
        fs::create_dir(tree.path(&path)).unwrap();
        assert_eq!(state(&tree, id), State::Unseen, "{id}: {file}");
    }
}

#[test]
fn each_reactor_needs_a_queue() {
    let tree = tree();
    assert_eq!(state(&tree, "net.queues"), State::Good);
    fs::remove_dir_all(tree.path(&path("@/queues/rx-1"))).unwrap();
    assert_eq!(state(&tree, "net.queues"), State::Bad);
    // One queue needs steering.
    assert_eq!(state(&tree, "net.steering"), State::Bad);
    tree.write_bytes(&path("@/queues/rx-0/rps_cpus"), b"3\n");
    assert_eq!(state(&tree, "net.steering"), State::Good);
    fs::remove_dir_all(tree.path(&path("@/queues"))).unwrap();
    assert_eq!(state(&tree, "net.queues"), State::Unseen);
    fs::remove_file(tree.path(&path("@/operstate"))).unwrap();
    assert_eq!(state(&tree, "net.queues"), State::Unseen);
    tree.write_bytes(&path("@/operstate"), b"down\n");
    assert_eq!(state(&tree, "net.queues"), State::Absent);
}

#[test]
fn cards_have_settings_or_not() {
    let tree = tree();
    for (id, part) in [("net.rings", "rings"), ("net.coalesce", "coalescing"), ("net.offload", "features")] {
        tree.write_bytes(&format!("/isolane/ethtool/eth0/{part}"), b"unsupported\n");
        assert_eq!(state(&tree, id), State::Absent, "{id}");
    }
    tree.write_bytes("/isolane/ethtool/eth0/link", b"unsupported\n");
    assert_eq!(state(&tree, "net.link"), State::Good);
    tree.write_bytes(&path("@/statistics/rx_missed_errors"), b"9\n");
    for (rings, expected) in [("rx 4096", State::Good), ("rx 64", State::Bad), ("tx 4096", State::Unseen)] {
        tree.write_bytes("/isolane/ethtool/eth0/rings", format!("{rings}\nrx_max 4096\n").as_bytes());
        assert_eq!(state(&tree, "net.rings"), expected, "{rings}");
    }
    fs::remove_dir_all(tree.path(&path("@/queues/rx-1"))).unwrap();
    for (channels, remedy) in [
        ("combined_max 8\n", "ethtool -L eth0 combined 2"),
        ("rx_max 8\n", "ethtool -L eth0 rx 2"),
        ("unsupported\n", "# the card has at most 1 queues: serve on fewer cores"),
    ] {
        tree.write_bytes("/isolane/ethtool/eth0/channels", channels.as_bytes());
        assert_eq!(find(&tree, "net.queues").remedy, [remedy]);
    }
}

/// Runs a check of a target with one connection.
fn find_with_peer(tree: &Tree, id: &str, tcp: Tcp) -> Finding {
    let (local, peer) = ("10.0.0.1:4420".to_owned(), "10.0.0.2:5000".to_owned());
    let mut snapshot = target(7);
    snapshot.numbers.connections = vec![Connection { local, peer, tcp: Some(tcp), ..Connection::default() }];
    let mut context = Context::new(tree.root(), Some(vec![0, 1])).with_snapshot(snapshot);
    run(&mut context, &select(id).unwrap()).remove(0)
}

#[test]
fn short_segments_show_a_path_of_small_packets() {
    let tree = tree();
    let network = u32::from_ne_bytes([10, 0, 0, 0]);
    let mask = u32::from_ne_bytes([255, 0, 0, 0]);
    let routes = |card: &str| format!("Iface\n{card} {network:08X} 0 0001 0 0 0 {mask:08X} 0 0 0\n");
    let find = |mss: u64| find_with_peer(&tree, "net.mtu", Tcp { mss, ..Tcp::default() });
    assert_eq!(find(8_948).state, State::Unseen, "no table of routes");
    tree.write_bytes("/proc/7/net/route", routes("eth0").as_bytes());
    assert_eq!(find(8_948).state, State::Good);
    let finding = find(1_448);
    assert!(finding.state == State::Bad && finding.value.contains("1448 bytes to 10.0.0.2"), "{finding:?}");
    tree.write_bytes("/proc/7/net/route", routes("eth1").as_bytes());
    assert_eq!(find(1_448).state, State::Good, "the peer is behind another card");
}

#[test]
fn busy_polling_needs_settings() {
    let tree = tree();
    let find = |duration: u64| {
        let mut snapshot = target(7);
        snapshot.program.limits.insert("busy-poll".to_owned(), duration);
        let mut context = Context::new(tree.root(), Some(vec![0, 1])).with_snapshot(snapshot);
        run(&mut context, &select("net.busypoll").unwrap()).remove(0).state
    };
    assert_eq!((find(0), state(&tree, "net.busypoll")), (State::Absent, State::Absent));
    let files =
        ["/proc/sys/net/core/busy_poll", &path("@/napi_defer_hard_irqs"), &path("@/gro_flush_timeout")];
    assert_eq!(find(50), State::Unseen);
    files.iter().for_each(|path| tree.write_bytes(path, b"9\n"));
    assert_eq!(find(50), State::Good);
    for path in files {
        for (content, expected) in [("0\n", State::Bad), ("", State::Unseen), ("x", State::Unseen)] {
            tree.write_bytes(path, content.as_bytes());
            assert_eq!(find(50), expected, "{path}: {content}");
        }
        fs::remove_file(tree.path(path)).unwrap();
        assert_eq!(find(50), State::Unseen, "{path}");
        fs::create_dir(tree.path(path)).unwrap();
        assert_eq!(find(50), State::Unseen, "{path}");
        fs::remove_dir(tree.path(path)).unwrap();
        tree.write_bytes(path, b"9\n");
    }
}

#[test]
fn long_round_trips_need_large_buffers() {
    let find =
        |min_rtt_us| find_with_peer(&tree(), "net.buffers", Tcp { min_rtt_us, ..Tcp::default() }).state;
    assert_eq!((find(0), find(600), find(1_000)), (State::Good, State::Good, State::Bad));
}

#[test]
fn slow_links_need_no_long_packets() {
    let tree = tree();
    tree.write_bytes(&path("@/mtu"), b"1500\n");
    tree.write_bytes(&path("@/speed"), b"1000\n");
    assert_eq!(state(&tree, "net.mtu"), State::Good);
    fs::remove_dir_all(tree.path("/proc/sys/net/netfilter")).unwrap();
    assert_eq!(state(&tree, "net.conntrack"), State::Absent);
}
