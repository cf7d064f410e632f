//! Times that the kernel's trace events measured: handlers, tasks, and requests of disks.
//!
//! They add evidence and neighbors of the grade *measured* to findings, and never a separate finding.

use std::collections::{BTreeMap, BTreeSet};

use super::case::Case;
use super::document::{Evidence, Grade, Neighbor};
use super::times::{HANDLERS, Handler, Issuer, MIN_PART, Measured, RanTask, TASKS, Times};
use super::units::{escape, show_count, show_ns, show_percent};
use crate::snapshot::{Core, Device};
use crate::topology::is_own;

/// Least part of the time that a handler of another line takes on a core to name it for a device.
const MIN_PART_BESIDE: f64 = 0.05;
/// Least part of the time that an operation lost, for a handler that is named as its cause.
const MIN_PART_OF_LOSS: f64 = 0.5;
/// Least part of the requests of a disk that a process issues.
const MIN_REQUESTS: f64 = 0.05;
/// Most handlers or tasks of a finding, and of each list of the text.
const MAX_LISTED: usize = 4;
/// Source of all values.
const SOURCE: &str = "tracefs";

/// A fact, with the neighbor that it names.
pub(super) type Fact = (Evidence, Option<Neighbor>);

/// Adds facts to a finding. A neighbor replaces the same one with a weaker grade.
pub(super) fn add(facts: Vec<Fact>, evidence: &mut Vec<Evidence>, neighbors: &mut Vec<Neighbor>) {
    for (fact, neighbor) in facts {
        evidence.push(fact);
        let Some(neighbor) = neighbor else { continue };
        neighbors.retain(|other| (&other.kind, &other.name) != (&neighbor.kind, &neighbor.name));
        neighbors.push(neighbor);
    }
}

/// Returns the times of handlers that delay the disks of these volumes, and of the requests of the disks.
pub(super) fn of_devices(case: &Case<'_>, volumes: &BTreeSet<u32>) -> Vec<Fact> {
    let seconds = case.measured.seconds;
    let handlers = handlers_of(case, volumes).into_iter().take(MAX_LISTED);
    let mut facts: Vec<Fact> =
        handlers.map(|(handler, place)| handler_fact(handler, &format!(" on {place}"), seconds)).collect();
    facts.extend(requests_of(case, volumes).map(|evidence| (evidence, None)));
    facts
}

/// Returns the name of a handler that delays the disks of these volumes, and that once took half of the time that an
/// operation of the tail lost.
pub(super) fn delaying_handler(case: &Case<'_>, volumes: &BTreeSet<u32>) -> Option<String> {
    let least_ns = case.ledger.mean_loss_ns() * MIN_PART_OF_LOSS;
    let mut handlers = handlers_of(case, volumes).into_iter();
    let found = handlers.find(|(handler, _)| handler.times.max_ns as f64 >= least_ns);
    found.map(|(handler, _)| handler.name.clone())
}

/// Returns the handlers of others on the lines of the disks of these volumes or on their cores, with that place.
fn handlers_of<'a>(case: &Case<'a>, volumes: &BTreeSet<u32>) -> Vec<(&'a Handler, String)> {
    let own = disks(case, volumes);
    let devices = case.snapshot.devices.iter().filter(|device| own.contains(&device.name));
    let devices: BTreeMap<&str, &Device> = devices.map(|device| (device.name.as_str(), device)).collect();
    let lines = || devices.values().flat_map(|device| &device.interrupts);
    let place = |handler: &Handler| {
        let part = handler.times.part_of(case.measured.seconds);
        match lines().find(|line| line.number == handler.line) {
            _ if is_own(&handler.name, &devices) => None,
            Some(line) if line.actions.len() > 1 && part >= MIN_PART => {
                Some(format!("its interrupt line {}", handler.line))
            }
            None if part >= MIN_PART_BESIDE && lines().any(|line| line.cpus.contains(&handler.cpu)) => {
                Some(format!("core {}, which gets its interrupts,", handler.cpu))
            }
            _ => None,
        }
    };
    case.measured.handlers.iter().filter_map(|handler| Some((handler, place(handler)?))).collect()
}

