//! Streams in tasks.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use isolane_attach::stream::{Listener, StreamOptions};
use isolane_shm::testing;
use rustix::fs::{OFlags, fcntl_getfl};

use super::fixture::{Fixture, Pattern};

struct Woken(AtomicBool, std::thread::Thread);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// The smallest executor.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let woken = Arc::new(Woken(AtomicBool::new(true), std::thread::current()));
    let waker = Waker::from(Arc::clone(&woken));
    let mut future = std::pin::pin!(future);
    loop {
        if woken.0.swap(false, Ordering::Acquire)
            && let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return value;
        }
        std::thread::park_timeout(Duration::from_secs(30));
    }
}

#[test]
fn wakes_tasks_for_reads_and_writes() {
    let fixture = Fixture::new();
    let (stream, mut peer) = fixture.stream();
    let (mut read, mut write) = stream.split();
    let echo = std::thread::spawn(move || {
        let mut bytes = vec![0; 10_000];
        loop {
            match peer.read(&mut bytes).unwrap() {
                0 => return,
                count => peer.write_all(&bytes[..count]).unwrap(),
            }
        }
    });
    const TOTAL: usize = 3_000_000;
    let writer = std::thread::spawn(move || {
        let (mut pattern, mut written, mut bytes) = (Pattern::new(5), 0, vec![0; 9000]);
        while written < TOTAL {
            let count = bytes.len().min(TOTAL - written);
            pattern.fill(&mut bytes[..count]);
            let mut sent = 0;
            while sent < count {
                sent += block_on(write.write_async(&bytes[sent..count])).unwrap();
            }
            written += count;
        }
        write.shut().unwrap();
    });
    let (mut pattern, mut total, mut bytes) = (Pattern::new(5), 0, vec![0; 7000]);
    loop {
        let count = block_on(read.read_async(&mut bytes)).unwrap();
        if count == 0 {
            break;
        }
        pattern.check(&bytes[..count]);
        total += count;
    }
    assert_eq!(total, TOTAL);
    writer.join().unwrap();
    echo.join().unwrap();
}

/// A task that its waker polls, and that only its waker owns.
struct Inline(Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut future = self.0.lock().unwrap();
        if future.as_mut().is_some_and(|it| it.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()) {
            *future = None;
        }
    }
}

#[test]
fn task_may_drop_stream_inside_its_wakeup() {
    let fixture = Fixture::new();
    let (mut stream, mut peer) = fixture.stream();
    let (told, seen) = mpsc::channel();
    let task = async move {
        let mut bytes = [0; 4];
        let mut count = 0;
        while count < bytes.len() {
            count += stream.read_async(&mut bytes[count..]).await.unwrap();
        }
        drop(stream);
        told.send(bytes).unwrap();
    };
    Arc::new(Inline(Mutex::new(Some(Box::pin(task))))).wake();
    for part in [b"wo", b"rd"] {
        std::thread::sleep(Duration::from_millis(20));
        peer.write_all(part).unwrap();
    }
    assert_eq!(&seen.recv_timeout(Duration::from_secs(30)).expect("it is not woken to its end"), b"word");
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0, "it is closed");
}

#[test]
fn wakes_tasks_that_share_a_listener() {
    const CONNECTIONS: usize = 40;
    let fixture = Fixture::new();
    let listener = Listener::bind(&fixture.attach(), "127.0.0.1:0").unwrap();
    assert_eq!(listener.try_accept().err().unwrap().kind(), ErrorKind::WouldBlock);
    let (address, listener) = (listener.local_addr().unwrap(), &listener);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                for _ in 0..CONNECTIONS / 4 {
                    let (mut stream, _) = block_on(listener.accept_async()).unwrap();
                    assert_eq!(block_on(stream.write_async(b"hello")).unwrap(), 5);
                }
            });
        }
        for _ in 0..CONNECTIONS {
            let mut bytes = [0; 5];
            TcpStream::connect(address).unwrap().read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"hello");
        }
    });
}

/// The parent shares the socket, and would wait in `accept` for a connection that another has taken.
#[test]
fn forked_child_does_not_affect_listener() {
    let fixture = Fixture::new();
    let session = fixture.attach();
    let mut listener = Some(Listener::bind(&session, "127.0.0.1:0").unwrap());
    let mut plain = Some(TcpListener::bind("127.0.0.1:0").unwrap());
    let twin = plain.as_ref().map(|plain| plain.try_clone().unwrap()).unwrap();
    let is_refused = testing::finishes_in_child(|| {
        let error = listener.take().unwrap().into_std().unwrap_err();
        assert!(error.to_string().contains("forked this one"), "{error}");
        let adopted = Listener::from_std(&session, plain.take().unwrap(), StreamOptions::default());
        let error = adopted.unwrap_err();
        assert!(error.to_string().contains("forked this one"), "{error}");
    });
    assert!(is_refused, "the child uses the session of its parent");
    assert!(fcntl_getfl(listener.unwrap().as_std()).unwrap().contains(OFlags::NONBLOCK));
    assert!(!fcntl_getfl(&twin).unwrap().contains(OFlags::NONBLOCK));
}

#[test]
fn returned_listener_keeps_blocking_mode() {
    let fixture = Fixture::new();
    let session = fixture.attach();
    for is_blocking in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(!is_blocking).unwrap();
        let listener = Listener::from_std(&session, listener, StreamOptions::default()).unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, address) = listener.accept().unwrap();
        assert_eq!(address, peer.local_addr().unwrap());
        assert!(!fcntl_getfl(stream.socket()).unwrap().contains(OFlags::NONBLOCK));
        let listener = listener.into_std().unwrap();
        assert_eq!(fcntl_getfl(&listener).unwrap().contains(OFlags::NONBLOCK), !is_blocking);
    }
}
