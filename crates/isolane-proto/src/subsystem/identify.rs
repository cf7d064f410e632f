//! Identify: what a controller and its namespaces are (Base 1.4 §5.15).
//!
//! The only place that reports capabilities; docs/CAPABILITIES.md explains each value.
//!
//! Invariant: the target keeps every reported capability.

use isolane_wire::admin::{Cns, IdentifyCommand};
use isolane_wire::identify::{
    Cmic, Controller, ControllerType, Ctratt, Descriptor, DescriptorList, Dlfeat, Flbas,
    IndependentNamespace, LbaFormat, LogPageAttributes, Namespace, NamespaceAttributes, NamespaceList,
    NamespaceStatus, Nmic, Nsfeat, NvmController, NvmNamespace, Oaes, Ofcs, Oncs, SglSupport, VendorPages,
    VolatileCache, firmware_updates,
};
use isolane_wire::log::SIGNATURE;
use isolane_wire::{Ascii, Status};

use super::association::{Association, MAX_ERRORS, WARNING_TEMPERATURE_KELVIN};
use super::command::CommandContext;
use super::namespace::{SubsystemKind, SubsystemProfile};
use super::{Action, Host, MAX_ADMIN_ENTRIES, MAX_NSID, NamespaceConfig, keep_alive, property};
use crate::completion::Completion;
use crate::failure::Failure;
use crate::target::MAX_ASYNC_EVENTS;

/// Concurrent aborts, 0's based (ACL): each completes immediately, so the recommended value holds.
const ACL: u8 = 3;
/// CQT. The keep-alive timer is checked four times a second, and each core cancels the commands
/// that have not reached a volume in its next turn. A command that stays at a volume for longer
/// ends before any later change of its blocks.
const QUIESCE_MS: u16 = 5000;
/// CRDT1 to CRDT3, in units of 100 ms: a stalled namespace can recover soon, and one that is offline
/// waits for an operator. Linux gives up after five retries.
const RETRY_DELAYS: [u16; 3] = [20, 600, 0];
/// Admin and I/O queue entries: 64 and 16 bytes, required and largest.
const SQES: u8 = 0x66;
const CQES: u8 = 0x44;
/// The NVM command set.
const CSI_NVM: u8 = 0;

/// A subsystem as a host sees it.
type Seen<'a> = (&'a SubsystemProfile, &'a Host);

/// Executes Identify.
pub(super) fn execute(context: &CommandContext) -> Result<Action, Status> {
    let command = IdentifyCommand::parse(context.entry);
    let cns = Cns::decode(command.cns).ok_or(Failure::Field.status())?;
    let data = match (cns, context.profile.kind) {
        (Cns::Controller, _) => controller(context.association, context.profile).encode(),
        (_, SubsystemKind::Discovery) => return Err(Failure::Field.status()),
        (_, SubsystemKind::Nvm) => nvm(cns, (context.profile, &context.association.host), &command)?,
    };
    Ok(Action::CompleteWithData(data.to_vec(), Completion::success()))
}

fn nvm(cns: Cns, seen: Seen<'_>, command: &IdentifyCommand) -> Result<[u8; 4096], Status> {
    let nsid = command.nsid;
    let is_of_command_set =
        matches!(cns, Cns::CommandSetNamespace | Cns::CommandSetController | Cns::CommandSetActiveNamespaces);
    if is_of_command_set && command.csi != CSI_NVM {
        return Err(Failure::Field.status());
    }
    Ok(match cns {
        Cns::Namespace => namespace_or_zeroes(seen, nsid, |found| namespace(found).encode())?,
        Cns::ActiveNamespaces | Cns::CommandSetActiveNamespaces => active_namespaces(seen, nsid)?.encode(),
        Cns::NamespaceDescriptors => descriptors(active(seen, nsid)?),
        Cns::IndependentNamespace => namespace_or_zeroes(seen, nsid, |found| independent(found).encode())?,
        Cns::CommandSetNamespace => namespace_or_zeroes(seen, nsid, |_| NvmNamespace::default().encode())?,
        // All fields are 0: no limits other than MDTS.
        Cns::CommandSetController => NvmController::default().encode(),
        _ => return Err(Failure::Field.status()),
    })
}

/// Identifiers above `nsid` in rising order; FFFFFFFEh and FFFFFFFFh are invalid (Base 1.4
/// §5.15.2.3).
fn active_namespaces((profile, host): Seen<'_>, nsid: u32) -> Result<NamespaceList, Status> {
    let first = nsid.checked_add(1).filter(|&first| first != u32::MAX);
    let first = first.ok_or(Failure::Namespace.status())?;
    Ok(NamespaceList::new(profile.visible_from(first, host).map(|namespace| namespace.nsid)))
}

fn active<'a>((profile, host): Seen<'a>, nsid: u32) -> Result<&'a NamespaceConfig, Status> {
    profile.visible(nsid, host).ok_or(Failure::Namespace.status())
}

/// A valid but inactive identifier has a structure of zeroes; an invalid one is an error (Base 1.4
/// §5.15.2.1).
fn namespace_or_zeroes(
    (profile, host): Seen<'_>,
    nsid: u32,
    encode: impl FnOnce(&NamespaceConfig) -> [u8; 4096],
) -> Result<[u8; 4096], Status> {
    match profile.visible(nsid, host) {
        Some(found) => Ok(encode(found)),
        None if (1..=MAX_NSID).contains(&nsid) => Ok([0; 4096]),
        None => Err(Failure::Namespace.status()),
    }
}

