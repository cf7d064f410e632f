//! Log page C0h: the stages and slow operations of one host.

mod common;

use std::net::SocketAddr;

use common::*;
use isolane_observe::snapshot::Snapshot;
use isolane_target::{Target, TargetConfig};
use isolane_wire::admin::{GetLogPageCommand, LogPage};
use isolane_wire::fabrics::ConnectData;
use isolane_wire::log::{HostStagesHeader, SIGNATURE};
use isolane_wire::pdu::IcReq;
use isolane_wire::registers::Cc;
use isolane_wire::{Nqn, Status, SubmissionEntry};

const OTHER: &str = "nqn.2014-08.org.example:other";

/// The identity of a host.
#[derive(Clone, Copy)]
struct Identity {
    nqn: &'static str,
    hostid: u8,
}

const OWN: Identity = Identity { nqn: HOST, hostid: 7 };

/// Returns an admin queue and an I/O queue of this host.
fn queues_of(address: SocketAddr, identity: Identity) -> (MockHost, MockHost) {
    let mut admin = MockHost::initialized(address, IcReq::default());
    admin.cntlid = connect(&mut admin, 0, 0xffff, identity);
    admin.set_property(CC, Cc::enabled().0);
    let mut queue = MockHost::initialized(address, IcReq::default());
    connect(&mut queue, 1, admin.cntlid, identity);
    (admin, queue)
}

fn connect(host: &mut MockHost, qid: u16, cntlid: u16, identity: Identity) -> u16 {
    let nqn = |text: &str| text.parse::<Nqn>().unwrap();
    let hostid = [identity.hostid; 16];
    let data = ConnectData { hostid, cntlid, subnqn: nqn(NQN).into(), hostnqn: nqn(identity.nqn).into() };
    let answer = host.write(connect_entry(qid, 31), &data.encode()).0;
    assert_eq!(answer.status, Status::SUCCESS);
    answer.dw0 as u16
}

/// Returns `len` bytes of the page.
fn page(admin: &mut MockHost, offset: u64, len: u32) -> Vec<u8> {
    let (answer, data) = admin.fetch(page_entry(offset, len), len);
    assert_eq!((answer.status, data.len()), (Status::SUCCESS, len as usize));
    data
}

fn page_entry(offset: u64, len: u32) -> SubmissionEntry {
    GetLogPageCommand { rae: true, ..GetLogPageCommand::new(LogPage::HostStages, offset, len) }.entry()
}

/// Returns the document in the whole page.
fn document(admin: &mut MockHost) -> Snapshot {
    let page = page(admin, 0, HostStagesHeader::MAX_PAGE as u32);
    let header = HostStagesHeader::decode_prefix(&page).unwrap();
    assert_eq!((header.signature, header.version), (SIGNATURE, 1));
    serde_json::from_slice(&page[64..][..header.text_bytes as usize]).unwrap()
}

/// A target whose host has read and written, with slow operations in its snapshot.
fn busy_target(config: TargetConfig) -> (Target, SocketAddr, MockHost, MockHost) {
    let (target, address) = start(config);
    let (admin, mut queue) = queues_of(address, OWN);
    assert_eq!(queue.write(write_entry(0x1357, 8), &[1; 4096]).0.status, Status::SUCCESS);
    assert_eq!(queue.fetch(read_entry(0x1357, 8), 4096).0.status, Status::SUCCESS);
    eventually("the second has ended", || !target.snapshot().slow.is_empty());
    (target, address, admin, queue)
}

#[test]
fn page_has_stages_of_own_connections() {
    let (target, _, mut admin, _queue) = busy_target(config(&["mem:16M", "null:1M"]));
    let (page, all) = (document(&mut admin), target.snapshot());
    assert_eq!((page.program.name.as_str(), page.program.pid), ("serve", 0));
    assert_eq!(page.volumes.iter().map(|it| it.nsid).collect::<Vec<_>>(), [Some(1), Some(2)]);
    assert_eq!(page.volumes[0].name, "namespace 1");
    let [connection] = &page.numbers.connections[..] else { panic!("{:?}", page.numbers) };
    assert_eq!((connection.controller, connection.queue), (admin.cntlid, 1));
    assert_eq!(connection.totals, all.numbers.connections[0].totals);
    assert!(page.slow.iter().any(|slow| slow.lba == 0x1357 && slow.connection == connection.id));
    assert!(page.numbers.series.is_empty() && page.numbers.counters.is_empty(), "of all hosts");
}

