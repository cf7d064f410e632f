//! Admin commands from decisions, mostly valid ones.

use isolane_wire::admin::{Cns, GetLogPageCommand, IdentifyCommand, LogPage};
use isolane_wire::fabrics::{PropertySetCommand, PropertySize};
use isolane_wire::registers::{Cc, offset};
use isolane_wire::{SubmissionEntry, admin};

use crate::input::Input;

pub(super) fn identify(input: &mut Input<'_>) -> SubmissionEntry {
    let [cns, nsid, csi, cntid] = input.array();
    let cns = Cns::ALL.get(usize::from(cns)).map_or(cns, |cns| cns.code());
    let nsid = if nsid == 255 { admin::NSID_ALL } else { u32::from(nsid % 9) };
    IdentifyCommand { nsid, cns, cntid: u16::from(cntid), csi: csi % 3, ..IdentifyCommand::default() }.entry()
}

pub(super) fn log_page(input: &mut Input<'_>) -> SubmissionEntry {
    let [page, nsid, rae] = input.array();
    let lid = LogPage::ALL.get(usize::from(page)).map_or(page, |page| page.code());
    let offset = input.pick(&[0, 4, 64, 512, 1024, 2048, 4096, 1 << 20, u64::MAX - 3, 2]);
    let numd = input.pick(&[0, 15, 127, 255, 511, 1023, 2047, 0xffff, u32::MAX]);
    let nsid = [0, 1, 7, admin::NSID_ALL][usize::from(nsid) % 4];
    GetLogPageCommand { nsid, lid, rae: rae & 1 != 0, offset, numd, ..GetLogPageCommand::default() }.entry()
}

pub(super) fn feature(input: &mut Input<'_>) -> SubmissionEntry {
    let [choice, fid, sel, nsid] = input.array();
    let (fid, nsid, cdw11) = (fid % 0x90, u32::from(nsid % 3), input.u32());
    match choice & 1 {
        0 => admin::GetFeaturesCommand { nsid, fid, sel: sel % 8, cdw11 }.entry(),
        _ => admin::SetFeaturesCommand { nsid, fid, save: sel & 1 != 0, cdw11, cdw12: 0 }.entry(),
    }
}

/// Writes CC: enable, disable, shut down, or anything.
pub(super) fn configure(input: &mut Input<'_>) -> SubmissionEntry {
    let raw = Cc(input.u32());
    let cc = match input.u8() % 6 {
        0..=2 => Cc::enabled(),
        3 => Cc(0),
        4 => Cc::enabled().with_shn(Cc::SHN_NORMAL),
        _ => raw,
    };
    PropertySetCommand { size: PropertySize::Bytes4, offset: offset::CC, value: u64::from(cc.0) }.entry()
}

/// Commands without parameters.
pub(super) fn small(input: &mut Input<'_>) -> SubmissionEntry {
    let [choice, cid, other] = input.array();
    let entry = match choice % 5 {
        0 | 1 => admin::async_event_request(),
        2 => admin::keep_alive(),
        3 => admin::AbortCommand { sqid: 0, cid: u16::from(other) }.entry(),
        _ => isolane_wire::fabrics::DisconnectCommand::default().entry(),
    };
    SubmissionEntry { cid: u16::from(cid), ..entry }
}
