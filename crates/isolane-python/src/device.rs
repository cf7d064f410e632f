//! Devices and listeners.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use isolane_verbs::{DeviceConfig, ProgressMode, SharedKey};
use parking_lot::RwLock;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::connection::{Connection, Unconnected};
use crate::error::{Kind, error};
use crate::export::Export;
use crate::memory::{Memory, Registered};
use crate::opened::Opened;
use crate::timeout::{deadline, is_over, slice_end};

/// A set of connections and of memory that their peers can reach.
#[pyclass(frozen, module = "isolane")]
pub(crate) struct Device {
    opened: Arc<Opened>,
}

#[pymethods]
impl Device {
    #[new]
    #[pyo3(signature = (*, lanes = 1, progress = "polling", address = "127.0.0.1"))]
    fn new(py: Python<'_>, lanes: u8, progress: &str, address: &str) -> PyResult<Device> {
        let progress: ProgressMode = progress
            .parse()
            .map_err(|reason| PyValueError::new_err(format!("progress {progress:?}: {reason}")))?;
        if !(1..=8).contains(&lanes) {
            return Err(PyValueError::new_err(format!("{lanes} lanes: pass 1 to 8")));
        }
        let address: IpAddr = address.parse().map_err(|_| {
            PyValueError::new_err(format!("{address:?} is not an IP address: pass one of this machine"))
        })?;
        let key = SharedKey::from_environment()
            .map_err(|reason| error(py, Kind::Other, format!("{}: {reason}", SharedKey::VARIABLE)))?;
        let config = DeviceConfig { progress, lanes, address, key, ..DeviceConfig::default() };
        let device = py.detach(|| isolane_verbs::Device::open(config));
        let device =
            device.map_err(|failure| error(py, Kind::Other, format!("cannot open a device: {failure}")))?;
        Ok(Device { opened: Arc::new(Opened::new(device)) })
    }

    /// Registers the memory of an object.
    #[pyo3(signature = (object, *, remote_write = true, remote_read = true))]
    fn register(
        &self,
        py: Python<'_>,
        object: &Bound<'_, PyAny>,
        remote_write: bool,
        remote_read: bool,
    ) -> PyResult<Memory> {
        self.opened.check_process(py)?;
        let export = Export::of(object)?;
        if export.nbytes() == 0 {
            return Err(PyValueError::new_err("the object has 0 bytes: register at least 1"));
        }
        Ok(Memory::new(Registered::new(py, &self.opened, export, (remote_write, remote_read))?))
    }

    /// Listens for connections.
    #[pyo3(signature = (address = "127.0.0.1:0"))]
    fn listen(&self, py: Python<'_>, address: &str) -> PyResult<Listener> {
        self.opened.check_process(py)?;
        check(address)?;
        let cannot = |reason: &dyn std::fmt::Display| {
            error(py, Kind::Other, format!("cannot listen at {address}: {reason}"))
        };
        let found = py.detach(|| resolve(address)).map_err(|reason| cannot(&reason))?;
        let listener = isolane_verbs::Listener::new(Arc::clone(&self.opened.device), found);
        let listener = listener.map_err(|failure| cannot(&failure))?;
        let address = listener.local_addr().map_err(|failure| cannot(&failure))?;
        Ok(Listener { opened: Arc::clone(&self.opened), address, listener: RwLock::new(Some(listener)) })
    }

    /// Connects to a listener.
    fn connect(&self, py: Python<'_>, address: &str) -> PyResult<Connection> {
        self.opened.check_process(py)?;
        check(address)?;
        let connected = py.detach(|| {
            let found = resolve(address)?;
            let unconnected = Unconnected::new(&self.opened).map_err(|failure| failure.to_string())?;
            let pair = self.opened.device.connect(found, unconnected.config());
            pair.map(|pair| unconnected.into_connection(pair, address)).map_err(|failure| failure.to_string())
        });
        let text = |reason| format!("cannot connect to {address}: {reason}; check that a listener is there");
        connected.map_err(|reason| error(py, Kind::ConnectionLost, text(reason)))
    }
}

/// Checks that the address has a port.
fn check(address: &str) -> PyResult<()> {
    match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(()),
        _ => Err(PyValueError::new_err(format!("{address:?} is not an address: pass HOST:PORT"))),
    }
}

/// Resolves `HOST:PORT`.
fn resolve(address: &str) -> Result<SocketAddr, String> {
    let mut found = address.to_socket_addrs().map_err(|failure| failure.to_string())?;
    found.next().ok_or_else(|| "the host has no address".to_owned())
}

/// Accepts connections.
#[pyclass(frozen, module = "isolane")]
pub(crate) struct Listener {
    opened: Arc<Opened>,
    address: SocketAddr,
    listener: RwLock<Option<isolane_verbs::Listener<Arc<isolane_verbs::Device>>>>,
}

#[pymethods]
impl Listener {
    /// Address, as `HOST:PORT`.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// TCP port.
    #[getter]
    fn port(&self) -> u16 {
        self.address.port()
    }

    /// Waits for the next connection.
    #[pyo3(signature = (timeout = None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Connection> {
        self.opened.check_process(py)?;
        let deadline = deadline(timeout)?;
        let failed = |reason: &dyn std::fmt::Display| {
            error(py, Kind::Other, format!("cannot accept at {}: {reason}", self.address))
        };
        let unconnected = Unconnected::new(&self.opened).map_err(|failure| failed(&failure))?;
        loop {
            let until = slice_end(deadline);
            let accepted = py.detach(|| {
                let listener = self.listener.read();
                listener.as_ref().map(|listener| listener.accept_before(Some(until), unconnected.config()))
            });
            match accepted {
                None => return Err(failed(&"the listener is closed; listen again")),
                Some(Err(failure)) => return Err(failed(&failure)),
                Some(Ok(Some(pair))) => return Ok(unconnected.into_connection(pair, "the peer")),
                Some(Ok(None)) => {}
            }
            py.check_signals()?;
            if is_over(deadline) {
                let text = format!("no peer has connected to {} in time; accept again", self.address);
                return Err(error(py, Kind::Timeout, text));
            }
        }
    }

    /// Stops listening. A call of `accept` in another thread ends within 0.1 s.
    fn close(&self, py: Python<'_>) {
        if self.opened.is_of_this_process() {
            py.detach(|| drop(self.listener.write().take()));
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.opened.is_of_this_process() {
            std::mem::forget(self.listener.get_mut().take());
        }
    }
}