fn handler_fact(handler: &Handler, place: &str, seconds: f64) -> Fact {
    let text = format!("handler {}{place} took {}", escape(&handler.name), handler.times.show(seconds));
    let evidence = Evidence::measured("interrupt handler", ms(&handler.times), "ms", SOURCE, text);
    let name = format!("{} (interrupt {})", handler.name, handler.line);
    (evidence, Some(neighbor("irq", name)))
}

/// Returns the mean time of the requests of the disk beneath volumes, compared with the other disks of the program.
fn requests_of(case: &Case<'_>, volumes: &BTreeSet<u32>) -> Option<Evidence> {
    let own = disks(case, volumes);
    let is_known = |name: &str| case.snapshot.devices.iter().any(|device| device.name == name);
    let (here, others): (Vec<_>, Vec<_>) = case.measured.disks.iter().partition(|at| own.contains(&at.disk));
    let here = here.first()?;
    let others = others.iter().filter(|at| is_known(&at.disk) && at.times.count > 0);
    let mut others: Vec<f64> = others.map(|at| at.times.mean_ns()).collect();
    others.sort_by(f64::total_cmp);
    let mean_ns = here.times.mean_ns();
    let (mean, count) = (show_ns(mean_ns), show_count(here.times.count));
    let text = format!("disk {} took {mean} for each of {count} requests", escape(&here.disk));
    let evidence = |text| Evidence::measured("disk requests", mean_ns / 1000.0, "us", SOURCE, text);
    match others.get(others.len() / 2) {
        None => Some(evidence(text)),
        Some(middle) => {
            let text = format!("{text}, and the other disks {}", show_ns(*middle));
            Some(evidence(text).compared_to(middle / 1000.0))
        }
    }
}

/// Returns the processes other than the program that issued requests to the disks of these volumes.
pub(super) fn of_disk_users(case: &Case<'_>, volumes: &BTreeSet<u32>) -> Vec<Fact> {
    let own = disks(case, volumes);
    let program = case.snapshot.program.pid;
    let mut facts = Vec::new();
    for disk in case.measured.disks.iter().filter(|at| own.contains(&at.disk)) {
        let all = disk.issuers.iter().map(|issuer| issuer.requests).fold(0, u64::saturating_add);
        let is_other = |issuer: &&Issuer| {
            issuer.process != Some(program) && issuer.requests as f64 >= all as f64 * MIN_REQUESTS
        };
        for issuer in disk.issuers.iter().filter(is_other).take(MAX_LISTED) {
            let name = task_name(&issuer.name, issuer.process, issuer.thread);
            let (requests, all) = (show_count(issuer.requests), show_count(all));
            let text =
                format!("{} issued {requests} of {all} requests of {}", escape(&name), escape(&disk.disk));
            let evidence = Evidence::measured("requests", issuer.requests as f64, "", SOURCE, text);
            facts.push((evidence, Some(neighbor("process", name))));
        }
    }
    facts.truncate(MAX_LISTED);
    facts
}

fn disks(case: &Case<'_>, volumes: &BTreeSet<u32>) -> BTreeSet<String> {
    volumes.iter().flat_map(|id| case.topology.disks(*id)).collect()
}

/// Returns the tasks or handlers that ran on the core of a thread of the program, by the cause of its absence.
pub(super) fn of_core(case: &Case<'_>, core: &Core, cause: &str) -> Vec<Fact> {
    let Some(cpu) = core.cpu else { return Vec::new() };
    let seconds = case.measured.seconds;
    match cause {
        "process" | "sleep" => {
            let is_other = |task: &&RanTask| task.cpu == cpu && task.thread != core.thread;
            let others: Vec<&RanTask> = case.measured.tasks.iter().filter(is_other).collect();
            let most = others.iter().map(|task| task.delayed.sum_ns).max().unwrap_or(0);
            let is_large =
                |task: &&RanTask| task.delayed.is_long(seconds) && task.delayed.sum_ns >= most / 10;
            let others = others.into_iter().filter(is_large).take(MAX_LISTED);
            others.map(|task| task_fact(task, seconds)).collect()
        }
        "interrupt" => {
            let is_here = |handler: &&Handler| handler.cpu == cpu && handler.times.is_long(seconds);
            let handlers = case.measured.handlers.iter().filter(is_here).take(MAX_LISTED);
            handlers.map(|handler| handler_fact(handler, "", seconds)).collect()
        }
        _ => Vec::new(),
    }
}

