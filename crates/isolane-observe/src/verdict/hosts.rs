//! Hosts, connections, and the network between them and the program.

use std::collections::{BTreeMap, BTreeSet};

use super::MIN_LOSS_NS;
use super::case::{Case, MIN_SHARE, stands_out};
use super::document::{Evidence, Finding, Grade, Kind, Neighbor, PeerTimes};
use super::ledger::Part;
use super::units::{escape, show_digits, show_ns, show_percent};
use crate::histogram::Histogram;
use crate::snapshot::{Connection, Tcp, merge_times};
use crate::stage::{SizeClass, Stage};

/// Retransmitted segments, and their least part, that count as loss.
const MIN_RETRANSMITS: u64 = 10;
const MIN_LOSS: f64 = 0.001;
/// Least part of the window in which the receive window of a host is full.
const MIN_FULL: f64 = 0.02;
/// Least part of the bytes of a core that bulk I/O moves, its bytes for each operation, and their ratio to others.
const MIN_BULK: f64 = 0.6;
const MIN_BULK_BYTES: f64 = 16384.0;
const MIN_BULK_RATIO: f64 = 4.0;
/// Least rate of bulk I/O, in bytes per second: fewer bytes take only a few percent of the time of a core.
const MIN_BULK_RATE: f64 = 40e6;
/// Least mean number of large operations in flight that wait for each other rather than for their host.
const MIN_BULK_DEPTH: f64 = 3.0;
/// Most hosts that are named.
const MAX_HOSTS: usize = 4;

/// Sums of the connections of one host.
#[derive(Clone, Debug, Default)]
struct Host {
    operations: f64,
    /// Time in the stages that depend on the peer, in nanoseconds.
    peer_ns: f64,
    /// Time in the stage `answer`, which waits for the peer while its receive window is full, in nanoseconds.
    answer_ns: f64,
    bytes: f64,
    tcp: Option<Tcp>,
    /// A round trip for each retransmitted segment, in nanoseconds.
    late_ns: f64,
    connections: Vec<u64>,
    peers: BTreeSet<String>,
}

/// Reports hosts and networks that delay operations.
pub(super) fn find(case: &mut Case<'_>) {
    let hosts = hosts(&case.window.connections);
    find_network(case, &hosts);
    find_late_hosts(case, &hosts);
    find_bulk(case);
}

/// Returns `true` for the stages that depend on the network or on the peer.
fn depends_on_peer(stage: Stage) -> bool {
    matches!(stage, Stage::Transfer | Stage::Socket | Stage::Send | Stage::Data | Stage::Tx)
}

fn hosts(connections: &[Connection]) -> BTreeMap<String, Host> {
    let mut hosts: BTreeMap<String, Host> = BTreeMap::new();
    for connection in connections {
        let host = hosts.entry(name_of(connection).to_owned()).or_default();
        let stages = connection.stages_ns.iter().filter(|(stage, _)| depends_on_peer(*stage));
        host.peer_ns += stages.map(|(_, ns)| *ns as f64).sum::<f64>();
        let answers = connection.stages_ns.iter().filter(|(stage, _)| *stage == Stage::Answer);
        host.answer_ns += answers.map(|(_, ns)| *ns as f64).sum::<f64>();
        host.operations += operations(connection);
        host.bytes += bytes(connection);
        host.connections.push(connection.id);
        host.peers.insert(connection.peer.clone());
        if let Some(tcp) = connection.tcp {
            host.late_ns += tcp.retransmits as f64 * tcp.rtt_us as f64 * 1000.0;
            host.tcp = Some(add(host.tcp.unwrap_or_default(), tcp));
        }
    }
    hosts
}

