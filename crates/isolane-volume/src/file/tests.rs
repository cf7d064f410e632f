//! File volumes on real files, carried out by a real reactor.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use isolane_memory::Buffer;
use isolane_reactor::file::Kind;
use isolane_reactor::{Config, Event, IoChoice, Reactor};
use smallvec::smallvec;

use super::*;
use crate::{BlockRange, OpenError, Outcome, VolumeError, spec};

/// Where the tests were built, which is rarely a tmpfs.
pub(crate) fn build_directory() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// A directory for one test.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir_in(build_directory()).unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn open(&self, text: &str) -> Result<FileVolume, OpenError> {
        let spec = spec::parse(&self.path(text).display().to_string()).unwrap();
        let spec::Source::Path { path, size } = spec.source.clone() else { panic!("{text} names no file") };
        FileVolume::open(&spec, &path, size)
    }
}

/// One core.
struct Core {
    reactor: Reactor,
    pool: Pool,
}

impl Core {
    fn new() -> Core {
        Core::with(IoChoice::Auto)
    }

    fn with(io: IoChoice) -> Core {
        let reactor = Reactor::new(Config { io, ..Config::default() }).unwrap();
        Core { reactor, pool: Pool::new(1024) }
    }

    fn run(&mut self, volume: &FileVolume, request: Request) -> Outcome {
        let mut step = volume.start(request, &mut self.pool);
        loop {
            step = match step {
                Step::Done(outcome) => return outcome,
                Step::Later(_) => panic!("nobody else is at work"),
                Step::File(operation, task) => {
                    let (result, operation) = self.carry_out(volume, operation);
                    volume.resume(task, result, operation, &mut self.pool)
                }
            }
        }
    }

    fn carry_out(&mut self, volume: &FileVolume, operation: Operation) -> (io::Result<usize>, Operation) {
        self.reactor.submit_file(7, volume.file().unwrap(), operation);
        let mut events = Vec::new();
        loop {
            self.reactor.turn(None, &mut events).unwrap();
            for event in events.drain(..) {
                if let Event::File(finished) = event {
                    return (finished.result, finished.operation);
                }
            }
        }
    }

    fn write(&mut self, volume: &FileVolume, lba: u64, bytes: &[u8], fua: bool) -> Outcome {
        let mut data = Buffer::contiguous(bytes.len());
        data.place(0, bytes);
        let blocks = bytes.len() as u64 / u64::from(volume.geometry().block_size);
        self.run(volume, Request::Write { lba, blocks, data, fua })
    }

    fn read(&mut self, volume: &FileVolume, lba: u64, blocks: u64) -> Vec<u8> {
        self.run(volume, Request::Read { lba, blocks }).unwrap().to_vec()
    }
}

fn text(error: Result<FileVolume, OpenError>) -> String {
    error.map(|_| ()).unwrap_err().to_string()
}

#[test]
fn what_was_written_is_read_and_in_the_file() {
    for io in [IoChoice::Auto, IoChoice::Epoll] {
        for options in ["", ",buffered", ",write-through", ",block-size=4096"] {
            let (place, mut core) = (Place::new(), Core::with(io));
            let volume = place.open(&format!("disk.img,size=1M{options}")).unwrap();
            let block = volume.geometry().block_size as usize;
            let bytes: Vec<u8> = (0..5 * block).map(|index| (index % 251) as u8).collect();
            core.write(&volume, 3, &bytes, false).unwrap();
            core.write(&volume, 20, &vec![9; block], true).unwrap();
            core.run(&volume, Request::Flush).unwrap();
            assert_eq!(core.read(&volume, 3, 5), bytes);
            assert_eq!(core.read(&volume, 19, 3), [vec![0; block], vec![9; block], vec![0; block]].concat());
            drop(volume);
            let file = fs::read(place.path("disk.img")).unwrap();
            assert_eq!(file[3 * block..8 * block], bytes);
            assert_eq!(core.pool.free_pages(), 1024);
        }
    }
}

