//! Two queue pairs of one program: one writes to memory of the other, and sends a message.

use std::sync::Arc;
use std::time::Duration;

use isolane_memory::MemoryRegion;
use isolane_verbs::{
    Access, Device, DeviceConfig, LocalData, ProtectionDomain, QueuePair, QueuePairConfig, ReceiveRequest,
    Registration, SendOperation, SendRequest, Sge,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let device = Device::open(DeviceConfig::default())?;
    let listener = device.listen("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (server, client) = (end(&device)?, end(&device)?);
    let (accepted, connected) = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(&server.config));
        (device.connect(address, &client.config), accepted.join())
    });
    let (connected, accepted) = (accepted?, connected.expect("the thread does not panic")?);

    accepted.post_receive(ReceiveRequest { id: 1, data: [server.sge(0, 64)].into_iter().collect() })?;
    client.memory.region().copy_in(0, b"written, then sent");
    let (address, key) = (server.memory.address() + 64, server.memory.key());
    post(&connected, 2, SendOperation::Write { address, rkey: key, immediate: None }, client.sge(0, 18))?;
    post(&connected, 3, SendOperation::Send { immediate: None }, client.sge(9, 9))?;

    // The receive completes after the bytes of the WRITE before it are in memory.
    let received = server.config.receive_queue.wait(TIMEOUT).ok_or("nothing has arrived")?.completion;
    let message = server.memory.region().to_vec(0, received.length as usize);
    let written = server.memory.region().to_vec(64, 18);
    println!("{} / {}", String::from_utf8_lossy(&message), String::from_utf8_lossy(&written));
    for _ in 0..2 {
        let done = client.config.send_queue.wait(TIMEOUT).ok_or("a request has not completed")?.completion;
        println!("request {}: {}", done.id, done.status.name());
    }
    Ok(())
}

/// Memory and completions of one end.
struct End {
    memory: Arc<Registration>,
    config: QueuePairConfig,
}

impl End {
    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { address: self.memory.address() + offset, length, lkey: self.memory.key() }
    }
}

fn end(device: &Device) -> Result<End> {
    let domain = Arc::new(ProtectionDomain::default());
    let access = Access(0).with_local_write(true).with_remote_write(true);
    let region = MemoryRegion::allocate(4096)?;
    let address = region.address();
    let memory = domain.register(region, address, access)?;
    let queue = device.completion_queue(16);
    let config = QueuePairConfig::new(domain, queue);
    Ok(End { memory, config })
}

fn post(pair: &QueuePair, id: u64, operation: SendOperation, sge: Sge) -> Result<()> {
    let data = LocalData::Sges([sge].into_iter().collect());
    pair.post_send(SendRequest { id, operation, data, signaled: true, solicited: false, fenced: false })?;
    Ok(())
}

const TIMEOUT: Duration = Duration::from_secs(10);
