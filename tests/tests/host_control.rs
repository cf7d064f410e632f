//! Control sockets of a program with volumes of a real target.

use isolane_host::{BlockingVolume, Client, Options, Uri};
use isolane_inspect::host::serve;
use isolane_inspect::source::{Parts, Source};
use isolane_observe::snapshot::Snapshot;
use isolane_observe::stage::{Side, Stage};
use isolane_target::{Mode, Target, TargetConfig};

const NQN: &str = "nqn.2024-01.org.example:host-control";

/// A target with two volumes.
fn target() -> (Target, [Uri; 2]) {
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    let open = |text| isolane_volumes::open(&isolane_volumes::parse(text).unwrap()).unwrap();
    config.subsystems[0].volumes = [(1, open("mem:1M")), (2, open("mem:2M"))].into();
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.mode = Mode::Sleep;
    let target = Target::start(config).unwrap();
    let address = target.local_addrs()[0];
    let uri = |nsid| format!("nvme+tcp://{address}/{NQN}?nsid={nsid}").parse().unwrap();
    (target, [uri(1), uri(2)])
}

/// Reads a socket until `count` operations of a volume are recorded.
fn read_until(path: &std::path::Path, volume: u32, count: u64) -> Snapshot {
    let source = Source::Socket(path.to_owned());
    loop {
        let snapshot = source.read(Parts::Now).unwrap();
        let series = snapshot.numbers.series.iter().filter(|series| series.volume == volume);
        if series.map(|series| series.total.count()).sum::<u64>() == count {
            return snapshot;
        }
        std::thread::yield_now();
    }
}

#[test]
fn sockets_show_the_stages_of_each_volume() {
    let (_target, uris) = target();
    let dir = tempfile::tempdir().unwrap();
    let volumes = uris.each_ref().map(|uri| BlockingVolume::connect(uri, Options::default()).unwrap());
    let paths = ["one.sock", "two.sock"].map(|name| dir.path().join(name));
    let controls = [0, 1].map(|at| serve(&volumes[at], &paths[at]).unwrap());
    for (volume, reads) in volumes.iter().zip([20, 30]) {
        (0..reads).for_each(|block| volume.read_at(&mut [0; 4096], block * 4096).unwrap());
    }
    for (path, (nsid, reads)) in paths.iter().zip([(1, 20), (2, 30)]) {
        let snapshot = read_until(path, 0, reads);
        let [volume] = &*snapshot.volumes else { panic!("{:?}", snapshot.volumes) };
        assert_eq!((volume.nsid, volume.bytes), (Some(nsid), u64::from(nsid) << 20));
        let series = &snapshot.numbers.series[0];
        assert!(series.side == Side::Host && series.stage_sum_ns(Stage::Wait) > 0, "{series:?}");
    }
    volumes.into_iter().for_each(BlockingVolume::close);
    assert!(read_until(&paths[0], 0, 0).volumes.is_empty(), "the socket keeps no volume open");
    drop(controls);
    assert!(paths.iter().all(|path| !path.exists()));
}

#[test]
fn one_socket_shows_volumes_and_clients() {
    let (_target, uris) = target();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let volume = BlockingVolume::connect(&uris[0], Options::default()).unwrap();
    let client = Client::connect(&uris[1], Options::default()).unwrap();
    let control = serve(&volume, &path).unwrap();
    control.add(&client).unwrap();
    (0..10).for_each(|block| volume.read_at(&mut [0; 4096], block * 4096).unwrap());
    let snapshot = read_until(&path, 0, 10);
    let found: Vec<_> = snapshot.volumes.iter().map(|volume| (volume.id, volume.nsid)).collect();
    assert_eq!(found, [(0, Some(1)), (1, Some(2))]);
    client.close();
    assert_eq!(read_until(&path, 0, 10).volumes.len(), 1);
}
