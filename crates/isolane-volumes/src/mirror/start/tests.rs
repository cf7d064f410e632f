use isolane_volume::spec;

use super::*;
use crate::driver::Driver;
use crate::mirror::{maintain, requests::buffer};
use crate::testing;

/// Members and a bitmap file in memory, which survive starts.
struct Storage {
    members: [Arc<dyn Volume>; 2],
    bitmap: Arc<dyn Volume>,
}

const CREATE: StartOptions = StartOptions { create: true, degraded: false, keep: None, member_timeout: None };
const DEGRADED: StartOptions =
    StartOptions { create: false, degraded: true, keep: None, member_timeout: None };

fn memory(size: &str) -> Arc<dyn Volume> {
    isolane_volume::open(&spec::parse(&format!("mem:{size}")).unwrap()).unwrap()
}

impl Storage {
    fn new() -> Storage {
        Storage { members: [memory("1M"), memory("1M")], bitmap: memory("1k") }
    }

    /// Starts a mirror of the members that are given by their numbers.
    fn start(&self, members: [Option<usize>; 2], options: StartOptions) -> Result<Arc<Mirror>, String> {
        let member = |number: Option<usize>| match number {
            Some(number) => Ok(Arc::clone(&self.members[number])),
            None => Err(OpenError::new("member", "missing", "find it")),
        };
        let (bitmap, members) = (Arc::clone(&self.bitmap), members.map(member));
        let new = Record::new(self.members[0].info(), 64 << 10);
        let run = |io| start(io, "mirror".to_owned(), members, new, |_| Ok(bitmap), options);
        Driver::new().unwrap().run(run).unwrap().map_err(|error| error.to_string())
    }

    fn refusal(&self, members: [Option<usize>; 2], options: StartOptions) -> String {
        self.start(members, options).err().expect("a refusal")
    }

    fn fill(&self, member: usize, lba: u64, bytes: &[u8]) {
        fill(&self.members[member], lba, bytes);
    }
}

fn fill(volume: &Arc<dyn Volume>, lba: u64, bytes: &[u8]) {
    testing::Driver::new(Arc::clone(volume)).write(lba, bytes, true).unwrap();
}

fn run(mirror: &Arc<Mirror>, request: Request) -> Vec<u8> {
    let mirror = Arc::clone(mirror);
    Driver::new().unwrap().run(|io| mirror.run(io, request)).unwrap().unwrap().to_vec()
}

/// Writes block 0 of the mirror.
fn write(mirror: &Arc<Mirror>, fill: u8) {
    run(mirror, Request::Write { lba: 0, blocks: 1, data: buffer(&[fill; 512], 512), fua: true });
}

fn read(mirror: &Arc<Mirror>) -> u8 {
    run(mirror, Request::Read { lba: 0, blocks: 1 })[0]
}

#[test]
fn refuses_swapped_members_despite_create() {
    let mut storage = Storage::new();
    drop(storage.start([Some(0), Some(1)], CREATE).unwrap());
    let error = storage.refusal([Some(1), Some(0)], CREATE);
    assert!(error.contains("member 1 has the label of member 2"), "{error}");
    write(&storage.start([Some(0), None], DEGRADED).unwrap(), 7);
    storage.bitmap = memory("1k");
    let error = storage.refusal([Some(1), Some(0)], CREATE);
    assert!(error.contains("wrong order; swap them"), "{error}");
    let error = storage.refusal([Some(1), None], StartOptions { create: true, ..DEGRADED });
    assert!(error.contains("wrong order; swap them"), "{error}");
}

#[test]
fn refuses_to_create_over_label_without_bitmap() {
    let mut storage = Storage::new();
    drop(storage.start([Some(0), Some(1)], CREATE).unwrap());
    storage.members[0] = memory("1M");
    storage.bitmap = memory("1k");
    let error = storage.refusal([Some(0), Some(1)], CREATE);
    assert!(error.contains("keep=") && error.contains("zero the last 64 KiB of member 2"), "{error}");
    storage.fill(1, 1920, &[0; 64 << 10]);
    storage.start([Some(0), Some(1)], CREATE).unwrap();
}

#[test]
fn refuses_to_create_over_a_damaged_label() {
    // Byte 2 is in the magic number.
    for (number, at) in [(0, 2), (0, 40), (1, 2), (1, 40)] {
        let mut storage = Storage::new();
        drop(storage.start([Some(0), Some(1)], CREATE).unwrap());
        storage.members[1 - number] = memory("1M");
        storage.bitmap = memory("1k");
        let label = testing::Driver::new(Arc::clone(&storage.members[number])).read(1920, 1).unwrap();
        let mut damaged = label.clone();
        damaged[at] ^= 1;
        storage.fill(number, 1920, &damaged);
        for options in [CREATE, StartOptions::default()] {
            let error = storage.refusal([Some(0), Some(1)], options);
            let number = number + 1;
            assert!(error.contains(&format!("the label of member {number} is damaged")), "{error}");
            assert!(error.contains(&format!("zero the last 64 KiB of member {number}")), "{error}");
        }
        storage.fill(number, 1920, &[0; 512]);
        storage.start([Some(0), Some(1)], CREATE).unwrap();
    }
}

