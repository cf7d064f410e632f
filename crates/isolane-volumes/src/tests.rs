use std::time::{Duration, Instant};

use isolane_host::{BlockingVolume, Options};
use isolane_observe::stage::{Operation, Stage};
use isolane_target::{Target, TargetConfig};
use isolane_volume::tree::{ARGUMENT, MirrorState, kind};
use proptest::prelude::*;

use crate::testing::Driver;

const BLOCKS: u64 = 384;

#[test]
fn tree_names_members_and_filters() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let text = format!(
        "stripe:4k:(stall:1ms:(delay:1us-2us:({},size=64k,group=drives),on=write),one-in=9,seed=3);\
         (read-only:(mem:64k,group=pages));(null:64k,group=none),group=all",
        file.display()
    );
    let tree = Driver::open(&text).volume.tree();
    assert_eq!((tree.kind, tree.group.as_deref(), tree.mirror), ("stripe", Some("all"), None));
    assert_eq!(tree.parameter(ARGUMENT), Some("4k"));
    let kinds = ["stall", "read-only", kind::NULL];
    assert!(tree.members.iter().map(|member| member.kind).eq(kinds), "{tree:?}");
    let groups = tree.members.iter().map(|member| member.group.as_deref().unwrap_or_default());
    assert!(groups.eq(["drives", "pages", "none"]), "{tree:?}");
    let [stall, ..] = &tree.members[..] else { panic!("{tree:?}") };
    let faults: Vec<String> = stall.injected_faults().map(ToString::to_string).collect();
    assert_eq!(faults, ["stall:1ms,one-in=9,seed=3", "delay:1us-2us,on=write"]);
    assert_eq!(tree.injected_faults().count(), 0);
    let leaves = tree.leaves();
    assert!(leaves.iter().map(|leaf| leaf.kind).eq([kind::FILE, kind::MEMORY, kind::NULL]), "{tree:?}");
    assert_eq!(leaves[0].path, Some(file.canonicalize().unwrap()));
    let tree = Driver::open(&format!("delay:1us:{},group=x", link.display())).volume.tree();
    assert_eq!((tree.group.as_deref(), &tree.leaves()[0].path), (Some("x"), &leaves[0].path));
}

#[test]
fn injected_delays_are_time_of_device() {
    let mut config = TargetConfig::new("nqn.2024-01.org.example:delayed".parse().unwrap());
    let volume = crate::parse("delay:20ms:(stall:10ms:(delay:5ms-6ms:mem:1M),one-in=1)").unwrap();
    config.subsystems[0].volumes.push((1, crate::open(&volume).unwrap()));
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    let nqn = config.subsystems[0].nqn;
    let target = Target::start(config).unwrap();
    let uri = format!("nvme+tcp://{}/{nqn}", target.local_addrs()[0]);
    let host = BlockingVolume::connect(&uri.parse().unwrap(), Options::default()).unwrap();
    host.read_at(&mut [0; 4096], 0).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let read = loop {
        let mut series = target.snapshot().numbers.series.into_iter();
        if let Some(read) = series.find(|at| at.volume == 0 && at.operation == Operation::Read) {
            break read;
        }
        assert!(Instant::now() < deadline, "the read is not counted");
    };
    let device = read.stage(Stage::Device).unwrap();
    assert!((device.count(), device.sum_ns() >= 35_000_000) == (1, true), "{read:?}");
}

#[test]
fn tree_shows_state_of_mirror() {
    let dir = tempfile::tempdir().unwrap();
    let bitmap = dir.path().join("bitmap");
    let options = format!("bitmap={},create=yes", bitmap.display());
    let mut driver = Driver::open(&format!("mirror:mem:4M;(delay:1us:mem:4M),{options}"));
    driver.write(0, &[1; 512], false).unwrap();
    let tree = driver.volume.tree();
    assert!(
        matches!(tree.mirror, Some(MirrorState::Copying { to: 1, .. } | MirrorState::InSync)),
        "{tree:?}"
    );
    assert_eq!((tree.kind, tree.members.len(), tree.parameter("create")), ("mirror", 2, Some("yes")));
}

#[derive(Clone, Debug)]
enum Action {
    Read(u64, u64),
    Write(u64, u64, u8, bool),
    Zero(u64, u64),
    Deallocate(u64, u64),
    Flush,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let range = (0..BLOCKS).prop_flat_map(|lba| (Just(lba), 1..=BLOCKS - lba));
    prop::collection::vec(
        prop_oneof![
            4 => range.clone().prop_map(|(lba, blocks)| Action::Read(lba, blocks)),
            6 => (range.clone(), 1_u8.., any::<bool>()).prop_map(|((lba, blocks), fill, fua)| Action::Write(lba, blocks, fill, fua)),
            1 => range.clone().prop_map(|(lba, blocks)| Action::Zero(lba, blocks)),
            1 => range.prop_map(|(lba, blocks)| Action::Deallocate(lba, blocks)),
            1 => Just(Action::Flush),
        ],
        1..40,
    )
}

/// Runs actions on a volume of `BLOCKS` blocks that zeroes deallocated ones, and compares it with a vector.
fn check(driver: &mut Driver, actions: &[Action]) {
    assert_eq!(driver.volume.info().blocks, BLOCKS);
    let mut model = vec![0_u8; BLOCKS as usize * 512];
    let bytes = |lba: u64, blocks: u64| lba as usize * 512..(lba + blocks) as usize * 512;
    for action in actions {
        match *action {
            Action::Read(lba, blocks) => {
                assert!(driver.read(lba, blocks).unwrap() == model[bytes(lba, blocks)], "{action:?}");
            }
            Action::Write(lba, blocks, fill, fua) => {
                let data: Vec<u8> = (0..blocks * 512).map(|at| fill ^ (at / 512) as u8).collect();
                driver.write(lba, &data, fua).unwrap();
                model[bytes(lba, blocks)].copy_from_slice(&data);
            }
            Action::Zero(lba, blocks) => {
                driver.zero(lba, blocks).unwrap();
                model[bytes(lba, blocks)].fill(0);
            }
            Action::Deallocate(lba, blocks) => {
                driver.deallocate(lba, blocks).unwrap();
                model[bytes(lba, blocks)].fill(0);
            }
            Action::Flush => driver.flush().unwrap(),
        }
    }
    assert!(driver.read(0, BLOCKS).unwrap() == model);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nested_memory_volumes_match_model(actions in actions()) {
        for text in ["stripe:4k:mem:64k;mem:64k;mem:64k", "log:delay:1us:stripe:8k:(stripe:6k:mem:48k;mem:48k);(stall:1us:mem:96k)"] {
            check(&mut Driver::open(text), &actions);
        }
    }

    #[test]
    fn striped_files_match_model(actions in actions()) {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| format!("({},size=64k)", dir.path().join(name).display());
        let text = format!("stripe:4k:{};{};{}", file("a"), file("b"), file("c"));
        check(&mut Driver::open(&text), &actions);
    }
}
