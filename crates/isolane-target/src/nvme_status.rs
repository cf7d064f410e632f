//! Mapping from volume errors to causes in the table of NVMe statuses, [`Failure`].
//!
//! | volume error | culprit | status | retry |
//! |---|---|---|---|
//! | `OutOfRange` | host | 0/80h LBA Out of Range | no |
//! | `ReadOnly` | host | 0/20h Namespace is Write Protected | no |
//! | `WrongLength` | this program | 0/06h Internal Error | no |
//! | `NoSpace` (ENOSPC, EDQUOT, EFBIG) | system | 0/81h Capacity Exceeded | no: Linux hosts report "no space" |
//! | `ReadFailed` (EIO) | storage | 2/81h Unrecovered Read Error | yes |
//! | `WriteFailed` (EIO), `ShortWrite`, `SizeUnknown` | storage | 2/80h Write Fault | yes |
//! | `Shrunk` | program that truncated the file | 2/81h reading, 2/80h writing | no |
//! | `SyncFailed`, `Gone` (sticky) | storage | the same | no: the same command fails until the volume is reopened |

use isolane_observe::stage::Operation;
use isolane_proto::Failure;
use isolane_volume::VolumeError;
use isolane_wire::Status;

/// Returns the status of a command that failed with `error`.
pub(crate) fn status_for(error: &VolumeError, operation: Operation) -> Status {
    let failure = match error {
        VolumeError::OutOfRange { .. } => Failure::LbaRange,
        VolumeError::ReadOnly => Failure::WriteProtected,
        VolumeError::WrongLength { .. } => Failure::Internal,
        VolumeError::NoSpace { .. } => Failure::NoSpace,
        VolumeError::Shrunk | VolumeError::SyncFailed { .. } | VolumeError::Gone { .. }
            if operation == Operation::Read =>
        {
            Failure::ReadTruncated
        }
        VolumeError::Shrunk => Failure::WriteTruncated,
        VolumeError::ReadFailed { .. } => Failure::Read,
        VolumeError::SyncFailed { .. } | VolumeError::Gone { .. } => Failure::SyncFailed,
        VolumeError::WriteFailed { .. }
        | VolumeError::SizeUnknown { .. }
        | VolumeError::ShortWrite { .. } => Failure::Write,
    };
    failure.status()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EIO: i32 = 5;

    #[test]
    fn every_error_has_the_status_of_the_table() {
        use Operation::{Flush, Read, Write};
        let range = VolumeError::OutOfRange { lba: 1, blocks: 2, volume_blocks: 1 };
        let table = [
            (range, Read, Status::LBA_OUT_OF_RANGE, true),
            (VolumeError::ReadOnly, Write, Status::NAMESPACE_WRITE_PROTECTED, true),
            (VolumeError::WrongLength { given: 1, blocks: 1 }, Write, Status::INTERNAL_ERROR, true),
            (VolumeError::NoSpace { raw_os_error: 28 }, Write, Status::CAPACITY_EXCEEDED, true),
            (VolumeError::ReadFailed { raw_os_error: EIO }, Read, Status::UNRECOVERED_READ_ERROR, false),
            (VolumeError::WriteFailed { raw_os_error: EIO }, Write, Status::WRITE_FAULT, false),
            (VolumeError::ShortWrite { done: 1, len: 2 }, Write, Status::WRITE_FAULT, false),
            (VolumeError::SizeUnknown { raw_os_error: EIO }, Flush, Status::WRITE_FAULT, false),
            (VolumeError::Shrunk, Read, Status::UNRECOVERED_READ_ERROR, true),
            (VolumeError::Shrunk, Write, Status::WRITE_FAULT, true),
            (VolumeError::SyncFailed { raw_os_error: EIO }, Flush, Status::WRITE_FAULT, true),
            (VolumeError::SyncFailed { raw_os_error: EIO }, Read, Status::UNRECOVERED_READ_ERROR, true),
            (VolumeError::Gone { raw_os_error: 6 }, Write, Status::WRITE_FAULT, true),
            (VolumeError::Gone { raw_os_error: 6 }, Read, Status::UNRECOVERED_READ_ERROR, true),
        ];
        for (error, operation, status, do_not_retry) in table {
            let answer = status_for(&error, operation);
            assert_eq!((answer.kind(), answer.dnr()), (status, do_not_retry), "{error}");
            let code = format!("{:x}/{:02x}h", status.sct(), status.sc());
            let documented = include_str!("../../../docs/DURABILITY.md").contains(&code);
            assert!(documented || matches!(error, VolumeError::WrongLength { .. }), "{error}: {code}");
        }
    }
}
