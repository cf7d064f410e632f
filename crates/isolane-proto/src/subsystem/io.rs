//! I/O commands, decoded and checked against the geometry of their namespace.
//!
//! Invariant: a command that [`parse_io`] returns is inside its namespace, is allowed there, and
//! moves exactly the bytes that the host described.

use isolane_wire::io::{DatasetManagementCommand, DsmRange, ReadCommand, WriteCommand, WriteZeroesCommand};
use isolane_wire::opcode::IoOpcode;
use isolane_wire::{Status, SubmissionEntry};

use super::NamespaceGeometry;
use crate::failure::Failure;

/// A checked I/O command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoCommand {
    /// Read blocks.
    Read {
        /// First block.
        lba: u64,
        /// Number of blocks, at least 1.
        blocks: u32,
        /// The returned data must be durable: flush a volatile cache first.
        fua: bool,
    },
    /// Write blocks.
    Write {
        /// First block.
        lba: u64,
        /// Number of blocks, at least 1.
        blocks: u32,
        /// Durable before the completion.
        fua: bool,
    },
    /// Make every completed write durable.
    Flush,
    /// Write zeroes to blocks.
    WriteZeroes {
        /// First block.
        lba: u64,
        /// Number of blocks, at least 1.
        blocks: u32,
        /// Durable before the completion.
        fua: bool,
        /// Whether the space can be released.
        deallocate: bool,
    },
    /// Release the space of ranges; [`parse_ranges`] decodes them when their data has arrived.
    Deallocate {
        /// Number of ranges in the data, 16 bytes each: 1 to 256.
        ranges: u16,
    },
    /// Ignored hints (Dataset Management without Deallocate): complete with success.
    NoOp,
}

/// Decodes and checks an I/O command. `data_bytes` is the length of the host's SGL, 0 without one;
/// `max_transfer_bytes` is the limit reported as MDTS.
pub fn parse_io(
    entry: &SubmissionEntry,
    geometry: &NamespaceGeometry,
    data_bytes: u32,
    max_transfer_bytes: u32,
) -> Result<IoCommand, Status> {
    let opcode = IoOpcode::decode(entry.opcode).ok_or(Failure::Opcode.status())?;
    // Fused operations are not offered (FUSES 0).
    if entry.flags.fuse() != 0 {
        return Err(Failure::Field.status());
    }
    let parser = Parser { geometry, data_bytes, max_transfer_bytes };
    match opcode {
        IoOpcode::Read => parser.read(&ReadCommand::parse(entry)),
        IoOpcode::Write => parser.write(&WriteCommand::parse(entry)),
        IoOpcode::Flush => parser.flush(),
        IoOpcode::WriteZeroes => parser.write_zeroes(&WriteZeroesCommand::parse(entry)),
        IoOpcode::DatasetManagement => parser.dataset_management(&DatasetManagementCommand::parse(entry)),
        _ => Err(Failure::Opcode.status()),
    }
}

/// Decodes the first `ranges` ranges of a Deallocate's data, and checks that they are inside the
/// namespace; the host may have sent more bytes. A range of 0 blocks has no effect.
pub fn parse_ranges(data: &[u8], ranges: u16, geometry: &NamespaceGeometry) -> Result<Vec<DsmRange>, Status> {
    let data = data.get(..usize::from(ranges) * DsmRange::LEN).ok_or(Failure::SglLength.status())?;
    DsmRange::decode_all(data)
        .map(|range| {
            check_range(geometry, range.slba, range.blocks.into())?;
            Ok(range)
        })
        .collect()
}

/// Data of the maximum number of ranges of one command.
const MAX_RANGES_BYTES: u32 = (DatasetManagementCommand::MAX_RANGES * DsmRange::LEN) as u32;

struct Parser<'a> {
    geometry: &'a NamespaceGeometry,
    data_bytes: u32,
    max_transfer_bytes: u32,
}

