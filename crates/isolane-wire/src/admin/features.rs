//! Get Features and Set Features (Base 1.4 §5.14, §5.21); the values are in [`crate::feature`].

use crate::opcode::AdminOpcode;

codes! {
    /// SEL: requested value of the feature.
    pub enum Select: u8 {
        Current = 0b000, "current";
        Default = 0b001, "default";
        SupportedCapabilities = 0b011, "supported capabilities";
    }
}

command! {
    /// Get Features.
    pub struct GetFeaturesCommand: AdminOpcode::GetFeatures => {
        /// Namespace, for features that belong to one.
        nsid[31:0] => nsid: u32,
        /// FID, see [`crate::feature::FeatureId`].
        cdw10[7:0] => fid: u8,
        /// SEL, see [`Select`].
        cdw10[10:8] => sel: u8,
        /// Dword 11, of the few features that have one here.
        cdw11[31:0] => cdw11: u32,
    }
}

command! {
    /// Set Features.
    pub struct SetFeaturesCommand: AdminOpcode::SetFeatures => {
        /// Namespace, for features that belong to one.
        nsid[31:0] => nsid: u32,
        /// FID, see [`crate::feature::FeatureId`].
        cdw10[7:0] => fid: u8,
        /// SV: keep the value over resets.
        cdw10[31:31] => save: bool,
        /// Dword 11: the value.
        cdw11[31:0] => cdw11: u32,
        /// Dword 12, of the few features that use it.
        cdw12[31:0] => cdw12: u32,
    }
}
