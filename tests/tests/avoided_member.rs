//! Reads of a mirror that avoid a member.

use isolane_host::{BlockingVolume, Options};
use isolane_observe::stage::Operation;
use isolane_target::{Mode, Target, TargetConfig};

const NQN: &str = "nqn.2024-01.org.example:avoided";
/// IDs of the volumes in a snapshot: the filter, the mirror, its first member, the memory below that, the second member.
const FIRST: u32 = 2;
const BELOW_FIRST: u32 = 3;
const SECOND: u32 = 4;

fn reads(target: &Target, id: u32) -> u64 {
    let series = target.snapshot().numbers.series.into_iter();
    series
        .filter(|series| series.volume == id && series.operation == Operation::Read)
        .map(|series| series.total.count())
        .sum()
}

/// Returns the reads of both members while the mirror is read.
fn reads_of_members(target: &Target, volume: &BlockingVolume) -> [u64; 2] {
    let before = [FIRST, SECOND].map(|id| reads(target, id));
    for block in 0..20 {
        volume.read_at(&mut [0; 4096], block * 4096).unwrap();
    }
    // Each core replies to this after it has recorded its commands.
    target.connections();
    [reads(target, FIRST) - before[0], reads(target, SECOND) - before[1]]
}

#[test]
fn reads_avoid_a_member_and_return() {
    let dir = tempfile::tempdir().unwrap();
    let bitmap = dir.path().join("bitmap").display().to_string();
    let text = format!("log:(mirror:(delay:1us:mem:2M);mem:2M,bitmap={bitmap},create=yes)");
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.subsystems[0].volumes =
        [(1, isolane_volumes::open(&isolane_volumes::parse(&text).unwrap()).unwrap())].into();
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.mode = Mode::Sleep;
    let target = Target::start(config).unwrap();
    let uri = format!("nvme+tcp://{}/{NQN}", target.local_addrs()[0]).parse().unwrap();
    let volume = BlockingVolume::connect(&uri, Options::default()).unwrap();
    // Until the copy ends, only the first member is read.
    while reads_of_members(&target, &volume)[1] == 0 {
        std::thread::yield_now();
    }
    let source = target.source();
    assert!(source.avoid(BELOW_FIRST, true));
    assert_eq!(reads_of_members(&target, &volume), [0, 20]);
    assert!(source.avoid(SECOND, true));
    assert_eq!(reads_of_members(&target, &volume), [0, 20], "one is avoided at most");
    assert!(source.avoid(FIRST, false));
    assert_eq!(reads_of_members(&target, &volume), [10, 10]);
    assert!(source.avoid(SECOND, true));
    assert_eq!(reads_of_members(&target, &volume), [20, 0]);
    assert!(!source.avoid(0, true) && !source.avoid(9, true), "no members of a mirror");
}
