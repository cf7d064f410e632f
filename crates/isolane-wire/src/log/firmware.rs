//! Firmware slot information, 03h (Base 1.4 §5.14.1.3).

use crate::Ascii;

bits! {
    /// AFI: active firmware.
    pub struct ActiveFirmware(u8) {
        /// Active slot.
        active / with_active: u8 = [2:0],
        /// Active slot after the next reset; 0 if unspecified.
        next / with_next: u8 = [6:4],
    }
}

layout! {
    /// The page.
    pub struct FirmwareSlots[512] {
        /// AFI.
        0 => afi: ActiveFirmware,
        /// FRS1 to FRS7: revision in each slot; NULs or spaces if empty.
        8 => frs: [Ascii<8>; 7],
    }
}
