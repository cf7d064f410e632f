//! The flush of a controller shutdown: changes of its host that no flush has covered.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use isolane_memory::{Payload, Pool};
use isolane_target::{Fault, NamespaceChange, Target, TargetConfig};
use isolane_volume::{Request, Step, Volume, VolumeDescription, VolumeInfo};
use isolane_wire::pdu::IcReq;
use isolane_wire::registers::{Cc, Csts};
use isolane_wire::{Status, SubmissionEntry, io};

const A: &str = HOST;
const B: &str = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";

/// A volume with a volatile cache that counts flushes.
struct Cached {
    description: VolumeDescription,
    flushes: AtomicUsize,
}

impl Cached {
    fn new() -> Arc<Cached> {
        let memory = volume("mem:1M");
        let info = VolumeInfo { volatile_cache: true, ..memory.info().clone() };
        let description = VolumeDescription { info, ..memory.description().clone() };
        Arc::new(Cached { description, flushes: AtomicUsize::new(0) })
    }
}

impl Volume for Cached {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        match request {
            Request::Write { data, .. } => pool.recycle_buffer(data),
            Request::Flush => _ = self.flushes.fetch_add(1, Ordering::SeqCst),
            _ => {}
        }
        Step::Done(Ok(Payload::default()))
    }
}

/// A target with two volumes on two cores.
struct Site {
    volumes: [Arc<Cached>; 2],
    target: Target,
    address: SocketAddr,
}

impl Site {
    fn new() -> Site {
        let volumes = [Cached::new(), Cached::new()];
        let served = (1..).zip(&volumes).map(|(nsid, volume)| (nsid, volume.clone() as Arc<dyn Volume>));
        let config = TargetConfig { cores: one_core_twice(), ..serving(served.collect()) };
        let (target, address) = start(config);
        Site { volumes, target, address }
    }

    fn connect(&self, host: &str) -> (MockHost, MockHost) {
        let admin = MockHost::admin_with(self.address, IcReq::default(), host);
        let queue = admin.io_queue_with(1, 31, IcReq::default(), host);
        (admin, queue)
    }

    /// Number of flushes of each volume since the last call.
    fn flushes(&self) -> [usize; 2] {
        self.volumes.each_ref().map(|volume| volume.flushes.swap(0, Ordering::SeqCst))
    }

    /// Shuts down the controller of a host, and returns the flushes that this takes.
    fn shut_down(&self, mut admin: MockHost) -> [usize; 2] {
        self.flushes();
        admin.set_property(CC, Cc::enabled().with_shn(Cc::SHN_NORMAL).0);
        eventually("the shutdown is complete", || {
            Csts(admin.property(CSTS) as u32).shst() == Csts::SHST_COMPLETE
        });
        self.flushes()
    }

    /// Shuts down after the I/O queue was closed, as Linux does.
    fn end(&self, (admin, queue): (MockHost, MockHost)) -> [usize; 2] {
        drop(queue);
        self.shut_down(admin)
    }
}

fn write(queue: &mut MockHost, nsid: u32) {
    let entry = SubmissionEntry { nsid, ..write_entry(0, 1) };
    assert_eq!(queue.push(entry, &[7; 512]).status, Status::SUCCESS);
}

fn flush(queue: &mut MockHost, nsid: u32) {
    assert_eq!(queue.run(io::flush(nsid)).status, Status::SUCCESS);
}

#[test]
fn shutdown_flushes_the_changes_of_its_host() {
    let site = Site::new();
    // Before the target, another program can have written.
    assert_eq!(site.end(site.connect(A)), [1, 1]);
    assert_eq!(site.end(site.connect(A)), [0, 0]);

    let (mut a, mut b) = (site.connect(A), site.connect(B));
    write(&mut b.1, 1);
    write(&mut a.1, 2);
    assert_eq!(site.end(a), [0, 1]);
    assert_eq!(site.end(b), [1, 0]);
    assert_eq!(site.end(site.connect(B)), [0, 0]);
    site.target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result().unwrap();
}

/// The volume works, so what was written before the fault must become durable.
#[test]
fn shutdown_flushes_a_volume_that_fails_on_purpose() {
    let site = Site::new();
    site.end(site.connect(A));
    for fault in [Fault::Fail, Fault::Stall] {
        let mut a = site.connect(A);
        write(&mut a.1, 1);
        let set = |fault| site.target.change_namespaces(vec![NamespaceChange::Fault { nsid: 1, fault }]);
        set(Some(fault)).unwrap();
        assert_eq!(site.end(a), [1, 0], "{fault:?}");
        set(None).unwrap();
    }
    site.target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result().unwrap();
}

#[test]
fn flush_of_one_queue_covers_the_changes_of_all() {
    let site = Site::new();
    site.end(site.connect(A));
    let (admin, mut first) = site.connect(A);
    let mut second = admin.io_queue_with(2, 31, IcReq::default(), A);
    write(&mut first, 1);
    write(&mut second, 1);
    flush(&mut first, 1);
    write(&mut second, 2);
    flush(&mut second, 1);
    drop(first);
    assert_eq!(site.end((admin, second)), [0, 1]);

    let (admin, mut queue) = site.connect(A);
    flush(&mut queue, 1);
    write(&mut queue, 1);
    assert_eq!(site.end((admin, queue)), [1, 0]);
    site.target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result().unwrap();
}

/// The host expects its data to be durable after the shutdown, whichever connection has carried it.
#[test]
fn changes_of_a_lost_association_stay() {
    let site = Site::new();
    site.end(site.connect(A));
    let (admin, mut queue) = site.connect(A);
    write(&mut queue, 2);
    drop((admin, queue));
    eventually("the association is gone", || site.target.associations().is_empty());
    assert_eq!(site.end(site.connect(B)), [0, 0]);
    assert_eq!(site.end(site.connect(A)), [0, 1]);
    site.target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result().unwrap();
}
