//! Property tests: encoding round-trips; every decodable input encodes to a form that decodes to
//! the same value; no input makes a decoder panic.

use isolane_wire::pdu::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, ControllerPdu, Digests, H2cData, HeaderFault, HostPdu,
    IcReq, IcResp, R2t, TermReq,
};
use isolane_wire::{Direction, Framing, SubmissionEntry, admin, fabrics, feature, identify, io, log};
use proptest::prelude::*;

fn framings() -> impl Strategy<Value = Framing> {
    (any::<bool>(), any::<bool>(), 0..=Framing::MAX_PDA)
        .prop_map(|(header_digest, data_digest, pda)| Framing { header_digest, data_digest, pda })
}

fn host_pdus() -> impl Strategy<Value = HostPdu> {
    let ic_req = (0..=31_u8, 0..4_u8, any::<u32>()).prop_map(|(hpda, digests, maxr2t)| {
        HostPdu::IcReq(IcReq { hpda, digests: Digests(digests), maxr2t })
    });
    let capsule_cmd = (entries(), 0..0x8000_0000_u32)
        .prop_map(|(entry, data_len)| HostPdu::CapsuleCmd(CapsuleCmd { entry, data_len }));
    let h2c_data = (any::<u16>(), any::<u16>(), any::<u32>(), 1..0x8000_0000_u32, any::<bool>()).prop_map(
        |(cccid, ttag, datao, datal, last)| HostPdu::H2cData(H2cData { cccid, ttag, datao, datal, last }),
    );
    let term_req = term_reqs(Direction::HostToController).prop_map(HostPdu::TermReq);
    prop_oneof![ic_req, capsule_cmd, h2c_data, term_req]
}

fn controller_pdus() -> impl Strategy<Value = ControllerPdu> {
    let ic_resp = (0..=31_u8, 0..4_u8, 1024..0x4000_0000_u32).prop_map(|(cpda, digests, dwords)| {
        ControllerPdu::IcResp(IcResp { cpda, digests: Digests(digests), maxh2cdata: dwords * 4 })
    });
    let capsule_resp = any::<[u8; 16]>().prop_map(|bytes| {
        ControllerPdu::CapsuleResp(CapsuleResp { entry: isolane_wire::CompletionEntry::decode(&bytes) })
    });
    let c2h_data = (any::<u16>(), any::<u32>(), 1..0x8000_0000_u32, any::<bool>(), any::<bool>()).prop_map(
        |(cccid, datao, datal, last, success)| {
            ControllerPdu::C2hData(C2hData { cccid, datao, datal, last, success: last && success })
        },
    );
    let r2t = (any::<u16>(), any::<u16>(), any::<u32>(), 1..=u32::MAX)
        .prop_map(|(cccid, ttag, r2to, r2tl)| ControllerPdu::R2t(R2t { cccid, ttag, r2to, r2tl }));
    let term_req = term_reqs(Direction::ControllerToHost).prop_map(ControllerPdu::TermReq);
    prop_oneof![ic_resp, capsule_resp, c2h_data, r2t, term_req]
}

fn term_reqs(from: Direction) -> impl Strategy<Value = TermReq> {
    (any::<u32>(), proptest::collection::vec(any::<u8>(), 0..200)).prop_map(move |(fei, offending_header)| {
        TermReq::new(from, HeaderFault::header_digest(fei), &offending_header)
    })
}

fn entries() -> impl Strategy<Value = SubmissionEntry> {
    proptest::array::uniform(any::<u8>()).prop_map(|bytes: [u8; 64]| {
        // The address of a transport data block is reserved; normalise it as a decoder does.
        SubmissionEntry::decode(&SubmissionEntry::decode(&bytes).encode())
    })
}

fn encode_host(pdu: &HostPdu, framing: &Framing) -> Vec<u8> {
    match pdu {
        HostPdu::IcReq(pdu) => pdu.encode().to_vec(),
        HostPdu::TermReq(pdu) => pdu.encode().to_vec(),
        HostPdu::CapsuleCmd(pdu) => pdu.encode(framing).to_vec(),
        HostPdu::H2cData(pdu) => pdu.encode(framing).to_vec(),
    }
}

fn encode_controller(pdu: &ControllerPdu, framing: &Framing) -> Vec<u8> {
    match pdu {
        ControllerPdu::IcResp(pdu) => pdu.encode().to_vec(),
        ControllerPdu::TermReq(pdu) => pdu.encode().to_vec(),
        ControllerPdu::CapsuleResp(pdu) => pdu.encode(framing).to_vec(),
        ControllerPdu::C2hData(pdu) => pdu.encode(framing).to_vec(),
        ControllerPdu::R2t(pdu) => pdu.encode(framing).to_vec(),
    }
}

/// Decodes the common header of an encoded PDU, as a receiver does.
fn assert_consistent(bytes: &[u8], from: Direction, framing: &Framing) {
    let header = CommonHeader::decode(bytes.first_chunk().unwrap()).unwrap();
    header.check(from, framing).unwrap();
    let digest = if header.has_data(framing) { framing.data_digest_len() as u64 } else { 0 };
    let is_term_req = bytes[0] == 2 || bytes[0] == 3;
    if !is_term_req {
        assert_eq!(header.prefix_len(framing), bytes.len());
        assert_eq!(u64::from(header.plen), bytes.len() as u64 + u64::from(header.data_len(framing)) + digest);
    }
    if header.has_header_digest(framing) {
        let hlen = usize::from(header.hlen);
        let digest = isolane_wire::digest::crc32c(&bytes[..hlen]);
        assert_eq!(bytes[hlen..hlen + 4], digest.to_le_bytes());
    }
}

