//! Choice of the service for a request: the one of the caller's core, if it has a lane of the request's class
//! (H3).
//!
//! Lanes of each class are distributed from the first core upward, so the first cores have lanes of every
//! class.
//!
//! Invariant: a class with lanes on any core has a service for every caller.

use isolane_reactor::cpu;

use crate::lane_class::{LaneClass, LaneCounts};

/// The service of a calling thread's core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerCore {
    service: usize,
    /// Whether the thread is on that service's core.
    on_core: bool,
}

impl CallerCore {
    /// For a volume without cores.
    pub(crate) const ANY: CallerCore = CallerCore { service: 0, on_core: true };

    /// Returns whether the thread may drive the client of a service.
    #[inline]
    pub(crate) fn is_at(self, service: usize) -> bool {
        self.on_core && self.service == service
    }
}

/// Services of a volume, by core and class.
#[derive(Debug)]
pub(crate) struct ServiceMap {
    /// The service of each core, by the ID of the core.
    of_core: Vec<Option<usize>>,
    /// The service for each class, by the service of the caller's core.
    with_class: [Vec<usize>; 3],
    lanes: LaneCounts,
    services: usize,
}

impl ServiceMap {
    /// Takes the core and the lanes of each service.
    pub(crate) fn new(lanes_by_core: &[(usize, LaneCounts)]) -> ServiceMap {
        let last = lanes_by_core.iter().map(|&(core, _)| core).max();
        let mut of_core = vec![None; last.map_or(0, |last| last + 1)];
        for (service, &(core, _)) in lanes_by_core.iter().enumerate() {
            of_core[core] = Some(service);
        }
        let services = lanes_by_core.len();
        let with_class = CLASSES.map(|class| {
            let has = |service: &usize| lanes_by_core[*service].1.count(class) > 0;
            let able: Vec<usize> = (0..services).filter(has).collect();
            let of = |home| if has(&home) { Some(home) } else { able.get(home % able.len().max(1)).copied() };
            (0..services).filter_map(of).collect()
        });
        let none = LaneCounts { default: 0, read: 0, poll: 0 };
        let lanes = lanes_by_core.iter().fold(none, |sum, (_, lanes)| LaneCounts {
            default: sum.default + lanes.default,
            read: sum.read + lanes.read,
            poll: sum.poll + lanes.poll,
        });
        ServiceMap { of_core, with_class, lanes, services }
    }

    /// Returns the lanes of all services.
    pub(crate) fn lanes(&self) -> LaneCounts {
        self.lanes
    }

    /// Returns the core of the calling thread. Threads on other cores are spread over the services.
    pub(crate) fn caller_core(&self) -> CallerCore {
        self.caller_on(cpu::current())
    }

    fn caller_on(&self, core: usize) -> CallerCore {
        match self.of_core.get(core) {
            Some(&Some(service)) => CallerCore { service, on_core: true },
            _ => CallerCore { service: core % self.services, on_core: false },
        }
    }

    /// Returns the service for a request.
    pub(crate) fn service(&self, caller: CallerCore, class: LaneClass, is_read: bool) -> usize {
        let with_class = &self.with_class[self.lanes.serving(class, is_read) as usize];
        with_class.get(caller.service).copied().unwrap_or(0)
    }
}

/// Returns the class of a service's lanes that a flush goes through, or `None` if the service only reads, so that
/// there is nothing to flush.
pub(crate) fn flush_class(lanes: &LaneCounts, requested: LaneClass) -> Option<LaneClass> {
    let classes = [lanes.serving(requested, false), LaneClass::Default, LaneClass::Poll];
    classes.into_iter().find(|&class| lanes.count(class) > 0)
}

const CLASSES: [LaneClass; 3] = [LaneClass::Default, LaneClass::Read, LaneClass::Poll];

#[cfg(test)]
mod tests {
    use super::*;

    fn map(cores: &[usize], lanes: LaneCounts) -> ServiceMap {
        let split = lanes.split_across(cores.len());
        ServiceMap::new(&cores.iter().copied().zip(split).collect::<Vec<_>>())
    }

    #[test]
    fn caller_stays_on_core_with_its_class() {
        let map = map(&[4, 6, 2], LaneCounts { default: 3, read: 2, poll: 1 });
        let of = |core, class, is_read| map.service(map.caller_on(core), class, is_read);
        let of_core = |core| {
            [
                of(core, LaneClass::Default, false),
                of(core, LaneClass::Read, true),
                of(core, LaneClass::Poll, true),
            ]
        };
        assert_eq!([4, 6, 2].map(of_core), [[0, 0, 0], [1, 1, 0], [2, 0, 0]]);
        assert!(map.caller_on(6).is_at(1) && !map.caller_on(6).is_at(0));
    }

    #[test]
    fn spreads_callers_on_other_cores() {
        let map = map(&[0, 1], LaneCounts { default: 2, read: 0, poll: 0 });
        let services = [2, 3, 900].map(|core| map.service(map.caller_on(core), LaneClass::Read, true));
        assert_eq!(services, [0, 1, 0]);
        assert!((2..5).all(|core| !map.caller_on(core).is_at(0) && !map.caller_on(core).is_at(1)));
    }

    #[test]
    fn default_class_replaces_missing_class() {
        let map = map(&[0, 1, 2], LaneCounts { default: 1, read: 3, poll: 0 });
        let of = |core, is_read| map.service(map.caller_on(core), LaneClass::Poll, is_read);
        assert_eq!([0, 1, 2].map(|core| (of(core, true), of(core, false))), [(0, 0), (1, 0), (2, 0)]);
    }

    #[test]
    fn flushes_every_service_that_may_have_written() {
        let class =
            |default, read, poll| flush_class(&LaneCounts { default, read, poll }, LaneClass::Default);
        assert_eq!(class(1, 1, 1), Some(LaneClass::Default));
        assert_eq!(class(0, 1, 1), Some(LaneClass::Poll));
        assert_eq!(class(0, 2, 0), None);
        let lanes = LaneCounts { default: 1, read: 0, poll: 1 };
        assert_eq!(flush_class(&lanes, LaneClass::Poll), Some(LaneClass::Poll));
    }
}
