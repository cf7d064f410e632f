//! Opcodes: the operation of a message and the stage of a segment in it.
//!
//! The numbers come from InfiniBand's base transport header (IBA 1.3 §9.2.1).

isolane_layout::codes! {
    /// Opcode of a segment. 0x00 to 0x14 are of the reliable connection, 0x64 and 0x65 of datagrams. 0xc0 and above are
    /// for manufacturers.
    pub enum Opcode: u8 {
        SendFirst = 0x00, "SEND first";
        SendMiddle = 0x01, "SEND middle";
        SendLast = 0x02, "SEND last";
        SendLastImmediate = 0x03, "SEND last with immediate";
        SendOnly = 0x04, "SEND only";
        SendOnlyImmediate = 0x05, "SEND only with immediate";
        WriteFirst = 0x06, "RDMA WRITE first";
        WriteMiddle = 0x07, "RDMA WRITE middle";
        WriteLast = 0x08, "RDMA WRITE last";
        WriteLastImmediate = 0x09, "RDMA WRITE last with immediate";
        WriteOnly = 0x0a, "RDMA WRITE only";
        WriteOnlyImmediate = 0x0b, "RDMA WRITE only with immediate";
        ReadRequest = 0x0c, "RDMA READ request";
        ReadResponseFirst = 0x0d, "RDMA READ response first";
        ReadResponseMiddle = 0x0e, "RDMA READ response middle";
        ReadResponseLast = 0x0f, "RDMA READ response last";
        ReadResponseOnly = 0x10, "RDMA READ response only";
        Acknowledge = 0x11, "acknowledge";
        AtomicResponse = 0x12, "atomic response";
        CompareSwap = 0x13, "compare and swap";
        FetchAdd = 0x14, "fetch and add";
        Datagram = 0x64, "datagram";
        DatagramImmediate = 0x65, "datagram with immediate";
        LaneReport = 0xc0, "lane report";
    }
}

/// Operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Fills a posted receive.
    Send,
    /// Places bytes in a region of the responder.
    Write,
    /// Requests bytes of a region of the responder.
    ReadRequest,
    /// Data for a READ.
    ReadResponse,
    /// Acknowledgment without other content.
    Acknowledge,
    /// Value that an atomic operation found.
    AtomicResponse,
    /// Replaces 8 bytes if they have a given value.
    CompareSwap,
    /// Adds to 8 bytes.
    FetchAdd,
    /// Message of an unreliable queue pair.
    Datagram,
    /// Report about a lane that has ended.
    LaneReport,
}

/// Role of an operation in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationRole {
    /// A request, whose message gets a new number. All others name the request that they answer.
    Request,
    /// The response to a request.
    Response,
    /// Only an acknowledgment.
    Acknowledgment,
    /// A report about a lane.
    LaneReport,
    /// A message of an unreliable queue pair.
    Datagram,
}

/// Kind of the fields after the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtensionKind {
    /// None, or immediate data.
    None,
    /// The range of a READ or WRITE, and immediate data.
    Range,
    /// Operands of an atomic operation.
    Atomic,
    /// Value that an atomic operation found.
    Found,
    /// Result of a message.
    Acknowledgment,
    /// Source of a datagram, and immediate data.
    Datagram,
    /// Report about a lane that has ended.
    LaneReport,
}

/// Stage of a segment in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The first of several segments.
    First,
    /// Neither the first nor the last segment.
    Middle,
    /// The last of several segments.
    Last,
    /// The only segment.
    Only,
}

impl Stage {
    /// Returns the name as text.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::First => "first",
            Stage::Middle => "middle",
            Stage::Last => "last",
            Stage::Only => "only",
        }
    }

    /// Returns the stage of the bytes from `offset` up to but not including `end` of a message of `size` bytes.
    pub const fn of(offset: u32, end: u32, size: u32) -> Stage {
        match (offset == 0, end == size) {
            (true, true) => Stage::Only,
            (true, false) => Stage::First,
            (false, false) => Stage::Middle,
            (false, true) => Stage::Last,
        }
    }
}

impl Opcode {
    /// Returns the opcode of a segment. Only the last segment of a SEND or WRITE carries the immediate data.
    pub const fn of(operation: Operation, stage: Stage, immediate: bool) -> Opcode {
        match (operation, stage, immediate) {
            (Operation::Send, Stage::First, _) => Opcode::SendFirst,
            (Operation::Send, Stage::Middle, _) => Opcode::SendMiddle,
            (Operation::Send, Stage::Last, false) => Opcode::SendLast,
            (Operation::Send, Stage::Last, true) => Opcode::SendLastImmediate,
            (Operation::Send, Stage::Only, false) => Opcode::SendOnly,
            (Operation::Send, Stage::Only, true) => Opcode::SendOnlyImmediate,
            (Operation::Write, Stage::First, _) => Opcode::WriteFirst,
            (Operation::Write, Stage::Middle, _) => Opcode::WriteMiddle,
            (Operation::Write, Stage::Last, false) => Opcode::WriteLast,
            (Operation::Write, Stage::Last, true) => Opcode::WriteLastImmediate,
            (Operation::Write, Stage::Only, false) => Opcode::WriteOnly,
            (Operation::Write, Stage::Only, true) => Opcode::WriteOnlyImmediate,
            (Operation::ReadResponse, Stage::First, _) => Opcode::ReadResponseFirst,
            (Operation::ReadResponse, Stage::Middle, _) => Opcode::ReadResponseMiddle,
            (Operation::ReadResponse, Stage::Last, _) => Opcode::ReadResponseLast,
            (Operation::ReadResponse, Stage::Only, _) => Opcode::ReadResponseOnly,
            (Operation::ReadRequest, ..) => Opcode::ReadRequest,
            (Operation::Acknowledge, ..) => Opcode::Acknowledge,
            (Operation::AtomicResponse, ..) => Opcode::AtomicResponse,
            (Operation::CompareSwap, ..) => Opcode::CompareSwap,
            (Operation::FetchAdd, ..) => Opcode::FetchAdd,
            (Operation::Datagram, _, false) => Opcode::Datagram,
            (Operation::Datagram, _, true) => Opcode::DatagramImmediate,
            (Operation::LaneReport, ..) => Opcode::LaneReport,
        }
    }

