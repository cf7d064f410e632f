//! Properties: what is encoded decodes to the same; what decodes at all encodes to something that decodes to
//! the same again; no bytes whatsoever make a decoder panic.

use isolane_wire::pdu::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, ControllerPdu, Digests, H2cData, HeaderFault, HostPdu,
    IcReq, IcResp, R2t, TermReq,
};
use isolane_wire::{Direction, Framing, SubmissionEntry, admin, fabrics, feature, identify, io, log};
use proptest::prelude::*;

fn framings() -> impl Strategy<Value = Framing> {
    (any::<bool>(), any::<bool>(), 0..=Framing::PDA_MAX)
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
    (any::<u32>(), proptest::collection::vec(any::<u8>(), 0..200))
        .prop_map(move |(fei, offender)| TermReq::new(from, HeaderFault::header_digest(fei), &offender))
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

/// What a receiver can tell from the common header about an encoded PDU.
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
    fn a_host_s_pdu_decodes_to_itself(pdu in host_pdus(), framing in framings()) {
        let bytes = encode_host(&pdu, &framing);
        assert_consistent(&bytes, Direction::HostToController, &framing);
        prop_assert_eq!(HostPdu::decode(&bytes, &framing), Ok(pdu));
        prop_assert!(ControllerPdu::decode(&bytes, &framing).is_err());
    }

    #[test]
    fn a_controller_s_pdu_decodes_to_itself(pdu in controller_pdus(), framing in framings()) {
        let bytes = encode_controller(&pdu, &framing);
        assert_consistent(&bytes, Direction::ControllerToHost, &framing);
        prop_assert_eq!(ControllerPdu::decode(&bytes, &framing), Ok(pdu));
        prop_assert!(HostPdu::decode(&bytes, &framing).is_err());
    }

    #[test]
    fn a_changed_pdu_is_refused_or_understood(
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
    fn arbitrary_bytes_are_no_pdu_or_one_that_encodes(
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
    fn the_fault_of_a_header_is_inside_of_it(bytes in any::<[u8; 128]>(), framing in framings()) {
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
    fn structures_decode_any_bytes_and_go_through_their_encoding(seed in any::<[u8; 64]>()) {
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
        check!(log::DiscoveryHeader, log::DiscoveryEntry, io::Range);
    }

    #[test]
    fn lists_take_any_bytes(seed in any::<[u8; 64]>()) {
        let bytes = core::array::from_fn(|index| seed[index % 63]);
        let namespaces = identify::NamespaceList::decode(&bytes);
        prop_assert_eq!(identify::NamespaceList::decode(&namespaces.encode()), namespaces);
        let controllers = identify::ControllerList::decode(&bytes);
        prop_assert_eq!(identify::ControllerList::decode(&controllers.encode()), controllers);
        let descriptors: Vec<_> = identify::DescriptorList::decode(&bytes).collect();
        let again = identify::DescriptorList::encode(&descriptors);
        prop_assert!(identify::DescriptorList::decode(&again).eq(descriptors));
    }

    #[test]
    fn a_name_survives_its_field(name in "[ -~]{1,223}") {
        let nqn = isolane_wire::Nqn::new(&name).unwrap();
        prop_assert_eq!(isolane_wire::Nqn::decode(&nqn.encode()), Ok(nqn));
        prop_assert_eq!(nqn.as_str(), name);
    }
}
