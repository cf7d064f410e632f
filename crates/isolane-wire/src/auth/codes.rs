//! Code points of DH-HMAC-CHAP: hash functions, Diffie-Hellman groups, and reasons of a failure.

codes! {
    /// HashID: the hash function of the responses (Base 2.2 figure 733).
    pub enum Hash: u8 {
        Sha256 = 0x01, "SHA-256";
        Sha384 = 0x02, "SHA-384";
        Sha512 = 0x03, "SHA-512";
    }
}

impl Hash {
    /// Length of its values in bytes.
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }
}

codes! {
    /// DHgID: the Diffie-Hellman group, of RFC 7919 (Base 2.2 figure 734).
    pub enum DhGroup: u8 {
        Null = 0x00, "NULL";
        Ffdhe2048 = 0x01, "FFDHE2048";
        Ffdhe3072 = 0x02, "FFDHE3072";
        Ffdhe4096 = 0x03, "FFDHE4096";
        Ffdhe6144 = 0x04, "FFDHE6144";
        Ffdhe8192 = 0x05, "FFDHE8192";
    }
}

impl DhGroup {
    /// Length of its values in bytes; 0 for the NULL group, which exchanges none.
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
            Self::Ffdhe6144 => 768,
            Self::Ffdhe8192 => 1024,
        }
    }
}

codes! {
    /// Reason code explanation of an AUTH_Failure message (Base 2.2 figure 726).
    pub enum AuthFailure: u8 {
        Failed = 0x01, "authentication failed";
        ProtocolUnusable = 0x02, "authentication protocol not usable";
        ConcatenationMismatch = 0x03, "secure channel concatenation mismatch";
        HashUnusable = 0x04, "hash function not usable";
        DhGroupUnusable = 0x05, "DH group not usable";
        IncorrectPayload = 0x06, "incorrect payload";
        IncorrectMessage = 0x07, "incorrect protocol message";
    }
}
