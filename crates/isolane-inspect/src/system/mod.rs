//! Readers of `/proc` and `/sys` below a replaceable root.
//!
//! [`Root`] opens files, and free functions `decode_…` parse their text. Every read has a limit in bytes.
//!
//! Invariant: no content of a file causes a panic, and a file that cannot be read or parsed is an error, never a
//! default.

mod decode;
mod read_error;
mod root;

pub use decode::{decode_cpu_list, decode_number};
pub use read_error::{Malformed, ReadError, Reason};
pub use root::{Root, SMALL};
