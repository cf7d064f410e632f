//! Checks of the network.

use std::collections::BTreeMap;

use super::check::{Check, Severity};
use super::context::{Context, unexpected};
use super::devices::Card;
use super::survey::{Survey, quoted};
use crate::system::{
    CardPart, ProtocolCounters, ReadError, Reason, Route, SMALL, Settings, Softnet, decode_cpu_mask,
    decode_number, decode_numbers, decode_tcp_memory, device_of_peer, show_cpus,
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "net.softnet",
        severity: Severity::Warning,
        reads: "/proc/net/softnet_stat: columns 2 and 3, twice",
        good: "not rising on the cores of reactors",
        reason: "a full queue drops packets, and a used-up budget delays them",
        is_sampled: true,
        run: softnet,
    },
    Check {
        id: "net.rings",
        severity: Severity::Warning,
        reads: "ethtool: rings; /sys/class/net/*/statistics/rx_missed_errors, twice",
        good: "no missed packets, or the largest ring",
        reason: "a card drops packets when its ring has no free buffer",
        is_sampled: true,
        run: rings,
    },
    Check {
        id: "net.queues",
        severity: Severity::Warning,
        reads: "/sys/class/net/*/queues/rx-*; ethtool: channels",
        good: "at least one receive queue for each reactor",
        reason: "one queue is handled by one core, and other reactors get their packets from it",
        is_sampled: false,
        run: queues,
    },
    Check {
        id: "net.coalesce",
        severity: Severity::Information,
        reads: "ethtool: coalescing",
        good: "not adaptive, and at most 20 µs",
        reason: "a card delays the interrupt of a packet by this time",
        is_sampled: false,
        run: coalesce,
    },
    Check {
        id: "net.offload",
        severity: Severity::Warning,
        reads: "ethtool: features",
        good: "tso, gso, and gro are on",
        reason: "without them, the kernel handles each packet of a large transfer alone",
        is_sampled: false,
        run: offload,
    },
    Check {
        id: "net.steering",
        severity: Severity::Information,
        reads: "/sys/class/net/*/queues: rx-*/rps_cpus, tx-*/xps_cpus",
        good: "rps 0 with several queues, set with one; xps covers the cores",
        reason: "software steering costs an interrupt to another core, and helps only without hardware queues",
        is_sampled: false,
        run: steering,
    },
    Check {
        id: "net.busypoll",
        severity: Severity::Warning,
        reads: "net.core.busy_poll, /sys/class/net/*: napi_defer_hard_irqs, gro_flush_timeout; option busy-poll of listeners",
        good: "set, if a listener has the option busy-poll",
        reason: "without them, the kernel polls no card while a reactor waits, or interrupts it anyway",
        is_sampled: false,
        run: busypoll,
    },
    Check {
        id: "net.errors",
        severity: Severity::Warning,
        reads: "/sys/class/net/*/statistics, twice; /proc/net/snmp: RetransSegs, OutSegs, twice",
        good: "no errors or drops, and less than 0.1 % retransmitted",
        reason: "a lost packet delays its connection by a round trip or by 200 ms",
        is_sampled: true,
        run: errors,
    },
    Check {
        id: "net.listen",
        severity: Severity::Warning,
        reads: "/proc/net/netstat: ListenOverflows, twice; net.core.somaxconn, net.ipv4.tcp_max_syn_backlog",
        good: "no overflows; at least 1,024",
        reason: "hosts that connect together are rejected when the queue of a listener is full",
        is_sampled: true,
        run: listen,
    },
    Check {
        id: "net.memory",
        severity: Severity::Error,
        reads: "/proc/net/sockstat, net.ipv4.tcp_mem; /proc/net/netstat: TCPMemoryPressures, twice",
        good: "below the pressure",
        reason: "under pressure, the kernel shrinks windows and drops data",
        is_sampled: true,
        run: memory,
    },
    Check {
        id: "net.buffers",
        severity: Severity::Warning,
        reads: "net.ipv4.tcp_rmem, net.ipv4.tcp_wmem: maxima; speed of network cards; round trips of the target's connections",
        good: "twice the speed of the link times the round trip, or 0.2 ms without a target",
        reason: "a smaller buffer limits one connection to less than the link",
        is_sampled: false,
        run: buffers,
    },
    Check {
        id: "net.idle",
        severity: Severity::Information,
        reads: "net.ipv4.tcp_slow_start_after_idle",
        good: "0 with remote peers",
        reason: "after a pause, a connection starts with a small congestion window",
        is_sampled: false,
        run: idle,
    },
    Check {
        id: "net.link",
        severity: Severity::Warning,
        reads: "/sys/class/net/*: operstate, carrier_changes, twice; ethtool: link modes",
        good: "the speed of the hardware, and carrier changes not rising",
        reason: "a link that fails loses packets each time, and can be slower afterward",
        is_sampled: true,
        run: link,
    },
    Check {
        id: "net.mtu",
        severity: Severity::Warning,
        reads: "/sys/class/net/*: mtu; segment sizes of the target's connections",
        good: "9,000 on links of 10 Gb/s and more, and segments of at least 8,900 bytes then",
        reason: "small packets cost more work for each byte",
        is_sampled: false,
        run: mtu,
    },
    Check {
        id: "net.conntrack",
        severity: Severity::Warning,
        reads: "net.netfilter: nf_conntrack_count, nf_conntrack_max",
        good: "below 80 %",
        reason: "a full table drops packets of new connections",
        is_sampled: false,
        run: conntrack,
    },
];

