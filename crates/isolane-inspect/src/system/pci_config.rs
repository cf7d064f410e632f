//! Configuration space of a PCI function: sizes of packets.

use super::read_error::{Malformed, ReadError, Reason};
use super::root::Root;

/// Limit in bytes: the extended space of PCI Express has 4,096.
const MAX_BYTES: usize = 4_096;

/// Sizes that the operating system has set (PCI Express Base Specification, Device Control register).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PciControl {
    /// Maximum payload of a packet, in bytes.
    pub payload_bytes: u32,
    /// Maximum size of a read request, in bytes.
    pub read_request_bytes: u32,
}

/// Reads the sizes of the function in a directory, `None` if it is not PCI Express.
///
/// # Errors
/// The file and the reason. Only root can read more than 64 bytes.
pub fn pci_control(root: &Root, dir: &str) -> Result<Option<PciControl>, ReadError> {
    let path = format!("{dir}/config");
    let bytes = root.bytes(&path, MAX_BYTES)?;
    decode_pci_config(&bytes).map_err(|error| ReadError { path, reason: Reason::Malformed(error) })
}

/// Decodes the sizes, `None` if the function is not PCI Express.
///
/// # Errors
/// The space is truncated, or its list of capabilities has a loop.
pub fn decode_pci_config(bytes: &[u8]) -> Result<Option<PciControl>, Malformed> {
    const STATUS: usize = 0x06;
    const HAS_CAPABILITIES: u8 = 1 << 4;
    const FIRST_CAPABILITY: usize = 0x34;
    const PCI_EXPRESS: u8 = 0x10;
    const DEVICE_CONTROL: usize = 8;
    const MAX_CAPABILITIES: usize = 48;
    let truncated = Malformed::at(0, "256 bytes, which only root can read");
    let byte = |at: usize| bytes.get(at).copied().ok_or(truncated);
    if byte(STATUS)? & HAS_CAPABILITIES == 0 {
        return Ok(None);
    }
    let mut at = usize::from(byte(FIRST_CAPABILITY)? & 0xfc);
    for _ in 0..MAX_CAPABILITIES {
        if at == 0 {
            return Ok(None);
        }
        if byte(at)? == PCI_EXPRESS {
            let control = u16::from_le_bytes([byte(at + DEVICE_CONTROL)?, byte(at + DEVICE_CONTROL + 1)?]);
            let size = |shift: u16| 128 << ((control >> shift) & 7);
            return Ok(Some(PciControl { payload_bytes: size(5), read_request_bytes: size(12) }));
        }
        at = usize::from(byte(at + 1)? & 0xfc);
    }
    Err(Malformed::at(0, "a list of capabilities that ends"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The capability at 0x60, after another one at 0x40.
    fn config() -> Vec<u8> {
        let mut bytes = vec![0; 256];
        bytes[0x06] = 0x10;
        bytes[0x34] = 0x40;
        bytes[0x40..0x42].copy_from_slice(&[0x05, 0x60]);
        bytes[0x60] = 0x10;
        // Payload 256 bytes, read requests 512 bytes.
        bytes[0x68..0x6a].copy_from_slice(&0x2020_u16.to_le_bytes());
        bytes
    }

    #[test]
    fn decodes_sizes_of_packets() {
        let control = decode_pci_config(&config()).unwrap().unwrap();
        assert_eq!((control.payload_bytes, control.read_request_bytes), (256, 512));
        assert_eq!(decode_pci_config(&[0; 64]), Ok(None));
    }

    #[test]
    fn rejects_truncated_and_endless_lists() {
        for len in 0..0x6a {
            assert!(decode_pci_config(&config()[..len]).is_err(), "{len}");
        }
        let mut endless = config();
        endless[0x41] = 0x40;
        assert!(decode_pci_config(&endless).is_err());
    }
}
