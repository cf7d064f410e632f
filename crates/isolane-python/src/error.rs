//! Exceptions of the package, which `python/isolane/errors.py` defines.

use std::fmt::Display;

use pyo3::prelude::*;

/// Kind of an exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `isolane.Error`.
    Other,
    /// `isolane.AccessError`.
    Access,
    /// `isolane.ConnectionLost`.
    ConnectionLost,
    /// `isolane.Timeout`.
    Timeout,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Other => "Error",
            Kind::Access => "AccessError",
            Kind::ConnectionLost => "ConnectionLost",
            Kind::Timeout => "Timeout",
        }
    }
}

/// Returns an exception.
pub(crate) fn error(py: Python<'_>, kind: Kind, text: impl Display) -> PyErr {
    let class = py.import("isolane.errors").and_then(|module| module.getattr(kind.name()));
    match class.and_then(|class| class.call1((text.to_string(),))) {
        Ok(value) => PyErr::from_value(value),
        Err(failure) => failure,
    }
}