/// Returns the network cards that are up.
fn cards(context: &Context) -> Result<Vec<&Card>, ReadError> {
    let mut found = Vec::new();
    for card in context.cards()?.iter().filter(|card| !card.is_drive) {
        if context.root.word(&format!("{}/operstate", card.path))? == "up" {
            found.push(card);
        }
    }
    Ok(found)
}

/// Reads a number of `/proc/sys`.
fn setting(context: &Context, name: &str) -> Result<u64, ReadError> {
    context.root.parse(&format!("/proc/sys/{}", name.replace('.', "/")), SMALL, decode_number)
}

fn softnet(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let cores = context.cores()?;
    for counters in Softnet::read(&context.root)?.iter().filter(|counters| cores.contains(&counters.cpu)) {
        let cpu = counters.cpu;
        let dropped = context.rise(&format!("softnet dropped {cpu}"), counters.dropped.into());
        let squeezed = context.rise(&format!("softnet squeezed {cpu}"), counters.squeezed.into());
        survey.judge(
            dropped == 0,
            format!("core {cpu}: {dropped} packets dropped {}", context.period()),
            "sysctl -w net.core.netdev_max_backlog=10000",
        );
        survey.judge(
            squeezed == 0,
            format!("core {cpu}: budget used up {squeezed} times {}", context.period()),
            "sysctl -w net.core.netdev_budget=600 net.core.netdev_budget_usecs=4000",
        );
    }
    if survey.is_empty() {
        survey.unseen("/proc/net/softnet_stat: no core of a reactor");
    }
    Ok(())
}

/// Returns the names of the queues of one direction, `rx-` or `tx-`.
fn queue_names(context: &Context, card: &Card, prefix: &str) -> Result<Vec<String>, ReadError> {
    let mut names = context.root.list(&format!("{}/queues", card.path))?;
    names.retain(|name| name.starts_with(prefix));
    Ok(names)
}

fn queues(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let reactors = context.cores()?.len();
    for card in cards(context)? {
        let queues = queue_names(context, card, "rx-")?.len();
        let value = format!("{}: {queues} receive queues, {reactors} reactors", card.name);
        if queues >= reactors {
            survey.good(value);
            continue;
        }
        let channels = survey.take(CardPart::Channels.read(&context.root, &card.name));
        survey.bad(value, more_queues(&card.name, queues as u64, reactors as u64, channels));
    }
    if survey.is_empty() {
        survey.absent("no network card is up");
    }
    Ok(())
}

