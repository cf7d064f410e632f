//! State that both implementations of a client share: the volume, and its requests in progress.

use std::sync::Arc;

use isolane_memory::Buffer;

use crate::error::{ConnectError, RequestError};
use crate::info::{Info, NamespaceInfo};
use crate::io_limits::IoLimits;
use crate::lane_class::{LaneClass, LaneCounts};
use crate::observer::Observer;
use crate::operation::Operation;
use crate::options::Options;
use crate::reply::Reply;
use crate::request::{BlockRange, Request};
use crate::request_table::{Part, RequestSlot, RequestTable};
use crate::unflushed::Unflushed;

/// The volume of a client, and its requests in progress.
pub(crate) struct ClientState {
    pub info: Info,
    pub namespace: NamespaceInfo,
    pub limits: IoLimits,
    /// Lanes of the current or last association.
    pub current_lanes: LaneCounts,
    /// Lanes of the first association.
    pub lanes: LaneCounts,
    /// The reason why the client is closed for good.
    pub closed: Option<Arc<ConnectError>>,
    pub unflushed: Unflushed,
    pub requests: RequestTable,
    max_requests: usize,
}

impl ClientState {
    pub(crate) fn new(
        info: Info,
        namespace: NamespaceInfo,
        limits: IoLimits,
        options: &Options,
    ) -> ClientState {
        let observer = Observer::new(options.observe, namespace.block_bytes);
        ClientState {
            current_lanes: info.negotiated.lanes,
            lanes: info.negotiated.lanes,
            closed: None,
            info,
            namespace,
            limits,
            unflushed: Unflushed::new(),
            requests: RequestTable::new(observer),
            max_requests: options.max_requests,
        }
    }

    /// Returns the index of a request's lane, and its blocks.
    #[inline]
    pub(crate) fn check(
        &self,
        class: LaneClass,
        lane: usize,
        request: &Request,
    ) -> Result<(usize, BlockRange), RequestError> {
        if let Some(error) = &self.closed {
            return Err(RequestError::Lost(Arc::clone(error)));
        }
        let outstanding = self.requests.len();
        if outstanding >= self.max_requests {
            return Err(RequestError::TooMany(outstanding));
        }
        let lane = self.index_of(class, lane, request.is_read())?;
        Ok((lane, self.limits.check(request)?))
    }

    /// Returns the index of a class's lane. A lane of the first association always exists: if its class has fewer
    /// lanes since, they share its requests.
    fn index_of(&self, class: LaneClass, lane: usize, is_read: bool) -> Result<usize, RequestError> {
        let serving = self.current_lanes.serving(class, is_read);
        if let Some(index) = self.current_lanes.place(serving, lane) {
            return Ok(index);
        }
        let first = &self.lanes;
        let serving = first.serving(class, is_read);
        match first.place(serving, lane) {
            Some(index) => Ok(self.current_lanes.remap(first, index, is_read)),
            None => Err(RequestError::Lane { lane, lanes: first.count(serving) }),
        }
    }

    /// Adds a request of which no part is in flight.
    #[inline(never)]
    pub(crate) fn insert(
        &mut self,
        reply: Reply,
        lane: usize,
        request: Request,
        range: BlockRange,
        submitted: u64,
    ) -> (u32, &RequestSlot) {
        let (limits, observer) = (&self.limits, &mut self.requests.observer);
        let key = observer.on_held(submitted, request.kind(), range.blocks);
        let new = || RequestSlot::new(reply, lane, request, range, key, limits);
        let (slot, request) = self.requests.insert(new);
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
        self.requests.on_released(part.slot);
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
