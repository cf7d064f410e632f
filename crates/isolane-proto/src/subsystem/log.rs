//! Get Log Page (Base 1.4 §5.14).
//!
//! Encodes each page and returns the requested part of it; the discovery log is in `discovery.rs`.
//!
//! Invariant: for any offset and length, a host receives bytes of the page or zeroes after its end.

use isolane_wire::admin::{GetLogPageCommand, LogPage, NSID_ALL};
use isolane_wire::identify::NamespaceList;
use isolane_wire::log::{
    ActiveFirmware, CommandEffects, CommandEffectsLog, CriticalWarning, FirmwareSlots, GenerationLog,
    HostStagesHeader, SIGNATURE, Smart,
};
use isolane_wire::opcode::{AdminOpcode, IoOpcode};
use isolane_wire::{Ascii, Status};

use super::command::{CommandContext, is_offered};
use super::namespace::{SubsystemKind, SubsystemProfile};
use super::{Action, Generation, IoTotals, NamespaceConfig, discovery};
use crate::completion::Completion;
use crate::failure::Failure;

/// A data unit of the SMART log: a thousand blocks of 512 bytes.
const DATA_UNIT_BYTES: u64 = 512_000;

/// Executes Get Log Page.
pub(super) fn execute(context: &mut CommandContext) -> Result<Action, Status> {
    let command = GetLogPageCommand::parse(context.entry);
    let page = LogPage::decode(command.lid).ok_or(Failure::LogPage.status())?;
    // The offset is in bytes and a multiple of 4; MDTS bounds the length.
    let is_too_long = command.len() > u64::from(context.profile.config.max_transfer_bytes);
    if command.is_index || !command.offset.is_multiple_of(4) || is_too_long {
        return Err(Failure::Field.status());
    }
    if (page, context.profile.kind) == (LogPage::HostStages, SubsystemKind::Nvm) {
        return host_stages(context, &command);
    }
    let content = content(page, context, &command)?;
    let data = cut(&content, content.len(), &command)?;
    if matches!(page, LogPage::ChangedNamespaces | LogPage::Discovery) && !command.rae {
        context.association.clear_changes();
    }
    Ok(Action::CompleteWithData(data, Completion::success()))
}

fn content(page: LogPage, context: &CommandContext, command: &GetLogPageCommand) -> Result<Vec<u8>, Status> {
    let profile = context.profile;
    match (page, profile.kind) {
        (LogPage::Error, _) => Ok(context.association.errors.encode()),
        (LogPage::Smart, SubsystemKind::Nvm) => smart(context, command),
        (LogPage::FirmwareSlot, SubsystemKind::Nvm) => Ok(firmware(profile).encode().to_vec()),
        (LogPage::ChangedNamespaces, SubsystemKind::Nvm) => {
            Ok(NamespaceList::new(context.association.changed_namespaces()).encode().to_vec())
        }
        (LogPage::CommandEffects, SubsystemKind::Nvm) if command.csi == 0 => Ok(effects().encode().to_vec()),
        (LogPage::Generation, SubsystemKind::Nvm) => {
            generation(profile.visible(command.nsid, &context.association.host), command.nsid)
        }
        (LogPage::Discovery, SubsystemKind::Discovery) => {
            Ok(discovery::log(context.generation, context.records))
        }
        _ => Err(Failure::LogPage.status()),
    }
}

/// The requested part of a page of `size` bytes, which has zeroes after its content. An offset after its end is an
/// error; bytes after the end are zeroes (Base 1.4 §5.14).
fn cut(content: &[u8], size: usize, command: &GetLogPageCommand) -> Result<Vec<u8>, Status> {
    let start = usize::try_from(command.offset).ok().filter(|&start| start <= size);
    let tail = content.get(start.ok_or(Failure::Field.status())?..).unwrap_or_default();
    let len = command.len() as usize;
    let mut data = tail[..tail.len().min(len)].to_vec();
    data.resize(len, 0);
    Ok(data)
}

/// SMART of the controller, the only scope (LPA bit 0 is clear).
fn smart(context: &CommandContext, command: &GetLogPageCommand) -> Result<Vec<u8>, Status> {
    if ![0, NSID_ALL].contains(&command.nsid) {
        return Err(Failure::Field.status());
    }
    let IoTotals { reads, bytes_read, writes, bytes_written } = context.totals;
    let page = Smart {
        critical_warning: CriticalWarning(0).with_reliability(context.degraded),
        available_spare_percent: 100,
        data_units_read: bytes_read.div_ceil(DATA_UNIT_BYTES).into(),
        data_units_written: bytes_written.div_ceil(DATA_UNIT_BYTES).into(),
        host_read_commands: reads.into(),
        host_write_commands: writes.into(),
        power_cycles: 1,
        power_on_hours: (context.uptime.as_secs() / 3600).into(),
        error_log_entries: context.association.errors.count.into(),
        ..Smart::default()
    };
    Ok(page.encode().to_vec())
}

fn firmware(profile: &SubsystemProfile) -> FirmwareSlots {
    let mut slots = FirmwareSlots { afi: ActiveFirmware(0).with_active(1), ..FirmwareSlots::default() };
    slots.frs[0] = Ascii::lossy(&profile.config.firmware);
    slots
}

/// The page of one namespace whose volume has a generation.
fn generation(namespace: Option<&NamespaceConfig>, nsid: u32) -> Result<Vec<u8>, Status> {
    let namespace = namespace.ok_or(Failure::Namespace.status())?;
    let Generation { id, loses } = namespace.generation.ok_or(Failure::Field.status())?;
    let page = GenerationLog {
        signature: SIGNATURE,
        version: GenerationLog::VERSION,
        loses: loses.code(),
        nsid,
        generation: id,
    };
    Ok(page.encode().to_vec())
}

/// The page that the association keeps. A read at offset 0 drops it, so that no read before the new one gets a part of
/// it.
fn host_stages(context: &mut CommandContext, command: &GetLogPageCommand) -> Result<Action, Status> {
    let association = &mut *context.association;
    if let Some(page) = association.host_page.as_mut().and_then(|page| page.read(command.offset)) {
        let data = cut(page, HostStagesHeader::MAX_PAGE, command)?;
        return Ok(Action::CompleteWithData(data, Completion::success()));
    }
    if command.offset > 0 {
        return Err(Failure::Sequence.status());
    }
    association.host_page = None;
    Ok(Action::CollectHostPage(Box::new(association.host)))
}

fn effects() -> CommandEffectsLog {
    let mut log = CommandEffectsLog::default();
    let supported = CommandEffects(0).with_supported(true);
    for opcode in AdminOpcode::ALL.iter().filter(|&&opcode| is_offered(opcode, SubsystemKind::Nvm)) {
        log.admin[usize::from(opcode.code())] = supported;
    }
    for opcode in [IoOpcode::Flush, IoOpcode::Read] {
        log.io[usize::from(opcode.code())] = supported;
    }
    for opcode in [IoOpcode::Write, IoOpcode::WriteZeroes, IoOpcode::DatasetManagement] {
        log.io[usize::from(opcode.code())] = supported.with_block_content(true);
    }
    log
}
