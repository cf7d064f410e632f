//! Formats of the NBD protocol: structures, codes, and flags. All integers are big endian.

use isolane_layout::{Field, codes, layout};

/// A big-endian integer in a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Be<T>(pub T);

macro_rules! big_endian {
    ($($integer:ty),*) => { $(
        impl Field for Be<$integer> {
            const LEN: usize = size_of::<$integer>();

            #[inline]
            fn read(bytes: &[u8]) -> Self {
                let mut be = [0; size_of::<$integer>()];
                be.copy_from_slice(bytes);
                Be(<$integer>::from_be_bytes(be))
            }

            #[inline]
            fn write(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.0.to_be_bytes());
            }
        }
    )* };
}

big_endian!(u16, u32, u64);

layout! {
    /// The first message of the server.
    pub struct Greeting[18] {
        /// [`GREETING_MAGIC`].
        0 => magic: Be<u64>,
        /// [`OPTION_MAGIC`].
        8 => option_magic: Be<u64>,
        /// [`handshake_flag`]s.
        16 => flags: Be<u16>,
    }
}

layout! {
    /// An option of the client; its data follows.
    pub struct OptionHeader[16] {
        /// [`OPTION_MAGIC`].
        0 => magic: Be<u64>,
        /// An [`OptionCode`], or another number.
        8 => option: Be<u32>,
        /// Length of the data in bytes.
        12 => len: Be<u32>,
    }
}

layout! {
    /// A reply to an option; its data follows.
    pub struct OptionReply[20] {
        /// [`OPTION_REPLY_MAGIC`].
        0 => magic: Be<u64>,
        /// The option.
        8 => option: Be<u32>,
        /// A [`ReplyCode`].
        12 => reply: Be<u32>,
        /// Length of the data in bytes.
        16 => len: Be<u32>,
    }
}

layout! {
    /// The export, in reply to the option that only names it.
    pub struct ExportReply[10] {
        /// Size in bytes.
        0 => bytes: Be<u64>,
        /// [`export_flag`]s.
        8 => flags: Be<u16>,
    }
}

layout! {
    /// The export, as a piece of information.
    pub struct ExportInformation[12] {
        /// [`information::EXPORT`].
        0 => kind: Be<u16>,
        /// Size in bytes.
        2 => bytes: Be<u64>,
        /// [`export_flag`]s.
        10 => flags: Be<u16>,
    }
}

layout! {
    /// The block sizes, as a piece of information.
    pub struct BlockSizeInformation[14] {
        /// [`information::BLOCK_SIZE`].
        0 => kind: Be<u16>,
        /// Alignment of every request, in bytes.
        2 => min: Be<u32>,
        /// Alignment of fast requests, in bytes.
        6 => preferred: Be<u32>,
        /// Maximum data of a read or a write, in bytes.
        10 => max_payload: Be<u32>,
    }
}

layout! {
    /// A request; the data of a write follows.
    pub struct RequestHeader[28] {
        /// [`REQUEST_MAGIC`].
        0 => magic: Be<u32>,
        /// [`command_flag`]s.
        4 => flags: Be<u16>,
        /// A [`CommandCode`], or another number.
        6 => command: Be<u16>,
        /// Identifies the request in its reply.
        8 => cookie: Be<u64>,
        /// Offset in the export, in bytes.
        16 => offset: Be<u64>,
        /// Length in bytes.
        24 => len: Be<u32>,
    }
}

layout! {
    /// A simple reply; the data of a read follows.
    pub struct SimpleReply[16] {
        /// [`SIMPLE_REPLY_MAGIC`].
        0 => magic: Be<u32>,
        /// An [`ErrorCode`], or 0.
        4 => error: Be<u32>,
        /// Of the request.
        8 => cookie: Be<u64>,
    }
}

layout! {
    /// A chunk of a structured reply; its data follows.
    pub struct Chunk[20] {
        /// [`CHUNK_MAGIC`].
        0 => magic: Be<u32>,
        /// [`CHUNK_FLAG_DONE`].
        4 => flags: Be<u16>,
        /// A [`chunk`] type.
        6 => kind: Be<u16>,
        /// Of the request.
        8 => cookie: Be<u64>,
        /// Length of the data in bytes.
        16 => len: Be<u32>,
    }
}