fn task_fact(task: &RanTask, seconds: f64) -> Fact {
    let name = task_name(&task.name, task.process, task.thread);
    let text = format!("{} kept it waiting for {}", escape(&name), task.delayed.show(seconds));
    let evidence = Evidence::measured("task", ms(&task.delayed), "ms", SOURCE, text);
    (evidence, Some(neighbor("process", name)))
}

fn task_name(name: &str, process: Option<u32>, thread: u32) -> String {
    match process {
        Some(process) => format!("{name} (PID {process})"),
        None => format!("{name} (thread {thread})"),
    }
}

fn neighbor(kind: &str, name: String) -> Neighbor {
    Neighbor { kind: kind.to_owned(), name, grade: Grade::Measured }
}

fn ms(times: &Times) -> f64 {
    times.sum_ns as f64 / 1e6
}

/// Lists the times that were not measured.
pub(super) fn report_missing(case: &mut Case<'_>) {
    let measured = case.measured;
    for (what, needs) in &measured.not_seen {
        case.miss(what, needs);
    }
    if measured.lost_events > 0 {
        let what = format!("{} trace events, which were lost", show_count(measured.lost_events));
        case.miss(&what, "a shorter --deep, or less load");
    }
}

/// Returns the largest times as lines of text.
pub(super) fn to_text(measured: &Measured) -> String {
    let seconds = measured.seconds;
    let mut text = format!("measured for {seconds:.1} s:\n");
    let handlers = measured.handlers.iter().filter(|at| at.times.is_long(seconds)).take(MAX_LISTED);
    for at in handlers.clone() {
        let (name, times) = (escape(&at.name), at.times.show(seconds));
        text += &format!("   handler {name} (interrupt {}, core {}): {times}\n", at.line, at.cpu);
    }
    let tasks = measured.tasks.iter().filter(|at| at.delayed.is_long(seconds)).take(MAX_LISTED);
    for at in tasks.clone() {
        let name = escape(&task_name(&at.name, at.process, at.thread));
        let times = at.delayed.show(seconds);
        text += &format!("   {name} ran instead of the program on core {}: {times}\n", at.cpu);
    }
    for at in measured.disks.iter().take(MAX_LISTED) {
        let (disk, count, mean) = (escape(&at.disk), show_count(at.times.count), show_ns(at.times.mean_ns()));
        let longest = show_ns(at.times.max_ns as f64);
        text += &format!("   disk {disk}: {count} requests, {mean} each, at most {longest}\n");
    }
    let limit = show_percent(MIN_PART);
    if handlers.clone().next().is_none() && !measured.lacks(HANDLERS) {
        text += &format!("   no interrupt handler took {limit} of the time on a core\n");
    }
    if tasks.clone().next().is_none() && !measured.lacks(TASKS) {
        text += &format!("   no task ran instead of the program for {limit} of the time\n");
    }
    text + &handlers.clone().next().map(functions_of).unwrap_or_default()
}

/// Returns the command that shows the functions inside of a handler. Its samples come from a hardware counter, because
/// a timer does not interrupt a handler.
fn functions_of(handler: &Handler) -> String {
    format!(
        "   functions in {}: sudo bpftrace -e 'hardware:cycles:1000003 /cpu == {}/ {{ @[kstack(8)] = count(); }} \
         interval:s:5 {{ exit(); }}'\n",
        escape(&handler.name),
        handler.cpu,
    )
}
