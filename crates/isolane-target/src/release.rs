//! The end of the use of a removed namespace.

use std::sync::mpsc::Sender;

/// The use of a removed namespace by the cores. Its position is free once this is dropped.
#[derive(Debug)]
pub(crate) struct Release {
    pub position: usize,
    /// Its volume was flushed, or could not be flushed in time.
    pub is_flushed: bool,
    pub released: Sender<usize>,
}

impl Drop for Release {
    fn drop(&mut self) {
        // The receiver ends with the target.
        let _ = self.released.send(self.position);
    }
}