#[test]
fn other_hosts_see_nothing_at_any_offset() {
    let (_target, address, mut own, _queue) = busy_target(config(&["mem:16M"]));
    assert!(String::from_utf8_lossy(&page(&mut own, 0, 65536)).contains("4951"), "the first block");
    let others = [
        Identity { nqn: OTHER, hostid: 7 },
        Identity { nqn: HOST, hostid: 8 },
        Identity { nqn: OTHER, hostid: 9 },
    ];
    for identity in others {
        let (mut admin, _queue) = queues_of(address, identity);
        let first = document(&mut admin);
        assert!(first.numbers.connections.is_empty() && first.slow.is_empty(), "{first:?}");
        let whole = page(&mut admin, 0, 4096);
        let len = 64 + u64::from(HostStagesHeader::decode_prefix(&whole).unwrap().text_bytes);
        let mut pieces = Vec::new();
        for offset in (0..len).step_by(4) {
            pieces.extend(page(&mut admin, offset, 4));
        }
        for secret in [HOST, "4951", "07070707", "\"host\""] {
            let is_found = [&whole, &pieces].iter().any(|it| String::from_utf8_lossy(it).contains(secret));
            assert!(!is_found, "{secret} is in the page");
        }
        let end = HostStagesHeader::MAX_PAGE as u64;
        for offset in [len.next_multiple_of(4), 65536, end - 64] {
            assert_eq!(page(&mut admin, offset, 64), [0; 64], "{offset}");
        }
        for offset in [end + 4, 1 << 40, u64::MAX - 3] {
            assert_ne!(admin.fetch(page_entry(offset, 64), 64).0.status, Status::SUCCESS, "{offset}");
        }
    }
}

#[test]
fn pieces_belong_to_one_page() {
    let (target, _, mut admin, mut queue) = busy_target(config(&["mem:16M"]));
    let whole = page(&mut admin, 0, 16384);
    let end = 64 + u64::from(HostStagesHeader::decode_prefix(&whole).unwrap().text_bytes);
    let mut pieces = Vec::new();
    for offset in (0..end).step_by(64) {
        // Each changes the numbers.
        assert_eq!(queue.fetch(read_entry(0, 8), 4096).0.status, Status::SUCCESS);
        pieces.extend(page(&mut admin, offset, 64));
    }
    let text_bytes = HostStagesHeader::decode_prefix(&pieces).unwrap().text_bytes as usize;
    // The first piece collected a page that may be longer than the one before.
    while pieces.len() < 64 + text_bytes {
        pieces.extend(page(&mut admin, pieces.len() as u64, 64));
    }
    serde_json::from_slice::<Snapshot>(&pieces[64..64 + text_bytes]).expect("one document");
    let counted = |target: &Target| target.snapshot().numbers.connections[0].totals[0].1.count();
    eventually("all are counted", || counted(&target) >= 2 + end / 64);
    let [connection] = &document(&mut admin).numbers.connections[..] else { panic!("one connection") };
    assert!(connection.totals[0].1.count() >= 2 + end / 64, "offset 0 collects again");
}

#[test]
fn serves_pages_to_pipelined_reads() {
    let (target, _, mut admin, _queue) = busy_target(config(&["mem:16M"]));
    let entry = SubmissionEntry { sgl: isolane_wire::Sgl::Transport { len: 4096 }, ..page_entry(0, 4096) };
    let cids: Vec<u16> = (0..20).map(|_| admin.send(entry, &[])).collect();
    for cid in cids {
        let (answer, data) = admin.completion(cid);
        assert_eq!((answer.status, data.len()), (Status::SUCCESS, 4096));
    }
    // Some wait while their connection and their target end.
    for _ in 0..20 {
        admin.send(entry, &[]);
    }
    drop(admin);
    drop(target);
}

/// Pages of many reads that wait would exceed the space for output.
#[test]
fn reads_no_command_before_the_page() {
    let (_target, _, mut admin, _queue) = busy_target(config(&["mem:16M"]));
    let entry = SubmissionEntry { sgl: isolane_wire::Sgl::Transport { len: 4096 }, ..page_entry(0, 4096) };
    for _ in 0..20 {
        let page = admin.send(entry, &[]);
        let unsupported = admin.send(SubmissionEntry { opcode: 0xff, ..SubmissionEntry::default() }, &[]);
        assert_eq!(admin.completion(page).0.status, Status::SUCCESS);
        assert_ne!(admin.completion(unsupported).0.status, Status::SUCCESS);
    }
}

#[test]
fn page_is_empty_if_nothing_is_recorded() {
    let (_target, address) = start(TargetConfig { observe: false, ..config(&["mem:16M"]) });
    let (mut admin, mut queue) = queues_of(address, OWN);
    assert_eq!(queue.fetch(read_entry(0, 8), 4096).0.status, Status::SUCCESS);
    let page = document(&mut admin);
    assert!(page.numbers.connections.is_empty() && page.slow.is_empty());
}
