//! Listener of a mock peer.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Thread that passes each connection to a function until it is dropped.
pub struct AcceptLoop {
    pub address: SocketAddr,
    stopped: Arc<AtomicBool>,
}

impl AcceptLoop {
    /// Listens on a free port.
    pub fn start(mut on_connection: impl FnMut(TcpStream) + Send + 'static) -> AcceptLoop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                on_connection(stream);
            }
        });
        AcceptLoop { address, stopped }
    }
}

impl Drop for AcceptLoop {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}
