//! Opcodes of the admin, NVM and Fabrics command sets (Base 1.4 §5, §6; Fabrics 1.1 §3).

codes! {
    /// Opcodes of the admin queue.
    pub enum AdminOpcode: u8 {
        CreateIoSubmissionQueue = 0x01, "Create I/O Submission Queue";
        GetLogPage = 0x02, "Get Log Page";
        Identify = 0x06, "Identify";
        Abort = 0x08, "Abort";
        SetFeatures = 0x09, "Set Features";
        GetFeatures = 0x0a, "Get Features";
        AsyncEventRequest = 0x0c, "Asynchronous Event Request";
        DeviceSelfTest = 0x14, "Device Self-test";
        KeepAlive = 0x18, "Keep Alive";
        Fabrics = 0x7f, "Fabrics";
        FormatNvm = 0x80, "Format NVM";
        SecuritySend = 0x81, "Security Send";
        Sanitize = 0x84, "Sanitize";
    }
}

codes! {
    /// Opcodes of an I/O queue of the NVM command set.
    pub enum IoOpcode: u8 {
        Flush = 0x00, "Flush";
        Write = 0x01, "Write";
        Read = 0x02, "Read";
        Compare = 0x05, "Compare";
        WriteZeroes = 0x08, "Write Zeroes";
        DatasetManagement = 0x09, "Dataset Management";
        Verify = 0x0c, "Verify";
        ReservationRegister = 0x0d, "Reservation Register";
        Copy = 0x19, "Copy";
        Fabrics = 0x7f, "Fabrics";
    }
}

codes! {
    /// FCTYPE of a Fabrics command (Fabrics 1.1 figure 18).
    pub enum FabricsType: u8 {
        PropertySet = 0x00, "Property Set";
        Connect = 0x01, "Connect";
        PropertyGet = 0x04, "Property Get";
        AuthenticationSend = 0x05, "Authentication Send";
        AuthenticationReceive = 0x06, "Authentication Receive";
        Disconnect = 0x08, "Disconnect";
    }
}

/// Direction of a command's data: bits 1:0 of its opcode, or of FCTYPE for Fabrics commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataDirection {
    /// 00b: no data.
    None,
    /// 01b: the host sends.
    HostToController,
    /// 10b: the controller sends.
    ControllerToHost,
    /// 11b: both; unused by Isolane.
    Bidirectional,
}

impl DataDirection {
    /// Returns the direction of a command with this opcode and, for Fabrics commands, this FCTYPE.
    #[inline]
    pub const fn of(opcode: u8, fctype: u8) -> Self {
        let code = if opcode == AdminOpcode::Fabrics.code() { fctype } else { opcode };
        match code % 4 {
            0 => Self::None,
            1 => Self::HostToController,
            2 => Self::ControllerToHost,
            _ => Self::Bidirectional,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_by_their_numbers() {
        for &opcode in AdminOpcode::ALL {
            assert_eq!(AdminOpcode::decode(opcode.code()), Some(opcode));
        }
        for &opcode in IoOpcode::ALL {
            assert_eq!(IoOpcode::decode(opcode.code()), Some(opcode));
        }
        assert_eq!(FabricsType::decode(0x02), None);
    }

    #[test]
    fn low_bits_give_data_direction() {
        assert_eq!(DataDirection::of(IoOpcode::Flush.code(), 0), DataDirection::None);
        assert_eq!(DataDirection::of(IoOpcode::Write.code(), 2), DataDirection::HostToController);
        assert_eq!(DataDirection::of(AdminOpcode::Identify.code(), 1), DataDirection::ControllerToHost);
        assert_eq!(DataDirection::of(0x7f, FabricsType::Connect.code()), DataDirection::HostToController);
        assert_eq!(DataDirection::of(0x7f, FabricsType::PropertyGet.code()), DataDirection::None);
    }
}
