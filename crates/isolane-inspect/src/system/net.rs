//! Network counters: `/proc/net/softnet_stat`, `/proc/net/snmp`, and `/proc/net/netstat`.

use super::read_error::{Malformed, ReadError};
use super::root::{Root, SMALL};

/// Limit in bytes of a file with a line for each CPU.
const MAX_BYTES: usize = 4 << 20;

/// Packets of a CPU since the start of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Softnet {
    /// Number of the CPU. Before Linux 5.10, the number of the line.
    pub cpu: u32,
    /// Processed packets.
    pub processed: u32,
    /// Packets dropped because the queue of the CPU was full.
    pub dropped: u32,
    /// Number of times that the budget or the time was used up.
    pub squeezed: u32,
    /// Packets that another CPU has passed to this one.
    pub steered: u32,
}

impl Softnet {
    /// Reads the counters of all CPUs.
    ///
    /// # Errors
    /// The file and the reason.
    pub fn read(root: &Root) -> Result<Vec<Softnet>, ReadError> {
        root.parse("/proc/net/softnet_stat", MAX_BYTES, decode_softnet)
    }
}

/// Decodes `/proc/net/softnet_stat`, whose numbers are hexadecimal.
///
/// # Errors
/// A line has fewer than ten numbers, or there is no line.
pub fn decode_softnet(text: &str) -> Result<Vec<Softnet>, Malformed> {
    let line = |(index, line): (usize, &str)| {
        let number =
            |word| u32::from_str_radix(word, 16).map_err(|_| Malformed::at(index, "a hexadecimal number"));
        let numbers = line.split_ascii_whitespace().map(number).collect::<Result<Vec<_>, _>>()?;
        let [processed, dropped, squeezed, .., steered] =
            *numbers.first_chunk::<10>().ok_or(Malformed::at(index, "ten numbers"))?;
        let cpu = numbers.get(12).copied().unwrap_or(index as u32);
        Ok(Softnet { cpu, processed, dropped, squeezed, steered })
    };
    let found = text.lines().enumerate().map(line).collect::<Result<Vec<_>, _>>()?;
    if found.is_empty() { Err(Malformed::at(0, "a CPU")) } else { Ok(found) }
}

/// Named counters of protocols, for example `RetransSegs` of `Tcp`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProtocolCounters {
    counters: Vec<(String, String, i64)>,
}

impl ProtocolCounters {
    /// Reads `/proc/net/snmp` and `/proc/net/netstat`.
    ///
    /// # Errors
    /// The file and the reason.
    pub fn read(root: &Root) -> Result<ProtocolCounters, ReadError> {
        let mut found = root.parse("/proc/net/snmp", SMALL, decode_protocol_counters)?;
        let more = root.parse("/proc/net/netstat", SMALL, decode_protocol_counters)?;
        found.counters.extend(more.counters);
        Ok(found)
    }

    /// Returns a counter of a protocol.
    pub fn get(&self, protocol: &str, name: &str) -> Option<i64> {
        let found = self.counters.iter().find(|(of, counter, _)| of == protocol && counter == name);
        found.map(|(.., value)| *value)
    }
}

/// Decodes pairs of lines: names, then values, both after the name of a protocol.
///
/// # Errors
/// A line of names has no line with as many values.
pub fn decode_protocol_counters(text: &str) -> Result<ProtocolCounters, Malformed> {
    let mut found = ProtocolCounters::default();
    let mut lines = text.lines().enumerate();
    while let Some((index, names)) = lines.next() {
        let malformed = Malformed::at(index + 1, "a value for each name");
        let (protocol, names) =
            names.split_once(':').ok_or(Malformed::at(index, "the name of a protocol"))?;
        let (_, values) = lines.next().ok_or(malformed)?;
        let values =
            values.strip_prefix(protocol).and_then(|rest| rest.strip_prefix(':')).ok_or(malformed)?;
        let (names, mut values) = (names.split_ascii_whitespace(), values.split_ascii_whitespace());
        for name in names {
            let value = values.next().and_then(|value| value.parse().ok()).ok_or(malformed)?;
            found.counters.push((protocol.to_owned(), name.to_owned(), value));
        }
        if values.next().is_some() {
            return Err(malformed);
        }
    }
    Ok(found)
}

/// Decodes `/proc/net/sockstat`. Returns the memory of TCP, in pages.
///
/// # Errors
/// The number is missing.
pub fn decode_tcp_memory(text: &str) -> Result<u64, Malformed> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("TCP:"));
    let words: Vec<&str> = lines.flat_map(str::split_ascii_whitespace).collect();
    let pages = words.windows(2).find(|pair| pair[0] == "mem").and_then(|pair| pair[1].parse().ok());
    pages.ok_or(Malformed::at(0, "the memory of TCP"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_packets_of_cpus() {
        let text = "0224d778 00000001 00000004 00000000 00000000 00000000 00000000 00000000 00000000 00000002 00000000 \
                    00000000 00000003 00000000 00000000\n";
        let expected = Softnet { cpu: 3, processed: 0x224_d778, dropped: 1, squeezed: 4, steered: 2 };
        assert_eq!(decode_softnet(text).unwrap(), [expected]);
        assert_eq!(decode_softnet("1 2 3 0 0 0 0 0 0 9\n").unwrap()[0].cpu, 0);
        for text in ["", "1 2 3\n", "1 2 3 4 5 6 7 8 9 x\n", "1 2 3 4 5 6 7 8 9 fffffffff\n"] {
            assert!(decode_softnet(text).is_err(), "{text}");
        }
    }

    #[test]
    fn decodes_memory_of_tcp() {
        let text = "sockets: used 9\nTCP: inuse 4 orphan 0 tw 1 alloc 6 mem 3\nUDP: inuse 1 mem 7\n";
        assert_eq!(decode_tcp_memory(text), Ok(3));
        for text in ["", "TCP: inuse 4\n", "TCP: mem x\n", "UDP: mem 7\n"] {
            assert!(decode_tcp_memory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn finds_counters_of_protocols() {
        let text = "Tcp: MaxConn OutSegs\nTcp: -1 71045605\nUdp: OutSegs\nUdp: 2\n";
        let found = decode_protocol_counters(text).unwrap();
        assert_eq!(found.get("Tcp", "OutSegs"), Some(71_045_605));
        assert_eq!(found.get("Tcp", "MaxConn"), Some(-1));
        assert_eq!(found.get("Tcp", "RetransSegs"), None);
        for text in [
            "Tcp: A\n",
            "Tcp: A B\nTcp: 1\n",
            "Tcp: A\nUdp: 1\n",
            "Tcp: A\nTcp: x\n",
            "A\nB\n",
            "T: A\nT: 1 2\n",
        ] {
            assert!(decode_protocol_counters(text).is_err(), "{text}");
        }
    }
}