/// Returns the times in which hosts acknowledged sampled sends, of those with the highest p99.
pub(super) fn peer_times(connections: &[Connection]) -> Vec<PeerTimes> {
    let mut sums: BTreeMap<&str, Option<Histogram>> = BTreeMap::new();
    let sampled = connections.iter().filter(|at| at.peer_times.is_some() && at.queue_pair.is_none());
    for connection in sampled {
        merge_times(sums.entry(name_of(connection)).or_default(), connection.peer_times.as_ref());
    }
    let quantile_us = |times: &Histogram, quantile| times.quantile(quantile) as f64 / 1000.0;
    let times = sums.into_iter().filter_map(|(host, times)| {
        let times = times.filter(|times| times.count() > 0)?;
        let [p50_us, p99_us] = [0.5, 0.99].map(|quantile| quantile_us(&times, quantile));
        Some(PeerTimes { host: host.to_owned(), sends: times.count(), p50_us, p99_us })
    });
    let mut times: Vec<PeerTimes> = times.collect();
    times.sort_by(|left, right| right.p99_us.total_cmp(&left.p99_us));
    times.truncate(MAX_HOSTS);
    times
}

/// Returns the name of the host, or its address.
fn name_of(connection: &Connection) -> &str {
    if connection.host.is_empty() { &connection.peer } else { &connection.host }
}

fn operations(connection: &Connection) -> f64 {
    connection.totals.iter().map(|(_, times)| times.count() as f64).sum()
}

fn bytes(connection: &Connection) -> f64 {
    connection.received_bytes as f64 + connection.sent_bytes as f64
}

fn add(sum: Tcp, more: Tcp) -> Tcp {
    Tcp {
        busy_us: sum.busy_us.saturating_add(more.busy_us),
        rwnd_limited_us: sum.rwnd_limited_us.max(more.rwnd_limited_us),
        sndbuf_limited_us: sum.sndbuf_limited_us.saturating_add(more.sndbuf_limited_us),
        retransmits: sum.retransmits.saturating_add(more.retransmits),
        segments: sum.segments.saturating_add(more.segments),
        ..more
    }
}

/// Returns the part of the segments that were sent again, if that is a loss.
pub(super) fn loss_of(tcp: Tcp) -> Option<f64> {
    let part = tcp.retransmits as f64 / tcp.segments.max(1) as f64;
    (tcp.retransmits >= MIN_RETRANSMITS && part >= MIN_LOSS).then_some(part)
}

fn find_network(case: &mut Case<'_>, hosts: &BTreeMap<String, Host>) {
    let all_ns: f64 = hosts.values().map(|host| host.peer_ns).sum();
    let Some((name, host, loss)) = worst_network(hosts, |host| host.peer_ns) else { return };
    let chosen = |_: &Part, stage: Stage| depends_on_peer(stage) || matches!(stage, Stage::Wait | Stage::Ack);
    let stage = case.ledger.worst_stage(chosen);
    let fraction = if hosts.len() == 1 { 1.0 } else { host.peer_ns / all_ns.max(1.0) };
    let Some(share) = case.claim(fraction, chosen) else { return };
    case.findings.push(network_finding(name, host, loss, (stage, share)));
}

/// Returns the host with the worst network of all hosts that lose segments, and the lost part.
fn worst_network(
    hosts: &BTreeMap<String, Host>,
    delay: impl Fn(&Host) -> f64,
) -> Option<(&String, &Host, f64)> {
    let lossy = hosts.iter().filter_map(|(name, host)| Some((name, host, loss_of(host.tcp?)?)));
    lossy.max_by(|left, right| delay(left.1).total_cmp(&delay(right.1)))
}

fn network_finding(name: &str, host: &Host, loss: f64, (stage, share): (Option<Stage>, f64)) -> Finding {
    let tcp = host.tcp.unwrap_or_default();
    let text = format!(
        "{} of {} segments were sent again ({}), round trip {}",
        tcp.retransmits,
        tcp.segments,
        show_percent(loss),
        show_ns(tcp.rtt_us as f64 * 1000.0),
    );
    let evidence = Evidence::measured("retransmits", tcp.retransmits as f64, "segments", "TCP_INFO", text)
        .compared_to(tcp.segments as f64);
    let peers: Vec<&str> = host.peers.iter().take(MAX_HOSTS).map(String::as_str).collect();
    Finding {
        kind: Kind::Network,
        name: peers.join(", "),
        stage,
        operation: None,
        cause: Some("loss".to_owned()),
        share,
        since: None,
        evidence: vec![evidence],
        neighbors: vec![Neighbor { kind: "host".to_owned(), name: name.to_owned(), grade: Grade::Measured }],
        remedy: "check cables, switch ports, and the receive queues of both ends".to_owned(),
    }
}

