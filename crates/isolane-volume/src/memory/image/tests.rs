//! Memory volumes that continue with the data of another one.

use super::*;
use crate::memory::tests::{read, volume, write};
use crate::{Volume, inherited_memory, open, spec};

fn memory(volume: &dyn Volume) -> &PageTable {
    volume.memory().unwrap()
}

fn image(volume: &dyn Volume, copy: &MemoryCopy) -> MemoryImage {
    let generation = volume.description().generation.unwrap().id;
    let file = copy.file().try_clone().unwrap();
    MemoryImage::new(file, volume.info().bytes(), volume.identity().uuid, generation).unwrap()
}

#[test]
fn volume_continues_with_its_data() {
    let (before, mut pool) = (volume("mem:5000k"), isolane_memory::Pool::new(600));
    let copy = MemoryCopy::new(before.info().bytes()).unwrap();
    write(&*before, 0, &[1; 4096], &mut pool);
    write(&*before, 801, &[2; 512], &mut pool);
    copy.update(memory(&*before)).unwrap();
    // More than one call of the system takes, and the end of the volume.
    write(&*before, 800, &vec![3; 400 * 4096], &mut pool);
    write(&*before, 8, &[4; 512], &mut pool);
    write(&*before, 9999, &[5; 512], &mut pool);
    let zeroes = crate::Request::WriteZeroes { lba: 0, blocks: 8, fua: false, deallocate: true };
    before.start(zeroes, &mut pool);
    copy.update(memory(&*before)).unwrap();
    let images = [image(&*before, &copy)];
    let spec = spec::parse("mem:5000k").unwrap();
    let after = inherited_memory::open_with(&images, || open(&spec)).unwrap();
    for lba in (0..10_000).step_by(100) {
        assert_eq!(read(&*before, lba, 100, &mut pool), read(&*after, lba, 100, &mut pool), "{lba}");
    }
    assert!(after.extent(0, 8).is_hole);
    assert_eq!(before.identity(), after.identity());
    assert_eq!(before.description().generation, after.description().generation);
    // The next one is new, and writes reach no image.
    write(&*after, 8, &[9; 512], &mut pool);
    let again = inherited_memory::open_with(&images, || open(&spec)).unwrap();
    assert_eq!(read(&*again, 8, 1, &mut pool), [4; 512]);
    assert_ne!(open(&spec).unwrap().identity(), before.identity());
}

#[test]
fn threads_load_a_large_volume() {
    let (before, mut pool) = (volume("mem:200M"), isolane_memory::Pool::new(64));
    let mut lbas: Vec<u64> = (0..409_600 - 8).step_by(9_008).collect();
    lbas.extend([32_760, 32_768, 409_592]);
    lbas.iter().for_each(|lba| write(&*before, *lba, &[*lba as u8 | 1; 4096], &mut pool));
    let copy = MemoryCopy::new(before.info().bytes()).unwrap();
    copy.update(memory(&*before)).unwrap();
    let images = [image(&*before, &copy)];
    let after = inherited_memory::open_with(&images, || open(&spec::parse("mem:200M").unwrap())).unwrap();
    assert_eq!(memory(&*before).count_pages(), memory(&*after).count_pages());
    assert!(lbas.iter().all(|lba| read(&*after, *lba, 8, &mut pool) == [*lba as u8 | 1; 4096]));
}

#[test]
fn changes_of_the_volume_leave_its_copy() {
    let (volume, mut pool) = (volume("mem:64k"), isolane_memory::Pool::new(64));
    let copy = MemoryCopy::new(65_536).unwrap();
    for round in 0..100_u8 {
        write(&*volume, u64::from(round) % 16, &[round; 512], &mut pool);
        let expected = read(&*volume, 0, 128, &mut pool);
        copy.update(memory(&*volume)).unwrap();
        write(&*volume, 3, &[!round; 512], &mut pool);
        write(&*volume, 8, &[!round; 4096], &mut pool);
        let mut found = vec![0; 65_536];
        std::os::unix::fs::FileExt::read_exact_at(copy.file(), &mut found, 0).unwrap();
        assert!(found == expected);
    }
}

#[test]
fn other_files_are_refused() {
    let new = |file: File, bytes| {
        MemoryImage::new(file, bytes, Uuid::nil(), Uuid::nil()).map(drop).map_err(|error| error.to_string())
    };
    let sealed = || MemoryCopy::new(8192).unwrap().file().try_clone().unwrap();
    assert_eq!(new(sealed(), 8192), Ok(()));
    assert_eq!(new(sealed(), 8191), Ok(()), "whole pages");
    assert!(new(sealed(), 4096).unwrap_err().contains("8192 bytes in place of 4096"));
    assert!(sealed().set_len(4096).is_err() && sealed().set_len(16_384).is_err());
    let plain = tempfile::tempfile().unwrap();
    plain.set_len(8192).unwrap();
    assert!(new(plain, 8192).unwrap_err().contains("not a sealed memory file"));
    let unsealed = memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
    assert!(new(unsealed.into(), 0).is_err());
    let small = [MemoryImage::new(sealed(), 8192, Uuid::nil(), Uuid::nil()).unwrap()];
    let spec = spec::parse("mem:64k").unwrap();
    let error = inherited_memory::open_with(&small, || open(&spec)).map(drop).unwrap_err().to_string();
    assert!(error.contains("another size"), "{error}");
}