impl Parser<'_> {
    #[inline]
    fn read(&self, command: &ReadCommand) -> Result<IoCommand, Status> {
        self.check_transfer(command.blocks())?;
        check_range(self.geometry, command.slba, command.blocks().into())?;
        Ok(IoCommand::Read { lba: command.slba, blocks: command.blocks(), fua: command.fua })
    }

    #[inline]
    fn write(&self, command: &WriteCommand) -> Result<IoCommand, Status> {
        // Directives are not offered (OACS bit 5 clear).
        if command.dtype != 0 {
            return Err(Failure::Field.status());
        }
        self.check_transfer(command.blocks())?;
        check_range(self.geometry, command.slba, command.blocks().into())?;
        self.check_writable()?;
        Ok(IoCommand::Write { lba: command.slba, blocks: command.blocks(), fua: command.fua })
    }

    fn flush(&self) -> Result<IoCommand, Status> {
        self.check_data_bytes(0)?;
        Ok(IoCommand::Flush)
    }

    /// MDTS does not apply, because the command moves no data.
    fn write_zeroes(&self, command: &WriteZeroesCommand) -> Result<IoCommand, Status> {
        self.check_data_bytes(0)?;
        check_range(self.geometry, command.slba, command.blocks().into())?;
        self.check_writable()?;
        let WriteZeroesCommand { slba, fua, deallocate, .. } = *command;
        Ok(IoCommand::WriteZeroes { lba: slba, blocks: command.blocks(), fua, deallocate })
    }

    /// Hosts such as Linux always describe 256 ranges, so the data can be longer than the ranges.
    fn dataset_management(&self, command: &DatasetManagementCommand) -> Result<IoCommand, Status> {
        if !(command.data_len()..=MAX_RANGES_BYTES).contains(&self.data_bytes) {
            return Err(Failure::SglLength.status());
        }
        if !command.deallocate {
            return Ok(IoCommand::NoOp);
        }
        self.check_writable()?;
        Ok(IoCommand::Deallocate { ranges: command.ranges() as u16 })
    }

    fn check_transfer(&self, blocks: u32) -> Result<(), Status> {
        let bytes = u64::from(blocks) << self.geometry.block_shift;
        if bytes > u64::from(self.max_transfer_bytes) {
            return Err(Failure::Field.status());
        }
        self.check_data_bytes(bytes)
    }

    /// The host must describe exactly the bytes that the command moves (SGLS bit 18 is clear).
    fn check_data_bytes(&self, bytes: u64) -> Result<(), Status> {
        if u64::from(self.data_bytes) == bytes { Ok(()) } else { Err(Failure::SglLength.status()) }
    }

    fn check_writable(&self) -> Result<(), Status> {
        if self.geometry.read_only { Err(Failure::WriteProtected.status()) } else { Ok(()) }
    }
}

