//! Interrupts: `/proc/interrupts` and `/sys/kernel/irq`.

use super::decode::{decode_cpu_list, decode_number};
use super::read_error::{Malformed, ReadError, Reason};
use super::root::{Root, SMALL};

/// Limit in bytes of `/proc/interrupts`: 4,096 lines with 512 CPUs have 24 MiB.
const MAX_BYTES: usize = 64 << 20;

/// Content of `/proc/interrupts`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// The online CPUs, one for each count of a line.
    pub cpus: Vec<u32>,
    /// The lines in the order of the file.
    pub lines: Vec<InterruptLine>,
    /// `cpus.len()` counts for each line.
    counts: Vec<u64>,
}

/// A line of `/proc/interrupts`.
#[derive(Debug, PartialEq, Eq)]
pub struct InterruptLine {
    /// Number such as `142`, or name such as `LOC`.
    pub name: String,
    /// Chip, type, and handlers, as the kernel prints them.
    pub description: String,
}

impl Interrupts {
    /// Reads the counts of all lines.
    ///
    /// # Errors
    /// The file and the reason.
    pub fn read(root: &Root) -> Result<Interrupts, ReadError> {
        root.parse("/proc/interrupts", MAX_BYTES, decode_interrupts)
    }

    /// Returns the counts of a line, one for each of `cpus`.
    pub fn counts(&self, line: usize) -> &[u64] {
        self.counts.chunks(self.cpus.len().max(1)).nth(line).unwrap_or_default()
    }
}

/// Decodes `/proc/interrupts`.
///
/// # Errors
/// The first line that lacks a count.
pub fn decode_interrupts(text: &str) -> Result<Interrupts, Malformed> {
    let mut lines = text.lines().enumerate();
    let (_, header) = lines.next().ok_or(Malformed::at(0, "the CPUs"))?;
    let cpu = |word: &str| word.strip_prefix("CPU").and_then(|number| number.parse().ok());
    let cpus = header.split_ascii_whitespace().map(cpu).collect::<Option<Vec<u32>>>();
    let cpus = cpus.filter(|cpus| !cpus.is_empty()).ok_or(Malformed::at(0, "the CPUs"))?;
    let mut found = Interrupts { cpus, ..Interrupts::default() };
    for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let (name, rest) = line.split_once(':').ok_or(Malformed::at(index, "the name of an interrupt"))?;
        let description =
            found.push_counts(name, rest).ok_or(Malformed::at(index, "a count for each CPU"))?;
        let description = description.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        found.lines.push(InterruptLine { name: name.trim().to_owned(), description });
    }
    Ok(found)
}

impl Interrupts {
    /// Appends the counts at the start of a text, and returns the remaining text. Named lines
    /// such as `ERR` may have one count.
    fn push_counts<'a>(&mut self, name: &str, mut text: &'a str) -> Option<&'a str> {
        for read in 0..self.cpus.len() {
            text = text.trim_ascii_start();
            if text.is_empty() && read == 1 && name.trim().parse::<u32>().is_err() {
                self.counts.resize(self.counts.len() + self.cpus.len() - 1, 0);
                return Some(text);
            }
            let (word, rest) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
            self.counts.push(word.parse().ok()?);
            text = rest;
        }
        Some(text)
    }
}

/// An interrupt line of `/sys/kernel/irq`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IrqLine {
    /// Number of the line.
    pub number: u32,
    /// Names of the handlers. More than one share the line.
    pub actions: Vec<String>,
    /// Name of the interrupt controller, for example `VMD-MSI`.
    pub chip: String,
    /// Number at the interrupt controller, if the line has one.
    pub hwirq: Option<u64>,
}

impl IrqLine {
    /// Reads all lines. A line that a driver frees in the meantime is left out.
    ///
    /// # Errors
    /// The directory and the reason. A line that cannot be read has its own error.
    pub fn all(root: &Root) -> Result<Vec<Result<IrqLine, ReadError>>, ReadError> {
        let is_freed = |line: &Result<IrqLine, ReadError>, number| {
            line.as_ref().is_err_and(|error| error.reason == Reason::Missing)
                && !root.exists(&format!("/sys/kernel/irq/{number}"))
        };
        let lines = irq_numbers(root)?.into_iter().map(|number| (number, IrqLine::read(root, number)));
        Ok(lines.filter(|(number, line)| !is_freed(line, *number)).map(|(_, line)| line).collect())
    }

    /// Returns `true` for a line of a device behind a VMD. Its [`IrqLine::hwirq`] is the number of the VMD's own line.
    pub fn is_behind_vmd(&self) -> bool {
        self.chip == "VMD-MSI"
    }

