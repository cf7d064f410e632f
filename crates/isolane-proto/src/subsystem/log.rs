//! Get Log Page (Base 1.4 §5.14).
//!
//! What it is: each page as bytes, and the part of it that a host asks for. What it is not: the discovery
//! log's content. Invariant: whatever offset and length a host gives, it gets bytes of the page or zeroes
//! behind it.

use std::collections::{BTreeSet, VecDeque};

use isolane_wire::admin::{GetLogPageCommand, LogPage, NSID_ALL};
use isolane_wire::identify::NamespaceList;
use isolane_wire::log::{
    ActiveFirmware, CommandEffects, CommandEffectsLog, CriticalWarning, ErrorEntry, FirmwareSlots,
    GenerationLog, SIGNATURE, Smart, Transport,
};
use isolane_wire::opcode::{AdminOpcode, IoOpcode};
use isolane_wire::{Ascii, Status, SubmissionEntry};

use super::admin::{CommandContext, is_offered, refused};
use super::association::Association;
use super::event::Notice;
use super::namespace::{Kind, SubsystemProfile};
use super::{Action, Generation, IoTotals, discovery};
use crate::completion::Completion;

/// Entries that an error log keeps: ELPE is this less one.
pub(super) const MAX_ERRORS: usize = 64;
/// A data unit of the SMART log: a thousand blocks of 512 bytes.
const DATA_UNIT_BYTES: u64 = 512_000;
/// PEL of an error that is in no field in particular.
const NO_PARAMETER: u16 = 0xffff;

/// Get Log Page.
pub(super) fn execute(
    association: &mut Association,
    site: &CommandContext,
    entry: &SubmissionEntry,
) -> Result<Action, Status> {
    let command = GetLogPageCommand::parse(entry);
    let page = LogPage::decode(command.lid).ok_or(refused(Status::INVALID_LOG_PAGE))?;
    let wanted = LogSlice::parse(&command, site.profile)?;
    let content = content(page, association, site, &command)?;
    let data = wanted.cut(&content)?;
    if !command.rae {
        on_read(page, association);
    }
    Ok(Action::CompleteWithData(data, Completion::success()))
}

fn content(
    page: LogPage,
    association: &Association,
    site: &CommandContext,
    command: &GetLogPageCommand,
) -> Result<Vec<u8>, Status> {
    match (page, site.profile.kind) {
        (LogPage::Error, _) => Ok(association.errors.encode()),
        (LogPage::Smart, Kind::Nvm) => smart(association, site, command),
        (LogPage::FirmwareSlot, Kind::Nvm) => Ok(firmware(site.profile).encode().to_vec()),
        (LogPage::ChangedNamespaces, Kind::Nvm) => Ok(changed(&association.changed_namespaces)),
        (LogPage::CommandEffects, Kind::Nvm) if command.csi == 0 => Ok(effects().encode().to_vec()),
        (LogPage::Generation, Kind::Nvm) => generation(site.profile, command.nsid),
        (LogPage::Discovery, Kind::Discovery) => Ok(discovery::log(association, site)),
        _ => Err(refused(Status::INVALID_LOG_PAGE)),
    }
}

/// Reading a page without Retain Asynchronous Event lets its event come again (Base 1.4 §5.2).
fn on_read(page: LogPage, association: &mut Association) {
    match page {
        LogPage::ChangedNamespaces => {
            association.changed_namespaces.clear();
            association.events.clear(Notice::NamespaceChanged);
        }
        LogPage::Discovery => association.events.clear(Notice::DiscoveryChanged),
        _ => {}
    }
}

/// The part of a page that a host asks for.
struct LogSlice {
    offset: u64,
    bytes: usize,
}

impl LogSlice {
    /// The offset is in bytes and a multiple of 4; the length is bounded by MDTS.
    fn parse(command: &GetLogPageCommand, profile: &SubsystemProfile) -> Result<LogSlice, Status> {
        if command.is_index || !command.offset.is_multiple_of(4) {
            return Err(refused(Status::INVALID_FIELD));
        }
        if command.len() > u64::from(profile.config.max_transfer_bytes) {
            return Err(refused(Status::INVALID_FIELD));
        }
        Ok(LogSlice { offset: command.offset, bytes: command.len() as usize })
    }

