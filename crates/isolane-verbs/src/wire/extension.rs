//! Extensions: fields after the segment header, announced by the opcode.

use std::time::Duration;

isolane_layout::layout! {
    /// Range of a region of the responder (RETH of InfiniBand).
    pub struct RemoteRange[16] {
        /// Address of the message's first byte.
        0 => address: u64,
        /// Remote key of the region.
        8 => key: u32,
        /// Length of the range in bytes: the size of the message.
        12 => length: u32,
    }
}

isolane_layout::layout! {
    /// Operands of an atomic operation on 8 bytes.
    pub struct AtomicOperands[32] {
        /// Address, a multiple of 8.
        0 => address: u64,
        /// Remote key of the region.
        8 => key: u32,
        /// New value, or the value to add.
        16 => swap_or_add: u64,
        /// Expected value of a compare and swap.
        24 => compare: u64,
    }
}

isolane_layout::layout! {
    /// Result of the message that the header names (AETH of InfiniBand).
    pub struct Acknowledgment[8] {
        /// Syndrome.
        0 => syndrome: u8,
        /// Delay before the next attempt after [`Syndrome::ReceiverNotReady`]: the code of `min_rnr_timer`.
        1 => timer: u8,
        /// With [`Syndrome::ReceiverNotReady`], index of the first receive that is missing, modulo 2⁸.
        2 => receive: u8,
    }
}

isolane_layout::layout! {
    /// Source of a datagram (DETH of InfiniBand).
    pub struct DatagramSource[8] {
        /// Q_Key of the destination.
        0 => q_key: u32,
        /// Number of the sending queue pair, in the low 24 bits.
        4 => qpn: u32,
    }
}

isolane_layout::layout! {
    /// Report about a lane that has ended: the peer sends the rest on other lanes.
    pub struct LaneReport[20] {
        /// Index of the lane.
        0 => lane: u8,
        /// Epoch that has ended.
        4 => epoch: u32,
        /// Last epoch in which anything arrived; 0 if none.
        8 => received_epoch: u32,
        /// Number of segments that arrived completely in that epoch.
        12 => segments: u32,
        /// Number of payload bytes of the next segment that arrived.
        16 => bytes: u32,
    }
}

isolane_layout::codes! {
    /// Kind of an acknowledgment.
    pub enum Syndrome: u8 {
        Acknowledged = 0x00, "acknowledged";
        ReceiverNotReady = 0x20, "receiver not ready";
        ReceiverReady = 0x40, "receiver ready again";
        Ended = 0x50, "queue pair ended";
        Failed = 0x51, "queue pair failed";
        Probe = 0x52, "lane probe";
        Alive = 0x53, "lane alive";
        ReceiveAwaited = 0x54, "receive awaited";
        NakSequence = 0x60, "sequence error";
        NakInvalidRequest = 0x61, "invalid request";
        NakRemoteAccess = 0x62, "remote access error";
        NakRemoteOperation = 0x63, "remote operational error";
    }
}

/// Returns the delay that a code of `min_rnr_timer` stands for (IBA 1.3, table 45). Only the low 5 bits count.
pub const fn rnr_delay(code: u8) -> Duration {
    const DELAYS_10_US: [u64; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    Duration::from_micros(10 * DELAYS_10_US[(code & 31) as usize])
}

/// Reason why a responder refused a request; it ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// The segments do not follow each other.
    Sequence,
    /// The request is malformed, too long for the receive, or not supported.
    InvalidRequest,
    /// Key, bounds, or rights do not allow the access.
    RemoteAccess,
    /// The responder failed for another reason.
    RemoteOperation,
}

impl NakCode {
    /// Returns the syndrome that carries the code.
    pub const fn syndrome(self) -> Syndrome {
        match self {
            NakCode::Sequence => Syndrome::NakSequence,
            NakCode::InvalidRequest => Syndrome::NakInvalidRequest,
            NakCode::RemoteAccess => Syndrome::NakRemoteAccess,
            NakCode::RemoteOperation => Syndrome::NakRemoteOperation,
        }
    }

    /// Returns the code that a syndrome carries, if it is a NAK.
    pub const fn from_syndrome(syndrome: Syndrome) -> Option<NakCode> {
        match syndrome {
            Syndrome::NakSequence => Some(NakCode::Sequence),
            Syndrome::NakInvalidRequest => Some(NakCode::InvalidRequest),
            Syndrome::NakRemoteAccess => Some(NakCode::RemoteAccess),
            Syndrome::NakRemoteOperation => Some(NakCode::RemoteOperation),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_vectors() {
        let range = RemoteRange { address: 0x0807_0605_0403_0201, key: 0x0c0b_0a09, length: 0x100f_0e0d };
        let bytes: [u8; 16] = std::array::from_fn(|at| at as u8 + 1);
        assert_eq!((range.encode(), RemoteRange::decode(&bytes)), (bytes, range.clone()));

        let operands = AtomicOperands {
            address: 0x0807_0605_0403_0201,
            key: 0x0c0b_0a09,
            swap_or_add: 0x1817_1615_1413_1211,
            compare: 0x201f_1e1d_1c1b_1a19,
        };
        let mut bytes: [u8; 32] = std::array::from_fn(|at| at as u8 + 1);
        bytes[12..16].fill(0);
        assert_eq!((operands.encode(), AtomicOperands::decode(&bytes)), (bytes, operands.clone()));

        let acknowledgment = Acknowledgment { syndrome: 0x61, timer: 0x02, receive: 0x03 };
        let bytes = [0x61, 2, 3, 0, 0, 0, 0, 0];
        assert_eq!(
            (acknowledgment.encode(), Acknowledgment::decode(&bytes)),
            (bytes, acknowledgment.clone())
        );

        let report = LaneReport {
            lane: 0x01,
            epoch: 0x0807_0605,
            received_epoch: 0x0c0b_0a09,
            segments: 0x100f_0e0d,
            bytes: 0x1413_1211,
        };
        let mut bytes: [u8; 20] = std::array::from_fn(|at| at as u8 + 1);
        bytes[1..4].fill(0);
        assert_eq!((report.encode(), LaneReport::decode(&bytes)), (bytes, report.clone()));

        let source = DatagramSource { q_key: 0x0403_0201, qpn: 0x0007_0605 };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 0];
        assert_eq!((source.encode(), DatagramSource::decode(&bytes)), (bytes, source.clone()));
    }

    #[test]
    fn delays_grow_with_their_code() {
        let delays: Vec<Duration> = (1..32).map(rnr_delay).collect();
        assert!(delays.is_sorted_by(|first, second| first < second));
        assert_eq!(
            [rnr_delay(12), rnr_delay(31), rnr_delay(0)].map(|delay| delay.as_micros()),
            [640, 491_520, 655_360]
        );
    }

    #[test]
    fn refusals_have_syndromes() {
        for code in
            [NakCode::Sequence, NakCode::InvalidRequest, NakCode::RemoteAccess, NakCode::RemoteOperation]
        {
            assert_eq!(NakCode::from_syndrome(code.syndrome()), Some(code));
        }
        assert_eq!(NakCode::from_syndrome(Syndrome::Acknowledged), None);
    }
}
