//! Status and Do Not Retry (DNR) of every command that a target fails: one row for each cause.
//!
//! DNR is set exactly where the same command fails again, whatever time or the target changes (Base
//! 1.4 §4.6.1). A host repeats the other commands, here or on another path, instead of reporting an
//! error to its applications.

use isolane_wire::Status;

use crate::completion::Completion;

macro_rules! failures {
    ($( $(#[$doc:meta])* $name:ident = $status:ident, $hint:ident; )*) => {
        /// Cause of the failure of a command.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Failure {
            $( $(#[$doc])* $name, )*
        }

        impl Failure {
            /// All causes.
            pub const ALL: &'static [Failure] = &[$( Failure::$name ),*];

            /// Status of the command, with DNR.
            pub const fn status(self) -> Status {
                match self {
                    $( Failure::$name => $hint(Status::$status), )*
                }
            }
        }
    };
}

failures! {
    /// The opcode or the fabrics command type is unknown or not offered on this queue.
    Opcode = INVALID_OPCODE, fails_again;
    /// A field has a value that is not supported.
    Field = INVALID_FIELD, fails_again;
    /// The command describes its data with PRPs.
    Prp = INVALID_FIELD, fails_again;
    /// The type of the SGL descriptor is not supported, or does not fit the command.
    SglType = SGL_TYPE_INVALID, fails_again;
    /// The data in the capsule has an offset.
    SglOffset = SGL_OFFSET_INVALID, fails_again;
    /// The SGL describes another length than the command moves.
    SglLength = DATA_SGL_LENGTH_INVALID, fails_again;
    /// The namespace does not exist.
    Namespace = INVALID_NAMESPACE, fails_again;
    /// The range ends after the namespace.
    LbaRange = LBA_OUT_OF_RANGE, fails_again;
    /// The namespace is read-only.
    WriteProtected = NAMESPACE_WRITE_PROTECTED, fails_again;
    /// The log page is unknown or not offered.
    LogPage = INVALID_LOG_PAGE, fails_again;
    /// The feature cannot be saved.
    FeatureSave = FEATURE_NOT_SAVEABLE, fails_again;
    /// The feature cannot be changed.
    FeatureChange = FEATURE_NOT_CHANGEABLE, fails_again;
    /// The feature does not belong to a namespace.
    FeatureNamespace = FEATURE_NOT_NAMESPACE_SPECIFIC, fails_again;
    /// The host holds as many Async Event Requests as the controller takes; no event completes them.
    AsyncEventLimit = ASYNC_EVENT_LIMIT_EXCEEDED, fails_again;
    /// The host must send another command first, or cannot send this one again.
    Sequence = COMMAND_SEQUENCE_ERROR, fails_again;
    /// The format of a fabrics command is unknown.
    RecordFormat = CONNECT_INCOMPATIBLE_FORMAT, fails_again;
    /// A field of a Connect or of its data is invalid; dword 0 names it.
    ConnectParameter = CONNECT_INVALID_PARAMETERS, fails_again;
    /// The host is not allowed.
    HostNotAllowed = CONNECT_INVALID_HOST, fails_again;
    /// The host has not authenticated, and this command is not a part of that.
    Authentication = AUTHENTICATION_REQUIRED, fails_again;
    /// The queue cannot be disconnected.
    QueueType = INVALID_QUEUE_TYPE, fails_again;
    /// This is a read, and the file of the volume was truncated, its device is gone, or a sync has failed and the page
    /// cache may have what the disk does not.
    ReadTruncated = UNRECOVERED_READ_ERROR, fails_again;
    /// The file of the volume was truncated while it was served, and this is a change.
    WriteTruncated = WRITE_FAULT, fails_again;
    /// A sync of the volume has failed, or its device is gone; all writes fail until it is reopened.
    SyncFailed = WRITE_FAULT, fails_again;
    /// The storage has no space; with DNR, Linux hosts report "no space".
    NoSpace = CAPACITY_EXCEEDED, fails_again;
    /// A fault of this program.
    Internal = INTERNAL_ERROR, fails_again;

    /// Another command has the CID.
    CidInUse = COMMAND_ID_CONFLICT, may_succeed;
    /// A queue that may be ending has the QID.
    QidInUse = COMMAND_SEQUENCE_ERROR, may_succeed;
    /// I/O of the controller has not ended since CC.EN became 0.
    Resetting = COMMAND_SEQUENCE_ERROR, may_succeed;
    /// The controller does not accept I/O now.
    NotReady = COMMAND_SEQUENCE_ERROR, may_succeed;
    /// The controller or the target has no capacity for the Connect now.
    Busy = CONNECT_CONTROLLER_BUSY, may_succeed;
    /// The association has ended, or was reset.
    QueueDeleted = ABORTED_SQ_DELETION, may_succeed;
    /// The host has aborted the command.
    Aborted = ABORTED_BY_REQUEST, may_succeed;
    /// The data was damaged in transit.
    DataDigest = TRANSIENT_TRANSPORT_ERROR, may_succeed;
    /// A volume did not flush in time.
    FlushTimeout = NAMESPACE_NOT_READY, may_succeed;
    /// The volume has not completed the command in time.
    Stalled = NAMESPACE_NOT_READY, after_short_delay;
    /// The operator has taken the namespace offline.
    Offline = NAMESPACE_NOT_READY, after_long_delay;
    /// The storage could not be read.
    Read = UNRECOVERED_READ_ERROR, may_succeed;
    /// The storage could not be written.
    Write = WRITE_FAULT, may_succeed;
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Status {
        failure.status()
    }
}

impl From<Failure> for Completion {
    fn from(failure: Failure) -> Completion {
        Completion::failed(failure.status())
    }
}

const fn fails_again(status: Status) -> Status {
    Status(status.0 | DNR)
}

const fn may_succeed(status: Status) -> Status {
    status
}

/// Lets a host that knows CRDT1 wait for it.
const fn after_short_delay(status: Status) -> Status {
    Status(status.0 | CRD_1)
}

/// Lets a host that knows CRDT2 wait for it.
const fn after_long_delay(status: Status) -> Status {
    Status(status.0 | CRD_2)
}

const DNR: u16 = 1 << 14;
const CRD_1: u16 = 1 << 11;
const CRD_2: u16 = 2 << 11;
