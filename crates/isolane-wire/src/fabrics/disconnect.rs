//! Disconnect: the host deletes one I/O queue (Fabrics 1.1 §3.6).

use crate::opcode::FabricsType;

command! {
    /// Disconnect.
    pub struct DisconnectCommand: FabricsType::Disconnect => {
        /// RECFMT: 0 is the only record format.
        cdw10[15:0] => recfmt: u16,
    }
}
