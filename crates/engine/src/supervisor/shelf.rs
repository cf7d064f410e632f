//! What the engine has deposited.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use crate::closer;

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

    pub fn at(&self, key: u64) -> Option<&Item> {
        self.0.get(&key)
    }

    pub fn keys(&self) -> impl Iterator<Item = u64> {
        self.0.keys().copied()
    }
}
