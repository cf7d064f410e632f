//! Checks of PCI devices.

use super::check::{Check, Severity};
use super::context::{Context, unexpected};
use super::survey::Survey;
use crate::system::{ReadError, SMALL, decode_counter, pci_control};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "pci.link",
        severity: Severity::Warning,
        reads: "current_ and max_link_speed and _width of drives and network cards",
        good: "equal",
        reason: "a link that trained to fewer lanes or a lower speed limits the card",
        is_sampled: false,
        run: link,
    },
    Check {
        id: "pci.payload",
        severity: Severity::Information,
        reads: "config of drives, network cards, and the ports above them (as root)",
        good: "the same payload size as the port, and read requests of at least 512 bytes",
        reason: "small packets on the bus cost bandwidth",
        is_sampled: false,
        run: payload,
    },
    Check {
        id: "pci.errors",
        severity: Severity::Warning,
        reads: "aer_dev_correctable of drives and network cards, twice",
        good: "not rising",
        reason: "each corrected error is a packet that was sent again",
        is_sampled: true,
        run: errors,
    },
    Check {
        id: "pci.aspm",
        severity: Severity::Information,
        reads: "/sys/module/pcie_aspm/parameters/policy",
        good: "performance",
        reason: "a link that sleeps needs time to wake up",
        is_sampled: false,
        run: aspm,
    },
    Check {
        id: "pci.iommu",
        severity: Severity::Warning,
        reads: "iommu_group/type of drives and network cards",
        good: "identity or DMA-FQ",
        reason: "with DMA, each transfer waits until the IOMMU has forgotten its mapping",
        is_sampled: false,
        run: iommu,
    },
];

/// Calls a function for name and directory of the function of each card that has an entry.
fn for_each_function(
    context: &Context,
    survey: &mut Survey,
    entry: &str,
    mut check: impl FnMut(&mut Survey, &str, &str) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    for card in context.cards()? {
        let Some(function) = &card.function else { continue };
        let dir = &function.path;
        let has_entry = context.root.list(dir)?.iter().any(|name| name == entry);
        if has_entry && let Err(error) = check(survey, &card.name, dir) {
            survey.unseen(error);
        }
    }
    if survey.is_empty() {
        survey.absent(format!("no drive or network card has {entry}"));
    }
    Ok(())
}

fn link(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for_each_function(context, survey, "max_link_speed", |survey, name, dir| {
        for part in ["speed", "width"] {
            let read = |which: &str| {
                let path = format!("{dir}/{which}_link_{part}");
                let value = context.root.word(&path)?;
                let is_valid = value.starts_with(|first: char| first.is_ascii_digit());
                if is_valid { Ok(value) } else { Err(unexpected(&path, "a speed or width")) }
            };
            let (current, max) = (read("current")?, read("max")?);
            let value = format!("{name}: {part} {current} of {max}");
            survey.judge(current == max, value, "# reseat the card, or move it to another slot");
        }
        Ok(())
    })
}

fn payload(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for_each_function(context, survey, "max_link_speed", |survey, name, dir| {
        let Some(function) = pci_control(&context.root, dir)? else { return Ok(()) };
        let parent = dir.rsplit_once('/').map_or("", |(parent, _)| parent);
        let port = pci_control(&context.root, parent)?;
        let is_same = port.is_none_or(|port| port.payload_bytes == function.payload_bytes);
        let (payload, request) = (function.payload_bytes, function.read_request_bytes);
        survey.judge(
            is_same && request >= 512,
            format!("{name}: payload {payload} bytes, read requests {request} bytes"),
            "# kernel parameter: pci=pcie_bus_perf",
        );
        Ok(())
    })
}

fn errors(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for_each_function(context, survey, "aer_dev_correctable", |survey, name, dir| {
        let path = format!("{dir}/aer_dev_correctable");
        let count = context.root.parse(&path, SMALL, |text| decode_counter(text, "TOTAL_ERR_COR"))?;
        let count = context.rise(&path, count);
        let value = format!("{name}: {count} corrected errors {}", context.period());
        survey.judge(count == 0, value, "# reseat the card, or move it to another slot");
        Ok(())
    })
}

fn aspm(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    if !context.root.list("/sys/module")?.iter().any(|name| name == "pcie_aspm") {
        survey.absent("the kernel does not manage the power of links");
        return Ok(());
    }
    let policy = context.chosen("/sys/module/pcie_aspm/parameters/policy")?;
    survey.judge(policy == "performance", policy, "# kernel parameter: pcie_aspm.policy=performance");
    Ok(())
}

fn iommu(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for_each_function(context, survey, "iommu_group", |survey, name, dir| {
        let kind = context.root.word(&format!("{dir}/iommu_group/type"))?;
        let is_good = ["identity", "DMA-FQ"].contains(&&*kind);
        survey.judge(is_good, format!("{name}: {kind}"), "# kernel parameter: iommu.passthrough=1");
        Ok(())
    })
}
