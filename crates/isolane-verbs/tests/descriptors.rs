//! A listener in a program that has no descriptors left.

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_verbs::{ConnectError, Device, DeviceConfig, ProtectionDomain, QueuePairConfig};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, getrlimit, setrlimit};

fn config(device: &Device) -> QueuePairConfig {
    QueuePairConfig::new(Arc::new(ProtectionDomain::default()), device.completion_queue(16))
}

#[test]
fn reports_that_no_descriptor_is_left() {
    let device = Device::open(DeviceConfig::default()).unwrap();
    let listener = device.listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (near, far) = (config(&device), config(&device));
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();

    let former = getrlimit(Resource::Nofile);
    let lowest = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let limit = |current| rustix::process::Rlimit { current, maximum: former.maximum };
    setrlimit(Resource::Nofile, limit(Some(lowest))).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let start = Instant::now();
    for _ in 0..20 {
        let error = listener.accept(&near).err().unwrap();
        assert!(matches!(&error, ConnectError::Io(error) if error.raw_os_error() == Some(24)), "{error}");
    }
    assert!(start.elapsed() >= Duration::from_millis(150), "the attempts have pauses");
    drop(TcpStream::from(socket));
    setrlimit(Resource::Nofile, limit(former.current)).unwrap();

    let (connected, accepted) = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| (0..).find_map(|_| listener.accept(&near).ok()));
        (device.connect(address, &far), accepted.join().unwrap())
    });
    assert!(accepted.is_some() && connected.is_ok());
}
