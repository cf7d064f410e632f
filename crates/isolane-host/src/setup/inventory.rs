//! The namespaces: active list, Identify Namespace and the identification descriptors of each (Base 1.4
//! §5.15).

use isolane_wire::Status;
use isolane_wire::admin::{Cns, IdentifyCommand};
use isolane_wire::identify::{Descriptor, DescriptorList, Namespace, NamespaceList};
use uuid::Uuid;

use super::Admin;
use crate::error::ConnectError;
use crate::info::NamespaceInfo;

/// Namespaces that are looked at; a subsystem with more is listed up to here.
const NAMESPACES_MAX: usize = 8192;

/// Every active namespace with an LBA format that makes sense.
pub(crate) fn namespaces(admin: &mut Admin) -> Result<Vec<NamespaceInfo>, ConnectError> {
    let mut found = Vec::new();
    for nsid in active(admin)? {
        let data = admin.identify(IdentifyCommand::new(Cns::Namespace, nsid))?;
        let list = match admin.identify(IdentifyCommand::new(Cns::NamespaceDescriptors, nsid)) {
            Ok(list) => Some(list),
            Err(ConnectError::Refused { status, .. }) if has_no_descriptors(status) => None,
            Err(error) => return Err(error),
        };
        if let Some(namespace) = namespace(nsid, &data, list.as_deref()) {
            let generation = super::generation::generation(admin, nsid)?;
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
        nguid: some(namespace.nguid),
        eui64: some(namespace.eui64),
        is_read_only: namespace.nsattr.write_protected(),
        generation: None,
    };
    for descriptor in DescriptorList::decode(list.unwrap_or_default()) {
        match descriptor {
            Descriptor::Uuid(uuid) => info.uuid = some(uuid).map(Uuid::from_bytes),
            Descriptor::Nguid(nguid) => info.nguid = some(nguid),
            Descriptor::Eui64(eui64) => info.eui64 = some(eui64),
            Descriptor::CommandSet(_) => {}
        }
    }
    Some(info)
}

/// Whether a status tells that the controller has no descriptor lists, as before NVMe 1.3. After any other
/// failure the identity of a namespace is not known.
pub(crate) fn has_no_descriptors(status: Status) -> bool {
    status.is(Status::INVALID_FIELD) || status.is(Status::INVALID_OPCODE)
}

/// The active list comes in pages of 1,024, each starting behind the last id of the one before.
fn active(admin: &mut Admin) -> Result<Vec<u32>, ConnectError> {
    let mut nsids: Vec<u32> = Vec::new();
    while nsids.len() < NAMESPACES_MAX {
        let after = nsids.last().copied().unwrap_or(0);
        let data = admin.identify(IdentifyCommand::new(Cns::ActiveNamespaces, after))?;
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

/// All zeroes means that there is none.
fn some<const N: usize>(id: [u8; N]) -> Option<[u8; N]> {
    (id != [0; N]).then_some(id)
}