layout! {
    /// The start of an error chunk; the message follows.
    pub struct ErrorChunk[6] {
        /// An [`ErrorCode`].
        0 => error: Be<u32>,
        /// Length of the message in bytes.
        4 => len: Be<u16>,
    }
}

layout! {
    /// Consecutive bytes of one status.
    pub struct Descriptor[8] {
        /// Number of bytes.
        0 => len: Be<u32>,
        /// [`allocation`] flags.
        4 => flags: Be<u32>,
    }
}

codes! {
    /// An option of the handshake.
    pub enum OptionCode: u32 {
        ExportName = 1, "NBD_OPT_EXPORT_NAME";
        Abort = 2, "NBD_OPT_ABORT";
        List = 3, "NBD_OPT_LIST";
        StartTls = 5, "NBD_OPT_STARTTLS";
        Info = 6, "NBD_OPT_INFO";
        Go = 7, "NBD_OPT_GO";
        StructuredReply = 8, "NBD_OPT_STRUCTURED_REPLY";
        ListMetaContext = 9, "NBD_OPT_LIST_META_CONTEXT";
        SetMetaContext = 10, "NBD_OPT_SET_META_CONTEXT";
    }
}

codes! {
    /// A reply to an option.
    pub enum ReplyCode: u32 {
        Ack = 1, "NBD_REP_ACK";
        Server = 2, "NBD_REP_SERVER";
        Info = 3, "NBD_REP_INFO";
        MetaContext = 4, "NBD_REP_META_CONTEXT";
        Unsupported = 0x8000_0001, "NBD_REP_ERR_UNSUP";
        Invalid = 0x8000_0003, "NBD_REP_ERR_INVALID";
        UnknownExport = 0x8000_0006, "NBD_REP_ERR_UNKNOWN";
        TooBig = 0x8000_0009, "NBD_REP_ERR_TOO_BIG";
    }
}

codes! {
    /// A command of the transmission phase.
    pub enum CommandCode: u16 {
        Read = 0, "NBD_CMD_READ";
        Write = 1, "NBD_CMD_WRITE";
        Disconnect = 2, "NBD_CMD_DISC";
        Flush = 3, "NBD_CMD_FLUSH";
        Trim = 4, "NBD_CMD_TRIM";
        WriteZeroes = 6, "NBD_CMD_WRITE_ZEROES";
        BlockStatus = 7, "NBD_CMD_BLOCK_STATUS";
    }
}

codes! {
    /// Error of a request.
    pub enum ErrorCode: u32 {
        NotPermitted = 1, "EPERM";
        Io = 5, "EIO";
        Invalid = 22, "EINVAL";
        NoSpace = 28, "ENOSPC";
    }
}

/// `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Of each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Of each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Of each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Of each chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// The last chunk of a reply.
pub const CHUNK_FLAG_DONE: u16 = 1 << 0;
/// The only metadata context.
pub const BASE_ALLOCATION: &[u8] = b"base:allocation";

/// Flags of the handshake; the flags of the client have the same values.
pub mod handshake_flag {
    /// Options other than the name of an export.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No zeroes after the reply to the option that only names an export.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Flags of an export.
pub mod export_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Rejects changes.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Accepts flushes.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Accepts requests to complete only when the data is durable.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Accepts trims.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// Accepts requests to write zeroes.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Accepts reads that must be answered in one chunk.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush of one connection covers the writes of all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Flags of a command.
pub mod command_flag {
    /// Complete only when the data is durable.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes must keep their space.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer in one chunk.
    pub const DF: u16 = 1 << 2;
    /// Answer with the first extent only.
    pub const REQ_ONE: u16 = 1 << 3;
}

/// Kinds of information about an export.
pub mod information {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// Its name.
    pub const NAME: u16 = 1;
    /// A description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Block sizes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Types of chunks.
pub mod chunk {
    /// No data.
    pub const NONE: u16 = 0;
    /// Data of a read, after its offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents, after the ID of the metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error with a message.
    pub const ERROR: u16 = 0x8001;
}

/// Flags of an extent in the context `base:allocation`.
pub mod allocation {
    /// Not allocated.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_greeting() {
        let greeting =
            Greeting { magic: Be(GREETING_MAGIC), option_magic: Be(OPTION_MAGIC), flags: Be(0x0102) };
        assert_eq!(&greeting.encode(), b"NBDMAGICIHAVEOPT\x01\x02");
    }

