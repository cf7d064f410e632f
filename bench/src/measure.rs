//! Measurements of Isolane beside the floor and beside its peers, in turn, in one run.
//!
//! A [`Row`] is one line of the tables: a load, and the entrants that carry it. Each sample starts its
//! programs afresh, so that nothing spins while another is measured, and the samples of all entrants
//! alternate: what the machine does besides hits all of them. The target runs on one core, the host on
//! another.
//!
//! What was measured is a [`Report`], written after every sample, so that an interrupted run keeps what it
//! has. Tables and drawings are made from reports alone.

mod draw;
mod drive;
mod entrant;
mod figures;
mod fio;
mod idle;
mod iscsi;
mod isolane;
mod lab;
mod list;
mod machine;
mod program;
mod report;
mod row;
mod rows;
mod run;
mod spdk;
mod start;
mod switches;
mod table;

pub use draw::draw;
pub(crate) use figures::Spread;
pub use lab::Lab;
pub use list::list;
pub use machine::about;
pub(crate) use program::{Program, Running};
pub(crate) use report::write;
pub use report::{Report, read};
pub use row::Row;
pub use rows::rows;
pub use run::{Plan, run};
pub use table::tables;