#[test]
fn zeroes_and_deallocations_read_as_zeroes_and_keep_the_size() {
    for options in ["", ",buffered"] {
        let (place, mut core) = (Place::new(), Core::new());
        let volume = place.open(&format!("disk.img,size=1M{options}")).unwrap();
        core.write(&volume, 0, &[7; 1 << 20], true).unwrap();
        let zeroes = |lba, blocks, deallocate| Request::WriteZeroes { lba, blocks, fua: true, deallocate };
        core.run(&volume, zeroes(3, 20, false)).unwrap();
        core.run(&volume, zeroes(101, 1, true)).unwrap();
        let ranges = smallvec![BlockRange { lba: 200, blocks: 800 }, BlockRange { lba: 1999, blocks: 49 }];
        core.run(&volume, Request::Deallocate { ranges, fua: false }).unwrap();
        let bytes = core.read(&volume, 0, 2048);
        for (lba, block) in bytes.chunks(512).enumerate() {
            let is_zeroed = [3..23, 101..102, 200..1000, 1999..2048].iter().any(|range| range.contains(&lba));
            assert_eq!(block, [if is_zeroed { 0 } else { 7 }; 512], "block {lba} with {options:?}");
        }
        let metadata = fs::metadata(place.path("disk.img")).unwrap();
        assert_eq!(metadata.len(), 1 << 20);
        assert!(!volume.geometry().deallocate || metadata.blocks() < 2048 - 700, "no space was given up");
    }
}

#[test]
fn two_volumes_cannot_have_one_file_and_the_error_names_the_holder() {
    let place = Place::new();
    let first = place.open("disk.img,size=1M").unwrap();
    let said = text(place.open("disk.img"));
    assert!(said.contains("it is in use by this process itself; stop that first"), "{said}");
    assert!(place.open("disk.img,ro").is_err());
    drop(first);
    let _readers = [place.open("disk.img,ro").unwrap(), place.open("disk.img,ro").unwrap()];
    assert!(place.open("disk.img").is_err());
}

#[test]
fn an_identity_outlives_restarts_and_is_not_shared_by_a_copy() {
    let place = Place::new();
    let first = place.open("disk.img,size=1M").unwrap().identity().clone();
    assert_eq!(place.open("disk.img").unwrap().identity(), &first);
    let made = std::process::Command::new("cp")
        .arg("--preserve=all")
        .arg(place.path("disk.img"))
        .arg(place.path("copy.img"))
        .status();
    assert!(made.unwrap().success());
    assert_ne!(place.open("copy.img").unwrap().identity(), &first);
    fs::rename(place.path("copy.img"), place.path("disk2.img")).unwrap();
    assert_ne!(place.open("disk2.img").unwrap().identity(), &first);
    let told = place.open("disk.img,uuid=1b4e28ba-2fa1-4d2b-883f-0016d3cca427").unwrap();
    assert_eq!(told.identity().uuid.to_string(), "1b4e28ba-2fa1-4d2b-883f-0016d3cca427");
}

#[test]
fn a_file_that_shrinks_while_it_is_served_is_not_quietly_grown_again() {
    for (options, may_hang) in [("", false), ("", true), (",buffered", false), (",buffered", true)] {
        let (place, mut core) = (Place::new(), Core::new());
        let mut volume = place.open(&format!("disk.img,size=1M{options}")).unwrap();
        volume.may_hang = may_hang;
        core.write(&volume, 0, &[7; 4096], true).unwrap();
        OpenOptions::new().write(true).open(place.path("disk.img")).unwrap().set_len(8192).unwrap();
        let read = core.run(&volume, Request::Read { lba: 8, blocks: 32 });
        assert_eq!(read.unwrap_err(), VolumeError::Shrunk);
        assert_eq!(core.write(&volume, 1000, &[1; 512], true).unwrap_err(), VolumeError::Shrunk);
        assert_eq!(core.run(&volume, Request::Flush).unwrap_err(), VolumeError::Shrunk);
        let read = core.run(&volume, Request::Read { lba: 0, blocks: 8 });
        assert_eq!(read.unwrap_err(), VolumeError::Shrunk);
        assert_eq!(fs::metadata(place.path("disk.img")).unwrap().len(), 8192);
    }
}

