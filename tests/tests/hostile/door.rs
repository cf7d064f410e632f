//! A listener of a mock peer: each connection is handed over, until it is dropped.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A running listener, with a thread of its own.
pub struct Door {
    pub address: SocketAddr,
    is_shut: Arc<AtomicBool>,
}

impl Door {
    /// Listens on a free port.
    pub fn open(mut on_connection: impl FnMut(TcpStream) + Send + 'static) -> Door {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_shut = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_shut);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if told.load(Ordering::SeqCst) {
                    return;
                }
                on_connection(stream);
            }
        });
        Door { address, is_shut }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.is_shut.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}
