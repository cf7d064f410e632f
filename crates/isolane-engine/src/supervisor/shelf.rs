//! What the engine has deposited.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use crate::closer;
use crate::store::Record;

/// Records by their keys, in the order in which they were deposited.
#[derive(Debug, Default)]
pub(super) struct Shelf(BTreeMap<u64, Item>);

/// A record, and what came with it.
#[derive(Debug)]
pub(super) struct Item {
    pub record: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

impl Shelf {
    pub fn put(&mut self, key: u64, record: Vec<u8>, descriptors: Vec<OwnedFd>) {
        self.0.insert(key, Item { record, descriptors });
    }

    pub fn remove(&mut self, key: u64) {
        // Applications have given most of it.
        self.0.remove(&key).into_iter().flat_map(|item| item.descriptors).for_each(closer::close);
    }

    /// Takes out all that belongs to a session.
    pub fn take_session(&mut self, session: u32) -> Vec<(Record, Vec<OwnedFd>)> {
        let mut taken = Vec::new();
        self.0.retain(|_, item| match Record::decode(&item.record) {
            Ok(record) if record.session() == Some(session) => {
                taken.push((record, std::mem::take(&mut item.descriptors)));
                false
            }
            _ => true,
        });
        taken
    }

    pub fn at(&self, key: u64) -> Option<&Item> {
        self.0.get(&key)
    }

    pub fn keys(&self) -> impl Iterator<Item = u64> {
        self.0.keys().copied()
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        // What is not closed when the process ends is closed by that, which waits for nothing.
        let items = std::mem::take(&mut self.0).into_values();
        items.flat_map(|item| item.descriptors).for_each(closer::close);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use rustix::net::{SendFlags, send, sockopt};

    use super::*;

    #[test]
    fn a_supervisor_that_ends_waits_for_no_socket_that_lingers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap().0;
        sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
        while send(&socket, &[0; 65536], SendFlags::DONTWAIT).is_ok() {}
        let mut shelf = Shelf::default();
        shelf.put(1, Vec::new(), vec![socket.into()]);
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(shelf);
            done.send(()).unwrap();
        });
        assert_eq!(is_done.recv_timeout(Duration::from_secs(30)), Ok(()), "it waits");
        drop(peer);
    }
}