    /// Returns the operation.
    pub const fn operation(self) -> Operation {
        use Opcode::*;
        match self {
            SendFirst | SendMiddle | SendLast | SendLastImmediate | SendOnly | SendOnlyImmediate => {
                Operation::Send
            }
            WriteFirst | WriteMiddle | WriteLast | WriteLastImmediate | WriteOnly | WriteOnlyImmediate => {
                Operation::Write
            }
            ReadRequest => Operation::ReadRequest,
            ReadResponseFirst | ReadResponseMiddle | ReadResponseLast | ReadResponseOnly => {
                Operation::ReadResponse
            }
            Acknowledge => Operation::Acknowledge,
            AtomicResponse => Operation::AtomicResponse,
            CompareSwap => Operation::CompareSwap,
            FetchAdd => Operation::FetchAdd,
            Datagram | DatagramImmediate => Operation::Datagram,
            LaneReport => Operation::LaneReport,
        }
    }

    /// Returns the stage.
    pub const fn stage(self) -> Stage {
        use Opcode::*;
        match self {
            SendFirst | WriteFirst | ReadResponseFirst => Stage::First,
            SendMiddle | WriteMiddle | ReadResponseMiddle => Stage::Middle,
            SendLast | SendLastImmediate | WriteLast | WriteLastImmediate | ReadResponseLast => Stage::Last,
            SendOnly | SendOnlyImmediate | WriteOnly | WriteOnlyImmediate | ReadResponseOnly => Stage::Only,
            ReadRequest | Acknowledge | AtomicResponse | CompareSwap | FetchAdd => Stage::Only,
            Datagram | DatagramImmediate | LaneReport => Stage::Only,
        }
    }

    /// Returns whether the segment carries immediate data.
    pub const fn has_immediate(self) -> bool {
        use Opcode::*;
        matches!(
            self,
            SendLastImmediate
                | SendOnlyImmediate
                | WriteLastImmediate
                | WriteOnlyImmediate
                | DatagramImmediate
        )
    }
}

impl Operation {
    /// Returns whether a message can have several segments.
    pub const fn has_stages(self) -> bool {
        match self {
            Operation::Send | Operation::Write | Operation::ReadResponse => true,
            Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd => false,
            Operation::Acknowledge
            | Operation::AtomicResponse
            | Operation::Datagram
            | Operation::LaneReport => false,
        }
    }

    /// Returns its role and the kind of its extension.
    const fn properties(self) -> (OperationRole, ExtensionKind) {
        match self {
            Operation::Send => (OperationRole::Request, ExtensionKind::None),
            Operation::Write | Operation::ReadRequest => (OperationRole::Request, ExtensionKind::Range),
            Operation::CompareSwap | Operation::FetchAdd => (OperationRole::Request, ExtensionKind::Atomic),
            Operation::ReadResponse => (OperationRole::Response, ExtensionKind::None),
            Operation::AtomicResponse => (OperationRole::Response, ExtensionKind::Found),
            Operation::Acknowledge => (OperationRole::Acknowledgment, ExtensionKind::Acknowledgment),
            Operation::Datagram => (OperationRole::Datagram, ExtensionKind::Datagram),
            Operation::LaneReport => (OperationRole::LaneReport, ExtensionKind::LaneReport),
        }
    }

    /// Returns its role.
    pub const fn role(self) -> OperationRole {
        self.properties().0
    }

    /// Returns the kind of the fields after the header.
    pub const fn extension(self) -> ExtensionKind {
        self.properties().1
    }

    /// Returns whether it is a request.
    pub const fn is_request(self) -> bool {
        matches!(self.role(), OperationRole::Request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_follows_from_its_parts() {
        for opcode in Opcode::ALL {
            let again = Opcode::of(opcode.operation(), opcode.stage(), opcode.has_immediate());
            assert_eq!(again, *opcode);
        }
    }

    #[test]
    fn numbers_are_infiniband_numbers() {
        let numbers = [
            (Opcode::SendOnly, 0x04),
            (Opcode::WriteLastImmediate, 0x09),
            (Opcode::ReadRequest, 0x0c),
            (Opcode::ReadResponseOnly, 0x10),
            (Opcode::Acknowledge, 0x11),
            (Opcode::CompareSwap, 0x13),
            (Opcode::FetchAdd, 0x14),
            (Opcode::DatagramImmediate, 0x65),
        ];
        numbers.iter().for_each(|(opcode, number)| assert_eq!(opcode.code(), *number));
    }
}
