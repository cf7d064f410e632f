//! Host and target over loopback: the same scenarios in many combinations.

mod clients;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_host::{
    BlockRange, BlockingVolume, Buffer, Client, ConnectError, IoChoice, Mode, Options, Reconnect, Request,
    RequestError, Uri, Wait, discover, inspect,
};
use isolane_target::{Target, TargetConfig};
use isolane_volume::{Volume, open, spec};

use clients::{options, pattern, run, wait_for, write_and_verify};

const NQN: &str = "nqn.2024-01.org.example:host-target";

fn volume(text: &str) -> Arc<dyn Volume> {
    open(&spec::parse(text).unwrap()).unwrap()
}

fn config(volumes: &[Arc<dyn Volume>]) -> TargetConfig {
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.subsystems[0].volumes = (1..).zip(volumes.iter().cloned()).collect();
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.mode = Mode::Sleep;
    config
}

fn serve(text: &str) -> Target {
    Target::start(config(&[volume(text)])).unwrap()
}

fn uri(address: SocketAddr) -> Uri {
    format!("nvme+tcp://{address}/{NQN}").parse().unwrap()
}

fn connect(target: &Target, options: Options) -> Client {
    Client::connect(&uri(target.local_addrs()[0]), options).unwrap()
}

#[test]
fn data_survives_in_every_combination_of_digests() {
    let target = serve("mem:64M");
    for (header_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut client = connect(&target, Options { header_digest, data_digest, lanes: 2, ..options() });
        let negotiated = &client.info().negotiated;
        assert_eq!((negotiated.header_digest, negotiated.data_digest), (header_digest, data_digest));
        assert!(negotiated.flow_control_disabled);
        write_and_verify(&mut client, 2);
        client.close();
    }
}

#[test]
fn data_survives_in_every_mode_and_interface() {
    for io in [IoChoice::Auto, IoChoice::Epoll] {
        for mode in [Mode::Poll, Mode::Adaptive, Mode::Sleep] {
            let mut config = config(&[volume("mem:64M")]);
            (config.io, config.mode) = (io, mode);
            let target = Target::start(config).unwrap();
            let mut client = connect(&target, Options { io, mode, ..options() });
            write_and_verify(&mut client, 1);
        }
    }
}

#[test]
fn serves_large_blocks() {
    let target = serve("mem:64M,block-size=4096");
    let mut client = connect(&target, options());
    assert_eq!(client.namespace().block_bytes, 4096);
    let written = pattern(0, 1 << 20, 3);
    let expected = written.to_vec();
    assert!(run(&mut client, Request::Write { lba: 7, buffer: written, fua: false }).result.is_ok());
    let read = run(&mut client, Request::Read { lba: 7, buffer: Buffer::contiguous(1 << 20) });
    assert!(read.buffer.unwrap().to_vec() == expected);
}

#[test]
fn zeroes_deallocates_and_flushes() {
    let target = serve("mem:16M");
    let mut client = connect(&target, options());
    assert!(
        run(&mut client, Request::Write { lba: 0, buffer: pattern(0, 1 << 20, 9), fua: false })
            .result
            .is_ok()
    );
    let range = BlockRange { lba: 3, blocks: 1000 };
    assert!(run(&mut client, Request::WriteZeroes { range, fua: true, deallocate: true }).result.is_ok());
    let elsewhere = BlockRange { lba: 1500, blocks: 8 };
    let deallocate = Request::Deallocate { ranges: vec![elsewhere, BlockRange { lba: 1600, blocks: 16 }] };
    assert!(run(&mut client, deallocate).result.is_ok());
    assert!(run(&mut client, Request::Flush).result.is_ok());
    let read = run(&mut client, Request::Read { lba: 0, buffer: Buffer::contiguous(1 << 20) })
        .buffer
        .unwrap()
        .to_vec();
    let mut expected = pattern(0, 1 << 20, 9).to_vec();
    expected[3 * 512..1003 * 512].fill(0);
    assert!(read[..1500 * 512] == expected[..1500 * 512]);
}

#[test]
fn discovery_names_the_subsystem_and_its_address() {
    let target = serve("mem:16M");
    let address = target.local_addrs()[0];
    let anywhere: Uri = format!("nvme+tcp://{address}").parse().unwrap();
    let found = discover(&anywhere, &options()).unwrap();
    let offered: Vec<_> = found.iter().filter(|found| found.nvm).collect();
    assert_eq!(offered.len(), 1);
    assert_eq!((offered[0].nqn.as_str(), offered[0].socket_address(address)), (NQN, Some(address)));
    let mut client = Client::connect(&anywhere, options()).unwrap();
    assert!(run(&mut client, Request::Flush).result.is_ok());
}

#[test]
fn reports_the_properties_of_the_target() {
    let volumes = [volume("mem:16M"), volume("null:1T,block-size=4096"), volume("mem:1M,ro")];
    let target = Target::start(config(&volumes)).unwrap();
    let info = inspect(&uri(target.local_addrs()[0]), &options()).unwrap();
    let sizes: Vec<_> = info.namespaces.iter().map(|it| (it.nsid, it.len_bytes(), it.read_only)).collect();
    assert_eq!(sizes, [(1, 16 << 20, false), (2, 1 << 40, false), (3, 1 << 20, true)]);
    assert_eq!(info.controller.max_transfer_bytes, Some(1 << 20));
    assert_eq!((info.controller.max_queue_entries, info.negotiated.max_in_capsule_bytes), (256, 16_384));
    assert!(info.namespaces.iter().all(|namespace| namespace.uuid.is_some()));
    assert!(info.controller.has_write_zeroes && info.controller.has_deallocate);
}

