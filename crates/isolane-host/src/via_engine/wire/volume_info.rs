//! Description of a volume, as sent to the application that opens it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use isolane_engine_api::{DecodeError, Decoder, Encoder, MAX_TEXT_BYTES};
use isolane_wire::Nqn;
use isolane_wire::log::RestartLoss;
use isolane_wire::registers::Vs;
use uuid::Uuid;

use crate::info::{ControllerInfo, Generation, Info, NamespaceInfo, Negotiated};
use crate::lane_class::LaneCounts;

/// Description of the target, with only the namespace of the volume.
#[derive(Clone, Debug)]
pub struct VolumeInfo(pub Info);

impl VolumeInfo {
    /// Describes a volume.
    pub fn of(info: &Info, namespace: &NamespaceInfo) -> VolumeInfo {
        VolumeInfo(Info { namespaces: vec![namespace.clone()], ..info.clone() })
    }

    /// Encodes it, with the first 40 bytes of each text of the controller.
    pub fn encode(&self) -> Vec<u8> {
        let Info { address, nqn, controller, namespaces, negotiated } = &self.0;
        let mut sink = Encoder::default();
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        sink.array(&ip.octets());
        sink.u64(address.port().into());
        sink.text(nqn.as_str(), MAX_TEXT_BYTES);
        encode_controller(controller, &mut sink);
        encode_negotiated(negotiated, &mut sink);
        namespaces.iter().for_each(|namespace| encode_namespace(namespace, &mut sink));
        sink.into_bytes()
    }

    /// Decodes it.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<VolumeInfo, DecodeError> {
        let mut source = Decoder::new(bytes);
        let ip = IpAddr::from(source.array::<16>(ADDRESS)?).to_canonical();
        let address = SocketAddr::new(ip, source.number(ADDRESS)?);
        let nqn = source.text(NQN, MAX_TEXT_BYTES)?;
        let nqn = Nqn::new(&nqn).map_err(|_| source.malformed(NQN))?;
        let controller = decode_controller(&mut source)?;
        let negotiated = decode_negotiated(&mut source)?;
        let namespaces = vec![decode_namespace(&mut source)?];
        source.end()?;
        Ok(VolumeInfo(Info { address, nqn, controller, namespaces, negotiated }))
    }
}

fn encode_controller(controller: &ControllerInfo, sink: &mut Encoder) {
    sink.u64(controller.cntlid.into());
    for text in [&controller.serial, &controller.model, &controller.firmware] {
        sink.text(text, MAX_TEXT);
    }
    sink.u64(controller.version.0.into());
    sink.optional_number(controller.max_transfer_bytes);
    sink.u64(controller.max_queue_entries.into());
    sink.flags([
        controller.has_volatile_cache,
        controller.has_write_zeroes,
        controller.has_deallocate,
        controller.traffic_based_keep_alive,
    ]);
    sink.u64(controller.command_quiesce_time.as_millis() as u64);
}

fn decode_controller(source: &mut Decoder<'_>) -> Result<ControllerInfo, DecodeError> {
    let cntlid = source.number(CONTROLLER)?;
    let (serial, model, firmware) = (
        source.text(CONTROLLER, MAX_TEXT)?,
        source.text(CONTROLLER, MAX_TEXT)?,
        source.text(CONTROLLER, MAX_TEXT)?,
    );
    let (version, max_transfer_bytes) = (Vs(source.number(CONTROLLER)?), source.optional_number(CONTROLLER)?);
    let max_queue_entries = source.number(CONTROLLER)?;
    let [has_volatile_cache, has_write_zeroes, has_deallocate, traffic_based_keep_alive] =
        source.flags(CONTROLLER)?;
    Ok(ControllerInfo {
        cntlid,
        serial,
        model,
        firmware,
        version,
        max_transfer_bytes,
        max_queue_entries,
        has_volatile_cache,
        has_write_zeroes,
        has_deallocate,
        traffic_based_keep_alive,
        command_quiesce_time: Duration::from_millis(source.number(CONTROLLER)?),
    })
}

fn encode_negotiated(negotiated: &Negotiated, sink: &mut Encoder) {
    let lanes = negotiated.lanes;
    sink.flags([negotiated.header_digest, negotiated.data_digest, negotiated.flow_control_disabled]);
    for count in [
        negotiated.data_alignment_bytes,
        lanes.default,
        lanes.read,
        lanes.poll,
        negotiated.max_transfer_bytes,
        usize::from(negotiated.depth),
    ] {
        sink.u64(count as u64);
    }
    sink.u64(negotiated.max_h2c_data_bytes.into());
    sink.u64(negotiated.max_in_capsule_bytes.into());
    sink.u64(negotiated.keep_alive.as_millis() as u64);
}

