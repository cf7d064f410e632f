//! Ports by name: which subsystems hosts reach there, and their records in the discovery log.

use super::*;
use crate::subsystem::connect::bad_data;
use isolane_wire::log::{DiscoveryEntry, DiscoveryHeader};

const LEFT: usize = 0;
const RIGHT: usize = 1;
const FINDER: usize = 2;
const SECOND: &str = "nqn.2014-08.org.example:second";
const THIRD: &str = "nqn.2014-08.org.example:third";

fn nqn(name: &str) -> Nqn {
    Nqn::new(name).unwrap()
}

fn named(name: &str, address: &str) -> Listener {
    Listener { name: Some(name.into()), ..listener(address) }
}

/// Two ports and one for discovery. The first subsystem is on all of them, the second on the left one, the third on the
/// right one.
fn ports() -> PortConfig {
    let mut config = config();
    config.listeners = vec![
        named("left", "192.0.2.1:4420"),
        named("right", "198.51.100.1:4420"),
        Listener { discovery_only: true, ..named("finder", "0.0.0.0:8009") },
    ];
    for (name, port) in [(SECOND, "left"), (THIRD, "right")] {
        config.subsystems.push(SubsystemConfig {
            nqn: nqn(name),
            namespaces: vec![namespace(1)],
            ports: Some(vec![port.into()]),
            ..SubsystemConfig::default()
        });
    }
    config
}

impl Harness {
    fn connect_at(&mut self, at: usize, connect: &MockConnect) -> Result<Connected, ConnectRefusal> {
        let local = ["192.0.2.1:4420", "198.51.100.1:4420", "203.0.113.1:8009"][at].parse().unwrap();
        let from = ConnectionInfo { listener: ListenerId::at(at), local, ..from() };
        self.port.connect(&connect.command.entry(), &connect.data.encode(), from, self.now)
    }

    /// Name, PORTID, and address of each record for a host at this port.
    fn discover_at(&mut self, at: usize) -> Vec<(String, u16, String)> {
        let id = self.connect_at(at, &MockConnect::discovery()).unwrap().id;
        self.set_cc(id, Cc::enabled());
        let page = self.log(id, LogPage::Discovery, 0, 16 * 1024).unwrap();
        let records = DiscoveryHeader::decode_prefix(&page).unwrap().numrec as usize;
        let records = page[1024..].chunks_exact(1024).take(records);
        records
            .map(|record| DiscoveryEntry::decode_prefix(record).unwrap())
            .map(|it| {
                let name = it.subnqn.parse().unwrap().to_string();
                (name, it.portid, it.traddr.as_str().unwrap().to_owned())
            })
            .collect()
    }
}

fn admin_of(subnqn: &str) -> MockConnect {
    let mut connect = MockConnect::admin();
    connect.data.subnqn = nqn(subnqn).into();
    connect
}

#[test]
fn host_reaches_subsystem_at_its_ports() {
    let mut harness = Harness::with(ports());
    let unknown = Err(bad_data(ConnectData::SUBNQN).completion);
    for (at, subnqn, is_there) in [
        (LEFT, SUBNQN, true),
        (RIGHT, SUBNQN, true),
        (FINDER, SUBNQN, false),
        (LEFT, SECOND, true),
        (RIGHT, SECOND, false),
        (FINDER, SECOND, false),
        (LEFT, THIRD, false),
        (RIGHT, THIRD, true),
    ] {
        let result = harness.connect_at(at, &admin_of(subnqn));
        let result = result.map(drop).map_err(|refusal| refusal.completion);
        assert_eq!(result, if is_there { Ok(()) } else { unknown }, "{subnqn} at {at}");
    }
    for at in [LEFT, RIGHT, FINDER] {
        assert!(harness.connect_at(at, &MockConnect::discovery()).is_ok());
    }
}

#[test]
fn io_queue_needs_port_of_subsystem() {
    let mut harness = Harness::with(ports());
    let id = harness.connect_at(LEFT, &admin_of(SECOND)).unwrap().id;
    harness.set_cc(id, Cc::enabled());
    let mut io = MockConnect::io(id, 1);
    io.data.subnqn = nqn(SECOND).into();
    assert!(harness.connect_at(RIGHT, &io).is_err());
    assert!(harness.connect_at(LEFT, &io).is_ok());
}

#[test]
fn older_associations_drain_only_for_admitted_connects() {
    let harness = Harness::with(ports());
    let connect = admin_of(SECOND);
    let drained = |at| {
        let from = ConnectionInfo { listener: ListenerId::at(at), ..from() };
        harness.port.host_to_drain(&connect.command.entry(), &connect.data.encode(), from).is_some()
    };
    assert_eq!([LEFT, RIGHT, FINDER].map(drained), [true, false, false]);
}

#[test]
fn each_port_has_the_records_of_all() {
    let mut harness = Harness::with(ports());
    let left = |name: &str| (name.to_owned(), 1, "192.0.2.1".to_owned());
    let right = |name: &str| (name.to_owned(), 2, "198.51.100.1".to_owned());
    let expected = [left(SUBNQN), right(SUBNQN), left(SECOND), right(THIRD)];
    for at in [LEFT, RIGHT, FINDER] {
        assert_eq!(harness.discover_at(at), expected);
    }
}

