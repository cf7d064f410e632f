//! The status field of a completion (Base 1.4 §4.6.1; Fabrics 1.1 §2.2).

use core::fmt;

use crate::Field;

bits! {
    @word
    /// Status field without the phase tag: code, type of code, retry hints.
    pub struct Status(u16) {
        /// SC: status code, its meaning depends on the type.
        sc / with_sc: u8 = [7:0],
        /// SCT: status code type.
        sct / with_sct: u8 = [10:8],
        /// CRD: retry delay of Identify Controller to apply; 0 is no delay.
        crd / with_crd: u8 = [12:11],
        /// M: the error log has more information.
        more / with_more: bool = [13:13],
        /// DNR: do not retry, the command would fail again.
        dnr / with_dnr: bool = [14:14],
    }
}

impl Status {
    /// Returns the status of this type and code, without retry hints and More.
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self(u16::from_le_bytes([sc, sct & 0x7]))
    }

    /// Type and code without retry hints, which identify a status.
    pub fn kind(self) -> Self {
        Self::new(self.sct(), self.sc())
    }

    /// Whether the command succeeded.
    #[inline]
    pub fn is_success(self) -> bool {
        self.sc() == 0 && self.sct() == 0
    }

    /// Whether this is `other`, ignoring retry hints.
    pub fn is(self, other: Self) -> bool {
        self.kind() == other.kind()
    }
}

/// In an entry the status is above the phase tag, which is unused over Fabrics: written as zero and
/// ignored (Fabrics 1.1 §2.2).
impl Field for Status {
    const LEN: usize = 2;

    #[inline]
    fn read(bytes: &[u8]) -> Self {
        Self(StatusAndPhase::read(bytes).status())
    }

    #[inline]
    fn write(&self, bytes: &mut [u8]) {
        StatusAndPhase(0).with_status(self.0).write(bytes);
    }
}

bits! {
    /// Encodes the last word of a completion entry.
    pub struct StatusAndPhase(u16) {
        /// The status field.
        status / with_status: u16 = [15:1],
    }
}

