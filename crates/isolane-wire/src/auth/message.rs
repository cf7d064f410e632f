//! Headers of the messages (Base 2.2 §8.3.4.4, §8.3.4.5).

layout! {
    /// The fields that all messages share.
    #[derive(Copy)]
    pub struct MessageHeader[6] {
        /// AUTH_TYPE and AUTH_ID, see [`MessageId`].
        0 => id: [u8; 2],
        /// T_ID: transaction identifier, chosen by the host.
        4 => t_id: u16,
    }
}

/// AUTH_TYPE and AUTH_ID of each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageId {
    /// AUTH_Negotiate, of the host.
    Negotiate,
    /// DH-HMAC-CHAP_Challenge, of the controller.
    Challenge,
    /// DH-HMAC-CHAP_Reply, of the host.
    Reply,
    /// DH-HMAC-CHAP_Success1, of the controller.
    Success1,
    /// DH-HMAC-CHAP_Success2, of the host.
    Success2,
    /// AUTH_Failure1, of the controller.
    Failure1,
    /// AUTH_Failure2, of the host.
    Failure2,
}

impl MessageId {
    const CODES: [(Self, [u8; 2]); 7] = [
        (Self::Negotiate, [0x00, 0x00]),
        (Self::Challenge, [0x01, 0x01]),
        (Self::Reply, [0x01, 0x02]),
        (Self::Success1, [0x01, 0x03]),
        (Self::Success2, [0x01, 0x04]),
        (Self::Failure1, [0x00, 0xf1]),
        (Self::Failure2, [0x00, 0xf0]),
    ];

    /// Returns the message with these codes, if known.
    pub fn decode_id(codes: [u8; 2]) -> Option<Self> {
        Self::CODES.iter().find(|(_, known)| *known == codes).map(|(id, _)| *id)
    }

    /// Returns AUTH_TYPE and AUTH_ID.
    pub fn codes(self) -> [u8; 2] {
        Self::CODES.iter().find(|(id, _)| *id == self).map_or([0; 2], |(_, codes)| *codes)
    }
}

layout! {
    /// AUTH_Negotiate; NAPD descriptors follow.
    pub struct Negotiate[8] {
        /// AUTH_TYPE and AUTH_ID.
        0 => id: [u8; 2],
        /// T_ID: transaction identifier.
        4 => t_id: u16,
        /// SC_C: secure channel concatenation; 0 is none.
        6 => sc_c: u8,
        /// NAPD: number of protocol descriptors.
        7 => napd: u8,
    }
}

/// AUTHID of the descriptor of DH-HMAC-CHAP.
pub const DHCHAP_PROTOCOL: u8 = 0x01;

layout! {
    /// Protocol descriptor of AUTH_Negotiate: what the host can use.
    pub struct ProtocolDescriptor[64] {
        /// AUTHID: [`DHCHAP_PROTOCOL`].
        0 => authid: u8,
        /// HALEN: number of hash functions.
        2 => halen: u8,
        /// DHLEN: number of groups.
        3 => dhlen: u8,
        /// HashIDs.
        4 => hashes: [u8; 30],
        /// DHgIDs.
        34 => groups: [u8; 30],
    }
}

layout! {
    /// DH-HMAC-CHAP_Challenge; HL bytes of challenge and DHVLEN bytes of DH value follow.
    pub struct Challenge[16] {
        /// AUTH_TYPE and AUTH_ID.
        0 => id: [u8; 2],
        /// T_ID: transaction identifier.
        4 => t_id: u16,
        /// HL: length of a hash value in bytes.
        6 => hl: u8,
        /// HASHID: the hash function that the controller chose.
        8 => hash: u8,
        /// DHGID: the group that the controller chose.
        9 => group: u8,
        /// DHVLEN: length of the DH value in bytes.
        10 => dhvlen: u16,
        /// SEQNUM: sequence number S1, not 0.
        12 => seqnum: u32,
    }
}

layout! {
    /// DH-HMAC-CHAP_Reply; HL bytes of response, HL bytes of challenge, and DHVLEN bytes of DH value
    /// follow.
    pub struct Reply[16] {
        /// AUTH_TYPE and AUTH_ID.
        0 => id: [u8; 2],
        /// T_ID: transaction identifier.
        4 => t_id: u16,
        /// HL: length of a hash value in bytes.
        6 => hl: u8,
        /// CVALID: 1 if the host challenges the controller; the bytes of the challenge are always there.
        8 => cvalid: u8,
        /// DHVLEN: length of the DH value in bytes.
        10 => dhvlen: u16,
        /// SEQNUM: sequence number S2; 0 without a challenge.
        12 => seqnum: u32,
    }
}

layout! {
    /// DH-HMAC-CHAP_Success1; HL bytes of response follow if RVALID is 1.
    pub struct Success1[16] {
        /// AUTH_TYPE and AUTH_ID.
        0 => id: [u8; 2],
        /// T_ID: transaction identifier.
        4 => t_id: u16,
        /// HL: length of a hash value in bytes.
        6 => hl: u8,
        /// RVALID: 1 if the controller responds to a challenge.
        8 => rvalid: u8,
    }
}

layout! {
    /// DH-HMAC-CHAP_Success2.
    pub struct Success2[16] {
        /// AUTH_TYPE and AUTH_ID.
        0 => id: [u8; 2],
        /// T_ID: transaction identifier.
        4 => t_id: u16,
    }
}

layout! {
    /// AUTH_Failure1 or AUTH_Failure2.
    pub struct Failure[8] {
        /// AUTH_TYPE and AUTH_ID.
        0 => id: [u8; 2],
        /// T_ID: transaction identifier.
        4 => t_id: u16,
        /// Reason code: [`Failure::REASON`] is the only one.
        6 => reason: u8,
        /// Reason code explanation, see [`AuthFailure`](super::AuthFailure).
        7 => explanation: u8,
    }
}

impl Failure {
    /// Reason code "authentication failure".
    pub const REASON: u8 = 0x01;
}
