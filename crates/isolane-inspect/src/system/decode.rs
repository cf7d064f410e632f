//! Formats that many files share: numbers, and lists of CPUs.

use super::read_error::Malformed;

/// Largest number of a CPU in a list.
const MAX_CPU: u32 = 16_383;

/// Decodes a decimal number, alone in its file.
///
/// # Errors
/// The text is not a number.
pub fn decode_number(text: &str) -> Result<u64, Malformed> {
    text.trim().parse().map_err(|_| Malformed::at(0, "a number"))
}

/// Decodes a list of CPUs such as `0-3,8`, sorted. An empty text is an empty list.
///
/// # Errors
/// The text is not a list of CPUs, or names one beyond 16,383.
pub fn decode_cpu_list(text: &str) -> Result<Vec<u32>, Malformed> {
    let invalid = || Malformed::at(0, "a list of CPUs");
    let mut cpus = Vec::new();
    for range in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: u32 = first.parse().map_err(|_| invalid())?;
        let last: u32 = last.parse().map_err(|_| invalid())?;
        // Lists of the kernel are sorted, so the number of entries is bounded.
        if first > last || last > MAX_CPU || cpus.last().is_some_and(|previous| *previous >= first) {
            return Err(invalid());
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_lists_of_cpus() {
        assert_eq!(decode_cpu_list("0-2,8\n").unwrap(), [0, 1, 2, 8]);
        assert_eq!(decode_cpu_list("\n").unwrap(), [0; 0]);
        for invalid in ["a", "2-1", "0,0", "5,1", "0-4294967295", "1-", ",", "0-3,", "-1"] {
            assert!(decode_cpu_list(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn rejects_malformed_numbers() {
        assert_eq!(decode_number(" 12\n"), Ok(12));
        for invalid in ["", "1 2", "-1", "0x1", "99999999999999999999"] {
            assert!(decode_number(invalid).is_err(), "{invalid}");
        }
    }
}
