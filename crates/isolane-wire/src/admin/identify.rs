//! Identify (Base 1.4 §5.15; CNS values 05h and above: Base 2.0); the structures are in [`crate::identify`].

use crate::opcode::AdminOpcode;

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
        Controllers = 0x13, "controller list";
        UuidList = 0x17, "UUID list";
        CommandSets = 0x1c, "I/O command set";
    }
}

command! {
    /// Identify.
    pub struct IdentifyCommand: AdminOpcode::Identify => {
        /// Namespace, or the one before the first of a list.
        nsid[31:0] => nsid: u32,
        /// CNS, see [`Cns`].
        cdw10[7:0] => cns: u8,
        /// CNTID: controller, or the first of a controller list.
        cdw10[31:16] => cntid: u16,
        /// CNS specific identifier.
        cdw11[15:0] => cnssid: u16,
        /// CSI: command set; 0 is NVM.
        cdw11[31:24] => csi: u8,
        /// UUID index.
        cdw14[6:0] => uuid_index: u8,
    }
}

impl IdentifyCommand {
    /// Length of the data of every Identify, in bytes.
    pub const DATA_LEN: u32 = 4096;

    /// The command for this structure of this namespace, everything else 0.
    pub fn new(cns: Cns, nsid: u32) -> Self {
        Self { nsid, cns: cns.code(), ..Self::default() }
    }
}
