//! Get Features and Set Features (Base 1.4 §5.14, §5.21); the values are in [`crate::feature`].

use crate::{SubmissionEntry, opcode::AdminOpcode};

bits! {
    /// Dword 10 of both commands.
    pub struct Dword10(u32) {
        /// FID, see [`crate::feature::FeatureId`].
        fid / with_fid: u8 = [7:0],
        /// SEL, Get Features only, see [`Select`].
        sel / with_sel: u8 = [10:8],
        /// SV, Set Features only.
        sv / with_sv: bool = [31:31],
    }
}

codes! {
    /// SEL: requested value of the feature.
    pub enum Select: u8 {
        Current = 0b000, "current";
        Default = 0b001, "default";
        Saved = 0b010, "saved";
        SupportedCapabilities = 0b011, "supported capabilities";
    }
}

/// Get Features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GetFeaturesCommand {
    /// Namespace, for features that belong to one.
    pub nsid: u32,
    /// FID, see [`crate::feature::FeatureId`].
    pub fid: u8,
    /// SEL, see [`Select`].
    pub sel: u8,
    /// Dword 11, of the few features that have one here.
    pub cdw11: u32,
}

impl GetFeaturesCommand {
    /// Encodes the command.
    pub fn entry(&self) -> SubmissionEntry {
        SubmissionEntry {
            cdw10: Dword10(0).with_fid(self.fid).with_sel(self.sel).0,
            cdw11: self.cdw11,
            ..SubmissionEntry::new(AdminOpcode::GetFeatures.code(), self.nsid)
        }
    }

    /// Decodes the command.
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let dword10 = Dword10(entry.cdw10);
        Self { nsid: entry.nsid, fid: dword10.fid(), sel: dword10.sel(), cdw11: entry.cdw11 }
    }
}

/// Set Features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SetFeaturesCommand {
    /// Namespace, for features that belong to one.
    pub nsid: u32,
    /// FID, see [`crate::feature::FeatureId`].
    pub fid: u8,
    /// SV: keep the value over resets.
    pub save: bool,
    /// Dword 11: the value.
    pub cdw11: u32,
    /// Dword 12, of the few features that use it.
    pub cdw12: u32,
}

impl SetFeaturesCommand {
    /// Encodes the command.
    pub fn entry(&self) -> SubmissionEntry {
        SubmissionEntry {
            cdw10: Dword10(0).with_fid(self.fid).with_sv(self.save).0,
            cdw11: self.cdw11,
            cdw12: self.cdw12,
            ..SubmissionEntry::new(AdminOpcode::SetFeatures.code(), self.nsid)
        }
    }

    /// Decodes the command.
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let dword10 = Dword10(entry.cdw10);
        Self {
            nsid: entry.nsid,
            fid: dword10.fid(),
            save: dword10.sv(),
            cdw11: entry.cdw11,
            cdw12: entry.cdw12,
        }
    }
}
