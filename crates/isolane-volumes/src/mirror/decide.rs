//! Decision at the start of a mirror: which members have all data.
//!
//! A generation changes whenever one member continues without the other, and names its predecessor. The bitmap file
//! gets each record before the members do, so the labels of members are never newer. A member of the previous
//! generation has missed writes; one of any other generation was used with another bitmap file.
//!
//! Invariant: no member loses data that its label claims, except by `keep=` with the generation to keep.

use std::time::Duration;

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
    /// Time for a member to answer before the mirror continues without it. `None`: unlimited.
    pub member_timeout: Option<Duration>,
}

/// Label of a member, with the same number.
pub(super) type Label = Result<Record, NoLabel>;

/// Reason for the absence of a valid label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoLabel {
    /// The member has other data, or none.
    Blank,
    /// The label is damaged, or of another version.
    Damaged,
    /// The member is missing, because of this error.
    Missing(String),
}

/// Decides how to start an existing mirror. Returns the record, and whether all regions can differ.
pub(super) fn decide(
    name: &str,
    bitmap: Option<&Record>,
    labels: &[Label; 2],
    options: StartOptions,
) -> Result<(Record, bool), OpenError> {
    let refuse = |reason: &str, remedy: &str| {
        let damaged = labels.iter().position(|label| *label == Err(NoLabel::Damaged));
        let Some(member) = damaged else { return Err(OpenError::new(name, reason, remedy)) };
        let number = member + 1;
        let reason = format!("the label of member {number} is damaged or of another version: {reason}");
        let remedy = format!("{remedy}; to discard that label, zero the last 64 KiB of member {number}");
        Err(OpenError::new(name, reason, remedy))
    };
    let own = labels.each_ref().map(|label| label.as_ref().ok());
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
    for (number, label) in (1..).zip(labels).filter(|_| !options.degraded) {
        if let Err(NoLabel::Missing(error)) = label {
            let reason = format!("member {number} is missing ({error})");
            return refuse(&reason, "repair it, or add degraded=yes to start without it");
        }
    }
    let forced = options.keep.and_then(|generation| keep(generation, own));
    let (mut record, all_dirty) = match (combine(bitmap, labels), forced) {
        (Ok(record), _) => (record, false),
        (Err(_), Some(record)) => (record, true),
        (Err(reason), None) => {
            let choice = |member: usize| {
                own[member].map(|label| format!("keep={} ({:?})", label.generation, label.states[member]))
            };
            let mut choices: Vec<String> = (0..2).filter_map(choice).collect();
            choices.dedup();
            let erase = match labels {
                [Err(NoLabel::Blank), Ok(_)] => {
                    "; to overwrite member 2 with member 1, zero the last 64 KiB of member 2, and add create=yes \
                     and a bitmap file that does not exist"
                }
                _ => "",
            };
            let remedy = "correct it, or choose the data to keep, in the order of the members";
            return refuse(&reason, &format!("{remedy}: {}{erase}", choices.join(" or ")));
        }
    };
    for (member, label) in labels.iter().enumerate() {
        match (label, record.states[member]) {
            (Err(NoLabel::Missing(_)), MemberState::Out) => {}
            (Err(NoLabel::Missing(_)), _) => record.remove(member),
            (_, MemberState::Out) => record.states[member] = MemberState::Incomplete,
            _ => {}
        }
    }
    record.sequence = known().map(|record| record.sequence).max().unwrap_or(0);
    Ok((record, all_dirty))
}

/// Returns the record of the bitmap file if no data can be lost.
fn combine(bitmap: Option<&Record>, labels: &[Label; 2]) -> Result<Record, String> {
    if let [Ok(one), Ok(other)] = labels
        && ![one.generation, one.parent].contains(&other.generation)
        && one.generation != other.parent
    {
        return Err("split brain: each member was used without the other".to_owned());
    }
    let bitmap = bitmap.ok_or("the bitmap file is damaged or not initialized")?;
    let generations = [bitmap.generation, bitmap.parent];
    for (number, label) in (1..).zip(labels) {
        match label {
            Err(NoLabel::Missing(_)) => {}
            Err(_) => return Err(format!("member {number} has no valid label")),
            Ok(own) if own.sequence <= bitmap.sequence && generations.contains(&own.generation) => {}
            Ok(_) => return Err(format!("member {number} was used with another bitmap file")),
        }
    }
    let has_data = |member: usize| labels[member].is_ok() && bitmap.states[member] == MemberState::Complete;
    (0..2).any(has_data).then(|| bitmap.clone()).ok_or("the member with all data is missing".to_owned())
}

/// Returns the record that keeps the data of the member of a generation, and overwrites the other one.
fn keep(generation: Uuid, own: [Option<&Record>; 2]) -> Option<Record> {
    let has_generation = |member: &usize| own[*member].is_some_and(|label| label.generation == generation);
    let lacks_data = |at: &usize| own[*at].is_none_or(|label| label.states[*at] != MemberState::Complete);
    let source = (0..2).filter(has_generation).min_by_key(lacks_data)?;
    let mut record = own[source]?.clone();
    record.states[source] = MemberState::Complete;
    record.remove(1 - source);
    Some(record)
}
