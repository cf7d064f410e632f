//! Start of a mirror: reads labels and bitmap, and writes the first record.

use std::sync::Arc;

use isolane_memory::Payload;
use isolane_volume::{OpenError, Outcome, Request, Step, Volume, VolumeError, VolumeInfo};
use parking_lot::Mutex;
use uuid::Uuid;

use super::bits::{Bits, SECTOR_BYTES, sectors_for};
use super::decide::{Label, StartOptions, decide};
use super::record::{BITMAP, LABEL_BYTES, MAX_REGIONS, MemberState, Record};
use super::requests::{Mirror, sector_lba, write_label, write_record};
use super::state::State;

/// Result of opening a member.
pub(super) type Member = Result<Arc<dyn Volume>, OpenError>;

/// Runs a nested request to its end.
pub(super) type Run<'a> = &'a mut dyn FnMut(Step) -> Outcome;

/// Starts a mirror; `open_bitmap` opens or creates the bitmap file of the given size.
pub(super) fn start(
    name: &str,
    members: [Member; 2],
    open_bitmap: impl FnOnce(u64) -> Member,
    options: StartOptions,
    min_region_bytes: u64,
    run: Run,
) -> Result<Mirror, OpenError> {
    let error = |error: VolumeError| OpenError::new(name, error.to_string(), "check the storage");
    let info = check_members(name, &members)?;
    let new = new_record(&info, min_region_bytes);
    let (mut labels, mut damaged): ([Label; 2], _) = ([Ok(None), Ok(None)], None);
    for (number, member) in members.iter().enumerate() {
        let label = member.as_ref().map_err(OpenError::to_string);
        let read = |volume| read_block(volume, new.blocks, run).map_err(|error| error.to_string());
        let bytes = label.and_then(read);
        let holder = bytes.as_ref().ok().and_then(|bytes| Record::holder(bytes));
        if let Some(holder) = holder.filter(|holder| *holder != number) {
            let (number, holder) = (number + 1, holder + 1);
            let reason = format!(
                "member {number} has the label of member {holder}: the members are in the wrong order"
            );
            return Err(OpenError::new(name, reason, "swap them"));
        }
        if bytes.as_ref().is_ok_and(|bytes| Record::is_damaged(bytes)) {
            damaged.get_or_insert(number + 1);
        }
        labels[number] = bytes.map(|bytes| Record::decode(&bytes, number));
    }
    let layout = labels.iter().flatten().flatten().next().unwrap_or(&new);
    if (layout.block_size, layout.blocks) != (new.block_size, new.blocks) {
        return Err(OpenError::new(name, "the size of the members has changed", "restore it"));
    }
    let bytes = sector_lba(sectors_for(layout.regions())) * SECTOR_BYTES as u64;
    let bitmap = open_bitmap(bytes)?;
    if bitmap.info().bytes() != bytes {
        return Err(OpenError::new(name, "the bitmap file has another size", "check its path"));
    }
    let record = Record::decode(&read_block(&bitmap, 0, run).map_err(error)?, BITMAP);
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
        false => decide(name, record.as_ref(), &labels, options).map_err(|error| match damaged {
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
        request(&bitmap, write_record(&record), run).map_err(error)?;
    }
    let mut saved = Bits::new(record.regions());
    for sector in 0..sectors_for(record.regions()) {
        let sector_bytes = read_block(&bitmap, sector_lba(sector), run).map_err(error)?;
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
                request(volume, write_label(&record, number), run).map_err(error)?;
            }
            (_, MemberState::Out) => log::warn!("{name}: degraded, member {} is missing", number + 1),
            _ => {}
        }
    }
    let state = Mutex::new(State::new(record, saved, all_dirty));
    let mirror = Mirror { name: name.to_owned(), members: members.map(Result::ok), bitmap, state };
    commit(mirror, run).map_err(error)
}

/// Checks the members and returns the features of one.
fn check_members(name: &str, members: &[Member; 2]) -> Result<VolumeInfo, OpenError> {
    let refuse = |reason: &str, remedy: &str| Err(OpenError::new(name, reason, remedy));
    let infos: Vec<&VolumeInfo> = members.iter().flatten().map(|volume| volume.info()).collect();
    match infos[..] {
        [] => {
            let errors: Vec<String> =
                members.iter().flat_map(|member| member.as_ref().err()).map(OpenError::to_string).collect();
            refuse(&errors.join("; "), "repair one of them")
        }
        [one, other] if (one.block_size, one.blocks) != (other.block_size, other.blocks) => {
            refuse("the members differ in size", "use members of the same size and block size")
        }
        [info, ..] if info.read_only => {
            refuse("a member is read-only", "omit ro; read-only:(mirror:…) rejects writes")
        }
        [info, ..] if info.bytes() <= LABEL_BYTES => {
            refuse("the members are too small", "use members of more than 64 KiB")
        }
        [info, ..] => Ok(info.clone()),
    }
}

/// Returns the record of a new mirror of members with these features.
fn new_record(member: &VolumeInfo, min_region_bytes: u64) -> Record {
    let block_size = u64::from(member.block_size);
    let blocks = member.blocks - LABEL_BYTES / block_size;
    Record {
        mirror: Uuid::new_v4(),
        generation: Uuid::new_v4(),
        parent: Uuid::nil(),
        sequence: 0,
        block_size: member.block_size,
        blocks,
        region_blocks: blocks.div_ceil(MAX_REGIONS).next_power_of_two().max(min_region_bytes / block_size),
        states: [MemberState::Complete, MemberState::Incomplete],
    }
}

/// Makes bits and record durable before the first request.
fn commit(mirror: Mirror, run: Run) -> Result<Mirror, VolumeError> {
    let mirror = Arc::new(mirror);
    let shared = Arc::clone(&mirror);
    run(Step::nested(Request::Flush, |io, _| async move {
        shared.commit(&io, |state| state.is_bitmap_saved() && state.is_record_durable()).await?;
        Ok(Payload::default())
    }))?;
    Arc::into_inner(mirror).ok_or(VolumeError::WriteFailed { raw_os_error: 0 })
}

fn read_block(volume: &Arc<dyn Volume>, lba: u64, run: Run) -> Result<Vec<u8>, VolumeError> {
    request(volume, Request::Read { lba, blocks: 1 }, run).map(|payload| payload.to_vec())
}

fn request(volume: &Arc<dyn Volume>, request: Request, run: Run) -> Outcome {
    let volume = Arc::clone(volume);
    run(Step::nested(request, |io, request| async move { io.start(&volume, request).await }))
}

#[cfg(test)]
mod tests;