/// Reports a network that delays answers after their last stage, which ends when the kernel has accepted the data. A
/// lost segment delays the answers after it by a round trip or more.
pub(super) fn find_late_answers(case: &mut Case<'_>) {
    let hosts = hosts(&case.window.connections);
    let Some((name, host, loss)) = worst_network(&hosts, |host| host.late_ns) else { return };
    let share = host.late_ns / (host.late_ns + case.ledger.lost_ns).max(1.0);
    if host.late_ns < case.ledger.tail * MIN_LOSS_NS || share < MIN_SHARE {
        return;
    }
    let text = format!(
        "a round trip for each of them is {}, in which answers wait after their last stage",
        show_ns(host.late_ns)
    );
    let late = Evidence::measured("late answers", host.late_ns / 1e6, "ms", "TCP_INFO", text)
        .compared_to(case.ledger.lost_ns / 1e6);
    let mut found = network_finding(name, host, loss, (Some(Stage::Peer), share));
    found.evidence.push(late);
    // It includes the loss in stages, which the same segments cause.
    case.findings.retain(|finding| finding.kind != Kind::Network || finding.name != found.name);
    if !case.has(Kind::Network) {
        case.findings.push(found);
    }
}

fn find_late_hosts(case: &mut Case<'_>, hosts: &BTreeMap<String, Host>) {
    let all_ns: f64 = hosts.values().map(|host| host.peer_ns).sum();
    let (all_operations, all_bytes) = hosts
        .values()
        .fold((0.0, 0.0), |(operations, bytes), host| (operations + host.operations, bytes + host.bytes));
    let worst = hosts.iter().max_by(|left, right| left.1.peer_ns.total_cmp(&right.1.peer_ns));
    let Some((name, host)) = worst else { return };
    let full = full_part(case, host);
    let is_full = full >= MIN_FULL;
    let answers: f64 = if is_full { hosts.values().map(|host| host.answer_ns).sum() } else { 0.0 };
    let own_answers = if is_full { host.answer_ns } else { 0.0 };
    let covered = (host.peer_ns + own_answers) / (all_ns + answers).max(1.0);
    let concentrated = stands_out(covered, part_of(host, all_operations, all_bytes));
    if !concentrated && !is_full {
        return;
    }
    let chosen = move |_: &Part, stage: Stage| depends_on_peer(stage) || is_full && stage == Stage::Answer;
    let stage = case.ledger.worst_stage(chosen);
    let Some(share) = case.claim(covered, chosen) else { return };
    let cause = match host.tcp {
        Some(_) if is_full => Some("rwnd"),
        Some(_) => Some("silent"),
        None => None,
    };
    let mut evidence = vec![share_evidence(covered, host.operations / all_operations.max(1.0))];
    if is_full {
        let text = format!("its receive window was full for {} of the time", show_percent(full));
        evidence.push(Evidence::measured("full receive window", full * 100.0, "%", "TCP_INFO", text));
    }
    case.findings.push(Finding {
        kind: Kind::Host,
        name: name.clone(),
        stage,
        operation: None,
        cause: cause.map(str::to_owned),
        share,
        since: None,
        evidence,
        neighbors: Vec::new(),
        remedy: "find out why this host reads its socket late: its load, its memory, its receive buffers"
            .to_owned(),
    });
}

/// Returns the part of the operations or of the bytes, because longer transfers take longer at an equal host.
fn part_of(host: &Host, all_operations: f64, all_bytes: f64) -> f64 {
    (host.operations / all_operations.max(1.0)).max(host.bytes / all_bytes.max(1.0))
}

/// Returns the part of the window in which the receive window of a host was full. The state of a connection can be read
/// less often than once in the window, and then covers a longer time.
fn full_part(case: &Case<'_>, host: &Host) -> f64 {
    host.tcp.map_or(0.0, |tcp| (tcp.rwnd_limited_us as f64 / 1e6 / case.window.seconds).min(1.0))
}

