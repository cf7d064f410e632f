//! Waiters of a stream. Separate from the stream, so that the threads that wake them do not keep it open.

use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;

use super::driver::WakeTasks;
use super::last_close::LastClose;
use crate::session::Watcher;
use isolane_engine_api::stream::ControlBlock;

pub(super) struct StreamWakers {
    pub block: Arc<ControlBlock>,
    pub last_close: LastClose,
    pub reader: Mutex<Option<Waker>>,
    pub writer: Mutex<Option<Waker>>,
}

impl WakeTasks for StreamWakers {
    fn wake_tasks(&self) {
        for slot in [&self.reader, &self.writer] {
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