    /// Reads a line.
    ///
    /// # Errors
    /// The file and the reason.
    pub fn read(root: &Root, number: u32) -> Result<IrqLine, ReadError> {
        let file = |name: &str| format!("/sys/kernel/irq/{number}/{name}");
        let decode =
            |text: &str| if text.trim().is_empty() { Ok(None) } else { decode_number(text).map(Some) };
        let hwirq = root.parse(&file("hwirq"), SMALL, decode)?;
        let actions = split_actions(&root.word(&file("actions"))?);
        Ok(IrqLine { number, actions, chip: root.word(&file("chip_name"))?, hwirq })
    }

    /// Reads the number of interrupts on each possible CPU.
    ///
    /// # Errors
    /// The file and the reason.
    pub fn counts(root: &Root, number: u32) -> Result<Vec<u64>, ReadError> {
        root.parse(&format!("/sys/kernel/irq/{number}/per_cpu_count"), MAX_BYTES, decode_counts)
    }

    /// Reads the CPUs on which the line really interrupts.
    ///
    /// # Errors
    /// The file and the reason.
    pub fn cpus(root: &Root, number: u32) -> Result<Vec<u32>, ReadError> {
        root.parse(&format!("/proc/irq/{number}/effective_affinity_list"), SMALL, decode_cpu_list)
    }
}

/// Returns the numbers of all interrupt lines.
fn irq_numbers(root: &Root) -> Result<Vec<u32>, ReadError> {
    Ok(root.list("/sys/kernel/irq")?.iter().filter_map(|name| name.parse().ok()).collect())
}

fn split_actions(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Decodes counts separated by commas, one for each possible CPU.
///
/// # Errors
/// A count is not a number.
pub fn decode_counts(text: &str) -> Result<Vec<u64>, Malformed> {
    let counts = text.trim().split(',').map(|count| count.parse().ok()).collect::<Option<_>>();
    counts.ok_or(Malformed::at(0, "counts separated by commas"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const TEXT: &str = "           CPU0       CPU2       \n  9:          1          0  IO-APIC   9-fasteoi   acpi, \
                        switchtec\n142:  7 8 VMD-MSI 142  nvme5q1\nLOC: 5 6   Local timer interrupts\nERR:          3\n";

    #[test]
    fn decodes_counts_of_each_cpu() {
        let found = decode_interrupts(TEXT).unwrap();
        assert_eq!(found.cpus, [0, 2]);
        assert_eq!(found.counts(1), [7, 8]);
        assert_eq!(found.counts(3), [3, 0]);
        assert_eq!(found.lines[0].description, "IO-APIC 9-fasteoi acpi, switchtec");
        assert_eq!(found.lines[3], InterruptLine { name: "ERR".into(), description: String::new() });
        assert!(found.counts(4).is_empty());
    }

    #[test]
    fn rejects_malformed_interrupts() {
        for text in
            ["", "\n", "CPU0 x\n", "CPU0\n1\n", "CPU0 CPU1\n1: 2 x\n", "CPU0\n1: 99999999999999999999\n"]
        {
            assert!(decode_interrupts(text).is_err(), "{text}");
        }
        let cut = &TEXT[..TEXT.find(" 8 VMD").unwrap()];
        assert!(decode_interrupts(cut).is_err(), "{cut}");
        assert!(decode_counts("1,2,").is_err() && decode_counts("").is_err());
    }

    #[test]
    fn decodes_512_cpus_with_4096_lines() {
        let mut text: String = (0..512).map(|cpu| format!("CPU{cpu} ")).collect();
        let counts = " 1234567890".repeat(512);
        for line in 0..4096 {
            text += &format!("\n{line}:{counts} PCI-MSI 1-edge nvme0q{line}");
        }
        assert!(text.len() < MAX_BYTES);
        let found = decode_interrupts(&text).unwrap();
        assert_eq!((found.cpus.len(), found.lines.len(), found.counts.len()), (512, 4096, 512 * 4096));
        assert_eq!(found.counts(4095)[511], 1_234_567_890);
    }

    #[test]
    fn reads_shared_lines() {
        let tree = Tree::new(&[
            ("/sys/kernel/irq/142/actions", "nvme5q1,switchtec\n"),
            ("/sys/kernel/irq/142/chip_name", "VMD-MSI\n"),
            ("/sys/kernel/irq/142/hwirq", "130\n"),
            ("/sys/kernel/irq/142/per_cpu_count", "0,5\n"),
            ("/proc/irq/142/effective_affinity_list", "1\n"),
            ("/sys/kernel/irq/9/hwirq", "x\n"),
        ]);
        let root = tree.root();
        assert_eq!(irq_numbers(&root).unwrap(), [9, 142]);
        let line = IrqLine::read(&root, 142).unwrap();
        assert_eq!((line.actions.len(), &*line.chip, line.hwirq), (2, "VMD-MSI", Some(130)));
        assert_eq!(IrqLine::counts(&root, 142).unwrap(), [0, 5]);
        assert_eq!(IrqLine::cpus(&root, 142).unwrap(), [1]);
        assert!(IrqLine::read(&root, 9).is_err());
    }
}
