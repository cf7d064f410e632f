//! What an application is told of a volume that is there.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use isolane_wire::registers::Vs;
use uuid::Uuid;

use super::fields::{Sink, Source};
use crate::classes::Classes;
use crate::info::{ControllerInfo, Info, NamespaceInfo, Negotiated};

/// What the target told the engine. Of the namespaces only the one that the volume is.
#[derive(Clone, Debug)]
pub struct Answer(pub Info);

impl Answer {
    /// Of a volume.
    pub fn of(info: &Info, namespace: &NamespaceInfo) -> Answer {
        Answer(Info { namespaces: vec![namespace.clone()], ..info.clone() })
    }

    /// As bytes. Texts of the controller are at most 40 bytes each.
    pub fn encode(&self) -> Vec<u8> {
        let Info { address, nqn, controller, namespaces, negotiated } = &self.0;
        let mut sink = Sink::default();
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        sink.bytes(&ip.octets());
        sink.number(address.port().into());
        sink.text(nqn.as_str());
        encode_controller(controller, &mut sink);
        encode_negotiated(negotiated, &mut sink);
        namespaces.iter().for_each(|namespace| encode_namespace(namespace, &mut sink));
        sink.0
    }

    /// From bytes; `None` if they are none.
    pub fn decode(bytes: &[u8]) -> Option<Answer> {
        let mut source = Source(bytes);
        let ip = IpAddr::from(source.array::<16>()?).to_canonical();
        let address = SocketAddr::new(ip, source.small()?);
        let nqn = source.nqn()?;
        let controller = decode_controller(&mut source)?;
        let negotiated = decode_negotiated(&mut source)?;
        let namespaces = vec![decode_namespace(&mut source)?];
        source.end()?;
        Some(Answer(Info { address, nqn, controller, namespaces, negotiated }))
    }
}

fn encode_controller(controller: &ControllerInfo, sink: &mut Sink) {
    sink.number(controller.cntlid.into());
    for text in [&controller.serial, &controller.model, &controller.firmware] {
        let end =
            text.char_indices().map(|(at, letter)| at + letter.len_utf8()).take_while(|end| *end <= TEXT_MAX);
        sink.text(&text[..end.last().unwrap_or(0)]);
    }
    sink.number(controller.version.0.into());
    sink.optional(controller.transfer_bytes_max);
    sink.number(controller.queue_entries_max.into());
    sink.flags([
        controller.has_volatile_cache,
        controller.has_write_zeroes,
        controller.has_deallocate,
        controller.is_keep_alive_traffic_based,
    ]);
    sink.number(controller.command_quiesce_time.as_millis() as u64);
}

fn decode_controller(source: &mut Source<'_>) -> Option<ControllerInfo> {
    let cntlid = source.small()?;
    let (serial, model, firmware) = (source.text()?, source.text()?, source.text()?);
    let (version, transfer_bytes_max) = (Vs(source.small()?), source.optional()?);
    let queue_entries_max = source.small()?;
    let [has_volatile_cache, has_write_zeroes, has_deallocate, is_keep_alive_traffic_based] =
        source.flags()?;
    Some(ControllerInfo {
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
        command_quiesce_time: Duration::from_millis(source.number()?),
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
        sink.number(count as u64);
    }
    sink.number(negotiated.h2c_data_bytes_max.into());
    sink.number(negotiated.in_capsule_bytes_max.into());
    sink.number(negotiated.keep_alive.as_millis() as u64);
}

fn decode_negotiated(source: &mut Source<'_>) -> Option<Negotiated> {
    let [header_digest, data_digest, is_flow_control_disabled] = source.flags()?;
    let data_alignment_bytes = source.small()?;
    let lanes = Classes { default: source.small()?, read: source.small()?, poll: source.small()? };
    let (transfer_bytes_max, depth) = (source.small()?, source.small()?);
    let (h2c_data_bytes_max, in_capsule_bytes_max) = (source.small()?, source.small()?);
    let keep_alive = Duration::from_millis(source.number()?);
    Some(Negotiated {
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
    sink.number(namespace.nsid.into());
    sink.number(namespace.block_bytes.into());
    sink.number(namespace.blocks);
    sink.number(namespace.metadata_bytes.into());
    let (uuid, nguid, eui64) = (namespace.uuid, namespace.nguid, namespace.eui64);
    sink.flags([uuid.is_some(), nguid.is_some(), eui64.is_some(), namespace.is_read_only]);
    sink.bytes(uuid.unwrap_or_default().as_bytes());
    sink.bytes(&nguid.unwrap_or_default());
    sink.bytes(&eui64.unwrap_or_default());
}

fn decode_namespace(source: &mut Source<'_>) -> Option<NamespaceInfo> {
    let (nsid, block_bytes) = (source.small()?, source.small()?);
    let (blocks, metadata_bytes) = (source.number()?, source.small()?);
    let [has_uuid, has_nguid, has_eui64, is_read_only] = source.flags()?;
    let (uuid, nguid, eui64) = (Uuid::from_bytes(source.array()?), source.array()?, source.array()?);
    Some(NamespaceInfo {
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
        assert!(bytes.len() <= isolane_attach::control::TEXT_BYTES_MAX);
        let decoded = Answer::decode(&bytes).unwrap();
        assert_eq!(format!("{decoded:?}"), format!("{answer:?}"));
        assert!((0..bytes.len()).all(|len| Answer::decode(&bytes[..len]).is_none()));
        assert!(Answer::decode(&[&bytes[..], &[0]].concat()).is_none());
    }
}