#[test]
fn repeats_interrupted_creation() {
    for (sequence, has_label) in [(0, false), (1, false), (1, true)] {
        let storage = Storage::new();
        storage.fill(0, 0, &[3; 512]);
        let record = Record { sequence, ..Record::new(storage.members[0].info(), 64 << 10) };
        let sector = |holder| [record.encode(holder), vec![0; 512 - 128]].concat();
        fill(&storage.bitmap, 0, &sector(BITMAP));
        if has_label {
            storage.fill(1, 1920, &sector(1));
        }
        assert_eq!(read(&storage.start([Some(0), Some(1)], CREATE).unwrap()), 3);
    }
}

#[test]
fn refuses_to_create_again_with_a_replaced_member() {
    let mut storage = Storage::new();
    write(&storage.start([Some(0), Some(1)], CREATE).unwrap(), 7);
    storage.members[0] = memory("1M");
    let error = storage.refusal([Some(0), Some(1)], CREATE);
    assert!(error.contains("member 1 has no valid label"), "{error}");
    assert_eq!(testing::Driver::new(Arc::clone(&storage.members[1])).read(0, 1).unwrap(), [7; 512]);
}

#[test]
fn refuses_older_bitmap_until_one_member_is_kept() {
    let storage = Storage::new();
    let mirror = storage.start([Some(0), Some(1)], CREATE).unwrap();
    for _ in 0..2 {
        Driver::new().unwrap().run(|io| Arc::clone(&mirror).maintain(io)).unwrap().unwrap();
    }
    assert_eq!(mirror.state.lock().dirty.iter().next(), None);
    let older = testing::Driver::new(Arc::clone(&storage.bitmap)).read(0, 2).unwrap();
    write(&storage.start([Some(0), None], DEGRADED).unwrap(), 7);
    fill(&storage.bitmap, 0, &older);
    let error = storage.refusal([Some(0), Some(1)], StartOptions::default());
    assert!(error.contains("member 1 was used with another bitmap file"), "{error}");
    let keep = error.split("keep=").nth(1).map(|text| uuid::Uuid::parse_str(&text[..36]).unwrap());
    let options = StartOptions { keep, ..StartOptions::default() };
    let mirror = storage.start([Some(0), Some(1)], options).unwrap();
    assert_eq!([read(&mirror), read(&mirror)], [7, 7]);
    let state = mirror.state.lock();
    assert!(state.to_copy.iter().eq(0..state.record.regions()));
}

#[test]
fn copies_everything_after_bits_beyond_the_regions() {
    let storage = Storage::new();
    let regions = storage.start([Some(0), Some(1)], CREATE).unwrap().state.lock().record.regions();
    let mut bits = Bits::new(regions);
    bits.set(regions..regions + 1);
    fill(&storage.bitmap, 1, &bits.encode(0));
    let mirror = storage.start([Some(0), Some(1)], StartOptions::default()).unwrap();
    let state = mirror.state.lock();
    assert!(state.to_copy.iter().eq(0..regions) && state.dirty.iter().eq(0..regions));
}

#[test]
fn refuses_records_with_other_regions() {
    let storage = Storage::new();
    let mut record = storage.start([Some(0), Some(1)], CREATE).unwrap().state.lock().record.clone();
    record.blocks -= 1;
    fill(&storage.bitmap, 0, &record.encode(BITMAP).repeat(4));
    let error = storage.refusal([Some(0), Some(1)], StartOptions::default());
    assert!(error.contains("different mirrors"), "{error}");
}

#[test]
fn fails_changes_after_a_panic_of_maintenance() {
    let storage = Storage::new();
    let mirror = storage.start([Some(0), Some(1)], CREATE).unwrap();
    let regions = mirror.state.lock().record.regions();
    mirror.state.lock().to_copy = Bits::new(regions);
    mirror.state.lock().to_copy.set(regions + 1..regions + 2);
    let maintained = Arc::clone(&mirror);
    let (_open, closed) = std::sync::mpsc::channel();
    let maintain = move || maintain(&maintained, Driver::new().unwrap(), &closed);
    std::thread::spawn(maintain).join().unwrap_err();
    mirror.state.lock().check().unwrap_err();
}

#[test]
fn refuses_equal_members() {
    let member = "(mem:1M,uuid=00000000-0000-4000-8000-000000000001)";
    let spec = crate::parse(&format!("mirror:{member};{member},bitmap=f")).unwrap();
    let error = crate::open(&spec).unwrap_err().to_string();
    assert!(error.contains("members mem:1M and mem:1M have the same UUID"), "{error}");
}

#[test]
fn refuses_invalid_values_of_options() {
    for (option, remedy) in
        [("create=true", "use yes or no"), ("degraded=on", "use yes or no"), ("keep=b", "use a generation")]
    {
        let spec = crate::parse(&format!("mirror:mem:1M;mem:1M,bitmap=f,{option}")).unwrap();
        let error = crate::open(&spec).unwrap_err().to_string();
        let (name, value) = option.split_once('=').unwrap();
        assert!(error.contains(&format!("invalid value {value:?} of {name}=")), "{error}");
        assert!(error.contains(remedy), "{error}");
    }
}
