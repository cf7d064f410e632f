//! The hosts of namespaces that not all hosts of their subsystem see.
//!
//! A connection has the number of its host, so that a command tests one bit.
//!
//! Invariant: a number is valid for one table, and each connection gets another one with the next table.

use std::collections::HashMap;

use isolane_wire::Nqn;

/// Number of a host in the masks of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaskHost(u32);

/// The masks of all namespaces of one table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Masks {
    /// The hosts that some mask names.
    pub hosts: HashMap<Nqn, MaskHost>,
    /// By position: one bit for each host that sees the namespace.
    visible: Vec<Box<[u64]>>,
}

impl Masks {
    /// Returns the masks of these positions.
    pub(crate) fn new<'a>(masked: impl Iterator<Item = (usize, &'a [Nqn])>) -> Masks {
        let mut masks = Masks::default();
        for (position, hosts) in masked {
            let mut bits = Vec::new();
            for nqn in hosts {
                let next = MaskHost(masks.hosts.len() as u32);
                let (word, bit) = masks.hosts.entry(*nqn).or_insert(next).place();
                bits.resize(bits.len().max(word + 1), 0);
                bits[word] |= bit;
            }
            if masks.visible.len() <= position {
                masks.visible.resize(position + 1, Box::default());
            }
            masks.visible[position] = bits.into();
        }
        masks
    }

    /// Whether a host sees the masked namespace at a position.
    #[inline]
    pub(crate) fn has(&self, position: usize, host: Option<MaskHost>) -> bool {
        let Some((word, bit)) = host.map(MaskHost::place) else { return false };
        self.visible.get(position).and_then(|bits| bits.get(word)).is_some_and(|bits| bits & bit != 0)
    }
}

impl MaskHost {
    fn place(self) -> (usize, u64) {
        ((self.0 / 64) as usize, 1 << (self.0 % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_its_bit() {
        let nqns: Vec<Nqn> = (0..150).map(|at| Nqn::new(&format!("nqn.example:{at}")).unwrap()).collect();
        let masks = Masks::new([(0, &nqns[..100]), (3, &nqns[70..]), (4, &[])].into_iter());
        for (at, nqn) in nqns.iter().enumerate() {
            let host = masks.hosts.get(nqn).copied();
            assert_eq!((masks.has(0, host), masks.has(3, host)), (at < 100, at >= 70), "{at}");
            assert!(!masks.has(4, host) && !masks.has(1, host) && !masks.has(9, host));
        }
        assert!(!masks.has(0, None));
    }
}
