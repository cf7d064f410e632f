//! Tests of file volumes on real files with a real reactor.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use isolane_memory::Buffer;
use isolane_reactor::file::FileOpKind;
use isolane_reactor::{Event, IoChoice, Reactor, ReactorConfig};
use smallvec::smallvec;

use super::*;
use crate::{BlockRange, OpenError, Outcome, VolumeError, spec};

/// Returns the build directory, which is rarely on a tmpfs.
pub(crate) fn build_directory() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// A directory for one test.
struct TestDir(tempfile::TempDir);

impl TestDir {
    fn new() -> TestDir {
        TestDir(tempfile::tempdir_in(build_directory()).unwrap())
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

/// A reactor and a pool, as one core has.
struct Core {
    reactor: Reactor,
    pool: Pool,
}

impl Core {
    fn new() -> Core {
        Core::with(IoChoice::Auto)
    }

    fn with(io: IoChoice) -> Core {
        let reactor = Reactor::new(ReactorConfig { io, ..ReactorConfig::default() }).unwrap();
        Core { reactor, pool: Pool::new(1024) }
    }

    fn run(&mut self, volume: &FileVolume, request: Request) -> Outcome {
        let mut step = volume.start(request, &mut self.pool);
        loop {
            step = match step {
                Step::Done(outcome) => return outcome,
                Step::Retry(_) => panic!("no conflicting request exists"),
                Step::Pending(_) => panic!("a file volume completes its requests itself"),
                Step::File(operation, task) => {
                    let (result, operation) = self.execute(volume, operation);
                    volume.resume(task, result, operation, &mut self.pool)
                }
            }
        }
    }

    fn execute(&mut self, volume: &FileVolume, operation: FileOp) -> (io::Result<usize>, FileOp) {
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
        data.copy_in(0, bytes);
        let blocks = bytes.len() as u64 / u64::from(volume.info().block_size);
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
fn dropped_volume_releases_its_lock() {
    let dir = TestDir::new();
    let volume = dir.open("disk,size=1M").unwrap();
    // As a child of fork does, this keeps the file open.
    let _inherited = volume.file.try_clone().unwrap();
    assert!(dir.open("disk").is_err());
    drop(volume);
    assert!(dir.open("disk").is_ok());
}

#[test]
fn round_trips_data_through_the_file() {
    for io in [IoChoice::Auto, IoChoice::Epoll] {
        for options in ["", ",buffered", ",write-through", ",block-size=4096"] {
            let (dir, mut core) = (TestDir::new(), Core::with(io));
            let volume = dir.open(&format!("disk.img,size=1M{options}")).unwrap();
            let block = volume.info().block_size as usize;
            let bytes: Vec<u8> = (0..5 * block).map(|index| (index % 251) as u8).collect();
            core.write(&volume, 3, &bytes, false).unwrap();
            core.write(&volume, 20, &vec![9; block], true).unwrap();
            core.run(&volume, Request::Flush).unwrap();
            assert_eq!(core.read(&volume, 3, 5), bytes);
            assert_eq!(core.read(&volume, 19, 3), [vec![0; block], vec![9; block], vec![0; block]].concat());
            drop(volume);
            let file = fs::read(dir.path("disk.img")).unwrap();
            assert_eq!(file[3 * block..8 * block], bytes);
            assert_eq!(core.pool.free_pages(), 1024);
        }
    }
}

/// A guest or an application chooses the address.
#[test]
fn writes_unaligned_shared_memory() {
    let dir = TestDir::new();
    let volume = dir.open("disk,size=1M").unwrap();
    let memory = isolane_shm::SharedMemory::create("guest", 8192).unwrap();
    memory.copy_in(0, &[7; 8192]).unwrap();
    for offset in [1, 512, 1000] {
        let data = Buffer::in_shared_memory(&memory, offset, 4096).unwrap();
        let write = Request::Write { lba: 8, blocks: 8, data, fua: false };
        Core::new().run(&volume, write).unwrap();
        let read = Core::new().run(&volume, Request::Read { lba: 8, blocks: 8 }).unwrap();
        assert_eq!(read.to_vec(), [7; 4096]);
        let zeroes = Request::WriteZeroes { lba: 8, blocks: 8, fua: false, deallocate: false };
        Core::new().run(&volume, zeroes).unwrap();
    }
}

#[test]
fn zeroed_ranges_read_zeroes_and_keep_size() {
    for options in ["", ",buffered"] {
        let (dir, mut core) = (TestDir::new(), Core::new());
        let volume = dir.open(&format!("disk.img,size=1M{options}")).unwrap();
        core.write(&volume, 0, &[7; 1 << 20], true).unwrap();
        let zeroes = |lba, blocks, deallocate| Request::WriteZeroes { lba, blocks, fua: true, deallocate };
        core.run(&volume, zeroes(3, 20, false)).unwrap();
        core.run(&volume, zeroes(101, 1, true)).unwrap();
        let ranges = smallvec![BlockRange { lba: 200, blocks: 800 }, BlockRange { lba: 1999, blocks: 49 }];
        core.run(&volume, Request::Deallocate { ranges, fua: false }).unwrap();
        let bytes = core.read(&volume, 0, 2048);
        for (lba, block) in bytes.chunks(512).enumerate() {
            let zeroed = [3..23, 101..102, 200..1000, 1999..2048].iter().any(|range| range.contains(&lba));
            assert_eq!(block, [if zeroed { 0 } else { 7 }; 512], "block {lba} with {options:?}");
        }
        let metadata = fs::metadata(dir.path("disk.img")).unwrap();
        assert_eq!(metadata.len(), 1 << 20);
        assert!(!volume.info().deallocate || metadata.blocks() < 2048 - 700, "no space was freed");
    }
}

#[test]
fn second_open_fails_and_names_the_owner() {
    let dir = TestDir::new();
    let first = dir.open("disk.img,size=1M").unwrap();
    let message = text(dir.open("disk.img"));
    assert!(message.contains("this process has it open already; name each file once"), "{message}");
    assert!(dir.open("disk.img,ro").is_err());
    drop(first);
    let _readers = [dir.open("disk.img,ro").unwrap(), dir.open("disk.img,ro").unwrap()];
    assert!(dir.open("disk.img").is_err());
}

#[test]
fn second_open_by_hard_link_names_the_first() {
    let dir = TestDir::new();
    let _first = dir.open("disk.img,size=1M").unwrap();
    fs::hard_link(dir.path("disk.img"), dir.path("link.img")).unwrap();
    let message = text(dir.open("link.img"));
    let disk = dir.path("disk.img").canonicalize().unwrap();
    assert!(message.contains(&format!("link.img: the same file as {}", disk.display())), "{message}");
}

#[test]
fn identity_survives_restart_but_not_copy() {
    let dir = TestDir::new();
    let first = dir.open("disk.img,size=1M").unwrap().identity().clone();
    assert_eq!(dir.open("disk.img").unwrap().identity(), &first);
    let made = std::process::Command::new("cp")
        .arg("--preserve=all")
        .arg(dir.path("disk.img"))
        .arg(dir.path("copy.img"))
        .status();
    assert!(made.unwrap().success());
    assert_ne!(dir.open("copy.img").unwrap().identity(), &first);
    fs::rename(dir.path("copy.img"), dir.path("disk2.img")).unwrap();
    assert_ne!(dir.open("disk2.img").unwrap().identity(), &first);
    let volume = dir.open("disk.img,uuid=1b4e28ba-2fa1-4d2b-883f-0016d3cca427").unwrap();
    assert_eq!(volume.identity().uuid.to_string(), "1b4e28ba-2fa1-4d2b-883f-0016d3cca427");
}

#[test]
fn truncated_file_is_not_grown_again() {
    for (options, can_hang) in [("", false), ("", true), (",buffered", false), (",buffered", true)] {
        let (dir, mut core) = (TestDir::new(), Core::new());
        let mut volume = dir.open(&format!("disk.img,size=1M{options}")).unwrap();
        volume.can_hang = can_hang;
        core.write(&volume, 0, &[7; 4096], true).unwrap();
        OpenOptions::new().write(true).open(dir.path("disk.img")).unwrap().set_len(8192).unwrap();
        let read = core.run(&volume, Request::Read { lba: 8, blocks: 32 });
        assert_eq!(read.unwrap_err(), VolumeError::Shrunk);
        assert_eq!(core.write(&volume, 1000, &[1; 512], true).unwrap_err(), VolumeError::Shrunk);
        assert_eq!(core.run(&volume, Request::Flush).unwrap_err(), VolumeError::Shrunk);
        assert!(!volume.extent(16, 100).is_hole, "a client would not read the blocks that are lost");
        let read = core.run(&volume, Request::Read { lba: 0, blocks: 8 });
        assert_eq!(read.unwrap_err(), VolumeError::Shrunk);
        assert_eq!(fs::metadata(dir.path("disk.img")).unwrap().len(), 8192);
    }
}

#[test]
fn regrown_file_is_not_read_after_detection() {
    for (options, can_hang) in [("", false), ("", true), (",buffered", false), (",buffered", true)] {
        let (dir, mut core) = (TestDir::new(), Core::new());
        let mut volume = dir.open(&format!("disk.img,size=1M{options}")).unwrap();
        volume.can_hang = can_hang;
        core.write(&volume, 100, &[7; 4096], true).unwrap();
        // The first write is always size-checked.
        core.write(&volume, 0, &[7; 4096], false).unwrap();
        OpenOptions::new().write(true).open(dir.path("disk.img")).unwrap().set_len(8192).unwrap();
        core.write(&volume, 1000, &[7; 4096], false).unwrap();
        assert_eq!(core.run(&volume, Request::Flush).unwrap_err(), VolumeError::Shrunk);
        let read = core.run(&volume, Request::Read { lba: 100, blocks: 8 });
        assert_eq!(read.unwrap_err(), VolumeError::Shrunk);
    }
}

#[test]
fn write_through_rejects_writes_after_truncation() {
    let (dir, mut core) = (TestDir::new(), Core::new());
    let volume = dir.open("disk.img,size=1M,write-through").unwrap();
    core.write(&volume, 0, &[7; 4096], false).unwrap();
    OpenOptions::new().write(true).open(dir.path("disk.img")).unwrap().set_len(8192).unwrap();
    assert_eq!(core.write(&volume, 1000, &[1; 512], false).unwrap_err(), VolumeError::Shrunk);
    assert_eq!(fs::metadata(dir.path("disk.img")).unwrap().len(), 8192);
}

/// The truncation follows the size check at the start.
#[test]
fn truncation_during_operation_fails_it() {
    for (options, fua) in [("", true), ("", false), (",buffered", false)] {
        let (dir, mut core) = (TestDir::new(), Core::new());
        let volume = dir.open(&format!("disk.img,size=1M{options}")).unwrap();
        core.write(&volume, 100, &[7; 4096], false).unwrap();
        let data = Buffer::contiguous(4096);
        let request = if fua { Request::Write { lba: 0, blocks: 8, data, fua } } else { Request::Flush };
        let Step::File(operation, task) = volume.start(request, &mut core.pool) else { panic!() };
        OpenOptions::new().write(true).open(dir.path("disk.img")).unwrap().set_len(8192).unwrap();
        let (result, operation) = core.execute(&volume, operation);
        let step = volume.resume(task, result, operation, &mut core.pool);
        let Step::Done(Err(VolumeError::Shrunk)) = step else { panic!("{step:?} with {options:?}, {fua}") };
        assert_eq!(core.write(&volume, 2047, &[1; 512], false).unwrap_err(), VolumeError::Shrunk);
    }
}

#[test]
fn queries_size_on_file_threads() {
    let end = |size| match size {
        Step::File(FileOp { kind: FileOpKind::Size, .. }, task) => task,
        step => panic!("{step:?} does not query the size"),
    };
    for fua in [false, true] {
        let (dir, mut core) = (TestDir::new(), Core::new());
        let mut volume = dir.open("disk.img,size=1M").unwrap();
        volume.can_hang = true;
        let request = || {
            if fua {
                Request::Write { lba: 0, blocks: 8, data: Buffer::contiguous(4096), fua }
            } else {
                Request::Flush
            }
        };
        let task = end(volume.start(request(), &mut core.pool));
        assert_eq!(task.is_change(), fua);
        let lost = Err(io::Error::from_raw_os_error(116));
        let step = volume.resume(task, lost, FileOp::size(), &mut core.pool);
        assert!(matches!(step, Step::Done(Err(VolumeError::SizeUnknown { raw_os_error: 116 }))));

        let task = end(volume.start(request(), &mut core.pool));
        let step = volume.resume(task, Ok(1 << 20), FileOp::size(), &mut core.pool);
        let Step::File(operation, task) = step else { panic!("{step:?}") };
        let (result, operation) = core.execute(&volume, operation);
        let step = volume.resume(task, result, operation, &mut core.pool);
        let Step::File(operation, task) = step else { panic!("{step:?}") };
        assert_eq!(operation.kind, FileOpKind::Size);
        OpenOptions::new().write(true).open(dir.path("disk.img")).unwrap().set_len(8192).unwrap();
        let (result, operation) = core.execute(&volume, operation);
        let step = volume.resume(task, result, operation, &mut core.pool);
        assert!(matches!(step, Step::Done(Err(VolumeError::Shrunk))));
    }
}

/// Only a write of the last block can restore the full size of a truncated file.
#[test]
fn last_block_write_does_not_hide_truncation() {
    for options in ["", ",buffered"] {
        let (dir, mut core) = (TestDir::new(), Core::new());
        let volume = dir.open(&format!("disk.img,size=1M{options}")).unwrap();
        // The first write is always size-checked.
        core.write(&volume, 0, &[7; 4096], false).unwrap();
        OpenOptions::new().write(true).open(dir.path("disk.img")).unwrap().set_len(8192).unwrap();
        assert_eq!(core.write(&volume, 2040, &[1; 4096], false).unwrap_err(), VolumeError::Shrunk);
        assert_eq!(fs::metadata(dir.path("disk.img")).unwrap().len(), 8192);
    }
}

#[test]
fn read_only_volume_rejects_writes() {
    let (dir, mut core) = (TestDir::new(), Core::new());
    fs::write(dir.path("disk.img"), [5; 8192]).unwrap();
    let volume = dir.open("disk.img,ro").unwrap();
    assert_eq!(core.read(&volume, 0, 16), [5; 8192]);
    assert_eq!(core.write(&volume, 0, &[1; 512], false).unwrap_err(), VolumeError::ReadOnly);
    assert!(core.run(&volume, Request::Flush).is_ok());
    assert!(!volume.info().volatile_cache && !volume.info().deallocate);
}

#[test]
fn open_errors_name_a_remedy() {
    let dir = TestDir::new();
    fs::write(dir.path("small"), [0; 100]).unwrap();
    fs::write(dir.path("odd"), [0; 5000]).unwrap();
    fs::write(dir.path("empty"), []).unwrap();
    let cases = [
        ("none", "no such file; check the path, or add size=10G"),
        ("none,size=1M,ro", "no such file, and a new one would be empty"),
        ("no/where,size=1M", "cannot create it with 1M (No such file or directory"),
        ("", "is a directory; use the path of a file"),
        ("small", "100 bytes is less than one block of 512"),
        ("empty", "file is empty; set its size with `truncate -s 10G"),
        ("empty,size=1M", "file is empty; set its size with `truncate -s 1M"),
        ("odd,size=1M", "the existing file has 5000, not 1M; omit size="),
    ];
    for (volume, expected) in cases {
        let message = text(dir.open(volume));
        assert!(message.contains(expected), "{volume:?}: {message}");
    }
    assert_eq!(dir.open("odd").unwrap().info().blocks, 9);
    assert_eq!(dir.open("odd,size=4K").unwrap().info().blocks, 8, "a part, as after a shrink");
}

#[test]
fn never_creates_files_in_device_directories() {
    for spec in ["/dev/isolane-none", "/dev/isolane-none,size=1M", "/dev/mapper/isolane-none"] {
        let message = crate::open(&spec.parse().unwrap()).err().unwrap().to_string();
        assert!(message.ends_with("no such device; check its name with lsblk"), "{spec}: {message}");
    }
    assert!(!fs::exists("/dev/isolane-none").unwrap());
}

#[test]
fn overlapping_requests_are_retried() {
    let (dir, mut pool) = (TestDir::new(), Pool::new(64));
    let volume = dir.open("disk.img,size=1M").unwrap();
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
        Step::Retry(Request::Read { lba: 15, blocks: 1 })
    ));
    assert!(matches!(volume.start(write(8, 16), &mut pool), Step::Retry(Request::Write { .. })));
    let zeroes = Request::WriteZeroes { lba: 0, blocks: 100, fua: false, deallocate: false };
    assert!(matches!(volume.start(zeroes, &mut pool), Step::Retry(Request::WriteZeroes { lba: 0, .. })));
    assert!(matches!(volume.start(write(16, 8), &mut pool), Step::File(..)));
    drop(first);
    assert!(matches!(volume.start(read(0, 16), &mut pool), Step::File(..)));
}

#[test]
fn read_without_memory_holds_no_lock() {
    let (dir, mut pool) = (TestDir::new(), Pool::new(1));
    let volume = dir.open("disk.img,size=1M").unwrap();
    assert!(matches!(volume.start(Request::Read { lba: 0, blocks: 16 }, &mut pool), Step::Retry(_)));
    let write = Request::Write { lba: 0, blocks: 16, data: Buffer::contiguous(8192), fua: false };
    assert!(matches!(volume.start(write, &mut pool), Step::File(..)));
}

/// A block device for one test: a file behind a loop device, if the machine allows one.
struct LoopDevice {
    path: String,
    _file: TestDir,
}

impl LoopDevice {
    /// # Errors
    /// The reason as text.
    fn new(bytes: u64) -> Result<LoopDevice, String> {
        let dir = TestDir::new();
        File::create(dir.path("device.img")).unwrap().set_len(bytes).unwrap();
        let mut losetup = std::process::Command::new("losetup");
        let made = losetup.args(["--find", "--show"]).arg(dir.path("device.img")).output();
        let made = made.map_err(|error| format!("cannot run losetup: {error}"))?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).trim().to_owned());
        }
        Ok(LoopDevice { path: String::from_utf8_lossy(&made.stdout).trim().to_owned(), _file: dir })
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
fn block_device_is_exclusive_and_zeroes() {
    let device = match LoopDevice::new(4 << 20) {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped: no loop device: {reason}"),
    };
    let open = || device.open();
    let (volume, mut core) = (open().unwrap(), Core::new());
    let message = text(open());
    assert!(message.contains("this process has it open already; name each file once"), "{message}");
    core.write(&volume, 0, &[7; 1 << 20], true).unwrap();
    for (lba, deallocate) in [(3, false), (501, true)] {
        core.run(&volume, Request::WriteZeroes { lba, blocks: 300, fua: true, deallocate }).unwrap();
    }
    let ranges = smallvec![BlockRange { lba: 1000, blocks: 500 }];
    core.run(&volume, Request::Deallocate { ranges, fua: false }).unwrap();
    core.run(&volume, Request::Flush).unwrap();
    let bytes = core.read(&volume, 0, 1000);
    for (lba, block) in bytes.chunks(512).enumerate() {
        let zeroed = [3..303, 501..801].iter().any(|range| range.contains(&lba));
        assert_eq!(block, [if zeroed { 0 } else { 7 }; 512], "block {lba}");
    }
    let identity = volume.identity().clone();
    drop(volume);
    assert_eq!(open().unwrap().identity(), &identity);
}

#[test]
fn reports_file_whose_path_leads_elsewhere() {
    let dir = TestDir::new();
    let volume = dir.open("disk.img,size=1M").unwrap();
    let [path, other] = ["disk.img", "other"].map(|name| dir.path(name));
    let conditions = || {
        let conditions = volume.conditions();
        assert!(conditions.iter().all(|condition| condition.is_failure));
        conditions.into_iter().map(|condition| condition.text).collect::<String>()
    };
    assert_eq!(conditions(), "");
    fs::rename(&path, &other).unwrap();
    assert!(conditions().contains(&format!("but at {}", other.display())), "{}", conditions());
    fs::rename(&other, &path).unwrap();
    assert_eq!(conditions(), "");
    fs::write(&other, "new").unwrap();
    fs::rename(&other, &path).unwrap();
    assert!(conditions().contains("was replaced"), "{}", conditions());
    fs::remove_file(&path).unwrap();
    assert!(conditions().contains("was deleted"), "{}", conditions());
    // The remedy works.
    let text = conditions();
    let command = text.split("then run ").nth(1).unwrap();
    assert!(std::process::Command::new("sh").args(["-c", command]).status().unwrap().success());
    assert_eq!(fs::metadata(dir.path("disk.img.saved")).unwrap().len(), 1 << 20);
}

#[test]
fn reports_holes_of_files_as_extents() {
    let (dir, mut core) = (TestDir::new(), Core::new());
    for block_size in [512, 4096] {
        let volume = dir.open(&format!("disk-{block_size},size=1M,block-size={block_size}")).unwrap();
        let per_page = 4096 / block_size;
        let mut data = Buffer::contiguous(4096);
        data.copy_in(0, &[7; 4096]);
        let write = Request::Write { lba: 16 * per_page, blocks: per_page, data, fua: false };
        core.run(&volume, write).unwrap();
        let (end, mut lba, mut data_blocks) = (256 * per_page, per_page - 1, 0);
        while lba < end {
            let Extent { blocks, is_hole } = volume.extent(lba, end - lba);
            assert!(blocks > 0 && blocks <= end - lba);
            if is_hole {
                let read = core.run(&volume, Request::Read { lba, blocks }).unwrap();
                assert!(read.to_vec().iter().all(|byte| *byte == 0));
            } else {
                data_blocks += blocks;
            }
            lba += blocks;
        }
        // A file system can have larger blocks, or no holes at all.
        assert!(data_blocks >= per_page);
    }
}

/// A device that was pulled out has no blocks. Its driver reports no error that says so.
#[test]
fn device_without_blocks_is_gone() {
    let dir = TestDir::new();
    let mut volume = dir.open("disk,size=64k").unwrap();
    let size = dir.path("size");
    (volume.is_device, volume.device_size) = (true, Some(size.clone()));
    let write = || FileOp::write(0, Buffer::contiguous(512), 0, 512, false);
    let is_gone = |errno: Errno, operation: FileOp| {
        volume.recognize_gone(Err(errno.into()), &operation).unwrap_err().raw_os_error()
            == Some(Errno::NXIO.raw_os_error())
    };
    fs::write(&size, "128\n").unwrap();
    assert!(!is_gone(Errno::NOSPC, write()), "a device with blocks can have no space");
    for text in [Some("0\n"), None] {
        match text {
            Some(text) => fs::write(&size, text).unwrap(),
            None => fs::remove_file(&size).unwrap(),
        }
        assert!(is_gone(Errno::NOSPC, write()) && is_gone(Errno::IO, FileOp::sync()));
        assert!(!is_gone(Errno::INTR, write()));
    }

    let mut core = Core::new();
    volume.file.set_len(0).unwrap();
    let gone = VolumeError::Gone { raw_os_error: Errno::NXIO.raw_os_error() };
    let read = core.run(&volume, Request::Read { lba: 0, blocks: 8 });
    assert_eq!(read.err(), Some(gone.clone()));
    assert_eq!(volume.failure(), Some(gone));
}