proptest! {
    #[test]
    fn round_trips_host_pdus(pdu in host_pdus(), framing in framings()) {
        let bytes = encode_host(&pdu, &framing);
        assert_consistent(&bytes, Direction::HostToController, &framing);
        prop_assert_eq!(HostPdu::decode(&bytes, &framing), Ok(pdu));
        prop_assert!(ControllerPdu::decode(&bytes, &framing).is_err());
    }

    #[test]
    fn round_trips_controller_pdus(pdu in controller_pdus(), framing in framings()) {
        let bytes = encode_controller(&pdu, &framing);
        assert_consistent(&bytes, Direction::ControllerToHost, &framing);
        prop_assert_eq!(ControllerPdu::decode(&bytes, &framing), Ok(pdu));
        prop_assert!(HostPdu::decode(&bytes, &framing).is_err());
    }

    #[test]
    fn corrupt_pdu_is_rejected_or_decoded(
        pdu in host_pdus(),
        framing in framings(),
        changes in proptest::collection::vec((0..24_usize, any::<u8>()), 1..4),
    ) {
        let mut bytes = encode_host(&pdu, &framing);
        changes.iter().for_each(|&(at, byte)| bytes[at] = byte);
        if let Ok(decoded) = HostPdu::decode(&bytes, &framing) {
            let again = encode_host(&decoded, &framing);
            prop_assert_eq!(HostPdu::decode(&again, &framing), Ok(decoded));
        }
    }

    #[test]
    fn decodable_bytes_encode_again(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        pdu_type in 0..12_u8,
        framing in framings(),
    ) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = pdu_type;
        }
        if let Ok(pdu) = HostPdu::decode(&bytes, &framing) {
            encode_host(&pdu, &framing);
        }
        if let Ok(pdu) = ControllerPdu::decode(&bytes, &framing) {
            encode_controller(&pdu, &framing);
        }
        let _ = TermReq::decode(&bytes);
    }

    #[test]
    fn fault_offset_is_inside_the_header(bytes in any::<[u8; 128]>(), framing in framings()) {
        let faults = [HostPdu::decode(&bytes, &framing).err(), ControllerPdu::decode(&bytes, &framing).err()];
        for fault in faults.into_iter().flatten() {
            prop_assert!(fault.fei < 24);
        }
    }

    #[test]
    fn commands_go_through_their_entry(entry in entries()) {
        use fabrics::{ConnectCommand, DisconnectCommand, PropertyGetCommand, PropertySetCommand};
        macro_rules! check {
            ($($command:ty),*) => { $(
                let command = <$command>::parse(&entry);
                prop_assert_eq!(<$command>::parse(&command.entry()), command);
            )* };
        }
        check!(ConnectCommand, DisconnectCommand, PropertyGetCommand, PropertySetCommand);
        check!(io::ReadCommand, io::WriteCommand, io::WriteZeroesCommand, io::DatasetManagementCommand);
        check!(admin::IdentifyCommand, admin::GetLogPageCommand, admin::AbortCommand);
        check!(admin::GetFeaturesCommand, admin::SetFeaturesCommand);
    }

    #[test]
    fn structures_decode_any_bytes_and_round_trip(seed in any::<[u8; 64]>()) {
        macro_rules! check {
            ($($structure:ty),*) => { $(
                let bytes = core::array::from_fn(|index| seed[index % 61] ^ (index >> 4) as u8);
                let structure = <$structure>::decode(&bytes);
                prop_assert_eq!(&<$structure>::decode(&structure.encode()), &structure);
                prop_assert!(<$structure>::decode_prefix(&bytes[1..]).is_none());
                let _ = format!("{structure:?}");
            )* };
        }
        check!(identify::Controller, identify::Namespace, identify::NvmNamespace, identify::NvmController);
        check!(identify::IndependentNamespace, fabrics::ConnectData, feature::HostBehaviorSupport);
        check!(log::ErrorEntry, log::Smart, log::FirmwareSlots, log::CommandEffectsLog, log::GenerationLog);
        check!(log::DiscoveryHeader, log::DiscoveryEntry, io::DsmRange);
    }

    #[test]
    fn lists_take_any_bytes(seed in any::<[u8; 64]>()) {
        let bytes = core::array::from_fn(|index| seed[index % 63]);
        let namespaces = identify::NamespaceList::decode(&bytes);
        prop_assert_eq!(identify::NamespaceList::decode(&namespaces.encode()), namespaces);
        let descriptors: Vec<_> = identify::DescriptorList::decode(&bytes).collect();
        let again = identify::DescriptorList::encode(&descriptors);
        prop_assert!(identify::DescriptorList::decode(&again).eq(descriptors));
    }

    #[test]
    fn round_trips_name_field(name in "[ -~]{1,223}") {
        let nqn = isolane_wire::Nqn::new(&name).unwrap();
        prop_assert_eq!(isolane_wire::Nqn::decode(&nqn.encode()), Ok(nqn));
        prop_assert_eq!(nqn.as_str(), name);
    }
}
