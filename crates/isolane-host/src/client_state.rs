//! State that both implementations of a client share: the volume, and its requests in progress.

use isolane_memory::Buffer;

use crate::error::{ConnectError, RequestError};
use crate::info::{Info, NamespaceInfo};
use crate::io_limits::IoLimits;
use crate::lane_class::LaneCounts;
use crate::reply::Reply;
use crate::request::{BlockRange, Request};
use crate::request_table::{Operation, Part, RequestSlot, RequestTable};
use crate::unflushed::Unflushed;

/// The volume of a client, and its requests in progress.
pub(crate) struct ClientState {
    pub info: Info,
    pub namespace: NamespaceInfo,
    pub limits: IoLimits,
    /// Lanes of the first association.
    pub lanes: LaneCounts,
    pub unflushed: Unflushed,
    pub requests: RequestTable,
    max_requests: usize,
}

impl ClientState {
    pub(crate) fn new(
        info: Info,
        namespace: NamespaceInfo,
        limits: IoLimits,
        max_requests: usize,
    ) -> ClientState {
        ClientState {
            lanes: info.negotiated.lanes,
            info,
            namespace,
            limits,
            unflushed: Unflushed::new(),
            requests: RequestTable::default(),
            max_requests,
        }
    }

    /// Returns an error if the maximum number of requests is outstanding.
    #[inline]
    pub(crate) fn check_capacity(&self) -> Result<(), RequestError> {
        let outstanding = self.requests.len();
        if outstanding < self.max_requests { Ok(()) } else { Err(RequestError::TooMany(outstanding)) }
    }

    /// Adds a request of which no part is in flight.
    #[inline(never)]
    pub(crate) fn insert(
        &mut self,
        reply: Reply,
        lane: usize,
        request: Request,
        range: BlockRange,
    ) -> (u32, &RequestSlot) {
        let limits = &self.limits;
        let (slot, request) = self.requests.insert(|| RequestSlot::new(reply, lane, request, range, limits));
        if let Operation::Flush(mark) = &mut request.operation {
            *mark = self.unflushed.mark();
        }
        (slot, request)
    }

    /// Takes the blocks and the buffer of a part whose command is sent now.
    pub(crate) fn begin_part(
        &mut self,
        part: Part,
    ) -> Option<(&mut RequestSlot, BlockRange, Option<Buffer>)> {
        let request = self.requests.get_mut(part.slot)?;
        if let Operation::Flush(mark) = &mut request.operation {
            mark.covers = self.unflushed.mark().covers;
        }
        request.in_flight += 1;
        request.seen_in_flight = None;
        let (range, buffer) = (request.part_range(part.index), request.take_buffer(part.index));
        Some((request, range, buffer))
    }

    /// Completes a part that is no longer in flight.
    pub(crate) fn complete_part(&mut self, part: Part, result: Result<(), RequestError>) {
        let Some(request) = self.requests.get_mut(part.slot) else { return };
        request.remaining -= 1;
        let result = result.and_then(|()| match &request.operation {
            Operation::Flush(mark) => self.unflushed.on_flushed(*mark),
            operation => {
                self.unflushed.on_change(operation.change());
                Ok(())
            }
        });
        result.err().into_iter().for_each(|error| request.fail(error));
        self.requests.finish_if_done(part.slot);
    }
}

impl Info {
    /// Returns the namespace with an ID, or the only one.
    pub(crate) fn choose(&self, nsid: Option<u32>) -> Result<&NamespaceInfo, ConnectError> {
        let present = || self.namespaces.iter().map(|namespace| namespace.nsid).collect();
        match (nsid, self.namespaces.as_slice()) {
            (Some(nsid), namespaces) => namespaces
                .iter()
                .find(|namespace| namespace.nsid == nsid)
                .ok_or_else(|| ConnectError::UnknownNamespace { nsid, present: present() }),
            (None, []) => Err(ConnectError::NoNamespace),
            (None, [namespace]) => Ok(namespace),
            (None, _) => Err(ConnectError::AmbiguousNamespace(present())),
        }
    }
}