/// Both numbers come from the peer: their sum can exceed 64 bits.
#[inline]
fn check_range(geometry: &NamespaceGeometry, lba: u64, blocks: u64) -> Result<(), Status> {
    match lba.checked_add(blocks) {
        Some(end) if end <= geometry.blocks => Ok(()),
        _ => Err(Failure::LbaRange.status()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_dnr(status: Status) -> Status {
        status.with_dnr(true)
    }

    const GEOMETRY: NamespaceGeometry = NamespaceGeometry { block_shift: 9, blocks: 4096, read_only: false };
    const MDTS: u32 = 1 << 20;

    fn parse(entry: SubmissionEntry, data_bytes: u32) -> Result<IoCommand, Status> {
        parse_io(&entry, &GEOMETRY, data_bytes, MDTS)
    }

    fn read(slba: u64, nlb: u16) -> SubmissionEntry {
        ReadCommand { nsid: 1, slba, nlb, ..ReadCommand::default() }.entry()
    }

    fn write(slba: u64, nlb: u16) -> WriteCommand {
        WriteCommand { nsid: 1, slba, nlb, ..WriteCommand::default() }
    }

    #[test]
    fn accepts_io_inside_namespace() {
        assert_eq!(parse(read(8, 7), 4096), Ok(IoCommand::Read { lba: 8, blocks: 8, fua: false }));
        let fua = WriteCommand { fua: true, ..write(0, 0) };
        assert_eq!(parse(fua.entry(), 512), Ok(IoCommand::Write { lba: 0, blocks: 1, fua: true }));
    }

    #[test]
    fn accepts_last_block_only() {
        assert!(parse(read(4095, 0), 512).is_ok());
        assert_eq!(parse(read(4095, 1), 1024), Err(with_dnr(Status::LBA_OUT_OF_RANGE)));
        assert_eq!(parse(read(4096, 0), 512), Err(with_dnr(Status::LBA_OUT_OF_RANGE)));
    }

    #[test]
    fn lba_near_u64_max_does_not_wrap() {
        for slba in [u64::MAX, u64::MAX - 1, u64::MAX - 7] {
            assert_eq!(parse(read(slba, 7), 4096), Err(with_dnr(Status::LBA_OUT_OF_RANGE)));
            assert_eq!(parse(write(slba, 7).entry(), 4096), Err(with_dnr(Status::LBA_OUT_OF_RANGE)));
        }
    }

    #[test]
    fn rejects_transfer_above_mdts() {
        let geometry = NamespaceGeometry { blocks: 1 << 20, ..GEOMETRY };
        let largest = parse_io(&read(0, 2047), &geometry, MDTS, MDTS);
        assert_eq!(largest, Ok(IoCommand::Read { lba: 0, blocks: 2048, fua: false }));
        let larger = parse_io(&read(0, 2048), &geometry, MDTS + 512, MDTS);
        assert_eq!(larger, Err(with_dnr(Status::INVALID_FIELD)));
    }

    #[test]
    fn largest_nlb_does_not_overflow() {
        let geometry = NamespaceGeometry { block_shift: 12, blocks: u64::MAX, read_only: false };
        let result = parse_io(&read(0, 0xffff), &geometry, 0, u32::MAX);
        assert_eq!(result, Err(with_dnr(Status::DATA_SGL_LENGTH_INVALID)));
    }

    #[test]
    fn rejects_sgl_of_wrong_length() {
        for data_bytes in [0, 511, 513, 1024] {
            assert_eq!(parse(read(0, 0), data_bytes), Err(with_dnr(Status::DATA_SGL_LENGTH_INVALID)));
            assert_eq!(
                parse(write(0, 0).entry(), data_bytes),
                Err(with_dnr(Status::DATA_SGL_LENGTH_INVALID))
            );
        }
    }

    #[test]
    fn rejects_data_for_command_without_data() {
        let flush = isolane_wire::io::flush(1);
        assert_eq!(parse(flush, 0), Ok(IoCommand::Flush));
        assert_eq!(parse(flush, 512), Err(with_dnr(Status::DATA_SGL_LENGTH_INVALID)));
        let zeroes = WriteZeroesCommand { nsid: 1, ..WriteZeroesCommand::default() };
        assert_eq!(parse(zeroes.entry(), 512), Err(with_dnr(Status::DATA_SGL_LENGTH_INVALID)));
    }

    #[test]
    fn read_only_namespace_rejects_changes() {
        let geometry = NamespaceGeometry { read_only: true, ..GEOMETRY };
        let protected = Err(with_dnr(Status::NAMESPACE_WRITE_PROTECTED));
        assert!(parse_io(&read(0, 0), &geometry, 512, MDTS).is_ok());
        assert!(parse_io(&isolane_wire::io::flush(1), &geometry, 0, MDTS).is_ok());
        assert_eq!(parse_io(&write(0, 0).entry(), &geometry, 512, MDTS), protected);
        let zeroes = WriteZeroesCommand { nsid: 1, ..WriteZeroesCommand::default() };
        assert_eq!(parse_io(&zeroes.entry(), &geometry, 0, MDTS), protected);
        let deallocate = DatasetManagementCommand { deallocate: true, ..DatasetManagementCommand::default() };
        assert_eq!(parse_io(&deallocate.entry(), &geometry, 16, MDTS), protected);
    }

    #[test]
    fn accepts_write_zeroes_above_mdts() {
        let geometry = NamespaceGeometry { blocks: 1 << 20, ..GEOMETRY };
        let command = WriteZeroesCommand {
            slba: 1,
            nlb: 0xffff,
            deallocate: true,
            fua: true,
            ..WriteZeroesCommand::default()
        };
        let parsed = parse_io(&command.entry(), &geometry, 0, MDTS);
        let expected = IoCommand::WriteZeroes { lba: 1, blocks: 65536, fua: true, deallocate: true };
        assert_eq!(parsed, Ok(expected));
    }

    #[test]
    fn checks_each_deallocate_range() {
        let command =
            DatasetManagementCommand { nr: 255, deallocate: true, ..DatasetManagementCommand::default() };
        assert_eq!(parse(command.entry(), 4096), Ok(IoCommand::Deallocate { ranges: 256 }));
        assert_eq!(parse(command.entry(), 4080), Err(with_dnr(Status::DATA_SGL_LENGTH_INVALID)));

        let mut data = DsmRange { attributes: 0, blocks: 8, slba: 4088 }.encode().to_vec();
        data.extend(DsmRange { attributes: 0, blocks: 0, slba: 4096 }.encode());
        let ranges = parse_ranges(&data, 2, &GEOMETRY).unwrap();
        assert_eq!(
            ranges,
            [
                DsmRange { attributes: 0, blocks: 8, slba: 4088 },
                DsmRange { attributes: 0, blocks: 0, slba: 4096 }
            ]
        );
        data.extend(DsmRange { attributes: 0, blocks: u32::MAX, slba: u64::MAX }.encode());
        assert_eq!(parse_ranges(&data, 3, &GEOMETRY), Err(with_dnr(Status::LBA_OUT_OF_RANGE)));
        assert_eq!(
            parse_ranges(&data, 2, &GEOMETRY),
            Ok(ranges),
            "what lies behind the ranges does not matter"
        );
        assert_eq!(parse_ranges(&data, 4, &GEOMETRY), Err(with_dnr(Status::DATA_SGL_LENGTH_INVALID)));
    }

    #[test]
    fn accepts_linux_deallocate() {
        let command =
            DatasetManagementCommand { nr: 0, deallocate: true, ..DatasetManagementCommand::default() };
        assert_eq!(parse(command.entry(), 4096), Ok(IoCommand::Deallocate { ranges: 1 }));
        assert_eq!(parse(command.entry(), 4112), Err(with_dnr(Status::DATA_SGL_LENGTH_INVALID)));
    }

    #[test]
    fn hints_without_deallocate_are_accepted_and_unused() {
        let command = DatasetManagementCommand { integral_read: true, ..DatasetManagementCommand::default() };
        assert_eq!(parse(command.entry(), 16), Ok(IoCommand::NoOp));
    }

    #[test]
    fn rejects_unsupported_opcodes() {
        for opcode in [IoOpcode::Compare, IoOpcode::Copy, IoOpcode::ReservationRegister] {
            let entry = SubmissionEntry::new(opcode.code(), 1);
            assert_eq!(parse(entry, 0), Err(with_dnr(Status::INVALID_OPCODE)));
        }
        assert_eq!(parse(SubmissionEntry::new(0xc0, 1), 0), Err(with_dnr(Status::INVALID_OPCODE)));
        let fused = SubmissionEntry { flags: read(0, 0).flags.with_fuse(1), ..read(0, 0) };
        assert_eq!(parse(fused, 512), Err(with_dnr(Status::INVALID_FIELD)));
        let directive = WriteCommand { dtype: 1, ..write(0, 0) };
        assert_eq!(parse(directive.entry(), 512), Err(with_dnr(Status::INVALID_FIELD)));
    }
}
