//! Start of a mirror: reads labels and bitmap, and writes the first record.

use std::sync::Arc;

use isolane_volume::{NestedIo, OpenError, Request, Volume, VolumeError};
use parking_lot::Mutex;

use super::bits::{Bits, SECTOR_BYTES, sectors_for};
use super::decide::{Label, StartOptions, decide};
use super::record::{BITMAP, MemberState, Record};
use super::requests::{Mirror, sector_lba, write_label, write_record};
use super::state::State;

/// Result of opening a member.
pub(super) type Member = Result<Arc<dyn Volume>, OpenError>;

/// Starts a mirror; `new` is its record if it is created, and `open_bitmap` opens the bitmap file of the given size.
pub(super) async fn start(
    io: NestedIo,
    name: String,
    members: [Member; 2],
    new: Record,
    open_bitmap: impl FnOnce(u64) -> Member,
    options: StartOptions,
) -> Result<Arc<Mirror>, OpenError> {
    let error = |error: VolumeError| OpenError::new(&name, error.to_string(), "check the storage");
    let (mut labels, mut damaged): ([Label; 2], _) = ([Ok(None), Ok(None)], None);
    for (number, member) in members.iter().enumerate() {
        let bytes = match member {
            Ok(volume) => read_block(&io, volume, new.blocks).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let label = bytes.as_ref().ok().and_then(|bytes| Record::decode(bytes));
        if let Some((holder, _)) = label.as_ref().filter(|(holder, _)| *holder != number) {
            let (number, holder) = (number + 1, holder + 1);
            let reason = format!(
                "member {number} has the label of member {holder}: the members are in the wrong order"
            );
            return Err(OpenError::new(&name, reason, "swap them"));
        }
        if bytes.as_ref().is_ok_and(|bytes| Record::is_damaged(bytes)) {
            damaged.get_or_insert(number + 1);
        }
        labels[number] = bytes.map(|_| label.map(|(_, record)| record));
    }
    let layout = labels.iter().flatten().flatten().next().unwrap_or(&new);
    if (layout.block_size, layout.blocks) != (new.block_size, new.blocks) {
        return Err(OpenError::new(&name, "the size of the members has changed", "restore it"));
    }
    let bytes = sector_lba(sectors_for(layout.regions())) * SECTOR_BYTES as u64;
    let bitmap = open_bitmap(bytes)?;
    if bitmap.info().bytes() != bytes {
        return Err(OpenError::new(&name, "the bitmap file has another size", "check its path"));
    }
    let record = Record::decode(&read_block(&io, &bitmap, 0).await.map_err(error)?);
    let record = record.filter(|(holder, _)| *holder == BITMAP).map(|(_, record)| record);
    // An interrupted creation is repeated: its record reaches the bitmap file first, and its mirror was not in use
    // before member 1 had its label. Any other label, or one without its bitmap file, can name the only data.
    let is_of_creation = |label: &Record| {
        let is_same = |record: &Record| record.is_same_mirror(label) && label.sequence <= record.sequence;
        record.as_ref().is_some_and(is_same)
    };
    let is_new = options.create
        && damaged.is_none()
        && labels[0] == Ok(None)
        && labels[1].as_ref().is_ok_and(|label| label.iter().all(is_of_creation))
        && record.as_ref().is_none_or(|record| record.sequence <= 1);
    let (record, mut all_dirty) = match is_new {
        true => (new, true),
        false => decide(&name, record.as_ref(), &labels, options).map_err(|error| match damaged {
            Some(number) => OpenError {
                reason: format!(
                    "the label of member {number} is damaged or of another version: {}",
                    error.reason
                ),
                remedy: format!(
                    "{}; to discard that label, zero the last 64 KiB of member {number}",
                    error.remedy
                ),
                ..error
            },
            None => error,
        })?,
    };
    if is_new {
        io.start(&bitmap, write_record(&record)).await.map_err(error)?;
    }
    let mut saved = Bits::new(record.regions());
    for sector in 0..sectors_for(record.regions()) {
        let sector_bytes = read_block(&io, &bitmap, sector_lba(sector)).await.map_err(error)?;
        if !all_dirty && !saved.decode(sector, &sector_bytes) {
            log::error!("{name}: the bitmap file is damaged, all regions can differ");
            all_dirty = true;
        }
    }
    if saved.iter().any(|region| region >= record.regions()) {
        log::error!("{name}: the bitmap file has bits beyond the mirror, all regions can differ");
        (saved, all_dirty) = (Bits::new(record.regions()), true);
    }
    for (number, member) in members.iter().enumerate() {
        let is_of_generation = |label: &Record| label.generation == record.generation;
        let joins = !labels[number].iter().flatten().any(is_of_generation);
        match (member, record.states[number]) {
            // The label names the new generation before any other record counts on the member.
            (Ok(volume), MemberState::Incomplete) if joins => {
                io.start(volume, write_label(&record, number)).await.map_err(error)?;
            }
            (_, MemberState::Out) => log::warn!("{name}: degraded, member {} is missing", number + 1),
            _ => {}
        }
    }
    let state = Mutex::new(State::new(record, saved, all_dirty));
    let members = members.map(Result::ok);
    let mirror = Arc::new(Mirror { name: name.clone(), members, bitmap, state });
    // Bits and record are durable before the first request.
    let is_saved = |state: &State| state.is_bitmap_saved() && state.is_record_durable();
    mirror.commit(&io, is_saved).await.map_err(error)?;
    Ok(mirror)
}

async fn read_block(io: &NestedIo, volume: &Arc<dyn Volume>, lba: u64) -> Result<Vec<u8>, VolumeError> {
    Ok(io.start(volume, Request::Read { lba, blocks: 1 }).await?.to_vec())
}

#[cfg(test)]
mod tests;
