//! Python module `isolane._isolane`: verbs over TCP. The package `isolane` is in `python/`.
//!
//! * `export.rs`: memory of a Python object, by the buffer protocol or DLPack.
//! * `memory.rs`: registered memory, and its description for peers.
//! * `local.rs`: local data of requests.
//! * `device.rs`: devices and listeners; `opened.rs` has the part that their objects share.
//! * `connection.rs`: queue pairs; `batch.rs`: batches of requests; `shared.rs`: the state that they share.
//! * `pending.rs`: requests as objects of Python; `requests.rs` has the table of requests in flight.
//! * `error.rs`: exceptions.
//!
//! Invariant: the memory of an object stays exported until no request and no peer can use it.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod batch;
mod connection;
mod device;
mod error;
mod export;
mod local;
mod memory;
mod opened;
mod pending;
mod requests;
mod shared;
mod timeout;

use pyo3::prelude::*;

/// Verbs over TCP.
#[pymodule]
fn _isolane(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<connection::Connection>()?;
    module.add_class::<pending::Received>()?;
    module.add_class::<pending::Request>()?;
    module.add_class::<device::Device>()?;
    module.add_class::<device::Listener>()?;
    module.add_class::<export::Export>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<memory::RemoteMemory>()?;
    module.add_function(wrap_pyfunction!(opened::_after_fork, module)?)
}
