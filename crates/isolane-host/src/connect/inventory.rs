//! Namespaces of a subsystem: active list, Identify Namespace, identification descriptors (Base 1.4 §5.15), and
//! the generation log page of Isolane targets.
//!
//! Invariant: a reply of another target is never taken for a generation.

use isolane_wire::Status;
use isolane_wire::admin::{Cns, LogPage};
use isolane_wire::identify::{Descriptor, DescriptorList, Namespace, NamespaceList};
use isolane_wire::log::{GenerationLog, RestartLoss, SIGNATURE};
use uuid::Uuid;

use super::Admin;
use crate::error::ConnectError;
use crate::info::{Generation, NamespaceInfo};

/// Maximum number of namespaces listed.
const MAX_NAMESPACES: usize = 8192;

/// Returns every active namespace with a valid LBA format.
pub(crate) fn namespaces(admin: &mut Admin) -> Result<Vec<NamespaceInfo>, ConnectError> {
    let mut found = Vec::new();
    for nsid in active(admin)? {
        let data = admin.identify(Cns::Namespace, nsid)?;
        let list = match admin.identify(Cns::NamespaceDescriptors, nsid) {
            Ok(list) => Some(list),
            Err(ConnectError::Refused { status, .. }) if has_no_descriptors(status) => None,
            Err(error) => return Err(error),
        };
        if let Some(namespace) = namespace(nsid, &data, list.as_deref()) {
            let generation = generation(admin, nsid)?;
            found.push(NamespaceInfo { generation, ..namespace });
        }
    }
    Ok(found)
}

/// Decodes Identify Namespace data and the descriptor list, if the controller has one. Returns `None` if the
/// namespace is not active or has no LBA format that makes sense. The generation is not part of that data.
pub(crate) fn namespace(nsid: u32, data: &[u8], list: Option<&[u8]>) -> Option<NamespaceInfo> {
    let namespace = Namespace::decode_prefix(data).filter(Namespace::is_active)?;
    let mut info = NamespaceInfo {
        nsid,
        block_bytes: namespace.block_len()?,
        blocks: namespace.nsze,
        metadata_bytes: namespace.format().ms(),
        uuid: None,
        nguid: non_zero(namespace.nguid),
        eui64: non_zero(namespace.eui64),
        read_only: namespace.nsattr.write_protected(),
        generation: None,
    };
    for descriptor in DescriptorList::decode(list.unwrap_or_default()) {
        match descriptor {
            Descriptor::Uuid(uuid) => info.uuid = non_zero(uuid).map(Uuid::from_bytes),
            Descriptor::Nguid(nguid) => info.nguid = non_zero(nguid),
            Descriptor::Eui64(eui64) => info.eui64 = non_zero(eui64),
            Descriptor::CommandSet(_) => {}
        }
    }
    Some(info)
}

/// Returns whether a status means that the controller has no descriptor lists, as before NVMe 1.3. After any
/// other failure, the identity of a namespace is not known.
pub(crate) fn has_no_descriptors(status: Status) -> bool {
    status.is(Status::INVALID_FIELD) || status.is(Status::INVALID_OPCODE)
}

/// Reads the active list in pages of 1,024, each starting after the last ID of the previous page.
fn active(admin: &mut Admin) -> Result<Vec<u32>, ConnectError> {
    let mut nsids: Vec<u32> = Vec::new();
    while nsids.len() < MAX_NAMESPACES {
        let after = nsids.last().copied().unwrap_or(0);
        let data = admin.identify(Cns::ActiveNamespaces, after)?;
        let list = data.first_chunk().map(NamespaceList::decode);
        let page = list.as_ref().map_or(&[][..], NamespaceList::nsids);
        // A list that does not rise would never end, or name a namespace twice.
        for &nsid in page {
            nsids.extend(Some(nsid).filter(|&nsid| nsid > nsids.last().copied().unwrap_or(0)));
        }
        if page.len() < NamespaceList::CAPACITY || nsids.last().copied() == Some(after) {
            break;
        }
    }
    Ok(nsids)
}

/// Returns the generation of a namespace; `None` if the target reports none. The page is requested only from a
/// controller with the signature in Identify Controller, and carries the same signature.
fn generation(admin: &mut Admin, nsid: u32) -> Result<Option<Generation>, ConnectError> {
    let controller = &admin.controller;
    if controller.vendor_signature != SIGNATURE || !controller.vendor_pages.generation() {
        return Ok(None);
    }
    let is_final = |status: Status| status.dnr() || status.is(Status::INVALID_LOG_PAGE);
    let data = match admin.log_page(LogPage::Generation, nsid, 0, GenerationLog::LEN) {
        Ok(data) => data,
        Err(ConnectError::Refused { status, .. }) if is_final(status) => return Ok(None),
        Err(error) => return Err(error),
    };
    let generation = decode_generation(nsid, &data);
    if generation.is_none() {
        log::warn!("{}: ignoring a malformed generation page", admin.connection.address);
    }
    Ok(generation)
}

fn decode_generation(nsid: u32, data: &[u8]) -> Option<Generation> {
    let log = GenerationLog::decode_prefix(data)?;
    let is_ours = log.signature == SIGNATURE && log.version >= GenerationLog::VERSION && log.nsid == nsid;
    let (id, loses) = (Uuid::from_bytes(log.generation), RestartLoss::decode(log.loses)?);
    (is_ours && !id.is_nil()).then_some(Generation { id, loses })
}

/// Returns `None` for an ID of zeroes, which is not an ID.
fn non_zero<const N: usize>(id: [u8; N]) -> Option<[u8; N]> {
    (id != [0; N]).then_some(id)
}