/// Returns the command for as many queues as are needed, or as the card has. Without `channels`, they are not known.
fn more_queues(card: &str, queues: u64, needed: u64, channels: Option<Option<Settings>>) -> String {
    let card = quoted(card);
    let Some(channels) = channels else { return format!("ethtool -L {card} combined {needed}") };
    let channels = channels.unwrap_or_default();
    let max = |name| channels.get(name).copied().unwrap_or_default();
    let (kind, most) = match max("combined_max") {
        0 => ("rx", max("rx_max")),
        combined => ("combined", combined),
    };
    if most > queues {
        format!("ethtool -L {card} {kind} {}", most.min(needed))
    } else {
        format!("# the card has at most {queues} queues: serve on fewer cores")
    }
}

/// Calls a function for each card that is up, with its settings. A driver may have none.
fn for_each_setting(
    context: &Context,
    survey: &mut Survey,
    part: CardPart,
    mut check: impl FnMut(&mut Survey, &Card, &Settings) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    for card in cards(context)? {
        match survey.take(part.read(&context.root, &card.name)) {
            None => {}
            Some(None) => survey.absent(format!("{}: the driver has no such settings", card.name)),
            Some(Some(settings)) => {
                if let Err(error) = check(survey, card, &settings) {
                    survey.unseen(error);
                }
            }
        }
    }
    if survey.is_empty() {
        survey.absent("no network card is up");
    }
    Ok(())
}

fn rings(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for_each_setting(context, survey, CardPart::Rings, |survey, card, settings| {
        let number = |name| {
            let path = CardPart::Rings.path(&card.name);
            settings.get(name).copied().ok_or_else(|| unexpected(&path, "rx and rx_max"))
        };
        let (now, max) = (number("rx")?, number("rx_max")?);
        let path = format!("{}/statistics/rx_missed_errors", card.path);
        let missed = context.rise(&path, context.root.parse(&path, SMALL, decode_number)?);
        let value =
            format!("{}: {now} of {max} buffers, {missed} packets missed {}", card.name, context.period());
        let remedy = format!("ethtool -G {} rx {max}", quoted(&card.name));
        survey.judge(missed == 0 || now >= max, value, remedy);
        Ok(())
    })
}

fn coalesce(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    const MAX_US: u64 = 20;
    for_each_setting(context, survey, CardPart::Coalescing, |survey, card, settings| {
        let Some(delay) = settings.get("rx_us") else {
            survey.absent(format!("{}: the driver does not delay interrupts by time", card.name));
            return Ok(());
        };
        let adaptive = settings.get("adaptive_rx").is_some_and(|adaptive| *adaptive != 0);
        let value = format!("{}: {}{delay} µs", card.name, if adaptive { "adaptive, " } else { "" });
        let off = if adaptive { "adaptive-rx off " } else { "" };
        let remedy = format!("ethtool -C {} {off}rx-usecs 8", quoted(&card.name));
        survey.judge(!adaptive && *delay <= MAX_US, value, remedy);
        Ok(())
    })
}

fn offload(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    const FEATURES: [(&str, &str); 3] =
        [("tso", "tx-tcp-segmentation"), ("gso", "tx-generic-segmentation"), ("gro", "rx-gro")];
    for_each_setting(context, survey, CardPart::Features, |survey, card, settings| {
        for (name, feature) in FEATURES {
            let (state, remedy) = match settings.get(feature) {
                Some(0) => ("off", format!("ethtool -K {} {name} on", quoted(&card.name))),
                Some(_) => ("on", String::new()),
                None => ("missing", format!("# use a network card with {name}")),
            };
            survey.judge(state == "on", format!("{}: {name} {state}", card.name), remedy);
        }
        Ok(())
    })
}

