//! Configuration file of a target: its model, and everything that can be done with it without a target.
//!
//! [`Config::parse`] checks a text completely and reports all its errors together, [`Config::to_toml`] prints a model,
//! [`schema()`] describes the format for editors, and [`gaps()`] lists hosts that reach volumes without authentication.
//! [`edit()`] and [`Replacement`] change a file and keep its comments. A key is defined once, in `model.rs`: its type, its description, and the effect of a change.
//!
//! Invariants: a printed model is parsed to the same model. No text causes a panic, and no error shows a key of
//! authentication.

#![forbid(unsafe_code)]

mod check;
mod choice;
mod diff;
mod edit;
mod file;
mod gaps;
mod locate;
mod model;
mod names;
mod parse;
mod print;
mod problem;
#[cfg(test)]
mod property_tests;
mod reader;
mod replace;
mod schema;
mod table;
#[cfg(test)]
mod tests;
mod value;
mod volume;

pub use choice::{AuthGroup, AuthHash, Choices, Idle, KernelInterface, Placement, Require, Scheduler};
pub use diff::{Change, diff};
pub use edit::{Edit, EditError, ObjectId, edit, parse_value};
pub use file::{MAX_FILE_BYTES, ReadError, read};
pub use gaps::{Gap, gaps};
pub use locate::locate;
pub use model::{Config, Host, Limits, Namespace, Namespaces, Nsid, Port, Qos, Referral, Server, Subsystem};
pub use names::{
    AuthKeys, Hosts, KeySource, Model, Name, Names, Serial, StandardNqn, SubsystemNqn, parse_subsystem_nqn,
};
pub use problem::{MAX_SHOWN_PROBLEMS, Problem, Problems};
pub use replace::{ReplaceError, Replacement};
pub use schema::schema;
pub use table::{Effect, KeyInfo, Table};
pub use value::{
    AbsolutePath, Addresses, ControlSocket, ListenAddress, Metrics, Number, OnSlow, OneIn, Size, Time,
};
pub use volume::Volume;

/// A value in a file.
pub use toml_edit::Value as Toml;
