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

/// Decodes a list of choices such as `always [madvise] never`, and returns the word in brackets.
///
/// # Errors
/// No word has brackets.
pub fn decode_choice(text: &str) -> Result<String, Malformed> {
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    word.map(|(word, _)| word.to_owned()).ok_or(Malformed::at(0, "a word in brackets"))
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

/// Shows a list of CPUs such as `0-3,8`.
pub fn show_cpus(cpus: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => ranges.push((*cpu, *cpu)),
        }
    }
    let show = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(show).collect::<Vec<_>>().join(",")
}

/// Decodes numbers separated by spaces.
///
/// # Errors
/// A word is not a number, or the text has no word.
pub fn decode_numbers(text: &str) -> Result<Vec<u64>, Malformed> {
    let numbers = text.split_ascii_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>();
    numbers.filter(|numbers| !numbers.is_empty()).ok_or(Malformed::at(0, "numbers"))
}

/// Decodes a mask of CPUs: groups of 32 bits in hexadecimal, the highest first, such as `00000001,00000005`.
///
/// # Errors
/// The text is not a mask, or names a CPU beyond 16,383.
pub fn decode_cpu_mask(text: &str) -> Result<Vec<u32>, Malformed> {
    let invalid = || Malformed::at(0, "a mask of CPUs");
    let mut cpus = Vec::new();
    for (first, group) in (0..=MAX_CPU).step_by(32).zip(text.trim().rsplit(',')) {
        let is_valid = (1..=8).contains(&group.len()) && group.bytes().all(|digit| digit.is_ascii_hexdigit());
        let mask = u32::from_str_radix(group, 16).ok().filter(|_| is_valid).ok_or_else(invalid)?;
        cpus.extend((0..32).filter(|bit| mask & (1 << bit) != 0).map(|bit| first + bit));
    }
    let max_groups = MAX_CPU as usize / 32 + 1;
    if text.split(',').count() > max_groups { Err(invalid()) } else { Ok(cpus) }
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

    #[test]
    fn decodes_masks_of_cpus() {
        assert_eq!(decode_cpu_mask("00000001,80000005\n").unwrap(), [0, 2, 31, 32]);
        assert_eq!(decode_cpu_mask("0\n").unwrap(), [0; 0]);
        for invalid in ["", ",", "1,", "x", "+1", "123456789", &"0,".repeat(600)] {
            assert!(decode_cpu_mask(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn decodes_rows_of_numbers() {
        assert_eq!(decode_numbers("4096\t131072 6291456\n").unwrap(), [4096, 131_072, 6_291_456]);
        assert!(decode_numbers("\n").is_err() && decode_numbers("1 -1").is_err());
    }
}
