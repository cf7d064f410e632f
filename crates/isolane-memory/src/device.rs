//! Memory of a device that the CPU cannot access, such as a GPU.
//!
//! Bytes pass through memory of the host that the device can read and write. A stream has two buffers of it: one is
//! filled while the other one is copied.

/// A range of the memory of a device. A failure is logged with its reason.
///
/// The caller checks that each range is inside.
pub trait DeviceMemory: Send + Sync {
    /// Copies bytes in at `offset`. Returns `true` once they are there, `false` if the device has reported an error; some
    /// of them can be written.
    fn copy_in(&self, offset: usize, bytes: &[u8]) -> bool;

    /// Copies bytes out from `offset`. Returns `false` if the device has reported an error.
    fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> bool;

    /// Replaces 8 bytes by a function of their value, in the byte order of the host. No other call of this function
    /// changes them at the same time. Returns the value before, or `None` if the device has reported an error.
    fn update(&self, offset: usize, change: &mut dyn FnMut(u64) -> u64) -> Option<u64>;

    /// Returns a stream of copies into this memory, or `None` if all are in use.
    fn stream(&self) -> Option<Box<dyn DeviceStream>>;
}

/// Copies into the memory of a device, one after the other. Dropping the stream waits for the last one.
pub trait DeviceStream: Send {
    /// Returns the buffer for the next copy. It is not the one of the copy in progress.
    fn buffer(&mut self) -> &mut [u8];

    /// Waits for the copy before, and starts to copy the first `len` bytes of the buffer to `offset`. Returns `false` if
    /// the device has reported an error; nothing is in progress then.
    fn start(&mut self, offset: usize, len: usize) -> bool;

    /// Waits for the copy in progress, if there is one. Returns `false` if the device has reported an error.
    fn finish(&mut self) -> bool;
}

/// Whether all bytes of a range can be read now.
pub(crate) fn is_readable(device: &dyn DeviceMemory, offset: usize, len: usize) -> bool {
    let mut bytes = vec![0; len.min(CHECKED_BYTES)];
    (0..len).step_by(CHECKED_BYTES).all(|at| {
        let count = CHECKED_BYTES.min(len - at);
        device.copy_out(offset + at, &mut bytes[..count])
    })
}

const CHECKED_BYTES: usize = 256 * 1024;
