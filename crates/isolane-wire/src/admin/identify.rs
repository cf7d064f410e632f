//! Identify (Base 1.4 §5.15; CNS values 05h and above: Base 2.0); the structures are in [`crate::identify`].

use crate::{SubmissionEntry, opcode::AdminOpcode};

codes! {
    /// CNS: requested structure.
    pub enum Cns: u8 {
        Namespace = 0x00, "Identify Namespace";
        Controller = 0x01, "Identify Controller";
        ActiveNamespaces = 0x02, "active namespace ID list";
        NamespaceDescriptors = 0x03, "namespace identification descriptor list";
        NvmSets = 0x04, "NVM set list";
        CommandSetNamespace = 0x05, "I/O command set specific Identify Namespace";
        CommandSetController = 0x06, "I/O command set specific Identify Controller";
        CommandSetActiveNamespaces = 0x07, "I/O command set specific active namespace ID list";
        IndependentNamespace = 0x08, "I/O command set independent Identify Namespace";
        AllocatedNamespaces = 0x10, "allocated namespace ID list";
        AllocatedNamespace = 0x11, "Identify Namespace of an allocated namespace";
        AttachedControllers = 0x12, "controllers attached to a namespace";
        Controllers = 0x13, "controller list";
        PrimaryController = 0x14, "primary controller capabilities";
        SecondaryControllers = 0x15, "secondary controller list";
        NamespaceGranularity = 0x16, "namespace granularity list";
        UuidList = 0x17, "UUID list";
        CommandSets = 0x1c, "I/O command set";
    }
}

/// Identify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IdentifyCommand {
    /// Namespace, or the one before the first of a list.
    pub nsid: u32,
    /// CNS, see [`Cns`].
    pub cns: u8,
    /// CNTID: controller, or the first of a controller list.
    pub cntid: u16,
    /// CNS specific identifier.
    pub cnssid: u16,
    /// CSI: command set; 0 is NVM.
    pub csi: u8,
    /// UUID index.
    pub uuid_index: u8,
}

bits! {
    /// Dword 10.
    pub struct Dword10(u32) {
        /// CNS.
        cns / with_cns: u8 = [7:0],
        /// CNTID.
        cntid / with_cntid: u16 = [31:16],
    }
}

bits! {
    /// Dword 11.
    pub struct Dword11(u32) {
        /// CNS specific identifier.
        cnssid / with_cnssid: u16 = [15:0],
        /// CSI.
        csi / with_csi: u8 = [31:24],
    }
}

bits! {
    /// Dword 14.
    pub struct Dword14(u32) {
        /// UUID index.
        uuid_index / with_uuid_index: u8 = [6:0],
    }
}

impl IdentifyCommand {
    /// Length of the data of every Identify, in bytes.
    pub const DATA_LEN: u32 = 4096;

    /// The command for this structure of this namespace, everything else 0.
    pub fn new(cns: Cns, nsid: u32) -> Self {
        Self { nsid, cns: cns.code(), ..Self::default() }
    }

    /// Encodes the command.
    pub fn entry(&self) -> SubmissionEntry {
        SubmissionEntry {
            cdw10: Dword10(0).with_cns(self.cns).with_cntid(self.cntid).0,
            cdw11: Dword11(0).with_cnssid(self.cnssid).with_csi(self.csi).0,
            cdw14: Dword14(0).with_uuid_index(self.uuid_index).0,
            ..SubmissionEntry::new(AdminOpcode::Identify.code(), self.nsid)
        }
    }

    /// Decodes the command.
    pub fn parse(entry: &SubmissionEntry) -> Self {
        Self {
            nsid: entry.nsid,
            cns: Dword10(entry.cdw10).cns(),
            cntid: Dword10(entry.cdw10).cntid(),
            cnssid: Dword11(entry.cdw11).cnssid(),
            csi: Dword11(entry.cdw11).csi(),
            uuid_index: Dword14(entry.cdw14).uuid_index(),
        }
    }
}
