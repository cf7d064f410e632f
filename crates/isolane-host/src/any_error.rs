//! [`Error`]: any error of this crate.
//!
//! Debug of every error here prints its Display text, so that `fn main() -> Result<(), isolane_host::Error>` and
//! `unwrap` show what failed, why, and the remedy.

use std::fmt;

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
}
