//! Which service a request goes to: that of the core on which its caller runs, if it has a lane of the
//! request's class (H3).
//!
//! Lanes of a class are dealt out from the first core upward, each class on its own, so the first cores have
//! lanes of every class. Not here: what a service does. Invariant: a class with lanes anywhere has a service
//! for every caller.

use isolane_reactor::core;

use crate::classes::{Class, Classes};

/// Where a calling thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Home {
    /// The service that is for it.
    service: usize,
    /// Whether it is on that service's core.
    is_there: bool,
}

impl Home {
    /// That of a volume whose lanes are on no core of their own: everywhere.
    pub(super) const ANYWHERE: Home = Home { service: 0, is_there: true };

    /// Whether the thread may turn a service's client.
    #[inline]
    pub(super) fn is_at(&self, service: usize) -> bool {
        self.is_there && self.service == service
    }
}

/// The services of a volume, by core and class.
#[derive(Debug)]
pub(super) struct Map {
    /// The service of each core, by the core's number.
    of_core: Vec<Option<usize>>,
    /// The service for each class, by the service that is for the caller.
    of_class: [Vec<usize>; 3],
    lanes: Classes,
    services: usize,
}

impl Map {
    /// Of the core and the lanes of each service.
    pub(super) fn new(places: &[(usize, Classes)]) -> Map {
        let last = places.iter().map(|&(core, _)| core).max();
        let mut of_core = vec![None; last.map_or(0, |last| last + 1)];
        for (service, &(core, _)) in places.iter().enumerate() {
            of_core[core] = Some(service);
        }
        let of_class = CLASSES.map(|class| {
            let has = |service: &usize| places[*service].1.count(class) > 0;
            let able: Vec<usize> = (0..places.len()).filter(has).collect();
            let of = |home| if has(&home) { Some(home) } else { able.get(home % able.len().max(1)).copied() };
            (0..places.len()).filter_map(of).collect()
        });
        let lanes = places.iter().fold(Classes { default: 0, read: 0, poll: 0 }, |sum, (_, lanes)| Classes {
            default: sum.default + lanes.default,
            read: sum.read + lanes.read,
            poll: sum.poll + lanes.poll,
        });
        Map { of_core, of_class, lanes, services: places.len() }
    }

    /// The lanes of all services.
    pub(super) fn lanes(&self) -> Classes {
        self.lanes
    }

    /// Where the calling thread is. Threads on other cores are spread over the services.
    pub(super) fn home(&self) -> Home {
        self.home_of(core::current())
    }

    fn home_of(&self, core: usize) -> Home {
        match self.of_core.get(core) {
            Some(&Some(service)) => Home { service, is_there: true },
            _ => Home { service: core % self.services, is_there: false },
        }
    }

    /// The service that a request goes to.
    pub(super) fn service(&self, home: Home, class: Class, is_read: bool) -> usize {
        let of_home = match self.lanes.serving(class, is_read) {
            Class::Default => &self.of_class[0],
            Class::Read => &self.of_class[1],
            Class::Poll => &self.of_class[2],
        };
        of_home.get(home.service).copied().unwrap_or(0)
    }
}

/// The class of one service's lanes that a flush goes through; none if they are for reads alone, so that
/// there is nothing to flush.
pub(super) fn class_of_flush(lanes: &Classes, wish: Class) -> Option<Class> {
    let classes = [lanes.serving(wish, false), Class::Default, Class::Poll];
    classes.into_iter().find(|&class| lanes.count(class) > 0)
}

const CLASSES: [Class; 3] = [Class::Default, Class::Read, Class::Poll];

#[cfg(test)]
mod tests {
    use super::*;

    fn map(cores: &[usize], lanes: Classes) -> Map {
        let dealt = lanes.dealt(cores.len());
        Map::new(&cores.iter().copied().zip(dealt).collect::<Vec<_>>())
    }

    #[test]
    fn a_caller_stays_on_its_core_for_every_class_that_has_a_lane_there() {
        let map = map(&[4, 6, 2], Classes { default: 3, read: 2, poll: 1 });
        let of = |core, class, is_read| map.service(map.home_of(core), class, is_read);
        let of_core = |core| {
            [of(core, Class::Default, false), of(core, Class::Read, true), of(core, Class::Poll, true)]
        };
        assert_eq!([4, 6, 2].map(of_core), [[0, 0, 0], [1, 1, 0], [2, 0, 0]]);
        assert!(map.home_of(6).is_at(1) && !map.home_of(6).is_at(0));
    }

    #[test]
    fn callers_elsewhere_are_spread_and_at_no_service() {
        let map = map(&[0, 1], Classes { default: 2, read: 0, poll: 0 });
        let services = [2, 3, 900].map(|core| map.service(map.home_of(core), Class::Read, true));
        assert_eq!(services, [0, 1, 0]);
        assert!((2..5).all(|core| !map.home_of(core).is_at(0) && !map.home_of(core).is_at(1)));
    }

    #[test]
    fn a_class_that_the_default_class_stands_in_for_goes_where_that_has_lanes() {
        let map = map(&[0, 1, 2], Classes { default: 1, read: 3, poll: 0 });
        let of = |core, is_read| map.service(map.home_of(core), Class::Poll, is_read);
        assert_eq!([0, 1, 2].map(|core| (of(core, true), of(core, false))), [(0, 0), (1, 0), (2, 0)]);
    }

    #[test]
    fn a_flush_goes_through_every_service_that_may_have_written() {
        let class = |default, read, poll| class_of_flush(&Classes { default, read, poll }, Class::Default);
        assert_eq!(class(1, 1, 1), Some(Class::Default));
        assert_eq!(class(0, 1, 1), Some(Class::Poll));
        assert_eq!(class(0, 2, 0), None);
        let lanes = Classes { default: 1, read: 0, poll: 1 };
        assert_eq!(class_of_flush(&lanes, Class::Poll), Some(Class::Poll));
    }
}
