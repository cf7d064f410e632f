//! A volume whose operations hang in the kernel until a test lets them go on, as on a mount that does not
//! answer: each writes to a pipe that is full.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use isolane_memory::{Buffer, Payload, Pool};
use isolane_reactor::file::FileOp;
use isolane_volume::file::{Features, FileStateMachine};
use isolane_volume::{Identity, Request, Step, Task, Volume, VolumeDescription, VolumeInfo};

/// The volume, of 8,192 blocks. Reads return zeroes at once.
pub struct Stuck {
    machine: FileStateMachine,
    pipe: Arc<File>,
    started: AtomicUsize,
}

/// The other end of its pipe.
pub struct Relief {
    pipe: File,
    filling: usize,
}

impl Stuck {
    pub fn new() -> (Arc<Stuck>, Relief) {
        let (reader, writer) = io::pipe().unwrap();
        let (reader, mut writer) = (File::from(OwnedFd::from(reader)), File::from(OwnedFd::from(writer)));
        set_blocking(&writer, false);
        let mut filling = 0;
        while let Ok(written) = writer.write(&[FILLING; 4096]) {
            filling += written;
        }
        set_blocking(&writer, true);
        let geometry = VolumeInfo {
            block_size: 512,
            blocks: 8192,
            read_only: false,
            volatile_cache: true,
            deallocate: false,
            zeroes_after_deallocate: false,
        };
        let (name, identity) = ("stuck".to_owned(), Identity::random());
        let description = VolumeDescription { name, info: geometry, identity, generation: None };
        let machine = FileStateMachine::new(description, Features::none(), false);
        let stuck = Stuck { machine, pipe: Arc::new(writer), started: AtomicUsize::new(0) };
        (Arc::new(stuck), Relief { pipe: reader, filling })
    }

    /// How many operations were given to the kernel.
    pub fn started(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }

    /// Replaces each file operation by a write to the pipe.
    fn divert(&self, step: Step) -> Step {
        let Step::File(operation, task) = step else { return step };
        self.started.fetch_add(1, Ordering::SeqCst);
        let FileOp { buffer, buffer_offset, len, .. } = operation;
        let diverted = match buffer {
            Some(buffer) => FileOp::write(CURRENT, buffer, buffer_offset, len as usize, false),
            None => FileOp::write(CURRENT, Buffer::contiguous(1), 0, 1, false),
        };
        Step::File(diverted, task)
    }
}

impl Relief {
    /// Releases all operations from now on. Joining returns the bytes that were written, once the volume is
    /// gone.
    pub fn release(mut self) -> JoinHandle<Vec<u8>> {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            self.pipe.read_to_end(&mut bytes).unwrap();
            bytes.split_off(self.filling)
        })
    }
}

impl Volume for Stuck {
    fn description(&self) -> &VolumeDescription {
        self.machine.description()
    }

    fn file(&self) -> Option<&Arc<File>> {
        Some(&self.pipe)
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        match request {
            Request::Read { blocks, .. } => Step::Done(Ok(Payload::zeroes(blocks as usize * 512))),
            request => self.divert(self.machine.start(request, pool)),
        }
    }

    fn resume(&self, task: Task, result: io::Result<usize>, operation: FileOp, pool: &mut Pool) -> Step {
        self.divert(self.machine.resume(task, result, operation, pool))
    }
}

fn set_blocking(file: &File, is_blocking: bool) {
    let flags = rustix::fs::fcntl_getfl(file).unwrap();
    let others = flags - rustix::fs::OFlags::NONBLOCK;
    let flags = if is_blocking { others } else { others | rustix::fs::OFlags::NONBLOCK };
    rustix::fs::fcntl_setfl(file, flags).unwrap();
}

const FILLING: u8 = 0x77;
/// The offset that means the current position, the only one that a pipe has.
const CURRENT: u64 = u64::MAX;
