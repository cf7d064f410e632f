//! All side threads of a program.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use crate::control::{self, Control, Listeners};
use crate::document::Document;
use crate::program::{OnSlow, SharedProgram};
use crate::recorder;

/// Time for the recorder to end its turn.
const GRACE: Duration = Duration::from_secs(1);

/// Side threads that describe a program. They release the program when this is dropped.
///
/// If the lights of slow devices were requested, the drop waits at most 11 s until they are off.
#[derive(Debug)]
pub struct SideThreads {
    document: Arc<Document>,
    control: Option<Control>,
    /// Stops the recorder when it is dropped.
    recorder: Option<Sender<()>>,
    /// Process with the threads. A forked child has none.
    process: u32,
    /// Closed at the end of the recorder, if it switches lights.
    lights: Option<Receiver<()>>,
}

impl SideThreads {
    /// Starts the recorder of a program whose cores use these CPUs, with actions for slow devices.
    ///
    /// # Errors
    /// The error of the system.
    pub fn start(program: SharedProgram, cpus: Vec<u32>, on_slow: OnSlow) -> io::Result<SideThreads> {
        let mut document = Document::new(program, cpus)?;
        document.shows_slow_devices(on_slow.metric);
        let document = Arc::new(document);
        let (sender, stop) = mpsc::channel();
        let recorded = Arc::clone(&document);
        let (is_running, ended) = mpsc::channel();
        let run = move || {
            recorder::run(&recorded, on_slow, &stop);
            drop(is_running);
        };
        thread::Builder::new().name("recorder".into()).spawn(run)?;
        let process = std::process::id();
        let lights = on_slow.light.then_some(ended);
        Ok(SideThreads { document, control: None, recorder: Some(sender), process, lights })
    }

    /// Listens for readers.
    ///
    /// # Errors
    /// A listener and the reason, with a remedy.
    pub fn listen(&mut self, listeners: &Listeners) -> Result<(), String> {
        self.control = Some(control::start(listeners, Arc::clone(&self.document))?);
        Ok(())
    }

    /// Returns the path of the control socket.
    pub fn socket(&self) -> Option<&Path> {
        self.control.as_ref()?.socket()
    }

    /// Returns the address for metrics.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.control.as_ref()?.metrics()
    }

    /// Releases the program, and stops all threads. Does not wait for lights.
    pub fn detach(&mut self) {
        self.document.detach();
        self.control = None;
        self.recorder = None;
    }
}

impl Drop for SideThreads {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A thread of the parent can have held a lock during the fork.
            std::mem::forget(self.recorder.take());
            return;
        }
        self.detach();
        let Some(lights) = &self.lights else { return };
        if lights.recv_timeout(recorder::END_LIMIT + GRACE) == Err(RecvTimeoutError::Timeout) {
            log::warn!("lights of slow devices can still be on; run `isolane light list`");
        }
    }
}