fn share_evidence(covered: f64, operations: f64) -> Evidence {
    let text = format!(
        "it has {} of the time that depends on hosts, and {} of the operations",
        show_percent(covered),
        show_percent(operations),
    );
    Evidence::measured("time that depends on the host", covered * 100.0, "%", "stages", text)
        .compared_to(operations * 100.0)
}

/// Reports a connection with bulk I/O that delays small operations on the same core, and its own operations.
fn find_bulk(case: &mut Case<'_>) {
    let cores: BTreeSet<u32> = case.window.connections.iter().map(|connection| connection.core).collect();
    for core in cores {
        let Some(bulk) = bulk_of(case, core) else { continue };
        let is_queued = large_depth(case, core) >= MIN_BULK_DEPTH;
        let chosen = move |part: &Part, stage: Stage| match stage {
            Stage::Batch | Stage::Answer => part.core == core && (is_queued || part.size != SizeClass::Large),
            Stage::Inbox | Stage::Deliver => part.core == core && part.size != SizeClass::Large,
            Stage::Transfer => part.core == core && is_queued && part.size == SizeClass::Large,
            _ => false,
        };
        let stage = case.ledger.worst_stage(chosen);
        let Some(share) = case.claim(1.0, chosen) else { continue };
        report_bulk(case, core, &bulk, stage, share);
    }
}

/// Returns the mean number of large operations in flight on a core.
fn large_depth(case: &Case<'_>, core: u32) -> f64 {
    let parts = case.ledger.parts.iter().filter(|part| part.core == core && part.size == SizeClass::Large);
    parts.map(|part| part.sum_ns).sum::<f64>() / (case.window.seconds * 1e9)
}

/// A host with most of the bytes of a core.
struct Bulk {
    host: String,
    peers: BTreeSet<String>,
    part: f64,
    bytes_per_operation: f64,
}

fn bulk_of(case: &Case<'_>, core: u32) -> Option<Bulk> {
    let here: Vec<Connection> =
        case.window.connections.iter().filter(|at| at.core == core).cloned().collect();
    let hosts = hosts(&here);
    let (name, host) = hosts.iter().max_by(|left, right| left.1.bytes.total_cmp(&right.1.bytes))?;
    let (all_bytes, all_operations) =
        hosts.values().fold((0.0, 0.0), |(bytes, count), host| (bytes + host.bytes, count + host.operations));
    let part = host.bytes / all_bytes.max(1.0);
    let bytes_per_operation = host.bytes / host.operations.max(1.0);
    is_bulk(host, (all_bytes, all_operations), case.window.seconds).then(|| Bulk {
        host: name.clone(),
        peers: host.peers.clone(),
        part,
        bytes_per_operation,
    })
}

/// Returns `true` if a host moves most bytes of a core, many of them, and in larger operations than the others.
fn is_bulk(host: &Host, (all_bytes, all_operations): (f64, f64), seconds: f64) -> bool {
    let bytes_per_operation = host.bytes / host.operations.max(1.0);
    let others = (all_bytes - host.bytes) / (all_operations - host.operations).max(1.0);
    host.bytes >= all_bytes * MIN_BULK
        && host.bytes >= MIN_BULK_RATE * seconds
        && bytes_per_operation >= MIN_BULK_BYTES
        && bytes_per_operation >= others * MIN_BULK_RATIO
        && all_operations > host.operations
}

fn report_bulk(case: &mut Case<'_>, core: u32, bulk: &Bulk, stage: Option<Stage>, share: f64) {
    let text = format!(
        "it moves {} of the bytes on core {core}, {} KiB for each operation",
        show_percent(bulk.part),
        show_digits(bulk.bytes_per_operation / 1024.0),
    );
    let evidence = Evidence::measured("bytes on the core", bulk.part * 100.0, "%", "connections", text);
    let peers = bulk.peers.iter().take(MAX_HOSTS);
    let neighbor =
        |peer: &String| Neighbor { kind: "peer".to_owned(), name: peer.clone(), grade: Grade::Shares };
    case.findings.push(Finding {
        kind: Kind::Connection,
        name: bulk.host.clone(),
        stage,
        operation: None,
        cause: Some("bulk".to_owned()),
        share,
        since: None,
        evidence: vec![evidence.graded(Grade::Shares)],
        neighbors: peers.map(neighbor).collect(),
        remedy: "use --fair-queueing on, or let the bulk host use other cores".to_owned(),
    });
}

