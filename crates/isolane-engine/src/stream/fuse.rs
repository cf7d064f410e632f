//! Where a test ends an engine's life, between any two things that it does to the socket or the shared words.

use super::Stop;

/// Counts down to the end. In the engine itself there is none.
#[derive(Debug, Default)]
pub(super) struct Fuse {
    #[cfg(test)]
    left: std::cell::Cell<Option<u32>>,
}

impl Fuse {
    /// One more thing was done.
    #[inline]
    pub fn burn(&self) -> Result<(), Stop> {
        #[cfg(test)]
        if let Some(left) = self.left.get() {
            self.left.set(Some(left.saturating_sub(1)));
            if left == 0 {
                return Err(Stop::Killed);
            }
        }
        Ok(())
    }

    /// After so many things.
    #[cfg(test)]
    pub fn of(things: Option<u32>) -> Fuse {
        Fuse { left: std::cell::Cell::new(things) }
    }

    /// From now on.
    #[cfg(test)]
    pub fn set(&self, things: Option<u32>) {
        self.left.set(things);
    }
}
