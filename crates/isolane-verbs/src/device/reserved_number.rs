//! The number of a queue pair that is not created yet.

/// A number that is released when it is dropped, unless a queue pair takes it.
pub(super) struct ReservedNumber {
    number: u32,
    release: Option<Box<dyn FnOnce(u32) + Send>>,
}

impl ReservedNumber {
    /// Reserves a number that `release` makes unused again.
    pub(super) fn new(number: u32, release: impl FnOnce(u32) + Send + 'static) -> ReservedNumber {
        ReservedNumber { number, release: Some(Box::new(release)) }
    }

    pub(super) fn get(&self) -> u32 {
        self.number
    }

    /// Returns the number for a queue pair, which releases it.
    pub(super) fn take(mut self) -> u32 {
        self.release = None;
        self.number
    }
}

impl Drop for ReservedNumber {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release(self.number);
        }
    }
}
