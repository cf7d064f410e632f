//! Seeded simulation of a target: its cores take turns in one thread, as the random numbers choose.
//!
//! Hosts, connections, and cores are real; volumes and time are simulated. A volume executes each operation block by
//! block, in any order, and can stall. The times after which a command is answered in place of its volume are zero, so
//! each tick answers every command that is not complete, and the random numbers choose the ticks.
//!
//! Invariant: a seed decides everything that happens.

mod host;
mod tests;
mod volume;
mod world;
