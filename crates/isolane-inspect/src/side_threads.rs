//! All side threads of a program.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use crate::control::{self, Control, Listeners};
use crate::document::Document;
use crate::program::SharedProgram;

/// Side threads that describe a program. They release the program when this is dropped.
#[derive(Debug)]
pub struct SideThreads {
    document: Arc<Document>,
    control: Option<Control>,
}

impl SideThreads {
    /// Returns side threads for a program whose cores use these CPUs.
    pub fn new(program: SharedProgram, cpus: Vec<u32>) -> SideThreads {
        SideThreads { document: Arc::new(Document::new(program, cpus)), control: None }
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
}

impl Drop for SideThreads {
    fn drop(&mut self) {
        self.document.detach();
    }
}