#[test]
fn what_a_write_regrew_is_not_read_once_the_truncation_is_known() {
    for (options, may_hang) in [("", false), ("", true), (",buffered", false), (",buffered", true)] {
        let (place, mut core) = (Place::new(), Core::new());
        let mut volume = place.open(&format!("disk.img,size=1M{options}")).unwrap();
        volume.may_hang = may_hang;
        core.write(&volume, 100, &[7; 4096], true).unwrap();
        // The first of the writes that are checked now and then.
        core.write(&volume, 0, &[7; 4096], false).unwrap();
        OpenOptions::new().write(true).open(place.path("disk.img")).unwrap().set_len(8192).unwrap();
        core.write(&volume, 1000, &[7; 4096], false).unwrap();
        assert_eq!(core.run(&volume, Request::Flush).unwrap_err(), VolumeError::Shrunk);
        let read = core.run(&volume, Request::Read { lba: 100, blocks: 8 });
        assert_eq!(read.unwrap_err(), VolumeError::Shrunk);
    }
}

#[test]
fn a_shrunken_file_takes_no_write_at_all_where_every_write_is_durable() {
    let (place, mut core) = (Place::new(), Core::new());
    let volume = place.open("disk.img,size=1M,write-through").unwrap();
    core.write(&volume, 0, &[7; 4096], false).unwrap();
    OpenOptions::new().write(true).open(place.path("disk.img")).unwrap().set_len(8192).unwrap();
    assert_eq!(core.write(&volume, 1000, &[1; 512], false).unwrap_err(), VolumeError::Shrunk);
    assert_eq!(fs::metadata(place.path("disk.img")).unwrap().len(), 8192);
}

/// The file is truncated when the volume has checked its size already.
#[test]
fn a_truncation_during_an_operation_takes_its_promise_back() {
    for (options, fua) in [("", true), ("", false), (",buffered", false)] {
        let (place, mut core) = (Place::new(), Core::new());
        let volume = place.open(&format!("disk.img,size=1M{options}")).unwrap();
        core.write(&volume, 100, &[7; 4096], false).unwrap();
        let data = Buffer::contiguous(4096);
        let request = if fua { Request::Write { lba: 0, blocks: 8, data, fua } } else { Request::Flush };
        let Step::File(operation, task) = volume.start(request, &mut core.pool) else { panic!() };
        OpenOptions::new().write(true).open(place.path("disk.img")).unwrap().set_len(8192).unwrap();
        let (result, operation) = core.carry_out(&volume, operation);
        let step = volume.resume(task, result, operation, &mut core.pool);
        let Step::Done(Err(VolumeError::Shrunk)) = step else { panic!("{step:?} with {options:?}, {fua}") };
        assert_eq!(core.write(&volume, 2047, &[1; 512], false).unwrap_err(), VolumeError::Shrunk);
    }
}

#[test]
fn asks_the_threads_of_a_file_that_may_hang_for_its_size() {
    let end = |size| match size {
        Step::File(Operation { kind: Kind::Size, .. }, task) => task,
        step => panic!("{step:?} does not ask for the size"),
    };
    for fua in [false, true] {
        let (place, mut core) = (Place::new(), Core::new());
        let mut volume = place.open("disk.img,size=1M").unwrap();
        volume.may_hang = true;
        let request = || match fua {
            true => Request::Write { lba: 0, blocks: 8, data: Buffer::contiguous(4096), fua },
            false => Request::Flush,
        };
        let task = end(volume.start(request(), &mut core.pool));
        assert_eq!(task.is_change(), fua);
        let lost = Err(io::Error::from_raw_os_error(116));
        let step = volume.resume(task, lost, Operation::size(), &mut core.pool);
        assert!(matches!(step, Step::Done(Err(VolumeError::SizeUnknown { raw_os_error: 116 }))));

        let task = end(volume.start(request(), &mut core.pool));
        let step = volume.resume(task, Ok(1 << 20), Operation::size(), &mut core.pool);
        let Step::File(operation, task) = step else { panic!("{step:?}") };
        let (result, operation) = core.carry_out(&volume, operation);
        let step = volume.resume(task, result, operation, &mut core.pool);
        let Step::File(operation, task) = step else { panic!("{step:?}") };
        assert_eq!(operation.kind, Kind::Size);
        OpenOptions::new().write(true).open(place.path("disk.img")).unwrap().set_len(8192).unwrap();
        let (result, operation) = core.carry_out(&volume, operation);
        let step = volume.resume(task, result, operation, &mut core.pool);
        assert!(matches!(step, Step::Done(Err(VolumeError::Shrunk))));
    }
}

