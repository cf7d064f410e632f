//! Start of a mirror: reads labels and bitmap, and writes the first record.

use std::sync::Arc;

use isolane_volume::{NestedIo, OpenError, Request, Volume, VolumeError};
use parking_lot::Mutex;

use super::bits::{Bits, SECTOR_BYTES, sectors_for};
use super::decide::{Label, NoLabel, StartOptions, decide};
use super::record::{BITMAP, MemberState, Record};
use super::requests::{Mirror, write_record};
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
    let mut labels: [Label; 2] = [Err(NoLabel::Blank), Err(NoLabel::Blank)];
    for (number, member) in members.iter().enumerate() {
        let label = read_label(&io, member, new.blocks).await;
        if let Some((holder, _)) = label.iter().find(|(holder, _)| *holder != number) {
            let (number, holder) = (number + 1, holder + 1);
            let reason = format!(
                "member {number} has the label of member {holder}: the members are in the wrong order"
            );
            return Err(OpenError::invalid(&name, reason, "swap them"));
        }
        labels[number] = label.map(|(_, record)| record);
    }
    let layout = labels.iter().flatten().next().unwrap_or(&new);
    if (layout.block_size, layout.blocks) != (new.block_size, new.blocks) {
        return Err(OpenError::new(&name, "the size of the members has changed", "restore it"));
    }
    let sectors = 1 + sectors_for(layout.regions());
    let bitmap = open_bitmap(sectors * SECTOR_BYTES as u64)?;
    if bitmap.info().bytes() != sectors * SECTOR_BYTES as u64 {
        return Err(OpenError::new(&name, "the bitmap file has another size", "check its path"));
    }
    let request = Request::Read { lba: 0, blocks: sectors };
    let bytes = io.start(&bitmap, request).await.map_err(error)?.to_vec();
    let record = Record::decode(&bytes).filter(|(holder, _)| *holder == BITMAP).map(|(_, record)| record);
    // An interrupted creation is repeated: its record reaches the bitmap file first, and its mirror is not in use
    // before the record after it. Any other label, or one without its bitmap file, can name the only data.
    let is_of_creation = |label: &Record| {
        record.iter().any(|record| record.is_same_mirror(label) && label.sequence <= record.sequence)
    };
    let is_new = options.create
        && labels[0] == Err(NoLabel::Blank)
        && (labels[1] == Err(NoLabel::Blank) || labels[1].as_ref().is_ok_and(is_of_creation))
        && record.as_ref().is_none_or(|record| record.sequence <= 1);
    let (record, all_dirty) = if is_new {
        io.start(&bitmap, write_record(&new, BITMAP)).await.map_err(error)?;
        (new, true)
    } else {
        decide(&name, record.as_ref(), &labels, options)?
    };
    let saved = Bits::decode(record.regions(), &bytes[SECTOR_BYTES..]);
    if saved.is_none() && !all_dirty {
        log::error!("{name}: the bitmap file is damaged, all regions can differ");
    }
    for (number, member) in members.iter().enumerate() {
        let is_of_generation = |label: &Record| label.generation == record.generation;
        let joins = !labels[number].iter().any(is_of_generation);
        match (member, record.states[number]) {
            // The label names the new generation before any other record counts on the member.
            (Ok(volume), MemberState::Incomplete) if joins => {
                io.start(volume, write_record(&record, number)).await.map_err(error)?;
            }
            (_, MemberState::Out) => log::warn!("{name}: degraded, member {} is missing", number + 1),
            _ => {}
        }
    }
    let state = Mutex::new(State::new(record, saved.filter(|_| !all_dirty)));
    let mirror = Arc::new(Mirror {
        name: name.clone(),
        members: members.map(Result::ok),
        bitmap,
        state,
        member_timeout: options.member_timeout,
    });
    // Bits and record are durable before the first request.
    mirror.commit(&io, State::is_saved).await.map_err(error)?;
    // From the second record of a creation on, a blank member was replaced.
    mirror.state.lock().record.sequence += u64::from(is_new);
    mirror.commit(&io, State::is_saved).await.map_err(error)?;
    Ok(mirror)
}

/// Reads the label of a member, and its holder.
async fn read_label(io: &NestedIo, member: &Member, lba: u64) -> Result<(usize, Record), NoLabel> {
    let volume = member.as_ref().map_err(|error| NoLabel::Missing(error.to_string()))?;
    let bytes = io.start(volume, Request::Read { lba, blocks: 1 }).await;
    let bytes = bytes.map_err(|error| NoLabel::Missing(error.to_string()))?.to_vec();
    let no_label = if Record::is_damaged(&bytes) { NoLabel::Damaged } else { NoLabel::Blank };
    Record::decode(&bytes).ok_or(no_label)
}

#[cfg(test)]
mod tests;
