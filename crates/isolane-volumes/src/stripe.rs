//! Stripe: consecutive pieces of equal size on the members in turn (RAID 0).
//!
//! A range of the volume is one consecutive range of each member, so each request sends at most one to each.
//!
//! Invariant: a block belongs to one member, and its place depends on the stripe size and the order of the members.

use std::sync::Arc;

use isolane_memory::{Buffer, PAGE_SIZE, PageList, Payload};
use isolane_volume::nested::NestedIo;
use isolane_volume::spec::parse_size;
use isolane_volume::{
    BlockRange, Generation, Identity, OpenError, Outcome, Request, RestartLoss, Volume, VolumeDescription,
    VolumeError, VolumeInfo,
};
use uuid::Uuid;

use crate::nested_volume::{NestedVolume, Runner};
use crate::parts::Parts;

/// Members of the same size.
struct Members {
    volumes: Vec<Arc<dyn Volume>>,
    /// Size of a stripe in blocks.
    stripe: u64,
    block_size: usize,
}

pub(crate) fn open(parts: Parts) -> Result<Arc<dyn Volume>, OpenError> {
    let stripe_bytes = parse_size(&parts.argument).map_err(|_| {
        parts.error(format!("no stripe size: {:?}", parts.argument), "write it first, as in stripe:64k:A;B")
    })?;
    if parts.members.len() < 2 {
        return Err(parts.error("one member", "name several volumes, separated by semicolons"));
    }
    let info = parts.common_info(&parts.members)?;
    let block_size = u64::from(info.block_size);
    let is_valid = stripe_bytes.is_multiple_of(block_size) && stripe_bytes >= PAGE_SIZE as u64;
    if !is_valid || stripe_bytes > info.bytes() {
        let reason = format!("stripes of {stripe_bytes} bytes on members of {} bytes", info.bytes());
        let remedy = format!(
            "use a multiple of the block size {block_size}, at least 4 KiB, at most the size of a member"
        );
        return Err(parts.error(reason, remedy));
    }
    let stripe = stripe_bytes / block_size;
    let blocks = (info.blocks / stripe * stripe).checked_mul(parts.members.len() as u64);
    let Some(blocks) = blocks.filter(|blocks| blocks.checked_mul(block_size).is_some()) else {
        return Err(parts.error("the stripe exceeds 16 EiB", "use fewer or smaller members"));
    };
    let identity = parts.identity(|| identity(&parts.members, stripe_bytes));
    let block_size = info.block_size as usize;
    Ok(Arc::new(NestedVolume {
        tree: parts.tree(),
        description: VolumeDescription {
            info: VolumeInfo { blocks, ..info },
            identity,
            generation: generation(&parts.members),
            name: parts.name,
        },
        members: parts.members.clone(),
        runner: Arc::new(Members { volumes: parts.members, stripe, block_size }),
    }))
}

fn identity(members: &[Arc<dyn Volume>], stripe_bytes: u64) -> Identity {
    let uuids = members.iter().flat_map(|member| *member.identity().uuid.as_bytes());
    let name: Vec<u8> = stripe_bytes.to_le_bytes().into_iter().chain(uuids).collect();
    Identity { uuid: Uuid::new_v5(&NAMESPACE, &name) }
}

/// A stripe loses what one of its members loses.
fn generation(members: &[Arc<dyn Volume>]) -> Option<Generation> {
    let generations =
        members.iter().map(|member| member.description().generation).collect::<Option<Vec<_>>>()?;
    let ids: Vec<u8> = generations.iter().flat_map(|generation| *generation.id.as_bytes()).collect();
    let has = |loss| generations.iter().any(|generation| generation.loses == loss);
    let loses = [RestartLoss::Content, RestartLoss::Cache].into_iter().find(|loss| has(*loss));
    Some(Generation { id: Uuid::new_v5(&NAMESPACE, &ids), loses: loses.unwrap_or(RestartLoss::Nothing) })
}

impl Runner for Members {
    async fn run(self: Arc<Self>, io: NestedIo, request: Request) -> Outcome {
        let all = match request {
            Request::Read { lba, blocks } => {
                return self.read(&io, BlockRange { lba, blocks }).await;
            }
            Request::Write { lba, blocks, data, fua } => {
                let range = BlockRange { lba, blocks };
                let mut buffers = self.split(range, data);
                let write = |index: usize, BlockRange { lba, blocks }| {
                    let data = std::mem::take(&mut buffers[index]);
                    Request::Write { lba, blocks, data, fua }
                };
                self.for_each_part(&io, range, write).await
            }
            Request::WriteZeroes { lba, blocks, fua, deallocate } => {
                let zero =
                    |_, BlockRange { lba, blocks }| Request::WriteZeroes { lba, blocks, fua, deallocate };
                self.for_each_part(&io, BlockRange { lba, blocks }, zero).await
            }
            Request::Deallocate { ranges, fua } => {
                let this = &self;
                let of = |index| ranges.iter().map(move |range| this.part(*range, index));
                let of = |index| of(index).filter(|part| part.blocks > 0);
                let members =
                    self.volumes.iter().enumerate().filter(|(index, _)| of(*index).next().is_some());
                let requests = members.map(|(index, volume)| {
                    (Arc::clone(volume), Request::Deallocate { ranges: of(index).collect(), fua })
                });
                io.run_all(requests).await
            }
            Request::Flush => {
                io.run_all(self.volumes.iter().map(|volume| (Arc::clone(volume), Request::Flush))).await
            }
            Request::Continue(_) => unreachable!("a nested request is never repeated"),
        };
        all.map(|_| Payload::default())
    }
}

