//! Get Log Page (Base 1.4 §5.14); the pages are in [`crate::log`].

use crate::opcode::AdminOpcode;

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
        HostStages = 0xc0, "stages of the host (vendor specific)";
        Generation = 0xce, "generation (vendor specific)";
    }
}

command! {
    /// Get Log Page.
    pub struct GetLogPageCommand: AdminOpcode::GetLogPage => {
        /// Namespace, 0 or FFFFFFFFh for a page of the controller.
        nsid[31:0] => nsid: u32,
        /// LID, see [`LogPage`].
        cdw10[7:0] => lid: u8,
        /// LSP: log specific parameter.
        cdw10[14:8] => lsp: u8,
        /// RAE: retain the asynchronous event.
        cdw10[15:15] => rae: bool,
        /// NUMD: requested dwords, 0's based (NUMDL and NUMDU).
        cdw10[31:16] cdw11[15:0] => numd: u32,
        /// LSI: log specific identifier.
        cdw11[31:16] => lsi: u16,
        /// LPO: start offset (LPOL and LPOU), in bytes and a multiple of 4; an entry number if
        /// `is_index`.
        cdw12[31:0] cdw13[31:0] => offset: u64,
        /// OT: the offset counts entries.
        cdw14[23:23] => is_index: bool,
        /// UUID index.
        cdw14[6:0] => uuid_index: u8,
        /// CSI: command set.
        cdw14[31:24] => csi: u8,
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
}
