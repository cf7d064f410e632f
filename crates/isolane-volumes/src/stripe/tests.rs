use isolane_memory::Pool;

use super::*;
use crate::testing::Driver;

const THREE: &str = "stripe:4k:(mem:64k,uuid=00000000-0000-0000-0000-000000000001);\
    (mem:64k,uuid=00000000-0000-0000-0000-000000000002);(mem:64k,uuid=00000000-0000-0000-0000-000000000003)";

#[test]
fn places_stripes_on_members_in_turn() {
    let mut driver = Driver::open(THREE);
    let bytes: Vec<u8> = (0..6 * 4096_usize).map(|at| (at / 4096) as u8 + 1).collect();
    driver.write(0, &bytes, true).unwrap();
    assert_eq!(driver.read(0, 48).unwrap(), bytes);
    assert_eq!(driver.read(7, 10).unwrap(), bytes[7 * 512..17 * 512]);
    driver.zero(7, 10).unwrap();
    let expected = [&bytes[..7 * 512], &[0; 10 * 512], &bytes[17 * 512..]].concat();
    assert_eq!(driver.read(0, 48).unwrap(), expected);
    driver.deallocate(0, 384).unwrap();
    assert_eq!(driver.read(0, 384).unwrap(), vec![0; 192 << 10]);
    assert!(matches!(driver.read(383, 2), Err(VolumeError::OutOfRange { .. })));
}

#[test]
fn has_stable_identity_of_ordered_members() {
    let identity = |text: &str| Driver::open(text).volume.identity().clone();
    assert_eq!(identity(THREE), identity(THREE));
    let swapped = THREE.replace("0003", "0009").replace("0001", "0003").replace("0009", "0001");
    assert_ne!(identity(THREE), identity(&swapped));
    assert_ne!(identity(THREE), identity(&THREE.replace("4k", "8k")));
}

#[test]
fn rejects_unequal_members_and_stripe_sizes() {
    for (text, reason) in [
        ("stripe:4k:mem:64k;mem:128k", "mem:64k has 128 blocks of 512 bytes, mem:128k has 256"),
        ("stripe:4k:mem:64k;(mem:64k,block-size=4096)", "has 16 of 4096"),
        ("stripe:1000:mem:64k;mem:64k", "multiple of the block size 512"),
        ("stripe:128k:mem:64k;mem:64k", "at most the size of a member"),
        (
            "stripe:4k:(mem:64k,uuid=00000000-0000-0000-0000-000000000001);\
             (log:mem:64k,uuid=00000000-0000-0000-0000-000000000001)",
            "members mem:64k and log:mem:64k have the same UUID",
        ),
        ("stripe:512:mem:64k;mem:64k", "at least 4 KiB"),
        ("stripe:0:mem:64k;mem:64k", "at least 4 KiB"),
        ("stripe:4k:mem:64k", "one member; name several volumes"),
        ("stripe:64k:null:16000000T;null:16000000T", "the stripe exceeds 16 EiB"),
        ("stripe:x:mem:64k;mem:64k", "no stripe size: \"x\""),
    ] {
        let error = crate::open(&crate::parse(text).unwrap()).err().unwrap().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn writes_once_to_each_member() {
    // The second write of a member would fail.
    let mut driver = Driver::open("stripe:4k:(fault:2:mem:1M,on=write);(fault:2:mem:1M,on=write)");
    let bytes: Vec<u8> = (0..256 << 10).map(|at: usize| (at / 512) as u8).collect();
    assert_eq!(driver.write(8, &bytes, false), Ok(()));
    assert_eq!(driver.read(8, 512).unwrap(), bytes);
}

#[test]
fn splits_shared_pages_without_a_copy() {
    let mem = Driver::open("mem:1M").volume;
    let members = Members { volumes: vec![Arc::clone(&mem), mem], stripe: 16, block_size: 512 };
    for (lba, is_copy) in [(8, false), (3, true)] {
        let mut data = Pool::new(8).buffer(32 << 10).unwrap();
        data.copy_in(0, &[9; 32 << 10]);
        let _shared = data.share(0, data.len());
        let parts = members.split(BlockRange { lba, blocks: 64 }, data);
        for part in parts {
            assert_eq!((part.is_exclusive(), part.to_vec()), (is_copy, vec![9; 16 << 10]));
        }
    }
}
