//! Namespace identification descriptor list, CNS 03h (Base 1.4 §5.15.2.4, figure 250).

use super::DATA_LEN;

/// One identifier of a namespace, bytes in the order they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Descriptor {
    /// NIDT 1h: IEEE extended unique identifier.
    Eui64([u8; 8]),
    /// NIDT 2h: namespace globally unique identifier.
    Nguid([u8; 16]),
    /// NIDT 3h: UUID.
    Uuid([u8; 16]),
    /// NIDT 4h: command set; 0 is NVM.
    CommandSet(u8),
}

impl Descriptor {
    const EUI64: u8 = 0x1;
    const NGUID: u8 = 0x2;
    const UUID: u8 = 0x3;
    const CSI: u8 = 0x4;

    fn parts(&self) -> (u8, &[u8]) {
        match self {
            Self::Eui64(id) => (Self::EUI64, id),
            Self::Nguid(id) => (Self::NGUID, id),
            Self::Uuid(id) => (Self::UUID, id),
            Self::CommandSet(csi) => (Self::CSI, core::slice::from_ref(csi)),
        }
    }

    fn new(nidt: u8, id: &[u8]) -> Option<Self> {
        match nidt {
            Self::EUI64 => id.try_into().ok().map(Self::Eui64),
            Self::NGUID => id.try_into().ok().map(Self::Nguid),
            Self::UUID => id.try_into().ok().map(Self::Uuid),
            Self::CSI => id.first().copied().map(Self::CommandSet),
            _ => None,
        }
    }
}

/// Builds and reads the list.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorList;

impl DescriptorList {
    const HEADER_LEN: usize = 4;

    /// Encodes these identifiers; omits those beyond 4,096 bytes.
    pub fn encode(descriptors: &[Descriptor]) -> [u8; DATA_LEN] {
        let mut bytes = [0; DATA_LEN];
        let mut tail = &mut bytes[..];
        for (nidt, id) in descriptors.iter().map(Descriptor::parts) {
            let Some((place, behind)) = tail.split_at_mut_checked(Self::HEADER_LEN + id.len()) else {
                break;
            };
            (place[0], place[1]) = (nidt, id.len() as u8);
            place[Self::HEADER_LEN..].copy_from_slice(id);
            tail = behind;
        }
        bytes
    }

    /// The identifiers in `bytes`; kinds that are unknown or of the wrong length are passed over.
    pub fn decode(bytes: &[u8]) -> Descriptors<'_> {
        Descriptors(bytes)
    }
}

/// Iterator over the identifiers of a list. It ends at NIDL 0 or where a descriptor would leave the data.
#[derive(Clone, Debug)]
pub struct Descriptors<'a>(&'a [u8]);

impl Iterator for Descriptors<'_> {
    type Item = Descriptor;

    fn next(&mut self) -> Option<Descriptor> {
        loop {
            let (header, behind) = self.0.split_first_chunk::<{ DescriptorList::HEADER_LEN }>()?;
            let [nidt, nidl, ..] = *header;
            if nidl == 0 {
                return None;
            }
            let (id, tail) = behind.split_at_checked(usize::from(nidl))?;
            self.0 = tail;
            if let Some(descriptor) = Descriptor::new(nidt, id) {
                return Some(descriptor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_identifier_follows_its_type_and_length() {
        let uuid = core::array::from_fn(|index| 0x10 + index as u8);
        let list = [
            Descriptor::Eui64([1, 2, 3, 4, 5, 6, 7, 8]),
            Descriptor::Nguid([9; 16]),
            Descriptor::Uuid(uuid),
            Descriptor::CommandSet(2),
        ];
        let bytes = DescriptorList::encode(&list);
        assert_eq!(bytes[..12], [1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[12..17], [2, 16, 0, 0, 9]);
        assert_eq!(bytes[32..38], [3, 16, 0, 0, 0x10, 0x11]);
        assert_eq!(bytes[52..58], [4, 1, 0, 0, 2, 0]);
        assert!(DescriptorList::decode(&bytes).eq(list));
    }

    #[test]
    fn unknown_kinds_and_wrong_lengths_are_passed_over() {
        let bytes = [9, 2, 0, 0, 0xaa, 0xbb, 3, 1, 0, 0, 7, 4, 1, 0, 0, 5, 0, 0, 0, 0];
        assert!(DescriptorList::decode(&bytes).eq([Descriptor::CommandSet(5)]));
    }

    #[test]
    fn truncated_descriptor_ends_the_list() {
        assert_eq!(DescriptorList::decode(&[3, 16, 0, 0, 1, 2]).next(), None);
        assert_eq!(DescriptorList::decode(&[3, 16]).next(), None);
    }

    #[test]
    fn omits_descriptors_that_do_not_fit() {
        let bytes = DescriptorList::encode(&[Descriptor::Uuid([0xff; 16]); 300]);
        assert_eq!(DescriptorList::decode(&bytes).count(), 4096 / 20);
    }
}
