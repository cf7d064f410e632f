//! Hosts that come by a port of a target.

use std::net::SocketAddr;

use isolane_target::{Target, TargetConfig};
use isolane_wire::admin::{AsyncEvent, GetLogPageCommand, LogPage, Notice, async_event_request};
use isolane_wire::log::{DiscoveryEntry, DiscoveryHeader};
use isolane_wire::pdu::IcReq;
use isolane_wire::registers::Cc;
use isolane_wire::{CompletionEntry, Nqn, Status};

use super::stuck::Stuck;
use super::{CC, HOST, MockHost, NQN, eventually, in_capsule, start, write_entry};

pub fn start_all(config: TargetConfig) -> (Target, Vec<SocketAddr>) {
    let (target, _) = start(config);
    let addresses = target.local_addrs();
    (target, addresses)
}

pub fn connect_to(address: SocketAddr, nqn: &str) -> (MockHost, CompletionEntry) {
    let mut host = MockHost::initialized(address, IcReq::default());
    let answer = host.connect(0, 0xffff, nqn, HOST, 31);
    (host, answer)
}

/// The admin queue of an enabled controller, and its CNTLID.
fn controller_at(address: SocketAddr, nqn: &str) -> (MockHost, u16) {
    let (mut host, answer) = connect_to(address, nqn);
    assert_eq!(answer.status, Status::SUCCESS);
    host.set_property(CC, Cc::enabled().0);
    (host, answer.dw0 as u16)
}

/// The admin queue of an enabled controller at a port, and one I/O queue.
pub fn pair_of(address: SocketAddr, nqn: &str) -> (MockHost, MockHost) {
    let (admin, cntlid) = controller_at(address, nqn);
    let mut queue = MockHost::initialized(address, IcReq::default());
    assert_eq!(queue.connect(1, cntlid, nqn, HOST, 31).status, Status::SUCCESS);
    (admin, queue)
}

/// The records of the discovery log.
pub fn records_at(address: SocketAddr) -> Vec<DiscoveryEntry> {
    let (mut host, _) = controller_at(address, Nqn::DISCOVERY);
    let page = host.fetch(GetLogPageCommand::new(LogPage::Discovery, 0, 8192).entry(), 8192).1;
    let records = DiscoveryHeader::decode_prefix(&page).unwrap().numrec as usize;
    let entries = page[1024..].chunks_exact(1024).take(records);
    entries.map(|entry| DiscoveryEntry::decode_prefix(entry).unwrap()).collect()
}

/// A discovery controller that waits for a change.
pub fn watch(address: SocketAddr) -> (MockHost, u16) {
    let (mut host, _) = controller_at(address, Nqn::DISCOVERY);
    let cid = host.send(async_event_request(), &[]);
    (host, cid)
}

pub fn expect_notice((mut host, cid): (MockHost, u16)) {
    let notice = AsyncEvent::notice(Notice::DiscoveryLogPageChange, LogPage::Discovery);
    assert_eq!(host.completion(cid).0.dw0, notice.0);
}

/// A write is at its volume when `close` closes the first port: it completes, and then the connections end.
pub fn completes_before_its_port_closes(mut config: TargetConfig, close: impl FnOnce(&Target)) {
    let (stuck, relief) = Stuck::new();
    config.subsystems[0].volumes = vec![(1, stuck.clone())];
    let (target, at) = start_all(config);
    let (mut admin, mut queue) = pair_of(at[0], NQN);
    let cid = queue.send(in_capsule(write_entry(0, 1), &[6; 512]), &[6; 512]);
    eventually("the write is at the volume", || stuck.started() == 1);
    close(&target);
    let reader = relief.release();
    assert_eq!(queue.completion(cid).0.status, Status::SUCCESS);
    queue.expect_end();
    admin.expect_end();
    drop((target, stuck));
    assert!(reader.join().unwrap().starts_with(&[6; 512]));
}
