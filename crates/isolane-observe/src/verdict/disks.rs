//! Other users of the disks beneath volumes: processes, other volumes, and interrupt lines.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Case, MIN_SHARE, stands_out};
use super::document::{Evidence, Finding, Grade, Kind, Neighbor};
use super::ledger::{Part, is_at_volume};
use super::measured;
use super::trend::{self, Point};
use super::units::{escape, show_percent};
use crate::peers::compare::work_of;
use crate::snapshot::{Device, Disk};
use crate::stage::Stage;
use crate::topology::is_own;

/// Least part of the work of a disk that others do.
const MIN_OTHERS: f64 = 0.1;
/// Least work of others per second.
const MIN_OTHERS_PER_SECOND: f64 = 20.0;
/// Most neighbors of one kind.
const MAX_NEIGHBORS: usize = 4;
/// Most interrupt lines that are examined for a device.
const MAX_LINES: usize = 64;

/// I/O of others on the disk of a volume.
pub(super) struct Others {
    pub evidence: Evidence,
    pub neighbors: Vec<Neighbor>,
}

/// Reports volumes that lose time on disks with I/O of others.
pub(super) fn find(case: &mut Case<'_>) {
    let lost = case.ledger.lost_by_volume(is_at_volume);
    let mut by_disk: BTreeMap<String, (BTreeSet<u32>, f64)> = BTreeMap::new();
    for id in &case.tops {
        if let Some(device) = case.topology.device(*id) {
            let (volumes, sum) = by_disk.entry(device.name.clone()).or_default();
            volumes.insert(*id);
            *sum += lost.get(id).copied().unwrap_or(0.0);
        }
    }
    // Of many disks, few have enough loss for a finding.
    by_disk.retain(|_, (_, lost)| case.ledger.share(*lost) >= MIN_SHARE);
    for (disk, (volumes, _)) in by_disk {
        let points = case.points(|series| volumes.contains(&series.volume));
        if let Some(others) = other_users(case, &volumes, &points) {
            report(case, &disk, &volumes, &points, others);
        } else if let Some((victim, others)) = heavy_volume(case, &volumes) {
            report(case, &disk, &BTreeSet::from([victim]), &points, others);
        }
    }
}

fn report(case: &mut Case<'_>, disk: &str, volumes: &BTreeSet<u32>, points: &[Point], others: Others) {
    let owned = volumes.clone();
    let chosen = move |part: &Part, stage: Stage| is_at_volume(stage) && owned.contains(&part.volume);
    let stage = case.ledger.worst_stage(&chosen);
    let Some(share) = case.claim(1.0, chosen) else { return };
    case.named.extend(volumes);
    let (mut evidence, mut neighbors) = (vec![others.evidence], others.neighbors);
    measured::add(measured::of_disk_users(case, volumes), &mut evidence, &mut neighbors);
    let names: Vec<String> = volumes.iter().take(MAX_NEIGHBORS).map(|id| case.topology.name(*id)).collect();
    case.findings.push(Finding {
        kind: Kind::SharedDevice,
        name: format!("{disk} ({})", names.join(", ")),
        stage,
        operation: None,
        cause: neighbors.first().map(|neighbor| neighbor.kind.clone()),
        share,
        since: case.since(points),
        evidence,
        neighbors,
        remedy: "move the other I/O to another disk".to_owned(),
    });
}

/// Returns the other users of the disks of these volumes, if they do a tenth of the work or more.
pub(super) fn other_users(case: &Case<'_>, volumes: &BTreeSet<u32>, points: &[Point]) -> Option<Others> {
    let disks: BTreeSet<String> = volumes.iter().flat_map(|id| case.topology.disks(*id)).collect();
    let used = case.window.system.disks.iter().filter(|disk| disks.contains(&disk.name));
    let busiest = used.max_by(|left, right| work_of_others(left).total_cmp(&work_of_others(right)))?;
    let (others, all) = (work_of_others(busiest), all_work(busiest));
    if others < all * MIN_OTHERS || others < case.window.seconds * MIN_OTHERS_PER_SECOND {
        return None;
    }
    let rates = case.window.steps.iter().map(|step| {
        step.system.disks.iter().filter(|disk| disk.name == busiest.name).map(work_of_others).sum()
    });
    let correlation = trend::correlation(points, &rates.collect::<Vec<f64>>());
    let grade = if correlation.is_some() { Grade::MovesWith } else { Grade::Shares };
    let moves = correlation.map_or(String::new(), |r| format!(", which moves with the loss (r {r:.2})"));
    let text = format!(
        "{} of the I/O on {} is from other programs{moves}",
        show_percent(others / all),
        escape(&busiest.name),
    );
    let evidence = Evidence::measured("I/O of others", others / all * 100.0, "%", "/proc/diskstats", text);
    Some(Others { evidence: evidence.graded(grade), neighbors: processes(case, grade) })
}

fn all_work(disk: &Disk) -> f64 {
    work_of(disk.reads.saturating_add(disk.writes), disk.read_bytes.saturating_add(disk.written_bytes))
}