fn decode_negotiated(source: &mut Decoder<'_>) -> Result<Negotiated, DecodeError> {
    let [header_digest, data_digest, flow_control_disabled] = source.flags(NEGOTIATED)?;
    let data_alignment_bytes = source.number(NEGOTIATED)?;
    let lanes = LaneCounts {
        default: source.number(NEGOTIATED)?,
        read: source.number(NEGOTIATED)?,
        poll: source.number(NEGOTIATED)?,
    };
    let (max_transfer_bytes, depth) = (source.number(NEGOTIATED)?, source.number(NEGOTIATED)?);
    let (max_h2c_data_bytes, max_in_capsule_bytes) = (source.number(NEGOTIATED)?, source.number(NEGOTIATED)?);
    let keep_alive = Duration::from_millis(source.number(NEGOTIATED)?);
    Ok(Negotiated {
        header_digest,
        data_digest,
        data_alignment_bytes,
        max_h2c_data_bytes,
        max_in_capsule_bytes,
        flow_control_disabled,
        keep_alive,
        lanes,
        depth,
        max_transfer_bytes,
    })
}

fn encode_namespace(namespace: &NamespaceInfo, sink: &mut Encoder) {
    sink.u64(namespace.nsid.into());
    sink.u64(namespace.block_bytes.into());
    sink.u64(namespace.blocks);
    sink.u64(namespace.metadata_bytes.into());
    let (uuid, nguid, eui64) = (namespace.uuid, namespace.nguid, namespace.eui64);
    sink.flags([uuid.is_some(), nguid.is_some(), eui64.is_some(), namespace.read_only]);
    sink.array(uuid.unwrap_or_default().as_bytes());
    sink.array(&nguid.unwrap_or_default());
    sink.array(&eui64.unwrap_or_default());
    sink.u64(namespace.generation.map_or(0, |generation| generation.loses.code().into()));
    sink.array(namespace.generation.map_or(Uuid::nil(), |generation| generation.id).as_bytes());
}

fn decode_namespace(source: &mut Decoder<'_>) -> Result<NamespaceInfo, DecodeError> {
    let (nsid, block_bytes) = (source.number(NAMESPACE)?, source.number(NAMESPACE)?);
    let (blocks, metadata_bytes) = (source.number(NAMESPACE)?, source.number(NAMESPACE)?);
    let [has_uuid, has_nguid, has_eui64, read_only] = source.flags(NAMESPACE)?;
    let (uuid, nguid, eui64) =
        (Uuid::from_bytes(source.array(NAMESPACE)?), source.array(NAMESPACE)?, source.array(NAMESPACE)?);
    let loses = match source.number::<u8>(NAMESPACE)? {
        0 => None,
        code => Some(RestartLoss::decode(code).ok_or_else(|| source.malformed(NAMESPACE))?),
    };
    let id = Uuid::from_bytes(source.array(NAMESPACE)?);
    Ok(NamespaceInfo {
        generation: loses.map(|loses| Generation { id, loses }),
        nsid,
        block_bytes,
        blocks,
        metadata_bytes,
        uuid: has_uuid.then_some(uuid),
        nguid: has_nguid.then_some(nguid),
        eui64: has_eui64.then_some(eui64),
        read_only,
    })
}

/// Maximum length of the texts in Identify Controller.
const MAX_TEXT: usize = 40;

const ADDRESS: &str = "the target's address";
const NQN: &str = "the subsystem's NQN";
const CONTROLLER: &str = "what the controller is";
const NEGOTIATED: &str = "negotiated parameters";
const NAMESPACE: &str = "what the namespace is";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Script, Target};

    #[test]
    fn round_trips_volume_info() {
        let target = Target::start(Script::default());
        let client = crate::Client::connect(&target.uri(), crate::Options::default()).unwrap();
        let answer = VolumeInfo::of(client.info(), client.namespace());
        let bytes = answer.encode();
        assert!(bytes.len() <= MAX_TEXT_BYTES);
        let decoded = VolumeInfo::decode(&bytes).unwrap();
        assert_eq!(format!("{decoded:?}"), format!("{answer:?}"));
        assert!((0..bytes.len()).all(|len| VolumeInfo::decode(&bytes[..len]).is_err()));
        assert!(VolumeInfo::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
}
