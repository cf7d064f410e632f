//! Waiters of a stream. Separate from the stream, so that the threads that wake them do not keep it open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use parking_lot::Mutex;

use super::last_close::LastClose;
use super::wait::register;
use crate::session::Watcher;
use isolane_engine_api::stream::ControlBlock;

pub(super) struct StreamWakers {
    pub block: Arc<ControlBlock>,
    pub last_close: LastClose,
    pub reader: Mutex<Option<Waker>>,
    pub writer: Mutex<Option<Waker>>,
    /// The tasks are woken: by the engine, or by a driver that polls the socket of a plain stream.
    pub watched: AtomicBool,
}

impl StreamWakers {
    /// Registers the task of `context`. Check for readiness again afterwards.
    pub fn register(&self, slot: &Mutex<Option<Waker>>, context: &Context<'_>) {
        register(slot, context);
        if !self.watched.load(Ordering::Acquire) {
            // Nothing else would wake the task: poll again.
            context.waker().wake_by_ref();
        }
    }

    pub fn wake_tasks(&self) {
        for slot in [&self.reader, &self.writer] {
            // Without the lock: an executor may poll the task in this call.
            let waker = slot.lock().take();
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

impl Watcher for StreamWakers {
    fn on_restart(&self, _epoch: u64) {}

    fn on_close(&self) {
        self.last_close.reset_if_unsent(&self.block);
        self.block.rx_flag.force_wake();
        self.block.tx_flag.force_wake();
        self.wake_tasks();
    }
}
