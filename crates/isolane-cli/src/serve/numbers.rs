//! IDs of namespaces on the command line.

use isolane_volume::spec::VolumeSpec;

use crate::failure::Failure;

/// Returns the requested namespace ID of each volume, or the next free one.
pub fn number(specs: &[VolumeSpec]) -> Result<Vec<u32>, Failure> {
    let requested: Vec<u32> = specs.iter().filter_map(|spec| spec.nsid).collect();
    if let Some(twice) = requested.iter().enumerate().find(|(at, nsid)| requested[..*at].contains(nsid)) {
        return Err(Failure::new(format!("namespace ID {} is used twice", twice.1), "IDs are unique")
            .with_hint("give every volume its own nsid"));
    }
    let mut free = (1..).filter(|nsid| !requested.contains(nsid));
    Ok(specs.iter().map(|spec| spec.nsid.or_else(|| free.next()).unwrap_or(u32::MAX)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(texts: &[&str]) -> Vec<VolumeSpec> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn numbers_volumes_around_requested_ids() {
        let specs = specs(&["mem:1M", "mem:1M,nsid=2", "mem:1M", "mem:1M,nsid=9"]);
        assert_eq!(number(&specs).unwrap(), [1, 2, 3, 9]);
    }

    #[test]
    fn rejects_duplicate_ids() {
        let failure = number(&specs(&["mem:1M,nsid=2", "mem:1M,nsid=2"])).unwrap_err();
        assert!(failure.to_string().contains("namespace ID 2"), "{failure}");
    }
}
