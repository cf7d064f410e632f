//! A control thread whose cores the test plays, call by call.

use std::fs;
use std::os::fd::OwnedFd;

use isolane_attach::control::{Hello, OpenPort, Packet, Request, VERSION};
use isolane_attach::layout::PortPlace;
use isolane_reactor::mailbox;
use isolane_ring::{Bell, PAGE_SIZE};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::watch::{Record, Watch};

/// A control thread, and the mailbox of its only core.
fn control() -> (Control, Receiver<Mail>) {
    let folder = tempfile::tempdir().unwrap();
    let (epoll, core) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    let (_, notices) = mailbox::unbounded(epoll.sleeper().waker());
    let (sender, mail) = mailbox::unbounded(core.sleeper().waker());
    let config = Config::new(vec![0]);
    let outfit = Outfit {
        notices,
        cores: vec![sender],
        volumes: Volumes::new(config.mode, config.spin, None, []),
        store: Arc::new(Store::none()),
        watch: Watch::new(Record::new().unwrap(), 1).part(0).unwrap(),
    };
    let door = Door::new(listen(&folder.path().join("sock")).unwrap());
    (Control::new(config, 1, epoll, door, outfit).unwrap(), mail)
}

fn ask(control: &mut Control, request: Request, descriptors: Vec<OwnedFd>) {
    control.on_packet(SESSION, Packet { bytes: request.encode(1), descriptors });
}

/// Whether this process maps the memory of the client.
fn is_mapped() -> bool {
    fs::read_to_string("/proc/self/maps").unwrap().contains(NAME)
}

#[test]
fn unmaps_memory_of_ended_session_after_core_has_dropped_it() {
    let (mut control, mail) = control();
    let (ours, _theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    control.clients.insert(SESSION, Client::new(SESSION, Wire::new(ours), Peer::UNKNOWN));
    let place = PortPlace { offset: 0, entries: 4 };
    {
        let memory = Memory::create(NAME, PAGE_SIZE).unwrap();
        let memfd = memory.memfd().try_clone_to_owned().unwrap();
        let life = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        ask(&mut control, Request::Hello(Hello { version: VERSION }), vec![memfd, life]);
        let (_bell, end) = Bell::new(memory.flag(place.flag()).unwrap()).unwrap();
        ask(&mut control, Request::OpenPort(OpenPort { core: 0, place }), vec![end]);
    }
    let port = mail.poll();
    assert!(matches!(port, Some(Mail::Port { .. })), "the core has got no port");

    control.dismiss(SESSION);
    assert!(control.clients.is_empty(), "the session is not over");
    control.on_time(Instant::now());
    assert!(is_mapped(), "it is unmapped while the core uses it");

    // The core does what it was told.
    assert!(matches!(mail.poll(), Some(Mail::EndSession { session: SESSION })));
    drop(port);
    assert!(is_mapped(), "the core has unmapped it");
    assert!(control.next_moment().is_some(), "the control thread does not look again");
    control.on_time(Instant::now());
    assert!(!is_mapped(), "nobody unmaps it");
    assert_eq!(control.next_moment(), None);
}

const SESSION: u32 = 1;
const NAME: &str = "isolane-test-of-leftovers";