fn steering(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let cores = context.cores()?;
    let mask = |path: String| context.root.parse(&path, SMALL, decode_cpu_mask).map(|cpus| (path, cpus));
    for card in cards(context)? {
        let receive = queue_names(context, card, "rx-")?;
        for queue in &receive {
            let read = mask(format!("{}/queues/{queue}/rps_cpus", card.path));
            let Some((path, cpus)) = survey.take(read) else { continue };
            let is_single = receive.len() == 1 && cores.len() > 1;
            let (is_good, value) =
                if is_single { (!cpus.is_empty(), "MASK") } else { (cpus.is_empty(), "0") };
            let value = format!("echo {value} > {}", quoted(&path));
            let remedy = if is_single { format!("# {value}") } else { value };
            survey.judge(
                is_good,
                format!("{} {queue}: rps on cores {}", card.name, show_cpus(&cpus)),
                remedy,
            );
        }
        let mut covered = Vec::new();
        for queue in queue_names(context, card, "tx-")? {
            // A card with one queue has no such file.
            match mask(format!("{}/queues/{queue}/xps_cpus", card.path)) {
                Err(ReadError { reason: Reason::Missing, .. }) => covered.extend(&cores),
                read => covered.extend(survey.take(read).map(|(_, cpus)| cpus).unwrap_or_default()),
            }
        }
        // Without any core, the kernel chooses a queue by a hash.
        let is_good = covered.is_empty() || cores.iter().all(|core| covered.contains(core));
        let remedy = format!("# echo MASK > {}/queues/tx-*/xps_cpus", card.path);
        survey.judge(is_good, format!("{}: xps on cores {}", card.name, show_cpus(&covered)), remedy);
    }
    if survey.is_empty() {
        survey.absent("no network card is up");
    }
    Ok(())
}

fn busypoll(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let limits = context.snapshot()?.map(|snapshot| &snapshot.program.limits);
    if limits.and_then(|limits| limits.get("busy-poll")).is_none_or(|duration| *duration == 0) {
        survey.absent("no target with a listener that has the option busy-poll");
        return Ok(());
    }
    if let Some(duration) = survey.take(setting(context, "net.core.busy_poll")) {
        let remedy = "sysctl -w net.core.busy_poll=50";
        survey.judge(duration > 0, format!("net.core.busy_poll {duration}"), remedy);
    }
    for card in cards(context)? {
        for (name, value) in [("napi_defer_hard_irqs", 2), ("gro_flush_timeout", 200_000)] {
            let path = format!("{}/{name}", card.path);
            let Some(number) = survey.take(context.root.parse(&path, SMALL, decode_number)) else { continue };
            let remedy = format!("echo {value} > {}", quoted(&path));
            survey.judge(number > 0, format!("{}: {name} {number}", card.name), remedy);
        }
    }
    Ok(())
}

fn errors(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for card in cards(context)? {
        for name in ["rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_missed_errors"] {
            let path = format!("{}/statistics/{name}", card.path);
            let Some(count) = survey.take(context.root.parse(&path, SMALL, decode_number)) else { continue };
            let count = context.rise(&path, count);
            let value = format!("{}: {name} {count} {}", card.name, context.period());
            survey.judge(
                count == 0,
                value,
                "# check cable, transceiver, and port; raise the rings with ethtool -G",
            );
        }
    }
    let counters = ProtocolCounters::read(&context.root)?;
    let counter = |name| {
        let value = counters.get("Tcp", name).and_then(|value| u64::try_from(value).ok());
        value.map(|value| context.rise(name, value)).ok_or(unexpected("/proc/net/snmp", "counters of Tcp"))
    };
    let (repeated, sent) = (counter("RetransSegs")?, counter("OutSegs")?);
    survey.judge(
        repeated.saturating_mul(1_000) < sent.max(1) || repeated < 2,
        format!("{repeated} of {sent} segments retransmitted {}", context.period()),
        "# find the loss: counters of the switch, and `nstat`",
    );
    Ok(())
}

