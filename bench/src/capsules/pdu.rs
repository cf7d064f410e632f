//! The PDUs that the plain host sends, byte by byte, and the fields that it reads.

/// CapsuleCmd: common header and submission queue entry.
pub const COMMAND_BYTES: usize = 72;
/// CapsuleResp, and the header of C2HData.
pub const HEADER_BYTES: usize = 24;
/// ICReq and ICResp.
pub const INITIALIZE_BYTES: usize = 128;

/// PDU type of a response capsule.
pub const RESPONSE: u8 = 0x05;
/// PDU type of data from the controller.
pub const C2H_DATA: u8 = 0x07;
/// Flag of C2HData: no response capsule follows.
pub const SUCCESS: u8 = 0x08;

/// ICReq without digests, one R2T at a time.
pub fn initialize() -> [u8; INITIALIZE_BYTES] {
    let mut pdu = [0; INITIALIZE_BYTES];
    pdu[2] = INITIALIZE_BYTES as u8;
    pdu[4..8].copy_from_slice(&(INITIALIZE_BYTES as u32).to_le_bytes());
    pdu
}

/// A CapsuleCmd without data; the entry's fields are set by [`Command::set`].
#[derive(Clone)]
pub struct Command(pub [u8; COMMAND_BYTES]);

impl Command {
    /// An entry with this opcode and command id; its SGL says that the transport carries no data.
    pub fn new(opcode: u8, cid: u16) -> Command {
        let mut pdu = [0; COMMAND_BYTES];
        (pdu[0], pdu[2]) = (0x04, COMMAND_BYTES as u8);
        pdu[4..8].copy_from_slice(&(COMMAND_BYTES as u32).to_le_bytes());
        Command(pdu).set(0, &[opcode, 0x40]).set(2, &cid.to_le_bytes()).set(39, &[0x5a])
    }

    /// A fabrics command.
    pub fn fabrics(kind: u8) -> Command {
        Command::new(0x7f, 0).set(4, &[kind])
    }

    /// Sets bytes of the entry.
    pub fn set(mut self, offset: usize, bytes: &[u8]) -> Command {
        self.0[8 + offset..][..bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Data comes back by C2HData.
    pub fn reading(self, bytes: u32) -> Command {
        self.set(32, &bytes.to_le_bytes())
    }

    /// Data follows in the capsule.
    pub fn carrying(self, data: &[u8]) -> Vec<u8> {
        let mut command = self.set(32, &(data.len() as u32).to_le_bytes()).set(39, &[0x01]);
        command.0[3] = COMMAND_BYTES as u8;
        command.0[4..8].copy_from_slice(&((COMMAND_BYTES + data.len()) as u32).to_le_bytes());
        [&command.0, data].concat()
    }
}

/// Bytes of a whole PDU.
pub fn length(header: &[u8]) -> usize {
    u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize
}

/// The command id of a response.
pub fn response_cid(header: &[u8]) -> u16 {
    u16::from_le_bytes([header[20], header[21]])
}

/// The status of a response, without its phase.
pub fn status(header: &[u8]) -> u16 {
    u16::from_le_bytes([header[22], header[23]]) >> 1
}
