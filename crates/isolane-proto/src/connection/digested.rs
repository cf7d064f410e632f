//! Queues a PDU with data and, if negotiated, the digest of the data.
//!
//! Invariant: digested data cannot change between its digest and the send.

use isolane_connection::SendQueue;
use isolane_memory::{PAGE_SIZE, Payload};
use isolane_wire::digest::{Digest, crc32c};

/// Queues a PDU with data, and its digest if `digested`.
#[inline(always)]
pub(crate) fn push_data<const COMMON_LEN: usize>(
    output: &mut SendQueue,
    header: &[u8],
    payload: Payload,
    digested: bool,
) {
    if !digested || payload.is_empty() {
        return output.push::<COMMON_LEN>(header, Some(payload));
    }
    // Another process could change shared memory, which is therefore copied first.
    let payload = payload.into_private();
    let digest = digest(&payload);
    output.push::<COMMON_LEN>(header, Some(payload));
    output.push::<COMMON_LEN>(&digest.to_le_bytes(), None);
}

/// Returns the data digest, which is cached for a page that has not changed since its last send.
/// Prefetches the next page, because hardware prefetch stops at the end of a page.
fn digest(payload: &Payload) -> u32 {
    if let Some(known) = payload.page_checksum(crc32c) {
        return known;
    }
    let mut digest = Digest::default();
    let slices = payload.slices(0, payload.len());
    let mut pages = slices.flat_map(|slice| slice.chunks(PAGE_SIZE)).peekable();
    while let Some(page) = pages.next() {
        pages.peek().copied().into_iter().for_each(isolane_memory::prefetch);
        digest.update(page);
    }
    digest.finish()
}

#[cfg(test)]
mod tests {
    use isolane_connection::TransmitPlan;
    use isolane_shm::SharedMemory;

    use super::*;

    fn planned(output: &SendQueue) -> TransmitPlan<'_> {
        let mut plan = TransmitPlan::new();
        output.fill_plan(&mut plan);
        plan
    }

    fn sent(output: &SendQueue) -> Vec<u8> {
        planned(output).iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn sends_shared_memory_in_place_without_digest() {
        let memory = SharedMemory::create("isolane-test", PAGE_SIZE).unwrap();
        memory.copy_in(0, b"as it was").unwrap();
        let place = || isolane_memory::Buffer::in_shared_memory(&memory, 0, 9).unwrap().into_payload();
        let (mut plain, mut digested) = (SendQueue::default(), SendQueue::default());
        push_data::<24>(&mut plain, b"head", place(), false);
        push_data::<24>(&mut digested, b"head", place(), true);
        memory.copy_in(6, b"IS!").unwrap();
        assert_eq!(sent(&plain), b"headas it IS!");
        assert_eq!(planned(&plain).bytes(), 13);
        let bytes = sent(&digested);
        assert_eq!(bytes[..13], *b"headas it was");
        assert_eq!(bytes[13..], crc32c(b"as it was").to_le_bytes());
    }
}
