//! A context of a GPU, and the channels of all regions in it.
//!
//! Channels are made when the first region is registered, so that no copy allocates memory.

use std::ffi::c_int;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::channel::Channel;
use crate::driver::{ContextHandle, Driver};
use crate::error::Result;

/// A context with registered memory.
pub(crate) struct Context {
    driver: &'static Driver,
    handle: ContextHandle,
    /// The GPU whose primary context it is, if it was retained for memory without a context.
    primary_of: Option<c_int>,
    channels: Mutex<Vec<Channel>>,
    /// The channel for copies that find no other one.
    reserved: Mutex<Option<Channel>>,
}

/// The contexts with registered memory.
static CONTEXTS: Mutex<Vec<Weak<Context>>> = Mutex::new(Vec::new());

impl Context {
    /// Returns the context with a handle.
    pub(crate) fn of(driver: &'static Driver, handle: ContextHandle) -> Result<Arc<Context>> {
        Context::find_or_make(driver, handle, None)
    }

    /// Returns the primary context of a GPU.
    pub(crate) fn primary(driver: &'static Driver, gpu: c_int) -> Result<Arc<Context>> {
        let handle = driver.retain_primary(gpu)?;
        Context::find_or_make(driver, handle, Some(gpu))
    }

    fn find_or_make(
        driver: &'static Driver,
        handle: ContextHandle,
        primary_of: Option<c_int>,
    ) -> Result<Arc<Context>> {
        let mut contexts = CONTEXTS.lock();
        let found = contexts.iter().filter_map(Weak::upgrade).find(|context| context.handle == handle);
        if let Some(found) = found.filter(|found| primary_of.is_none() || found.primary_of == primary_of) {
            return match primary_of {
                // It was retained before.
                Some(gpu) => driver.release_primary(gpu).map(|()| found),
                None => Ok(found),
            };
        }
        let context = Arc::new(Context {
            driver,
            handle,
            primary_of,
            channels: Mutex::default(),
            reserved: Mutex::default(),
        });
        context.make_channels()?;
        contexts.retain(|context| context.strong_count() > 0);
        contexts.push(Arc::downgrade(&context));
        Ok(context)
    }

    fn make_channels(&self) -> Result<()> {
        self.with_current(|| {
            *self.reserved.lock() = Some(Channel::new(self.driver)?);
            for _ in 0..CHANNELS {
                let channel = Channel::new(self.driver)?;
                self.channels.lock().push(channel);
            }
            Ok(())
        })
    }

    pub(crate) fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// Runs a function while the context is the current one of the thread.
    pub(crate) fn with_current<T>(&self, function: impl FnOnce() -> Result<T>) -> Result<T> {
        self.driver.with_current(self.handle, function)
    }

    /// Waits for the copy of a channel.
    pub(crate) fn finish(&self, channel: &mut Channel) -> Result<()> {
        match self.with_current(|| channel.finish()) {
            // The copy is in progress if the context was not made current. The stream names it also.
            Err(error) if channel.is_copying() && !error.is_end_of_context() => channel.finish(),
            result => result,
        }
    }

    /// Returns a channel that the caller returns with [`Context::put_channel`], unless all are in use.
    pub(crate) fn take_channel(&self) -> Option<Channel> {
        self.channels.lock().pop()
    }

    pub(crate) fn put_channel(&self, channel: Channel) {
        self.channels.lock().push(channel);
    }

    /// Runs a function with a channel, while the context is the current one of the thread.
    pub(crate) fn with_channel(&self, function: impl FnOnce(&mut Channel) -> Result<()>) -> Result<()> {
        if let Some(mut channel) = self.take_channel() {
            let result = self.with_current(|| function(&mut channel));
            self.put_channel(channel);
            return result;
        }
        match &mut *self.reserved.lock() {
            Some(channel) => self.with_current(|| function(channel)),
            None => unreachable!("a context has its channels before it has regions"),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let mut channels = std::mem::take(self.channels.get_mut());
        channels.extend(self.reserved.get_mut().take());
        let destroyed =
            self.with_current(|| channels.into_iter().map(Channel::destroy).fold(Ok(()), Result::and));
        let released = self.primary_of.map_or(Ok(()), |gpu| self.driver.release_primary(gpu));
        if let Err(error) = destroyed.and(released) {
            // The program can have destroyed the context, with everything in it.
            log::debug!("buffers of a GPU context are not freed: {error}");
        }
    }
}

/// Number of payloads that are received for memory of a context at the same time without another copy.
const CHANNELS: usize = 8;
