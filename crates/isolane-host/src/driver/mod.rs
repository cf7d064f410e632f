//! Clients behind a [`Volume`](crate::Volume): one service, or one on each of several cores (H3).
//!
//! Without cores, any waiting caller may drive the only client in its own thread. With cores, a caller drives
//! only the client on its core, and queues its requests for the others. A flush goes through every
//! association, because each controller answers for the writes that it has completed.
//!
//! Invariants: all services have the same volume; every accepted request gets a completion; when the volume
//! closes for any reason, the clients, and with them every buffer, are dropped before the replies.

mod client_driver;
mod service;
mod service_map;
mod spin_wait;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use oneshot::AsyncReceiver;
use pollster::block_on;

pub(crate) use self::service::WaitLimit;
use self::service::{Service, ServiceOwner, on_core};
pub(crate) use self::service_map::CallerCore;
use self::service_map::{ServiceMap, flush_class};
use crate::connect::fence::Fences;
use crate::cores::Cores;
use crate::difference::Difference;
use crate::error::{ConnectError, RequestError};
use crate::info::{ConnectionStatus, EngineStatus, Info, NamespaceInfo};
use crate::lane_class::{LaneClass, LaneCounts};
use crate::options::Options;
use crate::reply::Reply;
use crate::request::{Completion, Request};
use crate::uri::Uri;

/// All services of a volume.
pub(crate) struct Services {
    pub info: Info,
    pub namespace: NamespaceInfo,
    services: Vec<ServiceOwner>,
    /// `None` without cores.
    map: Option<ServiceMap>,
}

impl Services {
    /// Starts the services. The first one chooses the volume, and all others must find the same.
    pub(crate) async fn connect(uri: &Uri, options: Options) -> Result<Services, ConnectError> {
        if options.lanes == 0 {
            return Err(ConnectError::no_default_lane());
        }
        let (mut placed, fences) = (place(uri, options).into_iter(), Arc::<Fences>::default());
        let start = |uri: &Uri, (core, options): (Option<usize>, Options)| {
            Service::start(uri.clone(), options, core, Arc::clone(&fences))
        };
        let Some(first) = placed.next() else { return Err(ConnectError::no_default_lane()) };
        let uri = Uri { cores: Cores::default(), ..uri.clone() };
        let service = start(&uri, first)?.await?;
        let (mut info, namespace) = (service.info.clone(), service.namespace.clone());
        let uri = Uri { nqn: Some(info.nqn), nsid: Some(namespace.nsid), ..uri };
        let others: Vec<_> = placed.map(|placed| start(&uri, placed)).collect::<Result<_, _>>()?;
        let mut services = vec![service];
        for other in others {
            let other = other.await?;
            let (theirs, ours) = ((&other.info, &other.namespace), (&info, &namespace));
            if let Some(difference) = Difference::of_volume(theirs, ours) {
                return Err(on_core(other.core, ConnectError::DifferentVolume(difference)));
            }
            services.push(other);
        }
        let lanes_by_core =
            services.iter().map(|service| Some((service.core?, service.info.negotiated.lanes)));
        let map = lanes_by_core.collect::<Option<Vec<_>>>().map(|lanes| ServiceMap::new(&lanes));
        if let Some(map) = &map {
            info.negotiated.lanes = map.lanes();
        }
        Ok(Services { info, namespace, services, map })
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Service> {
        self.services.iter().map(|service| &**service)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Service> {
        self.services.get(index).map(|service| &**service)
    }

    /// Returns the core of the calling thread.
    #[inline]
    pub(crate) fn caller_core(&self) -> CallerCore {
        self.map.as_ref().map_or(CallerCore::ANY, ServiceMap::caller_core)
    }

    /// Returns the service for a request.
    #[inline]
    pub(crate) fn route(&self, caller: CallerCore, class: LaneClass, is_read: bool) -> usize {
        self.map.as_ref().map_or(0, |map| map.service(caller, class, is_read))
    }

    /// Returns whether a request goes through every association.
    #[inline]
    pub(crate) fn is_broadcast(&self, request: &Request) -> bool {
        self.services.len() > 1 && matches!(request, Request::Flush)
    }

    /// Queues a request for the leader.
    pub(crate) fn send(&self, class: LaneClass, request: Request) -> AsyncReceiver<Completion> {
        let (sender, receiver) = oneshot::async_channel();
        if self.is_broadcast(&request) {
            self.flush(class, Reply::Future(sender));
        } else {
            let service = self.route(self.caller_core(), class, request.is_read());
            self.services[service].post(class, request, Reply::Future(sender));
        }
        receiver
    }

    /// Executes one request and waits for its completion.
    pub(crate) fn run(&self, class: LaneClass, request: Request) -> Completion {
        if self.is_broadcast(&request) {
            let closed = Completion { tag: 0, result: Err(RequestError::Closed), buffer: None };
            return block_on(self.send(class, request)).unwrap_or(closed);
        }
        let caller = self.caller_core();
        let service = self.route(caller, class, request.is_read());
        self.services[service].run(class, request, caller.is_at(service))
    }

    /// Flushes through every association. The reply is delivered when all have completed.
    pub(crate) fn flush(&self, class: LaneClass, reply: Reply) {
        let class_of = |service: &Service| flush_class(&service.info.negotiated.lanes, class);
        let services = self.all().filter_map(|service| Some((service, class_of(service)?)));
        let services: Vec<_> = services.collect();
        for ((service, class), part) in services.iter().zip(reply.split(services.len())) {
            service.post(*class, Request::Flush, part);
        }
    }

    /// Requests the status of every connection from the leaders.
    pub(crate) async fn connections(&self) -> Vec<ConnectionStatus> {
        let replies: Vec<_> = self.all().map(Service::request_status).collect();
        let mut connections = Vec::new();
        for (at, (service, reply)) in self.all().zip(replies).enumerate() {
            for mut status in reply.await.unwrap_or_default().connections {
                status.core = service.core;
                // Lanes are numbered in the order in which the cores received them.
                status.lane = status.lane.map(|(class, lane)| (class, lane * self.services.len() + at));
                connections.push(status);
            }
        }
        connections
    }

    /// Requests the engine that has the volume from the leader. A volume at an engine has one service.
    pub(crate) async fn engine(&self) -> Option<EngineStatus> {
        self.services.first()?.request_status().await.ok()?.engine
    }

    /// Closes the clients and waits for their threads.
    pub(crate) async fn close(&self) {
        let exits: Vec<_> = self.all().map(Service::close).collect();
        for exit in exits {
            // Fails once the thread has ended.
            let _ = exit.await;
        }
    }
}

/// Returns the core and the options of each service.
fn place(uri: &Uri, options: Options) -> Vec<(Option<usize>, Options)> {
    let cores = if options.cores.is_empty() { uri.cores.clone() } else { options.cores.clone() };
    if cores.is_empty() {
        return vec![(None, options)];
    }
    let split = options.classes().split_across(cores.as_slice().len());
    let on_core = |(&core, lanes): (&usize, LaneCounts)| {
        let (lanes, read_lanes, poll_lanes) = (lanes.default, lanes.read, lanes.poll);
        (Some(core), Options { lanes, read_lanes, poll_lanes, cores: Cores::default(), ..options.clone() })
    };
    cores.as_slice().iter().zip(split).map(on_core).collect()
}
