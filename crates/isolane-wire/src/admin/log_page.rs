//! Get Log Page (Base 1.4 §5.14); the pages are in [`crate::log`].

use crate::{SubmissionEntry, opcode::AdminOpcode};

codes! {
    /// LID: log page identifier.
    pub enum LogPage: u8 {
        SupportedPages = 0x00, "supported log pages";
        Error = 0x01, "error information";
        Smart = 0x02, "SMART / health information";
        FirmwareSlot = 0x03, "firmware slot information";
        ChangedNamespaces = 0x04, "changed namespace list";
        CommandEffects = 0x05, "commands supported and effects";
        DeviceSelfTest = 0x06, "device self-test";
        TelemetryHost = 0x07, "telemetry, host-initiated";
        TelemetryController = 0x08, "telemetry, controller-initiated";
        AsymmetricNamespaceAccess = 0x0c, "asymmetric namespace access";
        FeatureEffects = 0x12, "feature identifiers supported and effects";
        Discovery = 0x70, "discovery";
        ReservationNotification = 0x80, "reservation notification";
        Generation = 0xce, "generation (vendor specific)";
    }
}

/// Get Log Page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GetLogPageCommand {
    /// Namespace, 0 or FFFFFFFFh for a page of the controller.
    pub nsid: u32,
    /// LID, see [`LogPage`].
    pub lid: u8,
    /// LSP: log specific parameter.
    pub lsp: u8,
    /// RAE: retain the asynchronous event.
    pub rae: bool,
    /// NUMD: requested dwords, 0's based (NUMDU and NUMDL).
    pub numd: u32,
    /// LSI: log specific identifier.
    pub lsi: u16,
    /// LPO: start offset (LPOU and LPOL), in bytes and a multiple of 4; an entry number if
    /// `is_index`.
    pub offset: u64,
    /// OT: the offset counts entries.
    pub is_index: bool,
    /// UUID index.
    pub uuid_index: u8,
    /// CSI: command set.
    pub csi: u8,
}

bits! {
    /// Dword 10.
    pub struct Dword10(u32) {
        /// LID.
        lid / with_lid: u8 = [7:0],
        /// LSP.
        lsp / with_lsp: u8 = [14:8],
        /// RAE.
        rae / with_rae: bool = [15:15],
        /// NUMDL.
        numdl / with_numdl: u16 = [31:16],
    }
}

bits! {
    /// Dword 11.
    pub struct Dword11(u32) {
        /// NUMDU.
        numdu / with_numdu: u16 = [15:0],
        /// LSI.
        lsi / with_lsi: u16 = [31:16],
    }
}

bits! {
    /// Dword 14.
    pub struct Dword14(u32) {
        /// UUID index.
        uuid_index / with_uuid_index: u8 = [6:0],
        /// OT.
        ot / with_ot: bool = [23:23],
        /// CSI.
        csi / with_csi: u8 = [31:24],
    }
}

impl GetLogPageCommand {
    /// The command for `len` bytes (a multiple of 4, at least 4) of this page from `offset`.
    pub fn new(page: LogPage, offset: u64, len: u32) -> Self {
        Self { lid: page.code(), offset, numd: (len / 4).saturating_sub(1), ..Self::default() }
    }

    /// Returns the requested length in bytes, up to 16 GiB.
    pub fn len(&self) -> u64 {
        (u64::from(self.numd) + 1) * 4
    }

    /// Always `false`: NUMD is 0's based.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Encodes the command.
    pub fn entry(&self) -> SubmissionEntry {
        let [numdl, numdu] = [self.numd as u16, (self.numd >> 16) as u16];
        SubmissionEntry {
            cdw10: Dword10(0).with_lid(self.lid).with_lsp(self.lsp).with_rae(self.rae).with_numdl(numdl).0,
            cdw11: Dword11(0).with_numdu(numdu).with_lsi(self.lsi).0,
            cdw12: self.offset as u32,
            cdw13: (self.offset >> 32) as u32,
            cdw14: Dword14(0).with_uuid_index(self.uuid_index).with_ot(self.is_index).with_csi(self.csi).0,
            ..SubmissionEntry::new(AdminOpcode::GetLogPage.code(), self.nsid)
        }
    }

    /// Decodes the command.
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let (dword10, dword11) = (Dword10(entry.cdw10), Dword11(entry.cdw11));
        let dword14 = Dword14(entry.cdw14);
        Self {
            nsid: entry.nsid,
            lid: dword10.lid(),
            lsp: dword10.lsp(),
            rae: dword10.rae(),
            numd: u32::from(dword11.numdu()) << 16 | u32::from(dword10.numdl()),
            lsi: dword11.lsi(),
            offset: u64::from(entry.cdw13) << 32 | u64::from(entry.cdw12),
            is_index: dword14.ot(),
            uuid_index: dword14.uuid_index(),
            csi: dword14.csi(),
        }
    }
}
