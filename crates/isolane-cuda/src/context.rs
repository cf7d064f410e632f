//! A context of a GPU, and the channels of all regions in it.
//!
//! Channels are made when the first region is registered, so that no copy allocates memory. They are kept until the
//! context ends, because programs can register memory for each message.

use std::ffi::c_int;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::channel::Channel;
use crate::driver::{ContextHandle, Driver};
use crate::error::Result;

/// A context with registered memory.
pub(crate) struct Context {
    driver: &'static Driver,
    handle: ContextHandle,
    /// Number of the context, which no other one gets with the handle. `None` if the driver is too old.
    id: Option<u64>,
    /// The GPU whose primary context it is, if it was retained for memory without a context.
    primary_of: Option<c_int>,
    channels: Mutex<Vec<Channel>>,
    /// The channel for copies that find no other one.
    reserved: Mutex<Option<Channel>>,
}

/// The contexts that have had registered memory.
static CONTEXTS: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());

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
        let matches = |context: &Context| {
            context.handle == handle && (primary_of.is_none() || context.primary_of == primary_of)
        };
        let found = Context::of_process(matches);
        let context = match found {
            Some(found) => found,
            None => {
                let id = driver.with_current(handle, || driver.context_id(handle))?;
                let (channels, reserved) = Default::default();
                let context = Arc::new(Context { driver, handle, id, primary_of, channels, reserved });
                context.make_channels()?;
                let mut contexts = CONTEXTS.lock();
                // Another thread can have made the same.
                let other = contexts.iter().find(|other| other.id == id && matches(other)).cloned();
                if other.is_none() {
                    contexts.push(Arc::clone(&context));
                }
                drop(contexts);
                return Ok(other.unwrap_or(context));
            }
        };
        // It was retained before.
        primary_of.map_or(Ok(()), |gpu| driver.release_primary(gpu)).map(|()| context)
    }

    /// Returns a context that matches. Forgets those that have ended.
    fn of_process(matches: impl Fn(&Context) -> bool) -> Option<Arc<Context>> {
        // The driver is called, and contexts are dropped, without the lock.
        let contexts = CONTEXTS.lock().clone();
        let (live, ended): (Vec<_>, Vec<_>) = contexts.into_iter().partition(Context::is_live);
        CONTEXTS.lock().retain(|context| !ended.iter().any(|ended| Arc::ptr_eq(ended, context)));
        live.into_iter().find(|context| matches(context))
    }

    /// Whether the context is the one whose channels were made. Without a number, another one can have its handle if no
    /// region uses it.
    fn is_live(self: &Arc<Context>) -> bool {
        match self.with_current(|| self.driver.context_id(self.handle)) {
            Ok(None) => Arc::strong_count(self) > 2,
            Ok(id) => id == self.id,
            Err(error) => !error.is_end_of_context(),
        }
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
        let destroyed = self.with_current(|| {
            // The streams of a context that has ended can be the ones of another context now.
            let is_same = self.driver.context_id(self.handle)? == self.id;
            let channels = channels.into_iter().filter(|_| is_same);
            channels.map(Channel::destroy).fold(Ok(()), Result::and)
        });
        let released = self.primary_of.map_or(Ok(()), |gpu| self.driver.release_primary(gpu));
        if let Err(error) = destroyed.and(released) {
            // The program can have destroyed the context, with everything in it.
            log::debug!("buffers of a GPU context are not freed: {error}");
        }
    }
}

/// Number of payloads that are received for memory of a context at the same time without another copy.
const CHANNELS: usize = 8;