macro_rules! statuses {
    ($( $name:ident = $sct:literal / $sc:literal, $text:literal; )*) => {
        impl Status {
            $(
                #[doc = concat!("Status ", stringify!($sct), "/", stringify!($sc), ": ", $text, ".")]
                pub const $name: Self = Self::new($sct, $sc);
            )*

            /// All statuses with a name.
            pub const ALL: &'static [Self] = &[$( Self::$name ),*];

            /// Returns the name of the status; `None` if unknown.
            pub fn name(self) -> Option<&'static str> {
                match (self.sct(), self.sc()) {
                    $( ($sct, $sc) => Some($text), )*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0x0 / 0x00, "successful completion";
    INVALID_OPCODE = 0x0 / 0x01, "invalid command opcode";
    INVALID_FIELD = 0x0 / 0x02, "invalid field in command";
    COMMAND_ID_CONFLICT = 0x0 / 0x03, "command ID conflict";
    DATA_TRANSFER_ERROR = 0x0 / 0x04, "data transfer error";
    ABORTED_POWER_LOSS = 0x0 / 0x05, "aborted due to power loss notification";
    INTERNAL_ERROR = 0x0 / 0x06, "internal error";
    ABORTED_BY_REQUEST = 0x0 / 0x07, "command abort requested";
    ABORTED_SQ_DELETION = 0x0 / 0x08, "aborted due to submission queue deletion";
    ABORTED_FAILED_FUSED = 0x0 / 0x09, "aborted due to failed fused command";
    ABORTED_MISSING_FUSED = 0x0 / 0x0a, "aborted due to missing fused command";
    INVALID_NAMESPACE = 0x0 / 0x0b, "invalid namespace or format";
    COMMAND_SEQUENCE_ERROR = 0x0 / 0x0c, "command sequence error";
    INVALID_SGL_SEGMENT = 0x0 / 0x0d, "invalid SGL segment descriptor";
    INVALID_SGL_COUNT = 0x0 / 0x0e, "invalid number of SGL descriptors";
    DATA_SGL_LENGTH_INVALID = 0x0 / 0x0f, "data SGL length invalid";
    METADATA_SGL_LENGTH_INVALID = 0x0 / 0x10, "metadata SGL length invalid";
    SGL_TYPE_INVALID = 0x0 / 0x11, "SGL descriptor type invalid";
    INVALID_CMB_USE = 0x0 / 0x12, "invalid use of controller memory buffer";
    PRP_OFFSET_INVALID = 0x0 / 0x13, "PRP offset invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0x0 / 0x14, "atomic write unit exceeded";
    OPERATION_DENIED = 0x0 / 0x15, "operation denied";
    SGL_OFFSET_INVALID = 0x0 / 0x16, "SGL offset invalid";
    HOST_ID_INCONSISTENT = 0x0 / 0x18, "host identifier inconsistent format";
    KEEP_ALIVE_EXPIRED = 0x0 / 0x19, "keep alive timer expired";
    KEEP_ALIVE_INVALID = 0x0 / 0x1a, "keep alive timeout invalid";
    ABORTED_PREEMPT = 0x0 / 0x1b, "aborted due to preempt and abort";
    SANITIZE_FAILED = 0x0 / 0x1c, "sanitize failed";
    SANITIZE_IN_PROGRESS = 0x0 / 0x1d, "sanitize in progress";
    SGL_BLOCK_GRANULARITY_INVALID = 0x0 / 0x1e, "SGL data block granularity invalid";
    NOT_SUPPORTED_IN_CMB = 0x0 / 0x1f, "command not supported for queue in CMB";
    NAMESPACE_WRITE_PROTECTED = 0x0 / 0x20, "namespace is write protected";
    COMMAND_INTERRUPTED = 0x0 / 0x21, "command interrupted";
    TRANSIENT_TRANSPORT_ERROR = 0x0 / 0x22, "transient transport error";
    PROHIBITED_BY_LOCKDOWN = 0x0 / 0x23, "command prohibited by lockdown";
    ADMIN_MEDIA_NOT_READY = 0x0 / 0x24, "admin command media not ready";
    LBA_OUT_OF_RANGE = 0x0 / 0x80, "LBA out of range";
    CAPACITY_EXCEEDED = 0x0 / 0x81, "capacity exceeded";
    NAMESPACE_NOT_READY = 0x0 / 0x82, "namespace not ready";
    RESERVATION_CONFLICT = 0x0 / 0x83, "reservation conflict";
    FORMAT_IN_PROGRESS = 0x0 / 0x84, "format in progress";

    COMPLETION_QUEUE_INVALID = 0x1 / 0x00, "completion queue invalid";
    INVALID_QUEUE_ID = 0x1 / 0x01, "invalid queue identifier";
    INVALID_QUEUE_SIZE = 0x1 / 0x02, "invalid queue size";
    ABORT_LIMIT_EXCEEDED = 0x1 / 0x03, "abort command limit exceeded";
    ASYNC_EVENT_LIMIT_EXCEEDED = 0x1 / 0x05, "asynchronous event request limit exceeded";
    INVALID_FIRMWARE_SLOT = 0x1 / 0x06, "invalid firmware slot";
    INVALID_FIRMWARE_IMAGE = 0x1 / 0x07, "invalid firmware image";
    INVALID_INTERRUPT_VECTOR = 0x1 / 0x08, "invalid interrupt vector";
    INVALID_LOG_PAGE = 0x1 / 0x09, "invalid log page";
    INVALID_FORMAT = 0x1 / 0x0a, "invalid format";
    INVALID_QUEUE_DELETION = 0x1 / 0x0c, "invalid queue deletion";
    FEATURE_NOT_SAVEABLE = 0x1 / 0x0d, "feature identifier not saveable";
    FEATURE_NOT_CHANGEABLE = 0x1 / 0x0e, "feature not changeable";
    FEATURE_NOT_NAMESPACE_SPECIFIC = 0x1 / 0x0f, "feature not namespace specific";
    NAMESPACE_ID_UNAVAILABLE = 0x1 / 0x16, "namespace identifier unavailable";
    INVALID_CONTROLLER_LIST = 0x1 / 0x1c, "controller list invalid";
    IO_COMMAND_SET_NOT_SUPPORTED = 0x1 / 0x29, "I/O command set not supported";
    CONNECT_INCOMPATIBLE_FORMAT = 0x1 / 0x80, "connect incompatible format";
    CONNECT_CONTROLLER_BUSY = 0x1 / 0x81, "connect controller busy";
    CONNECT_INVALID_PARAMETERS = 0x1 / 0x82, "connect invalid parameters";
    CONNECT_RESTART_DISCOVERY = 0x1 / 0x83, "connect restart discovery";
    CONNECT_INVALID_HOST = 0x1 / 0x84, "connect invalid host";
    INVALID_QUEUE_TYPE = 0x1 / 0x85, "invalid queue type";
    DISCOVER_RESTART = 0x1 / 0x90, "discover restart";
    AUTHENTICATION_REQUIRED = 0x1 / 0x91, "authentication required";

    WRITE_FAULT = 0x2 / 0x80, "write fault";
    UNRECOVERED_READ_ERROR = 0x2 / 0x81, "unrecovered read error";
    GUARD_CHECK_ERROR = 0x2 / 0x82, "end-to-end guard check error";
    APPLICATION_TAG_CHECK_ERROR = 0x2 / 0x83, "end-to-end application tag check error";
    REFERENCE_TAG_CHECK_ERROR = 0x2 / 0x84, "end-to-end reference tag check error";
    COMPARE_FAILURE = 0x2 / 0x85, "compare failure";
    ACCESS_DENIED = 0x2 / 0x86, "access denied";
    DEALLOCATED_OR_UNWRITTEN = 0x2 / 0x87, "deallocated or unwritten logical block";

    INTERNAL_PATH_ERROR = 0x3 / 0x00, "internal path error";
    ANA_PERSISTENT_LOSS = 0x3 / 0x01, "asymmetric access persistent loss";
    ANA_INACCESSIBLE = 0x3 / 0x02, "asymmetric access inaccessible";
    ANA_TRANSITION = 0x3 / 0x03, "asymmetric access transition";
    CONTROLLER_PATHING_ERROR = 0x3 / 0x60, "controller pathing error";
    HOST_PATHING_ERROR = 0x3 / 0x70, "host pathing error";
    ABORTED_BY_HOST = 0x3 / 0x71, "command aborted by host";
}

/// Formats as `LBA out of range (0/80h, do not retry)`. The Read and Write codes 1/80h to 1/82h
/// share their numbers with codes of Connect, whose names are used (Base 1.4 figure 128).
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name().unwrap_or("status without a name");
        write!(f, "{name} ({:x}/{:02x}h", self.sct(), self.sc())?;
        f.write_str(if self.dnr() { ", do not retry)" } else { ")" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::HashSet, format};

    #[test]
    fn encodes_fields_without_phase_tag() {
        let status = Status(0).with_sc(0x81).with_sct(2).with_crd(1).with_more(true).with_dnr(true);
        assert_eq!(status.0, 0b110_1010_1000_0001);
        assert!(status.is(Status::UNRECOVERED_READ_ERROR) && !status.is_success());
    }

    #[test]
    fn no_status_has_two_names() {
        let all: HashSet<_> = Status::ALL.iter().collect();
        assert_eq!(all.len(), Status::ALL.len());
    }

    #[test]
    fn formats_name_and_numbers() {
        let text = format!("{}", Status::LBA_OUT_OF_RANGE.with_dnr(true));
        assert_eq!(text, "LBA out of range (0/80h, do not retry)");
        assert_eq!(format!("{}", Status::new(7, 0xfe)), "status without a name (7/feh)");
    }

    #[test]
    fn names_shared_numbers_for_connect() {
        assert_eq!(Status::new(1, 0x82).name(), Some("connect invalid parameters"));
    }
}