/// Only a write of the last block can give a truncated file its full size again.
#[test]
fn no_write_of_the_last_block_hides_a_truncation() {
    for options in ["", ",buffered"] {
        let (place, mut core) = (Place::new(), Core::new());
        let volume = place.open(&format!("disk.img,size=1M{options}")).unwrap();
        // The first of the writes that are checked now and then.
        core.write(&volume, 0, &[7; 4096], false).unwrap();
        OpenOptions::new().write(true).open(place.path("disk.img")).unwrap().set_len(8192).unwrap();
        assert_eq!(core.write(&volume, 2040, &[1; 4096], false).unwrap_err(), VolumeError::Shrunk);
        assert_eq!(fs::metadata(place.path("disk.img")).unwrap().len(), 8192);
    }
}

#[test]
fn a_read_only_volume_reads_and_refuses_the_rest() {
    let (place, mut core) = (Place::new(), Core::new());
    fs::write(place.path("disk.img"), [5; 8192]).unwrap();
    let volume = place.open("disk.img,ro").unwrap();
    assert_eq!(core.read(&volume, 0, 16), [5; 8192]);
    assert_eq!(core.write(&volume, 0, &[1; 512], false).unwrap_err(), VolumeError::ReadOnly);
    assert!(core.run(&volume, Request::Flush).is_ok());
    assert!(!volume.geometry().volatile_cache && !volume.geometry().deallocate);
}

#[test]
fn errors_of_opening_say_what_to_do() {
    let place = Place::new();
    fs::write(place.path("small"), [0; 100]).unwrap();
    fs::write(place.path("odd"), [0; 5000]).unwrap();
    fs::write(place.path("empty"), []).unwrap();
    let said = [
        ("none", "there is no such file; check the path, or add size=10G"),
        ("none,size=1M,ro", "there is no such file, and an empty one is of no use"),
        ("no/where,size=1M", "it cannot be created with 1M (No such file or directory"),
        ("", "it is a directory; give the path of a file"),
        ("small", "it holds 100 bytes, less than one block of 512"),
        ("empty", "it is empty; give it a size with `truncate -s 10G"),
        ("empty,size=1M", "it is empty; give it a size with `truncate -s 1M"),
        ("odd,size=1M", "it exists with 5000 instead of 1M; leave out size="),
    ];
    for (volume, expected) in said {
        let said = text(place.open(volume));
        assert!(said.contains(expected), "{volume:?}: {said}");
    }
    assert_eq!(place.open("odd").unwrap().geometry().blocks, 9);
}

#[test]
fn no_file_is_created_or_offered_in_place_of_a_device() {
    for spec in ["/dev/isolane-none", "/dev/isolane-none,size=1M", "/dev/mapper/isolane-none"] {
        let said = crate::open(&spec.parse().unwrap()).err().unwrap().to_string();
        assert!(said.ends_with("there is no such device; check its name with lsblk"), "{spec}: {said}");
    }
    assert!(!fs::exists("/dev/isolane-none").unwrap());
}

