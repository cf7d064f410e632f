//! Compile-time checks of the lengths in the specifications.

use crate::{CompletionEntry, Framing, SubmissionEntry, auth, fabrics, feature, identify, io, log, pdu};

const _: () = {
    assert!(SubmissionEntry::LEN == 64 && CompletionEntry::LEN == 16);
    assert!(pdu::IcReq::LEN == 128 && pdu::IcResp::LEN == 128);
    assert!(pdu::CapsuleCmd::LEN == pdu::CommonHeader::LEN + SubmissionEntry::LEN);
    assert!(pdu::CapsuleResp::LEN == pdu::CommonHeader::LEN + CompletionEntry::LEN);
    assert!(pdu::H2cData::LEN == 24 && pdu::C2hData::LEN == 24 && pdu::R2t::LEN == 24);
    assert!(pdu::TransferFields::LEN == pdu::R2t::LEN);
    assert!(pdu::TermReq::LEN == 24 && pdu::TermReq::MAX_PLEN == 152);
    assert!(longest_prefix() == pdu::MAX_PREFIX_LEN);
    assert!(fabrics::ConnectData::LEN == 1024 && feature::HostBehaviorSupport::LEN == 512);
    assert!(identify::Controller::LEN == 4096 && identify::Namespace::LEN == 4096);
    assert!(identify::NvmController::LEN == 4096 && identify::NvmNamespace::LEN == 4096);
    assert!(identify::IndependentNamespace::LEN == 4096 && identify::PowerState::LEN == 32);
    assert!(log::ErrorEntry::LEN == 64 && log::Smart::LEN == 512 && log::FirmwareSlots::LEN == 512);
    assert!(log::CommandEffectsLog::LEN == 4096);
    assert!(log::DiscoveryHeader::LEN == 1024 && log::DiscoveryEntry::LEN == 1024);
    assert!(io::DsmRange::LEN == 16);
    assert!(auth::Negotiate::LEN == 8 && auth::ProtocolDescriptor::LEN == 64 && auth::Failure::LEN == 8);
    assert!(auth::Challenge::LEN == 16 && auth::Reply::LEN == 16);
    assert!(auth::Success1::LEN == 16 && auth::Success2::LEN == 16);
};

/// Maximum prefix of all PDUs with data under all alignments.
const fn longest_prefix() -> usize {
    let mut longest = 0;
    let mut pda = 0;
    while pda <= Framing::MAX_PDA {
        let framing = Framing { header_digest: true, data_digest: true, pda };
        longest = longer(longest, framing.data_offset(pdu::CapsuleCmd::LEN));
        longest = longer(longest, framing.data_offset(pdu::C2hData::LEN));
        pda += 1;
    }
    longest
}

const fn longer(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}
