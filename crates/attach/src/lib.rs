//! What an application links to have its network processing done by an isolated engine.
//!
//! Invariant: whatever the engine or another process does to the memory that is shared, an operation ends with
//! a result or an error.

#![forbid(unsafe_code)]
