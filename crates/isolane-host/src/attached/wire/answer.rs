//! What an application is told of a volume that is there.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use isolane_attach::control::{Malformed, Sink, Source, TEXT_BYTES_MAX};
use isolane_wire::Nqn;
use isolane_wire::log::RestartLoss;
use isolane_wire::registers::Vs;
use uuid::Uuid;

use crate::classes::Classes;
use crate::info::{ControllerInfo, Generation, Info, NamespaceInfo, Negotiated};

/// What the target told the engine. Of the namespaces only the one that the volume is.
#[derive(Clone, Debug)]
pub struct Answer(pub Info);

impl Answer {
    /// Of a volume.
    pub fn of(info: &Info, namespace: &NamespaceInfo) -> Answer {
        Answer(Info { namespaces: vec![namespace.clone()], ..info.clone() })
    }

    /// As bytes. Of texts of the controller the first 40 bytes each.
    pub fn encode(&self) -> Vec<u8> {
        let Info { address, nqn, controller, namespaces, negotiated } = &self.0;
        let mut sink = Sink::default();
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        sink.array(&ip.octets());
        sink.u64(address.port().into());
        sink.text(nqn.as_str(), TEXT_BYTES_MAX);
        encode_controller(controller, &mut sink);
        encode_negotiated(negotiated, &mut sink);
        namespaces.iter().for_each(|namespace| encode_namespace(namespace, &mut sink));
        sink.into_bytes()
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Answer, Malformed> {
        let mut source = Source::new(bytes);
        let ip = IpAddr::from(source.array::<16>(ADDRESS)?).to_canonical();
        let address = SocketAddr::new(ip, source.number(ADDRESS)?);
        let nqn = source.text(NQN, TEXT_BYTES_MAX)?;
        let nqn = Nqn::new(&nqn).map_err(|_| source.malformed(NQN))?;
        let controller = decode_controller(&mut source)?;
        let negotiated = decode_negotiated(&mut source)?;
        let namespaces = vec![decode_namespace(&mut source)?];
        source.end()?;
        Ok(Answer(Info { address, nqn, controller, namespaces, negotiated }))
    }
}

fn encode_controller(controller: &ControllerInfo, sink: &mut Sink) {
    sink.u64(controller.cntlid.into());
    for text in [&controller.serial, &controller.model, &controller.firmware] {
        sink.text(text, TEXT_MAX);
    }
    sink.u64(controller.version.0.into());
    sink.optional_number(controller.transfer_bytes_max);
    sink.u64(controller.queue_entries_max.into());
    sink.flags([
        controller.has_volatile_cache,
        controller.has_write_zeroes,
        controller.has_deallocate,
        controller.is_keep_alive_traffic_based,
    ]);
    sink.u64(controller.command_quiesce_time.as_millis() as u64);
}

fn decode_controller(source: &mut Source<'_>) -> Result<ControllerInfo, Malformed> {
    let cntlid = source.number(CONTROLLER)?;
    let (serial, model, firmware) = (
        source.text(CONTROLLER, TEXT_MAX)?,
        source.text(CONTROLLER, TEXT_MAX)?,
        source.text(CONTROLLER, TEXT_MAX)?,
    );
    let (version, transfer_bytes_max) = (Vs(source.number(CONTROLLER)?), source.optional_number(CONTROLLER)?);
    let queue_entries_max = source.number(CONTROLLER)?;
    let [has_volatile_cache, has_write_zeroes, has_deallocate, is_keep_alive_traffic_based] =
        source.flags(CONTROLLER)?;
    Ok(ControllerInfo {
        cntlid,
        serial,
        model,
        firmware,
        version,
        transfer_bytes_max,
        queue_entries_max,
        has_volatile_cache,
        has_write_zeroes,
        has_deallocate,
        is_keep_alive_traffic_based,
        command_quiesce_time: Duration::from_millis(source.number(CONTROLLER)?),
    })
}

fn encode_negotiated(negotiated: &Negotiated, sink: &mut Sink) {
    let lanes = negotiated.lanes;
    sink.flags([negotiated.header_digest, negotiated.data_digest, negotiated.is_flow_control_disabled]);
    for count in [
        negotiated.data_alignment_bytes,
        lanes.default,
        lanes.read,
        lanes.poll,
        negotiated.transfer_bytes_max,
        usize::from(negotiated.depth),
    ] {
        sink.u64(count as u64);
    }
    sink.u64(negotiated.h2c_data_bytes_max.into());
    sink.u64(negotiated.in_capsule_bytes_max.into());
    sink.u64(negotiated.keep_alive.as_millis() as u64);
}

fn decode_negotiated(source: &mut Source<'_>) -> Result<Negotiated, Malformed> {
    let [header_digest, data_digest, is_flow_control_disabled] = source.flags(NEGOTIATED)?;
    let data_alignment_bytes = source.number(NEGOTIATED)?;
    let lanes = Classes {
        default: source.number(NEGOTIATED)?,
        read: source.number(NEGOTIATED)?,
        poll: source.number(NEGOTIATED)?,
    };
    let (transfer_bytes_max, depth) = (source.number(NEGOTIATED)?, source.number(NEGOTIATED)?);
    let (h2c_data_bytes_max, in_capsule_bytes_max) = (source.number(NEGOTIATED)?, source.number(NEGOTIATED)?);
    let keep_alive = Duration::from_millis(source.number(NEGOTIATED)?);
    Ok(Negotiated {
        header_digest,
        data_digest,
        data_alignment_bytes,
        h2c_data_bytes_max,
        in_capsule_bytes_max,
        is_flow_control_disabled,
        keep_alive,
        lanes,
        depth,
        transfer_bytes_max,
    })
}

fn encode_namespace(namespace: &NamespaceInfo, sink: &mut Sink) {
    sink.u64(namespace.nsid.into());
    sink.u64(namespace.block_bytes.into());
    sink.u64(namespace.blocks);
    sink.u64(namespace.metadata_bytes.into());
    let (uuid, nguid, eui64) = (namespace.uuid, namespace.nguid, namespace.eui64);
    sink.flags([uuid.is_some(), nguid.is_some(), eui64.is_some(), namespace.is_read_only]);
    sink.array(uuid.unwrap_or_default().as_bytes());
    sink.array(&nguid.unwrap_or_default());
    sink.array(&eui64.unwrap_or_default());
    sink.u64(namespace.generation.map_or(0, |generation| generation.loses.code().into()));
    sink.array(namespace.generation.map_or(Uuid::nil(), |generation| generation.id).as_bytes());
}

fn decode_namespace(source: &mut Source<'_>) -> Result<NamespaceInfo, Malformed> {
    let (nsid, block_bytes) = (source.number(NAMESPACE)?, source.number(NAMESPACE)?);
    let (blocks, metadata_bytes) = (source.number(NAMESPACE)?, source.number(NAMESPACE)?);
    let [has_uuid, has_nguid, has_eui64, is_read_only] = source.flags(NAMESPACE)?;
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
        is_read_only,
    })
}

/// As long as the fields of Identify Controller are.
const TEXT_MAX: usize = 40;

const ADDRESS: &str = "the target's address";
const NQN: &str = "the subsystem's NQN";
const CONTROLLER: &str = "what the controller is";
const NEGOTIATED: &str = "what was negotiated";
const NAMESPACE: &str = "what the namespace is";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Script, Target};

    #[test]
    fn what_a_target_tells_reads_back_as_it_was_written() {
        let target = Target::start(Script::default());
        let client = crate::Client::connect(&target.uri(), crate::Options::default()).unwrap();
        let answer = Answer::of(client.info(), client.namespace());
        let bytes = answer.encode();
        assert!(bytes.len() <= TEXT_BYTES_MAX);
        let decoded = Answer::decode(&bytes).unwrap();
        assert_eq!(format!("{decoded:?}"), format!("{answer:?}"));
        assert!((0..bytes.len()).all(|len| Answer::decode(&bytes[..len]).is_err()));
        assert!(Answer::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
}