/// Rules out hosts and the network if they lost almost nothing.
pub(super) fn clear(case: &mut Case<'_>) {
    let connections = &case.window.connections;
    if connections.is_empty() {
        return;
    }
    let has_tcp = connections.iter().any(|connection| connection.tcp.is_some());
    let sum = connections.iter().filter_map(|at| at.tcp).fold(Tcp::default(), add);
    let lost = case.ledger.lost(|_, stage| depends_on_peer(stage));
    let mean = show_ns(lost / case.ledger.tail.max(1.0));
    if !has_tcp {
        case.miss(
            "loss and full windows of connections",
            "sock_diag, which a side thread of the program reads",
        );
    }
    let loss = match loss_of(sum) {
        Some(part) => format!("{} of the segments were sent again", show_percent(part)),
        None if has_tcp => "no loss".to_owned(),
        None => "loss was not read".to_owned(),
    };
    let is_small = case.ledger.share(lost) < MIN_SHARE;
    if !case.has(Kind::Network) && is_small {
        case.clear(Kind::Network, format!("network ({mean} for each slow operation, {loss})"));
    }
    if !case.has(Kind::Host) && is_small {
        let names: BTreeSet<&str> = case.window.connections.iter().map(|at| at.host.as_str()).collect();
        let text = match names.iter().next() {
            Some(only) if names.len() == 1 && !only.is_empty() => format!("host {}", escape(only)),
            _ => format!("{} hosts", names.len()),
        };
        case.clear(Kind::Host, text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::Verdict;
    use super::super::to_text;
    use super::*;
    use crate::histogram::Resolution;

    #[test]
    fn bulk_host_does_not_stand_out_by_its_transfers() {
        let host = |operations, bytes| Host { operations, bytes, ..Host::default() };
        assert!(stands_out(0.9, part_of(&host(100.0, 4e5), 800.0, 3e6)));
        assert!(!stands_out(1.0, part_of(&host(100.0, 1e8), 800.0, 1.03e8)));
    }

    #[test]
    fn peer_times_are_those_of_the_slowest_hosts() {
        let connection = |host: &str, ns| {
            let mut times = Histogram::new(Resolution::Four);
            times.record(ns, 10);
            Connection { host: host.to_owned(), peer_times: Some(times), ..Connection::default() }
        };
        let mut connections: Vec<_> =
            (0..=MAX_HOSTS as u64).map(|at| connection(&format!("h{at}"), 1_000 << at)).collect();
        connections.extend([connection("h1", 1_000_000), Connection::default()]);
        let times = peer_times(&connections);
        let hosts: Vec<_> = times.iter().map(|at| (at.host.as_str(), at.sends)).collect();
        assert_eq!(hosts, [("h1", 20), ("h4", 10), ("h3", 10), ("h2", 10)]);
        assert!(times[0].p50_us < 3.0 && times[0].p99_us > 800.0, "{times:?}");
        let text = to_text(&Verdict { peers: times, ..Verdict::default() });
        assert!(text.contains("stage peer: h1 acknowledged half of 20 sampled sends within "), "{text}");
    }

    #[test]
    fn bulk_needs_a_high_rate() {
        let is_bulk = |operations, bytes| {
            let host = Host { operations, bytes, ..Host::default() };
            is_bulk(&host, (bytes + 8e7, operations + 20e3), 10.0)
        };
        assert!(is_bulk(1e4, 1e10), "1 GB a second");
        assert!(is_bulk(500.0, 5e8), "50 MB a second");
        assert!(!is_bulk(5e3, 1.6e8), "16 MB a second");
        assert!(!is_bulk(1e5, 5e8), "small operations");
    }
}