#[test]
fn overlapping_requests_wait_and_others_do_not() {
    let (place, mut pool) = (Place::new(), Pool::new(64));
    let volume = place.open("disk.img,size=1M").unwrap();
    let read = |lba, blocks| Request::Read { lba, blocks };
    let write = |lba, blocks: u64| Request::Write {
        lba,
        blocks,
        data: Buffer::contiguous(blocks as usize * 512),
        fua: false,
    };
    let Step::File(_, first) = volume.start(write(0, 16), &mut pool) else { panic!() };
    assert!(matches!(
        volume.start(read(15, 1), &mut pool),
        Step::Later(Request::Read { lba: 15, blocks: 1 })
    ));
    assert!(matches!(volume.start(write(8, 16), &mut pool), Step::Later(Request::Write { .. })));
    let zeroes = Request::WriteZeroes { lba: 0, blocks: 100, fua: false, deallocate: false };
    assert!(matches!(volume.start(zeroes, &mut pool), Step::Later(Request::WriteZeroes { lba: 0, .. })));
    assert!(matches!(volume.start(write(16, 8), &mut pool), Step::File(..)));
    drop(first);
    assert!(matches!(volume.start(read(0, 16), &mut pool), Step::File(..)));
}

#[test]
fn without_memory_a_read_waits_and_claims_nothing() {
    let (place, mut pool) = (Place::new(), Pool::new(1));
    let volume = place.open("disk.img,size=1M").unwrap();
    assert!(matches!(volume.start(Request::Read { lba: 0, blocks: 16 }, &mut pool), Step::Later(_)));
    let write = Request::Write { lba: 0, blocks: 16, data: Buffer::contiguous(8192), fua: false };
    assert!(matches!(volume.start(write, &mut pool), Step::File(..)));
}

/// A block device for one test: a file behind a loop device, where the machine lets us have one.
struct LoopDevice {
    path: String,
    _file: Place,
}

impl LoopDevice {
    /// # Errors
    /// Why there is none, in words.
    fn new(bytes: u64) -> Result<LoopDevice, String> {
        let place = Place::new();
        File::create(place.path("device.img")).unwrap().set_len(bytes).unwrap();
        let mut losetup = std::process::Command::new("losetup");
        let made = losetup.args(["--find", "--show"]).arg(place.path("device.img")).output();
        let made = made.map_err(|error| format!("losetup cannot be run: {error}"))?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).trim().to_owned());
        }
        Ok(LoopDevice { path: String::from_utf8_lossy(&made.stdout).trim().to_owned(), _file: place })
    }

    fn open(&self) -> Result<FileVolume, OpenError> {
        FileVolume::open(&spec::parse(&self.path).unwrap(), self.path.as_ref(), None)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = std::process::Command::new("losetup").arg("--detach").arg(&self.path).status();
        assert!(std::thread::panicking() || detached.is_ok_and(|status| status.success()), "{}", self.path);
    }
}

#[test]
fn a_block_device_is_exclusive_and_zeroes_for_certain() {
    let device = match LoopDevice::new(4 << 20) {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped: block devices are not tested here: {reason}"),
    };
    let open = || device.open();
    let (volume, mut core) = (open().unwrap(), Core::new());
    let said = text(open());
    assert!(said.contains("it is in use by this process itself; unmount or stop that first"), "{said}");
    core.write(&volume, 0, &[7; 1 << 20], true).unwrap();
    for (lba, deallocate) in [(3, false), (501, true)] {
        core.run(&volume, Request::WriteZeroes { lba, blocks: 300, fua: true, deallocate }).unwrap();
    }
    let ranges = smallvec![BlockRange { lba: 1000, blocks: 500 }];
    core.run(&volume, Request::Deallocate { ranges, fua: false }).unwrap();
    core.run(&volume, Request::Flush).unwrap();
    let bytes = core.read(&volume, 0, 1000);
    for (lba, block) in bytes.chunks(512).enumerate() {
        let is_zeroed = [3..303, 501..801].iter().any(|range| range.contains(&lba));
        assert_eq!(block, [if is_zeroed { 0 } else { 7 }; 512], "block {lba}");
    }
    let identity = volume.identity().clone();
    drop(volume);
    assert_eq!(open().unwrap().identity(), &identity);
}