    #[test]
    fn golden_option_and_reply() {
        let bytes = *b"IHAVEOPT\x01\x02\x03\x04\x05\x06\x07\x08";
        let option = OptionHeader::decode(&bytes);
        assert_eq!((option.magic.0, option.option.0, option.len.0), (OPTION_MAGIC, 0x0102_0304, 0x0506_0708));
        let reply = OptionReply {
            magic: Be(OPTION_REPLY_MAGIC),
            option: Be(7),
            reply: Be(ReplyCode::UnknownExport.code()),
            len: Be(0x0102_0304),
        };
        let expected = b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\x80\0\0\x06\x01\x02\x03\x04";
        assert_eq!(&reply.encode(), expected);
    }

    #[test]
    fn golden_export_and_block_sizes() {
        let export = ExportReply { bytes: Be(0x0102_0304_0506_0708), flags: Be(0x090a) };
        assert_eq!(export.encode(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        let export = ExportInformation {
            kind: Be(information::EXPORT),
            bytes: Be(0x0102_0304_0506_0708),
            flags: Be(9),
        };
        assert_eq!(export.encode(), [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 9]);
        let sizes = BlockSizeInformation {
            kind: Be(information::BLOCK_SIZE),
            min: Be(512),
            preferred: Be(4096),
            max_payload: Be(32 << 20),
        };
        assert_eq!(sizes.encode(), [0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0]);
    }

    #[test]
    fn golden_request() {
        let bytes = *b"\x25\x60\x95\x13\x01\x02\x03\x04\x11\x12\x13\x14\x15\x16\x17\x18\
            \x21\x22\x23\x24\x25\x26\x27\x28\x31\x32\x33\x34";
        let request = RequestHeader::decode(&bytes);
        assert_eq!((request.magic.0, request.flags.0, request.command.0), (REQUEST_MAGIC, 0x0102, 0x0304));
        assert_eq!((request.cookie.0, request.offset.0), (0x1112_1314_1516_1718, 0x2122_2324_2526_2728));
        assert_eq!(request.len.0, 0x3132_3334);
        assert_eq!(request.encode(), bytes);
    }

    #[test]
    fn golden_replies() {
        let simple = SimpleReply {
            magic: Be(SIMPLE_REPLY_MAGIC),
            error: Be(ErrorCode::NoSpace.code()),
            cookie: Be(0x0102_0304_0506_0708),
        };
        assert_eq!(&simple.encode(), b"\x67\x44\x66\x98\0\0\0\x1c\x01\x02\x03\x04\x05\x06\x07\x08");
        let chunk = Chunk {
            magic: Be(CHUNK_MAGIC),
            flags: Be(CHUNK_FLAG_DONE),
            kind: Be(chunk::ERROR),
            cookie: Be(0x0102_0304_0506_0708),
            len: Be(0x090a_0b0c),
        };
        let expected = b"\x66\x8e\x33\xef\0\x01\x80\x01\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c";
        assert_eq!(&chunk.encode(), expected);
        let error = ErrorChunk { error: Be(ErrorCode::Invalid.code()), len: Be(0x0102) };
        assert_eq!(error.encode(), [0, 0, 0, 22, 1, 2]);
        let extent = Descriptor { len: Be(0x0102_0304), flags: Be(allocation::HOLE | allocation::ZERO) };
        assert_eq!(extent.encode(), [1, 2, 3, 4, 0, 0, 0, 3]);
    }
}