#[test]
fn advertised_addresses_are_for_subsystems_with_a_port() {
    let advertise = vec!["203.0.113.9:4420".parse().unwrap()];
    let mut config = PortConfig { advertise, ..ports() };
    config.subsystems[1].ports = Some(Vec::new());
    let mut harness = Harness::with(config);
    let record = |name: &str| (name.to_owned(), 1, "203.0.113.9".to_owned());
    assert_eq!(harness.discover_at(LEFT), [record(SUBNQN), record(THIRD)]);
}

#[test]
fn names_are_known_and_different() {
    let mut twice = ports();
    twice.listeners[1].name = Some("left".into());
    assert_eq!(Port::new(twice).unwrap_err(), ConfigError::SamePort("left".into()));
    let mut unknown = ports();
    unknown.subsystems[1].ports = Some(vec!["left".into(), "middle".into()]);
    let error = ConfigError::UnknownPort("middle".into());
    assert_eq!(Port::new(unknown.clone()).unwrap_err(), error);
    let mut harness = Harness::with(ports());
    let added = SubsystemConfig { nqn: nqn("nqn.2014-08.org.example:new"), ..unknown.subsystems[1].clone() };
    assert_eq!(harness.port.add_subsystem(added), Err(error));
}

#[test]
fn controller_ids_stay_in_their_range() {
    let mut config = config();
    config.subsystems[0].cntlids = 5..=6;
    let mut harness = Harness::with(config.clone());
    let (first, second) = (harness.admin(), harness.admin());
    assert_eq!((first.cntlid, second.cntlid), (5, 6));
    assert!(harness.connect(&MockConnect::admin()).is_err(), "both are in use");
    harness.drop_queue(first, 0);
    assert_eq!(harness.admin().cntlid, 5);
    for range in [0..=6, 1..=0xfff0] {
        config.subsystems[0].cntlids = range.clone();
        let error = ConfigError::Cntlids(*range.start(), *range.end());
        assert_eq!(Port::new(config.clone()).unwrap_err(), error);
    }
}

mod live {
    use super::*;
    use crate::failure::Failure;
    use isolane_wire::admin::{AsyncEvent, Notice, async_event_request};

    impl Harness {
        fn retired(&mut self) -> Vec<AssociationId> {
            let retired = |event| match event {
                ControlEvent::Retire { id, reason: CloseReason::PortRemoved } => Some(id),
                _ => None,
            };
            self.events().into_iter().filter_map(retired).collect()
        }

        /// A discovery controller of a host at this port that waits for a change.
        fn watch_at(&mut self, at: usize) -> AssociationId {
            let id = self.connect_at(at, &MockConnect::discovery()).unwrap().id;
            self.set_cc(id, Cc::enabled());
            self.execute(id, async_event_request(), 0);
            id
        }

        fn is_notified(&mut self, id: AssociationId) -> bool {
            let changed = AsyncEvent::notice(Notice::DiscoveryLogPageChange, LogPage::Discovery);
            self.port.poll_async_event(id).is_some_and(|(_, completion)| completion.dw0 == changed.0)
        }
    }

