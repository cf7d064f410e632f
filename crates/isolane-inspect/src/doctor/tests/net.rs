//! Network.

use super::*;

const CARD: &str = "/sys/devices/pci0000:00/0000:00:02.0/net/eth0";

/// Files with which all checks of the network are good, with a bad content for those that decide.
const FILES: &[(&str, &str, &str, &str)] = &[
    ("net.softnet", "/proc/net/softnet_stat", SOFTNET, "1 0 7 0 0 0 0 0 0 0\n"),
    ("net.softnet", "/proc/net/softnet_stat", SOFTNET, "1 7 0 0 0 0 0 0 0 0\n"),
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
        tree.write_bytes(&path, bad.as_bytes());
        let finding = find(&tree, id);
        assert!(finding.state == State::Bad && !finding.remedy.is_empty(), "{file}: {finding:?}");
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
fn slow_links_need_no_long_packets() {
    let tree = tree();
    tree.write_bytes(&path("@/mtu"), b"1500\n");
    tree.write_bytes(&path("@/speed"), b"1000\n");
    assert_eq!(state(&tree, "net.mtu"), State::Good);
    fs::remove_dir_all(tree.path("/proc/sys/net/netfilter")).unwrap();
    assert_eq!(state(&tree, "net.conntrack"), State::Absent);
}
