//! Sums of the times of events.

use std::collections::{BTreeMap, BTreeSet};

use isolane_observe::verdict::{Handler, Issuer, Measured, RanTask, Requests, Times};

use super::event::{Event, EventKind, Request, Task, decode_event};

/// Most cores, handlers, tasks, and disks, each. Events of more of them are counted as lost.
const MAX_NAMES: usize = 4096;
/// Most requests in flight.
const MAX_REQUESTS: usize = 65_536;
/// Most entries of each list of the result.
const MAX_LISTED: usize = 64;
/// Most threads that are counted for a disk.
const MAX_ISSUERS: usize = 64;
/// Thread of a core without work.
const IDLE: u32 = 0;

/// Times by handler, task, and disk.
#[derive(Debug, Default)]
pub(super) struct Summary {
    /// Threads of the program whose cores are measured.
    own: BTreeSet<u32>,
    cores: BTreeMap<u32, Core>,
    handlers: BTreeMap<(u32, u32, String), Times>,
    /// By thread and core.
    tasks: BTreeMap<(u32, u32), RanTask>,
    in_flight: BTreeMap<Request, u64>,
    disks: BTreeMap<(u32, u32), Disk>,
    last_ns: u64,
    lost: u64,
}

/// State of one core.
#[derive(Debug, Default)]
struct Core {
    /// The handler that runs: line, name, and start.
    handler: Option<(u32, String, u64)>,
    /// The task that runs: thread, name, and start.
    task: Option<(u32, String, u64)>,
    /// A thread of the program that is ready to run, and the start of that state.
    ready: Option<(u32, u64)>,
}

#[derive(Debug, Default)]
struct Disk {
    times: Times,
    issuers: BTreeMap<u32, Issuer>,
}

impl Summary {
    /// Returns empty sums. The delays of the threads `own` are measured.
    pub(super) fn new(own: &[u32]) -> Summary {
        Summary { own: own.iter().copied().collect(), ..Summary::default() }
    }

    /// Adds a line. A line that is not an event counts as lost, unless it is empty or a comment.
    pub(super) fn add_line(&mut self, line: &str) {
        match decode_event(line) {
            Ok(event) => self.add(&event),
            Err(_) if line.trim().is_empty() || line.starts_with('#') => {}
            Err(_) => self.lose(1),
        }
    }

    fn add(&mut self, event: &Event<'_>) {
        if !self.cores.contains_key(&event.cpu) && self.cores.len() == MAX_NAMES {
            return self.lose(1);
        }
        self.last_ns = self.last_ns.max(event.at_ns);
        let core = self.cores.entry(event.cpu).or_default();
        match event.kind {
            EventKind::HandlerEntry { line, name } => {
                core.handler = Some((line, name.to_owned(), event.at_ns));
            }
            EventKind::HandlerExit { line } => {
                let started = core.handler.take().filter(|handler| handler.0 == line);
                if let Some((line, name, start_ns)) = started {
                    self.add_handler((line, event.cpu, name), event.at_ns.saturating_sub(start_ns));
                }
            }
            EventKind::Switch { from, is_ready, to } => self.switch(event, from, is_ready, to),
            EventKind::Wakeup { thread, cpu } => self.wake(thread, cpu, event.at_ns),
            EventKind::Issue { request, name } => {
                let thread = event.thread.unwrap_or(IDLE);
                self.issue(request, Task { thread, name }, event.at_ns);
            }
            EventKind::Complete { request } => self.complete(request, event.at_ns),
            EventKind::Lost { count } => {
                *core = Core::default();
                // The completion of any request may be among them.
                self.in_flight.clear();
                self.lose(count);
            }
        }
    }

    fn lose(&mut self, count: u64) {
        self.lost = self.lost.saturating_add(count);
    }

    fn add_handler(&mut self, key: (u32, u32, String), ns: u64) {
        if self.handlers.len() < MAX_NAMES || self.handlers.contains_key(&key) {
            self.handlers.entry(key).or_default().add(ns);
        } else {
            self.lose(1);
        }
    }

