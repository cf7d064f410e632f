//! Records of the engine, kept by its supervisor.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use crate::close_threads;
use crate::store::Record;

/// Records by key, which is the order in which they were stored.
#[derive(Debug, Default)]
pub(super) struct RecordStore(BTreeMap<u64, RecordEntry>);

/// Record with its descriptors.
#[derive(Debug)]
pub(super) struct RecordEntry {
    pub record: Record,
    pub descriptors: Vec<OwnedFd>,
}

impl RecordStore {
    pub fn put(&mut self, key: u64, record: Record, descriptors: Vec<OwnedFd>) {
        self.0.insert(key, RecordEntry { record, descriptors });
    }

    pub fn remove(&mut self, key: u64) {
        // Most descriptors are from applications, so their close may block.
        self.0.remove(&key).into_iter().flat_map(|entry| entry.descriptors).for_each(close_threads::close);
    }

    /// Removes and returns the records of a session.
    pub fn take_session(&mut self, session: u32) -> Vec<RecordEntry> {
        let of_session = self.0.iter().filter(|(_, entry)| entry.record.session() == Some(session));
        let keys: Vec<u64> = of_session.map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.0.remove(key)).collect()
    }

    pub fn at(&self, key: u64) -> Option<&RecordEntry> {
        self.0.get(&key)
    }

    pub fn keys(&self) -> impl Iterator<Item = u64> {
        self.0.keys().copied()
    }
}

impl Drop for RecordStore {
    fn drop(&mut self) {
        // The end of the process closes the rest, without blocking.
        let entries = std::mem::take(&mut self.0).into_values();
        entries.flat_map(|entry| entry.descriptors).for_each(close_threads::close);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use rustix::net::{SendFlags, send, sockopt};

    use super::*;

    #[test]
    fn drop_does_not_wait_for_lingering_sockets() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap().0;
        sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
        while send(&socket, &[0; 65536], SendFlags::DONTWAIT).is_ok() {}
        let mut records = RecordStore::default();
        records.put(1, Record::Note(Vec::new()), vec![socket.into()]);
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(records);
            done.send(()).unwrap();
        });
        assert_eq!(is_done.recv_timeout(Duration::from_secs(30)), Ok(()), "the drop blocks");
        drop(peer);
    }
}