    /// An offset behind the page is an error, a length behind it is zeroes (Base 1.4 §5.14).
    fn cut(&self, content: &[u8]) -> Result<Vec<u8>, Status> {
        let start = usize::try_from(self.offset).ok().filter(|&start| start <= content.len());
        let start = start.ok_or(refused(Status::INVALID_FIELD))?;
        let rest = &content[start..];
        let mut data = rest[..rest.len().min(self.bytes)].to_vec();
        data.resize(self.bytes, 0);
        Ok(data)
    }
}

/// SMART of the controller; there is none per namespace (LPA bit 0 is clear).
fn smart(
    association: &Association,
    site: &CommandContext,
    command: &GetLogPageCommand,
) -> Result<Vec<u8>, Status> {
    if ![0, NSID_ALL].contains(&command.nsid) {
        return Err(refused(Status::INVALID_FIELD));
    }
    let IoTotals { reads, bytes_read, writes, bytes_written } = site.totals;
    let page = Smart {
        critical_warning: CriticalWarning(0).with_reliability(site.is_degraded),
        available_spare_percent: 100,
        data_units_read: bytes_read.div_ceil(DATA_UNIT_BYTES).into(),
        data_units_written: bytes_written.div_ceil(DATA_UNIT_BYTES).into(),
        host_read_commands: reads.into(),
        host_write_commands: writes.into(),
        power_cycles: 1,
        power_on_hours: (site.uptime.as_secs() / 3600).into(),
        error_log_entries: association.errors.count.into(),
        ..Smart::default()
    };
    Ok(page.encode().to_vec())
}

fn firmware(profile: &SubsystemProfile) -> FirmwareSlots {
    let mut slots = FirmwareSlots { afi: ActiveFirmware(0).with_active(1), ..FirmwareSlots::default() };
    slots.frs[0] = Ascii::lossy(&profile.config.firmware);
    slots
}

/// Of one namespace; those whose volume knows no generation have no such page.
fn generation(profile: &SubsystemProfile, nsid: u32) -> Result<Vec<u8>, Status> {
    let namespace = profile.namespaces.get(&nsid).ok_or(refused(Status::INVALID_NAMESPACE))?;
    let Generation { id, loses } = namespace.generation.ok_or(refused(Status::INVALID_FIELD))?;
    let page = GenerationLog {
        signature: SIGNATURE,
        version: GenerationLog::VERSION,
        loses: loses.code(),
        nsid,
        generation: id,
    };
    Ok(page.encode().to_vec())
}

fn changed(nsids: &BTreeSet<u32>) -> Vec<u8> {
    NamespaceList::new(nsids.iter().copied()).encode().to_vec()
}

fn effects() -> CommandEffectsLog {
    let mut log = CommandEffectsLog::default();
    let supported = CommandEffects(0).with_supported(true);
    for opcode in AdminOpcode::ALL.iter().filter(|&&opcode| is_offered(opcode, Kind::Nvm)) {
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

/// The last errors of one controller, the newest first.
#[derive(Debug, Default)]
pub(super) struct ErrorLog {
    entries: VecDeque<ErrorEntry>,
    count: u64,
}

impl ErrorLog {
    /// A command failed.
    pub(super) fn record(&mut self, qid: u16, entry: &SubmissionEntry, status: Status) {
        self.count += 1;
        self.entries.truncate(MAX_ERRORS - 1);
        self.entries.push_front(ErrorEntry {
            error_count: self.count,
            sqid: qid,
            cid: entry.cid,
            status,
            parameter_location: NO_PARAMETER,
            nsid: entry.nsid,
            trtype: Transport::Tcp.code(),
            ..ErrorEntry::default()
        });
    }

    fn encode(&self) -> Vec<u8> {
        let mut page: Vec<u8> = self.entries.iter().flat_map(|entry| entry.encode()).collect();
        page.resize(MAX_ERRORS * ErrorEntry::LEN, 0);
        page
    }
}