    fn switch(&mut self, event: &Event<'_>, from: Task<'_>, is_ready: bool, to: Task<'_>) {
        self.end_run(event.cpu, from, event.at_ns);
        // A thread that ran, or that runs now, no longer waits here or on another core.
        for thread in [from.thread, to.thread] {
            if self.own.contains(&thread) {
                let waits = |core: &&mut Core| core.ready.is_some_and(|ready| ready.0 == thread);
                self.cores.values_mut().filter(waits).for_each(|core| core.ready = None);
            }
        }
        let Some(core) = self.cores.get_mut(&event.cpu) else { return };
        core.task = Some((to.thread, to.name.to_owned(), event.at_ns));
        if is_ready && self.own.contains(&from.thread) {
            core.ready = Some((from.thread, event.at_ns));
        }
    }

    /// Adds the run of a task that ends now.
    fn end_run(&mut self, cpu: u32, task: Task<'_>, at_ns: u64) {
        let Some(core) = self.cores.get_mut(&cpu) else { return };
        let started = core.task.take().filter(|(thread, ..)| *thread == task.thread && *thread != IDLE);
        let Some((_, _, start_ns)) = started else { return };
        let ready = core.ready.filter(|(thread, _)| *thread != task.thread);
        let delayed_ns = ready.map_or(0, |(_, since)| at_ns.saturating_sub(since.max(start_ns)));
        let key = (task.thread, cpu);
        if self.tasks.len() == MAX_NAMES && !self.tasks.contains_key(&key) {
            return self.lose(1);
        }
        let new = || RanTask { thread: task.thread, name: task.name.to_owned(), cpu, ..RanTask::default() };
        let ran = self.tasks.entry(key).or_insert_with(new);
        ran.times.add(at_ns.saturating_sub(start_ns));
        if delayed_ns > 0 {
            ran.delayed.add(delayed_ns);
        }
    }

    fn wake(&mut self, thread: u32, cpu: u32, at_ns: u64) {
        let is_known = self.cores.contains_key(&cpu) || self.cores.len() < MAX_NAMES;
        if self.own.contains(&thread) && is_known {
            self.cores.entry(cpu).or_default().ready = Some((thread, at_ns));
        }
    }

    fn issue(&mut self, request: Request, task: Task<'_>, at_ns: u64) {
        let is_known = self.disks.contains_key(&request.disk);
        if self.in_flight.len() == MAX_REQUESTS || self.disks.len() == MAX_NAMES && !is_known {
            return self.lose(1);
        }
        self.in_flight.insert(request, at_ns);
        let issuers = &mut self.disks.entry(request.disk).or_default().issuers;
        if issuers.len() < MAX_ISSUERS || issuers.contains_key(&task.thread) {
            let name = || task.name.to_owned();
            let new = || Issuer { thread: task.thread, name: name(), ..Issuer::default() };
            issuers.entry(task.thread).or_insert_with(new).requests += 1;
        }
    }

    fn complete(&mut self, request: Request, at_ns: u64) {
        let Some(start_ns) = self.in_flight.remove(&request) else { return };
        if let Some(disk) = self.disks.get_mut(&request.disk) {
            disk.times.add(at_ns.saturating_sub(start_ns));
        }
    }

    /// Returns the sums, with the number of a disk as its name. A task that still runs has run until the last event.
    pub(super) fn finish(mut self, seconds: f64) -> Measured {
        let running = self.cores.iter().filter_map(|(cpu, core)| Some((*cpu, core.task.clone()?)));
        for (cpu, (thread, name, _)) in running.collect::<Vec<_>>() {
            self.end_run(cpu, Task { thread, name: &name }, self.last_ns);
        }
        let handlers = self.handlers.into_iter();
        let handlers = handlers.map(|((line, cpu, name), times)| Handler { line, name, cpu, times });
        let disks = self.disks.into_iter().filter(|(_, disk)| disk.times.count > 0);
        let disks = disks.map(|((major, minor), disk)| Requests {
            disk: format!("{major}:{minor}"),
            times: disk.times,
            issuers: largest(disk.issuers.into_values(), |issuer| issuer.requests),
        });
        Measured {
            seconds,
            handlers: largest(handlers, |handler| handler.times.sum_ns),
            tasks: largest(self.tasks.into_values(), |task| (task.delayed.sum_ns, task.times.sum_ns)),
            disks: largest(disks, |disk| disk.times.sum_ns),
            lost_events: self.lost,
            not_seen: Vec::new(),
        }
    }
}

fn largest<T, K: Ord>(items: impl Iterator<Item = T>, value: impl Fn(&T) -> K) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.sort_by_key(|item| std::cmp::Reverse(value(item)));
    items.truncate(MAX_LISTED);
    items
}
