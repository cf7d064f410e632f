//! Authentication Send and Authentication Receive (Base 2.2 §6.1, §6.2).

use crate::opcode::FabricsType;

/// SECP: the NVMe authentication protocols.
const SECP_NVME: u8 = 0xe9;

/// SPSP0 and SPSP1 of the NVMe authentication protocols.
const SPSP: u8 = 1;

/// Maximum length of a message in bytes, and of the data of a command that carries one.
///
/// The longest message is a Reply with SHA-512 and FFDHE8192, 1,168 bytes. Hosts receive into 4 KiB.
pub const MAX_MESSAGE_BYTES: u32 = 4096;

macro_rules! authentication_command {
    ($(#[$meta:meta])* $name:ident: $fctype:ident, $(#[$len_meta:meta])* $len:ident) => {
        command! {
            $(#[$meta])*
            pub struct $name: FabricsType::$fctype => {
                /// SPSP0: protocol specific, lower byte.
                cdw10[15:8] => spsp0: u8,
                /// SPSP1: protocol specific, upper byte.
                cdw10[23:16] => spsp1: u8,
                /// SECP: security protocol.
                cdw10[31:24] => secp: u8,
                $(#[$len_meta])*
                cdw11[31:0] => $len: u32,
            }
        }

        impl $name {
            /// A command of the NVMe authentication protocols.
            pub fn new(len: u32) -> Self {
                Self { spsp0: SPSP, spsp1: SPSP, secp: SECP_NVME, $len: len }
            }

            /// Whether the command names the NVMe authentication protocols, and a length that a
            /// message can have.
            pub fn is_valid(&self) -> bool {
                let is_length = (1..=MAX_MESSAGE_BYTES).contains(&self.$len);
                is_length && (self.secp, self.spsp0, self.spsp1) == (SECP_NVME, SPSP, SPSP)
            }
        }
    };
}

authentication_command! {
    /// Authentication Send: the host sends a message.
    AuthenticationSendCommand: AuthenticationSend,
    /// TL: length of the message in bytes.
    tl
}

authentication_command! {
    /// Authentication Receive: the host receives a message, padded with zeroes.
    AuthenticationReceiveCommand: AuthenticationReceive,
    /// AL: length of the host's buffer in bytes.
    al
}