fn listen(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for name in ["net.core.somaxconn", "net.ipv4.tcp_max_syn_backlog"] {
        let Some(value) = survey.take(setting(context, name)) else { continue };
        survey.judge(value >= 1_024, format!("{name} {value}"), format!("sysctl -w {name}=1024"));
    }
    let overflows = extended(context, "ListenOverflows")?;
    survey.judge(
        overflows == 0,
        format!("{overflows} overflows {}", context.period()),
        "sysctl -w net.core.somaxconn=4096",
    );
    Ok(())
}

/// Returns the increase of a counter of `/proc/net/netstat`.
fn extended(context: &Context, name: &str) -> Result<u64, ReadError> {
    let counters = ProtocolCounters::read(&context.root)?;
    let value = counters.get("TcpExt", name).and_then(|value| u64::try_from(value).ok());
    value.map(|value| context.rise(name, value)).ok_or(unexpected("/proc/net/netstat", "counters of TcpExt"))
}

fn memory(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let limits = context.root.parse("/proc/sys/net/ipv4/tcp_mem", SMALL, decode_numbers)?;
    let [_, pressure, _] = *limits else {
        return Err(unexpected("/proc/sys/net/ipv4/tcp_mem", "three numbers"));
    };
    let used = context.root.parse("/proc/net/sockstat", SMALL, decode_tcp_memory)?;
    let remedy = format!("# raise net.ipv4.tcp_mem, now {limits:?} pages");
    survey.judge(used < pressure, format!("{used} pages of {pressure} before the pressure"), &*remedy);
    let pressures = extended(context, "TCPMemoryPressures")?;
    survey.judge(pressures == 0, format!("{pressures} times under pressure {}", context.period()), remedy);
    Ok(())
}

/// Returns the speed of a card in Mb/s. A virtual card has none.
fn speed(context: &Context, card: &Card) -> Result<Option<u64>, ReadError> {
    match context.root.word(&format!("{}/speed", card.path)) {
        // A card without a fixed speed reports EINVAL or -1.
        Err(ReadError { reason: Reason::Io(_), .. }) => Ok(None),
        text => Ok(text?.parse().ok()),
    }
}

fn buffers(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let mut fastest = 0;
    for card in cards(context)? {
        fastest = fastest.max(speed(context, card)?.unwrap_or_default());
    }
    let tcp = context.snapshot()?.map(|snapshot| &*snapshot.numbers.connections).unwrap_or_default();
    let round_trip = tcp.iter().filter_map(|at| at.tcp.map(|tcp| tcp.min_rtt_us)).max().unwrap_or_default();
    let round_trip = if round_trip == 0 { 200 } else { round_trip };
    // Mb/s times microseconds are bits.
    let needed = (fastest.saturating_mul(round_trip).saturating_mul(2) / 8).clamp(1 << 20, 1 << 30);
    for name in ["tcp_rmem", "tcp_wmem"] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        let Some(sizes) = survey.take(context.root.parse(&path, SMALL, decode_numbers)) else { continue };
        let [min, default, max] = *sizes else {
            survey.unseen(unexpected(&path, "three numbers"));
            continue;
        };
        survey.judge(
            max >= needed,
            format!("{name}: at most {max} bytes, {needed} needed for round trips of {round_trip} µs"),
            format!("sysctl -w net.ipv4.{name}='{min} {default} {needed}'"),
        );
    }
    Ok(())
}

fn idle(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let value = setting(context, "net.ipv4.tcp_slow_start_after_idle")?;
    survey.judge(value == 0, value.to_string(), "sysctl -w net.ipv4.tcp_slow_start_after_idle=0");
    Ok(())
}

