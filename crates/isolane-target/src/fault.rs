//! Faults that operators set on purpose, to test their hosts and their monitoring.

/// How a namespace behaves although its volume works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Commands are held as if the volume did not complete them. They do not reach it until the fault ends, so a command
    /// that was answered leaves no orphan.
    Stall,
    /// Changes and Flush fail as if a sync had failed.
    Fail,
}