impl Members {
    /// Returns the member of a block, its address there, and the number of blocks to the end of the stripe.
    fn locate(&self, lba: u64) -> (usize, u64, u64) {
        let (number, offset) = (lba / self.stripe, lba % self.stripe);
        let count = self.volumes.len() as u64;
        ((number % count) as usize, number / count * self.stripe + offset, self.stripe - offset)
    }

    /// Returns the number of blocks before `lba` that are on a member.
    fn blocks_before(&self, lba: u64, member: usize) -> u64 {
        let row = self.stripe * self.volumes.len() as u64;
        let in_row = (lba % row).saturating_sub(member as u64 * self.stripe).min(self.stripe);
        lba / row * self.stripe + in_row
    }

    /// Returns the part of a range that is on a member; it can be empty.
    fn part(&self, range: BlockRange, member: usize) -> BlockRange {
        let lba = self.blocks_before(range.lba, member);
        BlockRange { lba, blocks: self.blocks_before(range.lba + range.blocks, member) - lba }
    }

    /// Splits a range at the ends of stripes: member, address there, and number of blocks of each piece.
    fn pieces(&self, range: BlockRange) -> impl Iterator<Item = (usize, u64, u64)> {
        let (mut lba, end) = (range.lba, range.lba + range.blocks);
        std::iter::from_fn(move || {
            let (member, at, left) = self.locate(lba);
            let blocks = left.min(end - lba);
            lba += blocks;
            (blocks > 0).then_some((member, at, blocks))
        })
    }

    /// Sends a request to each member with a part of `range`.
    async fn for_each_part(
        &self,
        io: &NestedIo,
        range: BlockRange,
        mut request: impl FnMut(usize, BlockRange) -> Request,
    ) -> Result<Vec<Payload>, VolumeError> {
        let parts = (0..self.volumes.len()).map(|index| (index, self.part(range, index)));
        let parts = parts.filter(|(_, part)| part.blocks > 0);
        io.run_all(parts.map(|(index, part)| (Arc::clone(&self.volumes[index]), request(index, part)))).await
    }

    /// Splits data into the parts of the members, without a copy if every piece starts at a page.
    fn split(&self, range: BlockRange, data: Buffer) -> Vec<Buffer> {
        let block_size = self.block_size;
        let members = 0..self.volumes.len();
        let lens = members.map(|member| self.part(range, member).blocks as usize * block_size);
        let (mut at, mut pieces) = (0, Vec::new());
        for (member, _, blocks) in self.pieces(range) {
            let len = blocks as usize * block_size;
            pieces.push((member, at, len));
            at += len;
        }
        let is_at_pages = pieces.iter().all(|(_, start, _)| start.is_multiple_of(PAGE_SIZE));
        let data = match data.into_pages() {
            Ok(pages) if is_at_pages => {
                let (mut pages, mut parts) = (pages.into_iter(), vec![PageList::new(); self.volumes.len()]);
                for (member, _, len) in pieces {
                    parts[member].extend(pages.by_ref().take(len.div_ceil(PAGE_SIZE)));
                }
                return parts
                    .into_iter()
                    .zip(lens)
                    .map(|(pages, len)| Buffer::from_pages(pages, len))
                    .collect();
            }
            Ok(pages) => Buffer::from_pages(pages, at),
            Err(data) => data,
        };
        let mut parts: Vec<(Buffer, usize)> = lens.map(|len| (Buffer::contiguous(len), 0)).collect();
        for (member, start, len) in pieces {
            let (part, end) = &mut parts[member];
            data.for_each_slice(start, len, |slice| {
                part.copy_in(*end, slice);
                *end += slice.len();
            });
        }
        parts.into_iter().map(|(part, _)| part).collect()
    }

    async fn read(&self, io: &NestedIo, range: BlockRange) -> Outcome {
        let read = |_, BlockRange { lba, blocks }| Request::Read { lba, blocks };
        let payloads = self.for_each_part(io, range, read).await?;
        let mut payloads = payloads.into_iter();
        // Members without a part have an empty payload.
        let mut of_members: Vec<Payload> = (0..self.volumes.len())
            .map(|index| if self.part(range, index).blocks > 0 { payloads.next() } else { None })
            .map(Option::unwrap_or_default)
            .collect();
        let mut data = Payload::default();
        for (member, _, blocks) in self.pieces(range) {
            data.append(of_members[member].split_to(blocks as usize * self.block_size));
        }
        Ok(data)
    }
}

/// UUID namespace of stripes, chosen at random.
const NAMESPACE: Uuid = Uuid::from_u128(0x2f1d_90b6_7c53_4e0a_9b64_d08e_51c7_a3f2);

#[cfg(test)]
mod tests;
