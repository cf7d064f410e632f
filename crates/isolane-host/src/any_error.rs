//! [`Error`]: any error of this crate, and the conversions to `io::Error`.
//!
//! Debug of every error here prints its Display text, so that `fn main() -> Result<(), isolane_host::Error>` and
//! `unwrap` show what failed, why, and the remedy.

use std::fmt;
use std::io::{self, ErrorKind};

use isolane_wire::Status;

use crate::cores::CoresError;
use crate::error::{ConnectError, RequestError};
use crate::uri::UriError;
use crate::volume::TransferError;

/// Any error of this crate, for callers that pass errors on with `?`.
#[derive(Clone, thiserror::Error)]
pub enum Error {
    /// A text is not a volume URI.
    #[error(transparent)]
    Uri(#[from] UriError),
    /// A text is not a list of cores.
    #[error(transparent)]
    Cores(#[from] CoresError),
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A request failed.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Drops the buffer of the failed request.
impl From<TransferError> for Error {
    fn from(failed: TransferError) -> Error {
        Error::Request(failed.error)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Uri(_) | Error::Cores(_) => ErrorKind::InvalidInput,
            Error::Connect(error) => error.kind(),
            Error::Request(error) => error.kind(),
        };
        io::Error::new(kind, error)
    }
}

impl ConnectError {
    /// Returns the kind of `io::Error` that this error becomes.
    fn kind(&self) -> ErrorKind {
        match self {
            ConnectError::Resolve { source, .. }
            | ConnectError::Socket { source, .. }
            | ConnectError::Core { source, .. }
            | ConnectError::System { source, .. } => source.kind(),
            ConnectError::Timeout { .. } => ErrorKind::TimedOut,
            ConnectError::Closed { .. } | ConnectError::Lost { .. } => ErrorKind::ConnectionAborted,
            ConnectError::ProtocolViolation { .. } => ErrorKind::InvalidData,
            ConnectError::Refused { status, .. } if status.is(Status::CONNECT_INVALID_HOST) => {
                ErrorKind::PermissionDenied
            }
            ConnectError::Refused { .. } | ConnectError::NotReady { .. } => ErrorKind::ConnectionRefused,
            ConnectError::NoSubsystem(_)
            | ConnectError::NoNamespace
            | ConnectError::UnknownNamespace { .. } => ErrorKind::NotFound,
            ConnectError::SocketOption(_)
            | ConnectError::Lanes { .. }
            | ConnectError::Depth { .. }
            | ConnectError::NoQuiesceTime(_)
            | ConnectError::AmbiguousSubsystem(_)
            | ConnectError::AmbiguousNamespace(_) => ErrorKind::InvalidInput,
            ConnectError::Unsupported(_) => ErrorKind::Unsupported,
            ConnectError::OnCore { source, .. } => source.kind(),
            ConnectError::VolumeChanged(_) | ConnectError::DifferentVolume(_) | ConnectError::Engine(_) => {
                ErrorKind::Other
            }
        }
    }
}

impl RequestError {
    /// Returns the kind of `io::Error` that this error becomes.
    fn kind(&self) -> ErrorKind {
        match self {
            RequestError::Status(status) if status.is(Status::CAPACITY_EXCEEDED) => ErrorKind::StorageFull,
            RequestError::Status(status) if status.is(Status::NAMESPACE_WRITE_PROTECTED) => {
                ErrorKind::ReadOnlyFilesystem
            }
            RequestError::DataDigest => ErrorKind::InvalidData,
            RequestError::OutOfRange { .. }
            | RequestError::Unaligned { .. }
            | RequestError::Buffer(_)
            | RequestError::InvalidRanges
            | RequestError::Lane { .. } => ErrorKind::InvalidInput,
            RequestError::TooMany(_) => ErrorKind::QuotaExceeded,
            RequestError::Lost(error) => error.kind(),
            RequestError::Closed => ErrorKind::NotConnected,
            RequestError::Status(_)
            | RequestError::FateUnknown
            | RequestError::Fenced
            | RequestError::WritesLost { .. } => ErrorKind::Other,
        }
    }
}

macro_rules! through_error {
    ($($error:ty),*) => { $(
        impl From<$error> for io::Error {
            fn from(error: $error) -> io::Error {
                Error::from(error).into()
            }
        }
    )* };
}

through_error!(UriError, CoresError, ConnectError, RequestError, TransferError);

macro_rules! debug_as_text {
    ($($error:ty),*) => { $(
        impl fmt::Debug for $error {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        }
    )* };
}

debug_as_text!(Error, UriError, CoresError, ConnectError, RequestError, TransferError);

#[cfg(test)]
mod tests {
    use super::*;

    /// The line of a program whose `main` returns the error.
    fn printed(error: impl Into<Error>) -> String {
        format!("Error: {:?}", error.into())
    }

    #[test]
    fn main_prints_text_and_remedy() {
        let connect = ConnectError::Lanes { requested: 9, granted: 8 };
        assert_eq!(printed(connect.clone()), format!("Error: {connect}"));
        let request = RequestError::Unaligned { bytes: 5, block_bytes: 512 };
        assert_eq!(printed(request.clone()), "Error: 5 bytes are not whole blocks of 512 bytes");
        let failed = TransferError { error: request, buffer: None };
        assert_eq!(printed(failed), "Error: 5 bytes are not whole blocks of 512 bytes");
        let uri = "/dev/sda".parse::<crate::Uri>().unwrap_err();
        assert_eq!(printed(uri.clone()), format!("Error: {uri}"));
        let boxed: Box<dyn std::error::Error> = connect.clone().into();
        assert_eq!(format!("{boxed:?}"), connect.to_string());
    }

    #[test]
    fn io_errors_keep_kind_and_text() {
        let refused = ConnectError::Socket {
            address: ([127, 0, 0, 1], 4420).into(),
            step: crate::Step::Tcp,
            source: std::sync::Arc::new(ErrorKind::ConnectionRefused.into()),
        };
        let text = refused.to_string();
        let lost = io::Error::from(RequestError::Lost(std::sync::Arc::new(refused)));
        assert_eq!((lost.kind(), lost.to_string()), (ErrorKind::ConnectionRefused, text));
        let full = io::Error::from(RequestError::Status(Status::CAPACITY_EXCEEDED.with_dnr(true)));
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        assert_eq!(io::Error::from(RequestError::InvalidRanges).kind(), ErrorKind::InvalidInput);
    }
}
