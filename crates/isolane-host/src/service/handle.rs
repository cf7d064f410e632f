//! The callers' end of a volume: its services, and the way of a request to one of them.
//!
//! Without cores there is one service, which whoever waits may turn. With cores (H3) there is one on each,
//! and a caller turns only that of its own core; for the others it leaves its requests. A flush goes through
//! every association, because each controller answers for the writes that it has completed. Invariant: all
//! services have the same volume.

use std::sync::Arc;

use super::caller::{Caller, Duty};
use super::map::{Home, Map, class_of_flush};
use super::reply::Reply;
use super::shared::Shared;
use super::{Place, Service, Started};
use crate::attached::EngineStatus;
use crate::classes::{Class, Classes};
use crate::client::ConnectionStatus;
use crate::cores::Cores;
use crate::difference::Difference;
use crate::error::{ConnectError, RequestError};
use crate::fence::Fences;
use crate::info::{Info, NamespaceInfo};
use crate::oneshot::{Receiver, block_on, oneshot};
use crate::options::Options;
use crate::request::{Completion, Request};
use crate::uri::Uri;

/// A volume with everything that is behind it.
pub(crate) struct Handle {
    pub info: Info,
    pub namespace: NamespaceInfo,
    /// Whether requests may go out together.
    pub is_batching: bool,
    services: Vec<Service>,
    /// None of a volume without cores, which has one service.
    map: Option<Map>,
}

impl Handle {
    /// Starts the services: the first finds the volume, and all others must find the same.
    pub(crate) async fn open(uri: &Uri, options: Options) -> Result<Handle, ConnectError> {
        if options.lanes == 0 {
            return Err(ConnectError::without_default_lane());
        }
        let is_batching = options.batching;
        let (mut places, fences) = (places(uri, options).into_iter(), Arc::<Fences>::default());
        let Some((core, options)) = places.next() else { return Err(ConnectError::without_default_lane()) };
        let uri = Uri { cores: Cores::default(), ..uri.clone() };
        let first = super::start(Place { uri: uri.clone(), options, core, fences: Arc::clone(&fences) })?;
        let Started { service, mut info, namespace } = first.await?;
        let uri = Uri { nqn: Some(info.nqn), nsid: Some(namespace.nsid), ..uri };
        let place = |(core, options)| Place { uri: uri.clone(), options, core, fences: Arc::clone(&fences) };
        let others: Vec<_> = places.map(|at| super::start(place(at))).collect::<Result<_, _>>()?;
        let mut services = vec![service];
        for other in others {
            let other = other.await?;
            if let Some(difference) =
                Difference::of_volume((&other.info, &other.namespace), (&info, &namespace))
            {
                return Err(other.service.concerning(ConnectError::OtherVolume(difference)));
            }
            services.push(other.service);
        }
        let map = map(&services);
        if let Some(map) = &map {
            info.negotiated.lanes = map.lanes();
        }
        Ok(Handle { info, namespace, is_batching, services, map })
    }

    /// That of a volume that has one.
    pub(crate) fn only_service(&self) -> Option<&Arc<Shared>> {
        match &self.services[..] {
            [only] => Some(&only.shared),
            _ => None,
        }
    }

    pub(super) fn services(&self) -> &[Service] {
        &self.services
    }

    /// Whether the calling thread may turn the client of the only service.
    #[inline]
    pub(crate) fn may_lead(&self) -> bool {
        self.map.as_ref().is_none_or(|map| map.home().is_at(0))
    }

    /// Where the calling thread is.
    #[inline]
    pub(super) fn home(&self) -> Home {
        self.map.as_ref().map_or(Home::ANYWHERE, Map::home)
    }

    /// The service that a request goes to.
    #[inline]
    pub(super) fn way(&self, home: Home, class: Class, is_read: bool) -> usize {
        self.map.as_ref().map_or(0, |map| map.service(home, class, is_read))
    }

    /// Whether a request goes through every association.
    #[inline]
    pub(crate) fn is_for_all(&self, request: &Request) -> bool {
        self.services.len() > 1 && matches!(request, Request::Flush)
    }

    /// Hands a request to whoever leads.
    pub(crate) fn send(&self, class: Class, request: Request) -> Receiver<Completion> {
        let (sender, receiver) = oneshot();
        if self.is_for_all(&request) {
            self.flush(class, Reply::Future(sender));
        } else {
            let at = self.way(self.home(), class, request.is_read());
            self.services[at].leave(class, request, Reply::Future(sender));
        }
        receiver
    }

    /// Does one request and waits for its end.
    pub(crate) fn run(&self, class: Class, request: Request) -> Completion {
        if self.is_for_all(&request) {
            let closed = Completion { tag: 0, result: Err(RequestError::Closed), buffer: None };
            return block_on(self.send(class, request)).unwrap_or(closed);
        }
        let home = self.home();
        let at = self.way(home, class, request.is_read());
        self.services[at].run(class, request, home.is_at(at))
    }

    /// Flushes through every association; the answer, of all together, is for the caller.
    pub(super) fn flush_for(&self, caller: &Arc<Caller>, class: Class, tag: u64) {
        self.flush(class, Reply::Caller(Duty::new(caller, tag)));
    }

    fn flush(&self, class: Class, reply: Reply) {
        let services = self.services.iter();
        let ways = services.filter_map(|service| Some((service, class_of_flush(&service.lanes, class)?)));
        let ways: Vec<_> = ways.collect();
        for ((service, class), part) in ways.iter().zip(reply.split(ways.len())) {
            service.leave(*class, Request::Flush, part);
        }
    }

    /// Asks whoever leads where the connections are.
    pub(crate) async fn connections(&self) -> Vec<ConnectionStatus> {
        let asked: Vec<_> = self.services.iter().map(Service::ask_for_connections).collect();
        let mut connections = Vec::new();
        for (at, (service, answer)) in self.services.iter().zip(asked).enumerate() {
            for mut status in answer.await.unwrap_or_default().connections {
                status.core = service.core;
                // Numbered as they were dealt out.
                status.lane = status.lane.map(|(class, lane)| (class, lane * self.services.len() + at));
                connections.push(status);
            }
        }
        connections
    }

    /// Asks whoever leads at which engine the volume is. One at an engine has one service.
    pub(crate) async fn engine(&self) -> Option<EngineStatus> {
        self.services.first()?.ask_for_connections().await?.engine
    }

    /// Ends the threads in order.
    pub(crate) async fn close(&self) {
        let ends: Vec<_> = self.services.iter().map(Service::stop).collect();
        for end in ends {
            let _: Option<()> = end.await;
        }
    }
}

/// Where which lanes are; none of a volume without cores.
fn map(services: &[Service]) -> Option<Map> {
    let places = services.iter().map(|service| Some((service.core?, service.lanes)));
    Some(Map::new(&places.collect::<Option<Vec<_>>>()?))
}

/// The core and the options of each service.
fn places(uri: &Uri, options: Options) -> Vec<(Option<usize>, Options)> {
    let cores = if options.cores.is_empty() { uri.cores.clone() } else { options.cores.clone() };
    if cores.is_empty() {
        return vec![(None, options)];
    }
    let dealt = options.classes().dealt(cores.as_slice().len());
    let of = |(&core, lanes): (&usize, Classes)| {
        let (lanes, read_lanes, poll_lanes) = (lanes.default, lanes.read, lanes.poll);
        (Some(core), Options { lanes, read_lanes, poll_lanes, cores: Cores::default(), ..options.clone() })
    };
    cores.as_slice().iter().zip(dealt).map(of).collect()
}