#[test]
fn read_only_volume_rejects_writes() {
    let target = serve("mem:1M,ro");
    let mut client = connect(&target, options());
    let write = run(&mut client, Request::Write { lba: 0, buffer: Buffer::contiguous(512), fua: false });
    assert!(matches!(write.result, Err(RequestError::Status(_))), "{write:?}");
    assert!(run(&mut client, Request::Read { lba: 0, buffer: Buffer::contiguous(512) }).result.is_ok());
}

#[test]
fn rejects_hosts_that_are_not_allowed() {
    let mut config = config(&[volume("mem:1M")]);
    config.subsystems[0].allowed_hosts = Some(vec!["nqn.2024-01.org.example:friend".parse().unwrap()]);
    let target = Target::start(config).unwrap();
    let uri = uri(target.local_addrs()[0]);
    let error = Client::connect(&uri, options()).err().unwrap();
    assert!(matches!(error, ConnectError::Refused { .. }) && error.to_string().contains("allow"), "{error}");
    let friend = Options { host_nqn: "nqn.2024-01.org.example:friend".parse().unwrap(), ..options() };
    assert!(Client::connect(&uri, friend).is_ok());
}

#[test]
fn serves_the_maximum_queue_depth() {
    let target = serve("mem:16M");
    let mut client = connect(&target, Options { depth: 255, ..options() });
    for tag in 0..1000 {
        client.submit(0, Request::Read { lba: tag * 8, buffer: Buffer::contiguous(4096) }, tag);
    }
    assert!(wait_for(&mut client, 1000).iter().all(|completion| completion.result.is_ok()));
    let uri = uri(target.local_addrs()[0]);
    let error = Client::connect(&uri, Options { depth: 256, exact_depth: true, ..options() }).err().unwrap();
    assert!(matches!(error, ConnectError::Depth { requested: 256, max: 255 }), "{error}");
}

#[test]
fn idle_client_keeps_its_association() {
    let target = serve("mem:1M");
    let mut client = connect(&target, Options { keep_alive: Duration::from_millis(1000), ..options() });
    let controller = client.info().controller.cntlid;
    let end = Instant::now() + Duration::from_millis(3500);
    while Instant::now() < end {
        client.turn(&mut Vec::new(), Wait::Until(end));
    }
    assert!(run(&mut client, Request::Flush).result.is_ok());
    assert_eq!(client.info().controller.cntlid, controller);
}

#[test]
fn borrowed_memory_works_from_several_threads() {
    let target = serve("mem:16M");
    let options = Options { lanes: 2, ..options() };
    let volume = BlockingVolume::connect(&uri(target.local_addrs()[0]), options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let volume = &volume;
            scope.spawn(move || {
                let at = thread * (2 << 20);
                for round in 0..20 {
                    let written = pattern(at / 512, 100 * 512, round).to_vec();
                    volume.write_at(&written, at).unwrap();
                    let mut read = vec![0; written.len()];
                    volume.read_at(&mut read, at).unwrap();
                    assert!(read == written);
                }
            });
        }
    });
    volume.close();
}

/// Volume of a target that restarts at the same address.
struct Restarting {
    volume: Arc<dyn Volume>,
    target: Option<Target>,
    address: SocketAddr,
}

impl Restarting {
    fn start(text: &str) -> Restarting {
        let volume = volume(text);
        let target = Target::start(config(&[Arc::clone(&volume)])).unwrap();
        let address = target.local_addrs()[0];
        Restarting { volume, target: Some(target), address }
    }

    fn restart(&mut self) {
        self.target.take().map(|target| target.shutdown(Duration::from_secs(1)));
        let mut config = config(&[Arc::clone(&self.volume)]);
        config.listen = vec![self.address.into()];
        self.target = Some(Target::start(config).unwrap());
    }
}

#[test]
fn target_restart_under_load_loses_nothing() {
    let mut restarting = Restarting::start("mem:64M");
    let reconnect = Reconnect { max_delay: Duration::from_millis(100), ..Reconnect::default() };
    let options = Options { lanes: 2, reconnect, ..options() };
    let mut client = Client::connect(&uri(restarting.address), options).unwrap();
    let mut versions = [0u8; 64];
    for round in 1..=30 {
        for (slot, version) in versions.iter_mut().enumerate() {
            *version = round;
            let lba = slot as u64 * 200;
            client.submit(
                slot % 2,
                Request::Write { lba, buffer: pattern(lba, 65_536, round), fua: false },
                0,
            );
        }
        let mut completions = Vec::new();
        if round % 6 == 0 {
            client.turn(&mut completions, Wait::None);
            restarting.restart();
        }
        let tail = 64 - completions.len();
        completions.extend(wait_for(&mut client, tail));
        assert!(completions.iter().all(|completion| completion.result.is_ok()), "{completions:?}");
    }
    for (slot, version) in versions.into_iter().enumerate() {
        let lba = slot as u64 * 200;
        let read = run(&mut client, Request::Read { lba, buffer: Buffer::contiguous(65_536) });
        assert!(read.buffer.unwrap().to_vec() == pattern(lba, 65_536, version).to_vec(), "slot {slot}");
    }
}
