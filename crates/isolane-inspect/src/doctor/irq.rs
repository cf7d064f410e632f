//! Checks of interrupts.

use std::collections::BTreeMap;

use super::check::{Check, Severity};
use super::context::{Context, unexpected};
use super::devices::Card;
use super::survey::Survey;
use crate::system::{IrqLine, ReadError, Reason, SMALL, decode_cpu_list, show_cpus};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "irq.shared",
        severity: Severity::Warning,
        reads: "/sys/kernel/irq/*/actions, msi_irqs and irq of drives and network cards",
        good: "one handler for each line of a drive or network card",
        reason: "all handlers of a line run for each of its interrupts, the slow ones also",
        is_sampled: false,
        run: shared,
    },
    Check {
        id: "irq.vmd",
        severity: Severity::Warning,
        reads: "/sys/kernel/irq/*: chip_name VMD-MSI, hwirq, actions",
        good: "no handler of another device on the vector of a drive",
        reason: "devices beneath a VMD share vectors, and the handler of a switch reads slow registers",
        is_sampled: false,
        run: vmd,
    },
    Check {
        id: "irq.cores",
        severity: Severity::Warning,
        reads: "/proc/irq/*/effective_affinity_list, cpulist of the card's node",
        good: "lines of a card on several cores of its node, and not all on one core of a reactor",
        reason: "one core that handles all interrupts of a card limits it, and delays a reactor there",
        is_sampled: false,
        run: cores,
    },
    Check {
        id: "irq.balance",
        severity: Severity::Information,
        reads: "/proc/*/comm, /etc/default/irqbalance or /etc/sysconfig/irqbalance",
        good: "irqbalance does not run, or bans the cores of the reactors",
        reason: "irqbalance moves interrupts to the cores of reactors",
        is_sampled: false,
        run: balance,
    },
];

fn shared(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let lines = context.irq_lines()?;
    for card in context.cards()? {
        for line in lines_of(card, lines) {
            let (number, actions) = (line.number, line.actions.join(", "));
            survey.judge(
                line.actions.len() < 2,
                format!("line {number} of {}: {actions}", card.name),
                "# unload the module of the other handler, or move the card to another slot",
            );
        }
    }
    if survey.is_empty() {
        survey.absent("no drive or network card has an interrupt line");
    }
    Ok(())
}

/// Returns the lines of a card that have handlers.
fn lines_of<'a>(card: &Card, lines: &'a [IrqLine]) -> Vec<&'a IrqLine> {
    let numbers = card.function.as_ref().map_or(&[][..], |function| &function.irqs);
    lines.iter().filter(|line| numbers.contains(&line.number) && !line.actions.is_empty()).collect()
}

fn vmd(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let mut vectors: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for line in context.irq_lines()?.iter().filter(|line| line.is_behind_vmd()) {
        match line.hwirq {
            Some(vector) => {
                vectors.entry(vector).or_default().extend(line.actions.iter().map(String::as_str))
            }
            None => survey.unseen(unexpected(&format!("/sys/kernel/irq/{}/hwirq", line.number), "a number")),
        }
    }
    let is_drive = |action: &&str| action.starts_with("nvme");
    for (vector, actions) in &vectors {
        let others: Vec<&str> = actions.iter().copied().filter(|action| !is_drive(action)).collect();
        survey.judge(
            others.is_empty() || !actions.iter().any(is_drive),
            format!("vector {vector}: {}", actions.join(", ")),
            if others.contains(&"switchtec") {
                "rmmod switchtec"
            } else {
                "# unload the module of the other device"
            },
        );
    }
    if survey.is_empty() {
        survey.absent("no device beneath a VMD");
    }
    Ok(())
}

fn cores(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let (reactors, lines) = (context.cores()?, context.irq_lines()?);
    for card in context.cards()? {
        let lines = lines_of(card, lines);
        let read = lines.iter().map(|line| IrqLine::cpus(&context.root, line.number)).collect();
        let Some(cpus) = survey.take::<Vec<Vec<u32>>>(read) else { continue };
        let mut cpus = cpus.concat();
        cpus.sort_unstable();
        cpus.dedup();
        let Some(first) = cpus.first().copied() else { continue };
        let Some(near) = survey.take(near_cpus(context, card)) else { continue };
        let number = lines[0].number;
        let value = format!("{}: {} lines on cores {}", card.name, lines.len(), show_cpus(&cpus));
        let on_one_reactor = lines.len() > 2 && cpus.len() == 1 && reactors.contains(&first);
        let is_far = near.as_ref().is_some_and(|near| cpus.iter().any(|cpu| !near.contains(cpu)));
        let target = near.map_or("OTHER_CORES".into(), |near| show_cpus(&near));
        survey.judge(
            !on_one_reactor && !is_far,
            if is_far { format!("{value}, not all on its node (cores {target})") } else { value },
            format!("echo {target} > /proc/irq/{number}/smp_affinity_list"),
        );
    }
    if survey.is_empty() {
        survey.absent("no drive or network card has an interrupt line");
    }
    Ok(())
}

/// Returns the cores of the card's node, if it belongs to one.
fn near_cpus(context: &Context, card: &Card) -> Result<Option<Vec<u32>>, ReadError> {
    let Some(node) = card.function.as_ref().and_then(|function| function.numa_node) else { return Ok(None) };
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    context.root.parse(&path, SMALL, decode_cpu_list).map(Some)
}

fn balance(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let processes = context.root.list("/proc")?;
    let comm = |pid: &&String| context.root.word(&format!("/proc/{pid}/comm"));
    let mut numbers = processes.iter().filter(|name| name.parse::<u32>().is_ok()).peekable();
    if numbers.peek().is_none() {
        survey.unseen("/proc: no process");
    } else if !numbers.any(|pid| comm(&pid).is_ok_and(|name| name == "irqbalance")) {
        survey.good("irqbalance does not run");
    } else {
        let (cores, banned) = (context.cores()?, banned_cpus(context)?);
        survey.judge(
            cores.iter().all(|core| banned.contains(core)),
            format!("irqbalance runs, and bans cores {}", show_cpus(&banned)),
            format!("# /etc/default/irqbalance: IRQBALANCE_BANNED_CPULIST={}", show_cpus(&cores)),
        );
    }
    Ok(())
}

/// Returns the cores that the settings of irqbalance ban.
fn banned_cpus(context: &Context) -> Result<Vec<u32>, ReadError> {
    let mut banned = Vec::new();
    for path in ["/etc/default/irqbalance", "/etc/sysconfig/irqbalance"] {
        let text = match context.root.read(path, SMALL) {
            Err(error) if error.reason == Reason::Missing => continue,
            text => text?,
        };
        let value = text.lines().find_map(|line| line.trim().strip_prefix("IRQBALANCE_BANNED_CPULIST="));
        let list = value.unwrap_or_default().trim_matches(['"', '\'']);
        banned = decode_cpu_list(list).map_err(|_| unexpected(path, "a list of CPUs"))?;
    }
    Ok(banned)
}
