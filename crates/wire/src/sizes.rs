//! The lengths that the specifications give, checked when the crate is compiled.

use crate::{CompletionEntry, SubmissionEntry, fabrics, feature, identify, io, log, pdu};

const _: () = {
    assert!(SubmissionEntry::LEN == 64 && CompletionEntry::LEN == 16);
    assert!(pdu::IcReq::LEN == 128 && pdu::IcResp::LEN == 128);
    assert!(pdu::CapsuleCmd::LEN == pdu::CommonHeader::LEN + SubmissionEntry::LEN);
    assert!(pdu::CapsuleResp::LEN == pdu::CommonHeader::LEN + CompletionEntry::LEN);
    assert!(pdu::H2cData::LEN == 24 && pdu::C2hData::LEN == 24 && pdu::R2t::LEN == 24);
    assert!(pdu::TermReq::LEN == 24 && pdu::TermReq::PLEN_MAX == 152);
    assert!(pdu::HeaderBytes::CAPACITY >= pdu::TermReq::PLEN_MAX);
    assert!(pdu::HeaderBytes::CAPACITY >= pdu::HEADER_LEN_MAX);
    assert!(fabrics::ConnectData::LEN == 1024 && feature::HostBehaviorSupport::LEN == 512);
    assert!(identify::Controller::LEN == 4096 && identify::Namespace::LEN == 4096);
    assert!(identify::NvmController::LEN == 4096 && identify::NvmNamespace::LEN == 4096);
    assert!(identify::IndependentNamespace::LEN == 4096 && identify::PowerState::LEN == 32);
    assert!(log::ErrorEntry::LEN == 64 && log::Smart::LEN == 512 && log::FirmwareSlots::LEN == 512);
    assert!(log::CommandEffectsLog::LEN == 4096);
    assert!(log::DiscoveryHeader::LEN == 1024 && log::DiscoveryEntry::LEN == 1024);
    assert!(io::Range::LEN == 16);
};
