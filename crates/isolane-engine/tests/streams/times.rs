//! Times of the bytes of streams, as a snapshot has them.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use isolane_attach::stream::StreamOptions;
use isolane_observe::snapshot::{Series, Snapshot};
use isolane_observe::stage::{Operation, Side, Stage};

use super::fixture::Fixture;

const DELAY: Duration = Duration::from_millis(20);

/// Returns the numbers of the streams of the only session, in one direction.
fn series(snapshot: &Snapshot, operation: Operation) -> Option<Series> {
    let row = snapshot.volumes.iter().find(|volume| volume.kind == "stream")?;
    assert!(row.application.is_some() && row.name.starts_with("streams (session "), "{row:?}");
    let mut series = snapshot.numbers.series.iter().filter(|at| at.volume == row.id);
    series.find(|at| at.operation == operation && at.side == Side::Stream).cloned()
}

fn is_slow(series: &Series) -> bool {
    series.max_ns >= DELAY.as_nanos() as u64
}

/// Waits until the numbers of one direction pass a check. A copy can be taken while they are written.
fn wait_for(
    fixture: &Fixture,
    operation: Operation,
    check: impl Fn(&Series) -> bool,
    mut between: impl FnMut(),
) {
    // A busy machine takes long to fill the buffers of the kernel.
    let deadline = Instant::now() + Duration::from_secs(240);
    loop {
        let series = series(&fixture.engine.snapshot(), operation);
        if series.as_ref().is_some_and(&check) {
            return;
        }
        assert!(Instant::now() < deadline, "{series:?}");
        between();
    }
}

#[test]
fn times_bytes_that_application_fetches_late() {
    let fixture = Fixture::new();
    let (mut stream, mut peer) = fixture.stream();
    let mut bytes = [0; 64];
    peer.write_all(&bytes).unwrap();
    // The engine has received the byte once it is fetched; the others come with it.
    stream.read_exact(&mut bytes[..1]).unwrap();
    std::thread::sleep(DELAY);
    stream.read_exact(&mut bytes[1..]).unwrap();
    let is_complete = |series: &Series| {
        let is_one = (series.total.count(), series.bytes) == (1, 64);
        is_one && is_slow(series) && series.stage_sum_ns(Stage::Rx) == series.total.sum_ns()
    };
    wait_for(&fixture, Operation::Read, is_complete, std::thread::yield_now);
}

#[test]
fn times_bytes_that_peer_reads_slowly() {
    let fixture = Fixture::new();
    let options = StreamOptions { bypass_write_min: usize::MAX, ..StreamOptions::default() };
    let (mut stream, mut peer) = fixture.stream_with(options);
    std::thread::scope(|scope| {
        // Fills the ring and the buffers of the kernel, until the peer has gone.
        scope.spawn(move || while stream.write_all(&[7; 4096]).is_ok() {});
        let is_complete =
            |series: &Series| is_slow(series) && series.stage_sum_ns(Stage::Tx) == series.total.sum_ns();
        wait_for(&fixture, Operation::Write, is_complete, || {
            peer.read_exact(&mut [0; 65536]).unwrap();
            std::thread::sleep(DELAY);
        });
        drop(peer);
    });
}
