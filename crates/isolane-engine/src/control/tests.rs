//! Control thread with a scripted core.

use std::fs;
use std::os::fd::OwnedFd;

use isolane_engine_api::layout::DoorbellLayout;
use isolane_engine_api::{Hello, OpenDoorbells, Packet, Request, VERSION};
use isolane_reactor::mailbox;
use isolane_shm::{Bell, PAGE_SIZE};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::watch::{Record, Watch};

/// Returns a control thread, and the mailbox of its only core.
fn control() -> (Control, Receiver<CoreMessage>) {
    let dir = tempfile::tempdir().unwrap();
    let (epoll, core) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    let (_, messages) = mailbox::unbounded(epoll.sleeper().waker());
    let (sender, core_messages) = mailbox::unbounded(core.sleeper().waker());
    let config = EngineConfig::new(vec![0]);
    let deps = ControlDeps {
        messages,
        cores: vec![sender],
        kinds: Vec::new(),
        store: Arc::new(StoreClient::none()),
        watch: Watch::new(Record::new().unwrap(), 1).part(0).unwrap(),
    };
    let listener = listen(&dir.path().join("sock")).unwrap();
    (Control::new(config, 1, epoll, listener, deps).unwrap(), core_messages)
}

fn request(control: &mut Control, request: Request, descriptors: Vec<OwnedFd>) {
    control.on_packet(SESSION, Packet { bytes: request.encode(1), descriptors });
}

/// Whether the memory of the client is mapped.
fn is_mapped() -> bool {
    fs::read_to_string("/proc/self/maps").unwrap().contains(NAME)
}

#[test]
fn unmaps_memory_after_core_has_dropped_it() {
    let (mut control, core_messages) = control();
    let (ours, _peer_end) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    control.clients.insert(SESSION, Client::new(SESSION, PacketSocket::new(ours), ClientCred::UNKNOWN));
    let place = DoorbellLayout { offset: 0, entries: 4 };
    {
        let memory = SharedMemory::create(NAME, PAGE_SIZE).unwrap();
        let memfd = memory.memfd().try_clone_to_owned().unwrap();
        let life = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        request(&mut control, Request::Hello(Hello { version: VERSION }), vec![memfd, life]);
        let (_bell, end) = Bell::new(memory.flag(place.flag()).unwrap()).unwrap();
        request(&mut control, Request::OpenDoorbells(OpenDoorbells { core: 0, layout: place }), vec![end]);
    }
    let doorbells = core_messages.poll();
    assert!(matches!(doorbells, Some(CoreMessage::Doorbells { .. })), "the core has no doorbells");

    control.detach(SESSION);
    assert!(control.clients.is_empty(), "the session has not ended");
    control.on_timer(Instant::now());
    assert!(is_mapped(), "unmapped while the core uses it");

    assert!(matches!(core_messages.poll(), Some(CoreMessage::EndSession { session: SESSION })));
    drop(doorbells);
    assert!(is_mapped(), "unmapped by the core");
    assert!(control.next_deadline().is_some(), "the control thread does not check again");
    control.on_timer(Instant::now());
    assert!(!is_mapped(), "still mapped");
    assert_eq!(control.next_deadline(), None);
}

const SESSION: u32 = 1;
const NAME: &str = "isolane-test-unmap";
