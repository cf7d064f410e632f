//! The verdict as text for people.

use std::fmt::Write;

use super::document::{Cleared, Finding, NotSeen, PeerTimes, Verdict};
use super::measured;
use super::units::{escape, show_count, show_ns, show_percent, show_quantile};

/// Returns a verdict as text. Names have no control characters.
pub fn to_text(verdict: &Verdict) -> String {
    let mut text = headline(verdict);
    for (at, finding) in verdict.findings.iter().enumerate() {
        text += &finding_text(at + 1, finding);
    }
    if verdict.findings.is_empty() {
        text += no_finding(verdict);
    }
    text += &verdict.measured.as_ref().map(measured::to_text).unwrap_or_default();
    text += &verdict.peers.iter().map(peer_text).collect::<String>();
    text += &list("cleared: ", verdict.cleared.iter().map(cleared_text));
    text += &list("not seen: ", verdict.not_seen.iter().map(not_seen_text));
    text
}

fn headline(verdict: &Verdict) -> String {
    let Verdict { window_s, operations, volumes, streams, queue_pairs, tail, .. } = verdict;
    let counted = |count: u64, one: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        _ => Some(format!("{count} {one}s")),
    };
    let streams = (*streams > 0).then(|| "streams".to_owned());
    let places = [counted(*volumes, "volume"), streams, counted(*queue_pairs, "queue pair")];
    let places: Vec<String> = places.into_iter().flatten().collect();
    let place = if places.is_empty() { "0 volumes".to_owned() } else { places.join(" and ") };
    let mut text = format!("{window_s:.0} s, {} operations on {place}", show_count(*operations));
    if *operations == 0 {
        return text + "\n";
    }
    let rarity = show_count((1.0 / (1.0 - tail.quantile).max(1e-9)).round() as u64);
    let _ = writeln!(
        text,
        ": half take less than {}, 1 in {rarity} takes {} or more",
        show_ns(tail.median_us * 1000.0),
        show_ns(tail.us * 1000.0),
    );
    if tail.quantile < tail.requested_quantile {
        let (used, requested) = (show_quantile(tail.quantile), show_quantile(tail.requested_quantile));
        let _ = writeln!(text, "too few operations for {requested}: the tail begins at {used}");
    }
    text
}

fn no_finding(verdict: &Verdict) -> &'static str {
    match verdict.tail.operations {
        _ if verdict.operations == 0 => "no finding: there are no operations\n",
        0 => "no finding: there are no slow operations\n",
        _ => "no finding: no volume, core, connection, or host stands out\n",
    }
}

fn finding_text(number: usize, finding: &Finding) -> String {
    let mut text = format!("{number}  {} of the time lost in the tail: ", show_percent(finding.share));
    let _ = write!(text, "{}, kind {}", escape(&finding.name), finding.kind.name());
    if let Some(operation) = finding.operation {
        let _ = write!(text, ", operation {}", operation.name());
    }
    if let Some(stage) = finding.stage {
        let _ = write!(text, ", stage {}", stage.name());
    }
    if let Some(cause) = &finding.cause {
        let _ = write!(text, ", cause {}", escape(cause));
    }
    if let Some(time) = finding.since.as_ref().and_then(|since| since.get(11..19)) {
        let _ = write!(text, ", since {} UTC", escape(time));
    }
    text.push('\n');
    for evidence in &finding.evidence {
        let _ = writeln!(text, "   {} ({})", escape(&evidence.text), evidence.grade.name());
    }
    for neighbor in &finding.neighbors {
        let _ = writeln!(
            text,
            "   {} {} ({})",
            escape(&neighbor.kind),
            escape(&neighbor.name),
            neighbor.grade.name()
        );
    }
    if !finding.remedy.is_empty() {
        let _ = writeln!(text, "   try: {}", escape(&finding.remedy));
    }
    text
}

fn peer_text(at: &PeerTimes) -> String {
    let [p50, p99] = [at.p50_us, at.p99_us].map(|us| show_ns(us * 1000.0));
    let (host, sends) = (escape(&at.host), show_count(at.sends));
    format!("stage peer: {host} acknowledged half of {sends} sampled sends within {p50}, 99 % within {p99}\n")
}

fn cleared_text(cleared: &Cleared) -> String {
    escape(&cleared.text)
}

fn not_seen_text(missing: &NotSeen) -> String {
    format!("{} (needs {})", escape(&missing.what), escape(&missing.needs))
}

fn list(title: &str, items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { String::new() } else { format!("{title}{}\n", items.join("; ")) }
}