    #[test]
    fn removed_listener_retires_its_associations() {
        let mut harness = Harness::with(ports());
        let left = harness.connect_at(LEFT, &admin_of(SUBNQN)).unwrap().id;
        let right = harness.connect_at(RIGHT, &admin_of(SUBNQN)).unwrap().id;
        let (at_left, at_right) = (harness.watch_at(LEFT), harness.watch_at(RIGHT));
        let generation = harness.port.generation;
        let id = harness.port.find_listener("left").unwrap();
        harness.port.remove_listener(id);
        assert_eq!(harness.retired(), [left, at_left]);
        assert_eq!(harness.port.generation, generation + 1);
        assert!(harness.is_notified(at_right));
        assert!(harness.connect_at(LEFT, &admin_of(SUBNQN)).is_err());
        assert!(harness.connect_at(LEFT, &MockConnect::discovery()).is_err());
        harness.set_cc(right, Cc::enabled());
        assert_eq!(harness.port.find_listener("left"), None);
        let names = |found: Vec<(String, u16, String)>| found.into_iter().map(|it| (it.0, it.1));
        let expected = [(SUBNQN.to_owned(), 2), (THIRD.to_owned(), 2)];
        assert_eq!(names(harness.discover_at(RIGHT)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn retiring_association_gets_no_more_queues() {
        let mut harness = Harness::with(ports());
        let id = harness.connect_at(LEFT, &admin_of(SUBNQN)).unwrap().id;
        harness.set_cc(id, Cc::enabled());
        assert!(harness.connect_at(LEFT, &MockConnect::io(id, 1)).is_ok());
        let left = harness.port.find_listener("left").unwrap();
        harness.port.remove_listener(left);
        let busy = Completion::from(Failure::Busy);
        assert_eq!(rejected(harness.connect_at(RIGHT, &MockConnect::io(id, 2))), busy);
    }

    #[test]
    fn name_gets_its_port_id_again() {
        let mut harness = Harness::with(ports());
        let removed = harness.port.find_listener("left").unwrap();
        harness.port.remove_listener(removed);
        let middle = harness.port.add_listener(named("middle", "192.0.2.7:4420")).unwrap();
        let again = harness.port.add_listener(named("left", "192.0.2.1:4420")).unwrap();
        assert_ne!(again, removed);
        let port_ids: Vec<_> = harness.port.listeners.iter().map(|(id, _, port_id)| (id, port_id)).collect();
        assert!(port_ids.contains(&(again, 1)) && port_ids.contains(&(middle, 4)), "{port_ids:?}");
        let twice = harness.port.add_listener(named("left", "192.0.2.9:4420"));
        assert_eq!(twice, Err(ConfigError::SamePort("left".into())));
    }

    #[test]
    fn given_port_ids_are_not_used_for_other_names() {
        let mut harness = Harness::with(ports());
        let numbered =
            |name: &str, port_id| Listener { port_id: Some(port_id), ..named(name, "192.0.2.7:1") };
        let ninth = harness.port.add_listener(numbered("ninth", 9)).unwrap();
        let next = harness.port.add_listener(named("next", "192.0.2.8:4420")).unwrap();
        let twice = harness.port.add_listener(numbered("twice", 9));
        assert_eq!(twice, Err(ConfigError::SamePortId(9)));
        harness.port.remove_listener(ninth);
        let again = harness.port.add_listener(named("ninth", "192.0.2.9:4420")).unwrap();
        let port_ids: Vec<_> = harness.port.listeners.iter().map(|(id, _, port_id)| (id, port_id)).collect();
        assert!(port_ids.contains(&(again, 9)) && port_ids.contains(&(next, 10)), "{port_ids:?}");
    }

    #[test]
    fn subsystem_leaves_a_port() {
        let mut harness = Harness::with(ports());
        let left = harness.connect_at(LEFT, &admin_of(SUBNQN)).unwrap().id;
        let right = harness.connect_at(RIGHT, &admin_of(SUBNQN)).unwrap().id;
        let other = harness.connect_at(LEFT, &admin_of(SECOND)).unwrap().id;
        let watcher = harness.watch_at(FINDER);
        let first = SubsystemId::FIRST;
        harness.port.set_ports(first, Some(vec!["right".into()])).unwrap();
        assert_eq!(harness.retired(), [left]);
        assert!(harness.is_notified(watcher));
        assert!(harness.connect_at(LEFT, &admin_of(SUBNQN)).is_err());
        assert!(harness.connect_at(RIGHT, &admin_of(SUBNQN)).is_ok());
        let error = harness.port.set_ports(first, Some(vec!["middle".into()]));
        assert_eq!(error, Err(ConfigError::UnknownPort("middle".into())));

        harness.log(watcher, LogPage::Discovery, 0, 1024).unwrap();
        harness.execute(watcher, async_event_request(), 0);
        harness.port.set_ports(first, None).unwrap();
        assert!(harness.is_notified(watcher));
        assert_eq!(harness.retired(), []);
        harness.port.set_ports(right.subsystem, None).unwrap();
        assert!(!harness.is_notified(watcher), "the same log");
        let gone = other.subsystem;
        harness.port.remove_subsystem(gone).unwrap();
        assert_eq!(harness.port.set_ports(gone, None), Err(ConfigError::UnknownSubsystem));
    }

    #[test]
    fn referrals_are_discovery_services() {
        let referrals = vec!["10.0.0.2:8009".parse().unwrap(), "[2001:db8::2]:8010".parse().unwrap()];
        let mut harness = Harness::with(PortConfig { referrals, ..config() });
        let id = harness.watch_at(LEFT);
        let record = |harness: &mut Harness, at: u64| {
            let page = harness.log(id, LogPage::Discovery, 1024 * at, 1024).unwrap();
            let it = DiscoveryEntry::decode_prefix(&page).unwrap();
            let texts = [it.traddr.as_str().unwrap(), it.trsvcid.as_str().unwrap()].map(str::to_owned);
            (it.subtype, it.subnqn.parse(), texts)
        };
        let text = |texts: [&str; 2]| texts.map(str::to_owned);
        assert_eq!(record(&mut harness, 1).0, 2, "the NVM subsystem comes first");
        let expected = (1, Ok(Nqn::discovery()), text(["10.0.0.2", "8009"]));
        assert_eq!(record(&mut harness, 2), expected);
        let expected = (1, Ok(Nqn::discovery()), text(["2001:db8::2", "8010"]));
        assert_eq!(record(&mut harness, 3), expected);

        harness.port.set_referrals(vec!["10.0.0.3:8009".parse().unwrap()]);
        assert!(harness.is_notified(id));
        assert_eq!(record(&mut harness, 2).2, text(["10.0.0.3", "8009"]));
        assert_eq!(harness.log(id, LogPage::Discovery, 0, 1024).unwrap()[8], 2);
    }
}