fn controller(association: &Association, profile: &SubsystemProfile) -> Controller {
    let config = &profile.config;
    let common = Controller {
        sn: Ascii::lossy(&config.serial),
        mn: Ascii::lossy(&config.model),
        fr: Ascii::lossy(&config.firmware),
        mdts: config.mdts(),
        cntlid: association.id.cntlid,
        ver: property::VERSION,
        // OAES has the bits of feature 0Bh.
        oaes: Oaes(association.features.events_offered.0),
        ctratt: Ctratt(0).with_host_id_128(true).with_tbkas(true),
        aerl: MAX_ASYNC_EVENTS as u8 - 1,
        elpe: MAX_ERRORS as u8 - 1,
        kas: keep_alive::KAS,
        sgls: SglSupport(0).with_support(1).with_offset(true).with_transport(true),
        subnqn: config.nqn.into(),
        ..Controller::default()
    };
    match profile.kind {
        SubsystemKind::Nvm => io_controller(common, association, profile),
        SubsystemKind::Discovery => discovery_controller(common),
    }
}

fn discovery_controller(common: Controller) -> Controller {
    Controller {
        cntrltype: ControllerType::Discovery.code(),
        lpa: LogPageAttributes(0).with_extended_data(true),
        maxcmd: MAX_ADMIN_ENTRIES,
        ..common
    }
}

fn io_controller(common: Controller, association: &Association, profile: &SubsystemProfile) -> Controller {
    let config = &profile.config;
    Controller {
        cntrltype: ControllerType::Io.code(),
        cmic: Cmic(0).with_controllers(true),
        crdt: RETRY_DELAYS,
        acl: ACL,
        frmw: firmware_updates(1, true),
        lpa: LogPageAttributes(0).with_command_effects(true).with_extended_data(true),
        cqt_ms: QUIESCE_MS,
        wctemp_kelvin: WARNING_TEMPERATURE_KELVIN,
        cctemp_kelvin: WARNING_TEMPERATURE_KELVIN,
        sqes: SQES,
        cqes: CQES,
        maxcmd: config.max_queue_entries,
        nn: MAX_NSID,
        oncs: Oncs(0).with_dataset_management(true).with_write_zeroes(true),
        vwc: VolatileCache(0)
            .with_present(association.features.has_volatile_cache)
            .with_flush_all(VolatileCache::FLUSH_ALL_REFUSED),
        ioccsz: (64 + config.max_in_capsule_bytes) / 16,
        iorcsz: 1,
        icdoff: 0,
        msdbd: 1,
        ofcs: Ofcs(0).with_disconnect(true),
        vendor_signature: SIGNATURE,
        vendor_pages: VendorPages(0).with_generation(true).with_host_stages(true),
        ..common
    }
}

fn namespace(found: &NamespaceConfig) -> Namespace {
    let geometry = &found.geometry;
    let bytes = u128::from(geometry.blocks) << geometry.block_shift;
    let page_blocks = 4096 >> geometry.block_shift;
    let granularity = zero_based(found.deallocate_blocks_preferred.max(page_blocks));
    let mut namespace = Namespace {
        nsze: geometry.blocks,
        ncap: geometry.blocks,
        nuse: geometry.blocks,
        nsfeat: Nsfeat(0).with_optimal_performance(true),
        flbas: Flbas(0),
        nmic: Nmic(0).with_shared(true),
        dlfeat: dlfeat(found),
        nvmcap_bytes: bytes,
        npwg: zero_based(page_blocks),
        npwa: zero_based(page_blocks),
        npdg: granularity,
        npda: granularity,
        nows: zero_based(page_blocks),
        nsattr: NamespaceAttributes(0).with_write_protected(geometry.read_only),
        nguid: found.nguid,
        ..Namespace::default()
    };
    namespace.lbaf[0] = LbaFormat(0).with_lbads(geometry.block_shift);
    namespace
}

fn dlfeat(found: &NamespaceConfig) -> Dlfeat {
    let reads = if found.zeroes_after_deallocate { Dlfeat::READ_ZEROES } else { Dlfeat::READ_UNKNOWN };
    Dlfeat(0).with_read(reads).with_write_zeroes_deallocate(found.deallocate)
}

fn zero_based(blocks: u32) -> u16 {
    u16::try_from(blocks.saturating_sub(1)).unwrap_or(u16::MAX)
}

fn independent(found: &NamespaceConfig) -> IndependentNamespace {
    IndependentNamespace {
        nmic: Nmic(0).with_shared(true),
        nsattr: NamespaceAttributes(0).with_write_protected(found.geometry.read_only),
        nstat: NamespaceStatus(0).with_ready(true),
        ..IndependentNamespace::default()
    }
}

fn descriptors(found: &NamespaceConfig) -> [u8; 4096] {
    let mut list = Vec::with_capacity(2);
    if found.nguid != [0; 16] {
        list.push(Descriptor::Nguid(found.nguid));
    }
    if found.uuid != [0; 16] {
        list.push(Descriptor::Uuid(found.uuid));
    }
    DescriptorList::encode(&list)
}
