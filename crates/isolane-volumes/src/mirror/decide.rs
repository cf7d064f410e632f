//! Decision at the start of a mirror: which members have all data.
//!
//! A generation changes whenever one member continues without the other, and names its predecessor. The bitmap file
//! gets each record before the members do, so the labels of members are never newer. A member of the previous
//! generation has missed writes; one of any other generation was used with another bitmap file.
//!
//! Invariant: no member loses data that its label claims, except by `keep=` with the generation to keep.

use isolane_volume::OpenError;
use uuid::Uuid;

use super::record::{MemberState, Record};

/// Options of a start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StartOptions {
    /// Create the labels and the bitmap.
    pub create: bool,
    /// Start with one member.
    pub degraded: bool,
    /// Generation to keep if the members cannot be combined.
    pub keep: Option<Uuid>,
}

/// Label of a member: `None` without a valid one, an error if the member is missing.
pub(super) type Label = Result<Option<Record>, String>;

/// Decides how to start an existing mirror. Returns the record, and whether all regions can differ.
pub(super) fn decide(
    name: &str,
    bitmap: Option<&Record>,
    labels: &[Label; 2],
    options: StartOptions,
) -> Result<(Record, bool), OpenError> {
    let refuse = |reason: &str, remedy: &str| Err(OpenError::new(name, reason, remedy));
    let own = labels.each_ref().map(|label| label.as_ref().ok().and_then(Option::as_ref));
    let known = || own.into_iter().flatten().chain(bitmap);
    if known().any(|record| known().any(|other| !other.is_same_mirror(record))) {
        return refuse("members and bitmap file belong to different mirrors", "check their paths");
    }
    if own == [None, None] {
        return refuse(
            "no member has a valid label at its position",
            "check paths and order; to make a mirror, add create=yes and name a bitmap file that does not exist: \
             it overwrites member 2, and the last 64 KiB of member 1",
        );
    }
    let missing = (0..2).find_map(|member| labels[member].as_ref().err().map(|error| (member, error)));
    if let Some((member, error)) = missing.filter(|_| !options.degraded) {
        let reason = format!("member {} is missing ({error})", member + 1);
        return refuse(&reason, "repair it, or add degraded=yes to start without it");
    }
    let sequence = known().map(|record| record.sequence).max().unwrap_or(0);
    let forced = options.keep.and_then(|generation| keep(generation, labels));
    match (combine(bitmap, labels), forced) {
        (Ok(record), _) => Ok((Record { sequence, ..record }, false)),
        (Err(_), Some(record)) => Ok((Record { sequence, ..record }, true)),
        (Err(reason), None) => {
            let choices = own.iter().flatten().map(|record| format!("keep={}", record.generation));
            let choices = choices.collect::<Vec<_>>().join(" or ");
            let erase = match own {
                [None, Some(_)] if missing.is_none() => {
                    "; to overwrite member 2 with member 1, zero the last 64 KiB of member 2, and add create=yes \
                     and a bitmap file that does not exist"
                }
                _ => "",
            };
            refuse(
                &reason,
                &format!(
                    "correct it, or choose the data to keep, in the order of the members: {choices}{erase}"
                ),
            )
        }
    }
}

/// Returns the record to start with if no data can be lost.
fn combine(bitmap: Option<&Record>, labels: &[Label; 2]) -> Result<Record, String> {
    if let [Ok(Some(one)), Ok(Some(other))] = labels
        && ![one.generation, one.parent].contains(&other.generation)
        && one.generation != other.parent
    {
        return Err("split brain: each member was used without the other".to_owned());
    }
    let mut record = bitmap.ok_or("the bitmap file is damaged or not initialized")?.clone();
    for (member, label) in labels.iter().enumerate() {
        match label {
            Err(_) if record.states[member] == MemberState::Out => {}
            Err(_) => record.remove(member),
            Ok(None) => return Err(format!("member {} has no valid label", member + 1)),
            Ok(Some(own)) => {
                let is_known = bitmap.is_some_and(|bitmap| {
                    own.sequence <= bitmap.sequence
                        && [bitmap.generation, bitmap.parent].contains(&own.generation)
                });
                if !is_known {
                    return Err(format!("member {} was used with another bitmap file", member + 1));
                }
                if record.states[member] == MemberState::Out {
                    record.states[member] = MemberState::Incomplete;
                }
            }
        }
    }
    match record.states.contains(&MemberState::Complete) {
        true => Ok(record),
        false => Err("the member with all data is missing".to_owned()),
    }
}

/// Returns the record that keeps the data of the member of a generation, and overwrites the other one.
fn keep(generation: Uuid, labels: &[Label; 2]) -> Option<Record> {
    let label = |member: usize| labels[member].as_ref().ok().and_then(Option::as_ref);
    let has_generation = |member: &usize| label(*member).is_some_and(|own| own.generation == generation);
    let is_incomplete =
        |member: &usize| label(*member).map(|own| own.states[*member]) != Some(MemberState::Complete);
    let source = (0..2).filter(has_generation).min_by_key(is_incomplete)?;
    let mut record = label(source)?.clone();
    record.states[source] = MemberState::Complete;
    record.remove(1 - source);
    if labels[1 - source].is_ok() {
        record.states[1 - source] = MemberState::Incomplete;
    }
    Some(record)
}
