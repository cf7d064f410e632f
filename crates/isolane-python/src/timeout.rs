//! Timeouts of calls that wait, and that a signal of Python ends.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Returns the deadline of a timeout in seconds.
pub(crate) fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = timeout else { return Ok(None) };
    let wrong = |_| PyValueError::new_err(format!("timeout {seconds}: pass seconds from 0 on, or None"));
    let timeout = Duration::try_from_secs_f64(seconds).map_err(wrong)?;
    Ok(Instant::now().checked_add(timeout))
}

/// Returns when a wait must check for signals of Python: at the deadline at the latest.
pub(crate) fn slice_end(deadline: Option<Instant>) -> Instant {
    let end = Instant::now() + SIGNAL_INTERVAL;
    deadline.map_or(end, |deadline| deadline.min(end))
}

/// Whether a deadline has passed.
pub(crate) fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Instant::now())
}

const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);
