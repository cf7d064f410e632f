//! Lists of namespace identifiers: active and changed namespaces (Base 1.4 §4.10).

use super::DATA_LEN;

/// Namespace identifiers in rising order, up to 1,024: CNS 02h, 07h and 10h, and the changed namespace list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceList {
    nsids: [u32; Self::CAPACITY],
    len: usize,
}

impl NamespaceList {
    /// The most identifiers.
    pub const CAPACITY: usize = 1024;

    /// The first 1,024 of these identifiers up to the first 0.
    pub fn new(nsids: impl IntoIterator<Item = u32>) -> Self {
        let mut this = Self { nsids: [0; Self::CAPACITY], len: 0 };
        for (place, nsid) in this.nsids.iter_mut().zip(nsids.into_iter().take_while(|&nsid| nsid != 0)) {
            *place = nsid;
            this.len += 1;
        }
        this
    }

    /// The identifiers.
    pub fn nsids(&self) -> &[u32] {
        &self.nsids[..self.len]
    }

    /// The data.
    pub fn encode(&self) -> [u8; DATA_LEN] {
        let mut bytes = [0; DATA_LEN];
        crate::Field::write(&self.nsids, &mut bytes);
        bytes
    }

    /// Reads the data; the first 0 ends the list.
    pub fn decode(bytes: &[u8; DATA_LEN]) -> Self {
        Self::new(<[u32; Self::CAPACITY] as crate::Field>::read(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_list_ends_at_first_zero() {
        let list = NamespaceList::new([1, 0x0403_0201]);
        let bytes = list.encode();
        assert_eq!(bytes[..12], [1, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0]);
        assert_eq!(NamespaceList::decode(&bytes), list);
        assert_eq!(list.nsids(), [1, 0x0403_0201]);
    }

    #[test]
    fn full_namespace_list_has_1024_entries() {
        let list = NamespaceList::new(1..=5000);
        assert_eq!(list.nsids().len(), 1024);
        assert_eq!(NamespaceList::decode(&list.encode()), list);
    }
}
