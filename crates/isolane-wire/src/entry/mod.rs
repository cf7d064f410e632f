//! Submission and completion queue entries and the data pointer (Base 1.4 §4.2 to §4.6; Fabrics 1.1 §2.1,
//! §2.2).

mod completion;
mod sgl;
mod submission;

pub use completion::CompletionEntry;
pub use sgl::Sgl;
pub use submission::{CommandFlags, SubmissionEntry};