fn link(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for card in cards(context)? {
        let path = format!("{}/carrier_changes", card.path);
        let Some(count) = survey.take(context.root.parse(&path, SMALL, decode_number)) else { continue };
        let count = context.rise(&path, count);
        // A card changes its carrier once or twice when the system starts.
        let is_good = count == 0 || (!context.has_two_readings() && count <= 2);
        let value = format!("{}: {count} carrier changes {}", card.name, context.period());
        survey.judge(is_good, value, "# check cable, transceiver, and port");
        check_speed(context, survey, card);
    }
    if survey.is_empty() {
        survey.absent("no network card is up");
    }
    Ok(())
}

/// Compares the speed of a link with the fastest one that the hardware has. A virtual card has no modes.
fn check_speed(context: &Context, survey: &mut Survey, card: &Card) {
    let Some(modes) = survey.take(CardPart::Link.read(&context.root, &card.name)) else { return };
    let modes = modes.unwrap_or_default();
    if let Some((speed, max)) = modes.get("speed").zip(modes.get("max_speed")) {
        let value = format!("{}: {speed} of {max} Mb/s", card.name);
        survey.judge(speed >= max, value, "# check cable, transceiver, and port of the switch");
    }
}

fn mtu(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for card in cards(context)? {
        let Some(mtu) = survey.take(context.root.parse(&format!("{}/mtu", card.path), SMALL, decode_number))
        else {
            continue;
        };
        let speed = speed(context, card)?;
        survey.judge(
            mtu >= 9_000 || speed.is_none_or(|speed| speed < 10_000),
            format!(
                "{}: {mtu} at {}",
                card.name,
                speed.map_or("an unknown speed".into(), |speed| format!("{speed} Mb/s"))
            ),
            format!("# if all switches and peers allow it: ip link set {} mtu 9000", card.name),
        );
        if mtu >= 9_000 {
            check_segments(context, survey, card)?;
        }
    }
    if survey.is_empty() {
        survey.absent("no network card is up");
    }
    Ok(())
}

/// Finds peers that a card reaches with short segments only.
fn check_segments(context: &Context, survey: &mut Survey, card: &Card) -> Result<(), ReadError> {
    let connections = context.snapshot()?.map(|snapshot| &*snapshot.numbers.connections).unwrap_or_default();
    if connections.is_empty() {
        return Ok(());
    }
    let Some(routes) = survey.take(Route::read(&context.root, &context.process()?)) else { return Ok(()) };
    let mut peers = BTreeMap::new();
    for (connection, tcp) in connections.iter().filter_map(|at| Some((at, at.tcp?))) {
        let device = device_of_peer(&routes, &connection.local, &connection.peer);
        if device.as_ref() == Some(&card.name) && tcp.mss > 0 {
            let peer = connection.peer.rsplit_once(':').map_or(&*connection.peer, |(address, _)| address);
            peers.insert(peer, tcp.mss);
        }
    }
    for (peer, bytes) in peers {
        let value = format!("{}: segments of {bytes} bytes to {peer}", card.name);
        let remedy = format!("# raise the MTU of {peer}, and of the switches on the path");
        survey.judge(bytes >= 8_900, value, remedy);
    }
    Ok(())
}

fn conntrack(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    if !context.root.list("/proc/sys/net")?.iter().any(|name| name == "netfilter") {
        survey.absent("connections are not tracked");
        return Ok(());
    }
    if !context.root.list("/proc/sys/net/netfilter")?.iter().any(|name| name == "nf_conntrack_max") {
        survey.absent("connections are not tracked");
        return Ok(());
    }
    let max = setting(context, "net.netfilter.nf_conntrack_max")?;
    let count = setting(context, "net.netfilter.nf_conntrack_count")?;
    survey.judge(
        count.saturating_mul(10) < max.saturating_mul(8),
        format!("{count} of {max} connections"),
        "# do not track the port of the target: nft add rule ... tcp dport 4420 notrack",
    );
    Ok(())
}
