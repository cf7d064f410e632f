//! Serves a volume of this program over NVMe/TCP: a thread owns its blocks and completes the requests.
//!
//! `cargo run -p isolane-target --example own_volume 127.0.0.1:4420`, then connect a host:
//! `nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2024-01.org.example:own-volume`.

use std::error::Error;
use std::sync::{Arc, mpsc};
use std::thread;

use isolane_memory::{Payload, Pool};
use isolane_target::{Target, TargetConfig};
use isolane_volume::{Completer, Identity, Outcome, Request, Step, Volume, VolumeDescription, VolumeInfo};

const NQN: &str = "nqn.2024-01.org.example:own-volume";
const BLOCK_SIZE: usize = 512;

/// A volume whose blocks belong to another thread.
pub struct OwnVolume {
    description: VolumeDescription,
    requests: mpsc::Sender<(Request, Completer)>,
}

impl OwnVolume {
    /// Creates a volume of zeroes and starts its thread, which ends with the volume.
    pub fn new(blocks: u64) -> OwnVolume {
        let info = VolumeInfo {
            block_size: BLOCK_SIZE as u32,
            blocks,
            read_only: false,
            volatile_cache: false,
            deallocate: false,
            zeroes_after_deallocate: false,
        };
        let (requests, received) = mpsc::channel::<(Request, Completer)>();
        thread::spawn(move || {
            let mut storage = vec![0; blocks as usize * BLOCK_SIZE];
            for (request, completer) in received {
                completer.complete(execute(&mut storage, request));
            }
        });
        let (name, identity) = (String::from("own volume"), Identity::derived(NQN.as_bytes()));
        let description = VolumeDescription { name, info, identity, generation: None };
        OwnVolume { description, requests }
    }
}

impl Volume for OwnVolume {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn start(&self, request: Request, _: &mut Pool) -> Step {
        if let Err(error) = request.check(self.info()) {
            return Step::Done(Err(error));
        }
        let (completer, step) = Step::pending(&request);
        // If the thread has ended, this drops the completer, which fails the request.
        let _ = self.requests.send((request, completer));
        step
    }
}

fn execute(storage: &mut [u8], request: Request) -> Outcome {
    let bytes = |lba: u64, blocks: u64| lba as usize * BLOCK_SIZE..(lba + blocks) as usize * BLOCK_SIZE;
    match request {
        Request::Read { lba, blocks } => return Ok(Payload::from(storage[bytes(lba, blocks)].to_vec())),
        Request::Write { lba, blocks, data, .. } => data.copy_to(0, &mut storage[bytes(lba, blocks)]),
        Request::WriteZeroes { lba, blocks, .. } => storage[bytes(lba, blocks)].fill(0),
        // Every write is durable as far as this volume goes, and no space can be freed.
        Request::Flush | Request::Deallocate { .. } | Request::Continue(_) => {}
    }
    Ok(Payload::default())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut config = TargetConfig::new(NQN.parse()?);
    config.subsystems[0].volumes.push((1, Arc::new(OwnVolume::new(1 << 16))));
    config.listen.push(std::env::args().nth(1).unwrap_or("127.0.0.1:4420".to_owned()).parse()?);
    let target = Target::start(config)?;
    println!("listening on {}", target.local_addrs()[0]);
    loop {
        thread::park();
    }
}
