//! Calls of librados and librbd: all unsafe code of this crate.
//!
//! Invariant: memory of a request stays valid until the callback of its completion.

mod cluster;
mod image;
mod library;
mod request;

pub(crate) use cluster::Cluster;
#[cfg(test)]
pub(crate) use image::Closing;
pub(crate) use image::{Image, Pool, wait_for_closed};
pub(crate) use library::Library;
pub(crate) use request::{Finish, Operation, start};

/// An error number of librados or librbd, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub i32);

impl std::fmt::Display for Errno {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

/// Converts a result, which is negative for an error.
fn check(result: i32) -> Result<i32, Errno> {
    if result < 0 { Err(Errno(result.saturating_neg())) } else { Ok(result) }
}

/// Error of a name with a NUL byte, which Ceph cannot have.
const INVALID: Errno = Errno(libc::EINVAL);

/// Converts a text for C.
fn c_string(text: &str) -> Result<std::ffi::CString, Errno> {
    std::ffi::CString::new(text).map_err(|_| INVALID)
}

/// Returns the text before the first NUL.
fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