fn work_of_others(disk: &Disk) -> f64 {
    let operations = disk.reads.saturating_add(disk.writes).saturating_sub(disk.own);
    let bytes = disk.read_bytes.saturating_add(disk.written_bytes).saturating_sub(disk.own_bytes);
    work_of(operations, bytes)
}

/// Returns the other programs with the most I/O on disks.
fn processes(case: &Case<'_>, grade: Grade) -> Vec<Neighbor> {
    let own = case.snapshot.program.pid;
    let users = case.window.system.users.iter().filter(|user| user.pid != own);
    let mut users: Vec<(u64, String)> = users
        .map(|user| {
            let bytes = user.read_bytes.saturating_add(user.written_bytes);
            (bytes, format!("{} (PID {})", user.name, user.pid))
        })
        .collect();
    users.sort_by(|left, right| right.cmp(left));
    let most = users.first().map_or(0, |user| user.0);
    let users = users.into_iter().filter(|(bytes, _)| *bytes > 0 && *bytes >= most / 10).take(MAX_NEIGHBORS);
    users.map(|(_, name)| Neighbor { kind: "process".to_owned(), name, grade }).collect()
}

/// Returns the volume that loses time because another volume on the same disk does most of the work.
fn heavy_volume(case: &Case<'_>, volumes: &BTreeSet<u32>) -> Option<(u32, Others)> {
    if volumes.len() < 2 {
        return None;
    }
    let work = |id: &u32| case.series(*id).map(|at| work_of(at.total.count(), at.bytes)).sum::<f64>();
    let lost = case.ledger.lost_by_volume(is_at_volume);
    let operations = |id: &u32| case.series(*id).map(|at| at.total.count() as f64).sum::<f64>();
    let heavy = *volumes.iter().max_by(|left, right| work(left).total_cmp(&work(right)))?;
    let all_work: f64 = volumes.iter().map(work).sum();
    let lost: Vec<(u32, f64)> =
        volumes.iter().map(|id| (*id, lost.get(id).copied().unwrap_or(0.0))).collect();
    let victim = *lost.iter().max_by(|left, right| left.1.total_cmp(&right.1))?;
    let all_lost: f64 = lost.iter().map(|at| at.1).sum();
    let all_operations: f64 = volumes.iter().map(operations).sum();
    let part = work(&heavy) / all_work.max(1.0);
    let is_victim = stands_out(victim.1 / all_lost.max(1.0), operations(&victim.0) / all_operations.max(1.0));
    if heavy == victim.0 || part < 0.8 || !is_victim {
        return None;
    }
    let name = case.topology.name(heavy);
    let text = format!("{} of the work on the disk is of {}", show_percent(part), escape(&name));
    let evidence =
        Evidence::measured("work of another volume", part * 100.0, "%", "operations and bytes", text);
    let neighbor = Neighbor { kind: "volume".to_owned(), name, grade: Grade::Shares };
    Some((victim.0, Others { evidence: evidence.graded(Grade::Shares), neighbors: vec![neighbor] }))
}

/// Returns the handlers that share an interrupt line with the disks of these volumes.
pub(super) fn line_neighbors(case: &Case<'_>, volumes: &BTreeSet<u32>, points: &[Point]) -> Vec<Neighbor> {
    let devices: BTreeMap<&str, &Device> =
        volumes.iter().filter_map(|id| case.topology.device(*id)).map(|at| (at.name.as_str(), at)).collect();
    let lines = devices.values().flat_map(|device| &device.interrupts).filter(|line| line.actions.len() > 1);
    let mut neighbors = Vec::new();
    for line in lines.take(MAX_LINES) {
        let number = line.number.to_string();
        let grade = if moves_with_line(case, &number, points) { Grade::MovesWith } else { Grade::Shares };
        let others = line.actions.iter().filter(|action| !is_own(action, &devices));
        neighbors.extend(others.take(MAX_NEIGHBORS).map(|action| Neighbor {
            kind: "irq".to_owned(),
            name: format!("{action} (interrupt {number})"),
            grade,
        }));
    }
    neighbors
}

fn moves_with_line(case: &Case<'_>, number: &str, points: &[Point]) -> bool {
    let counts = case.window.steps.iter().map(|step| {
        let lines = step.system.interrupts.iter().filter(|line| line.line == number);
        lines.map(|line| line.count as f64).sum()
    });
    trend::correlation(points, &counts.collect::<Vec<f64>>()).is_some()
}

/// Returns the sentence about a handler on the line of a disk.
pub(super) fn line_evidence(neighbor: &Neighbor) -> Option<Evidence> {
    if neighbor.kind != "irq" {
        return None;
    }
    let moves = if neighbor.grade == Grade::MovesWith { ", whose rate moves with the stalls" } else { "" };
    let text = format!("its interrupt line is shared with {}{moves}", escape(&neighbor.name));
    Some(Evidence::measured("interrupt line", 1.0, "", "/sys/kernel/irq", text).graded(neighbor.grade))
}
