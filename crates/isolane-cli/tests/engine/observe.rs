//! Control socket of an engine.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use isolane_observe::snapshot::Snapshot;

use super::*;

fn snapshot(socket: &Path) -> Option<Snapshot> {
    let output = program().arg("snapshot").arg(socket).output().unwrap();
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn readers_continue_with_next_engine_after_kills() {
    let engine = Engine::start(&[]);
    let session = engine.attach().unwrap();
    let socket = engine.dir.path().join(format!("engine-{}.sock", engine.supervisor.id()));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // It reads while engines end and start.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(snapshot(&socket));
            }
        });
        let mut last = 0;
        for _ in 0..3 {
            let found = until("a snapshot of the next engine", || {
                snapshot(&socket).filter(|found| found.program.pid != last)
            });
            assert_eq!((&*found.program.name, found.numbers.cores.len()), ("engine", 1));
            is_served(&session);
            last = found.program.pid;
            kill(last, "KILL");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    is_served(&session);
    assert!(!engine.log().contains("no control socket"), "{}", engine.log());
}

#[test]
fn control_socket_is_off_or_refused() {
    let engine = Engine::start(&["--control-socket", "off"]);
    let socket = engine.dir.path().join(format!("engine-{}.sock", engine.supervisor.id()));
    assert_eq!(snapshot(&socket), None);
    let refused = program().args(["engine", "--control-socket", "/no/such/x.sock"]).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && error.contains("/no/such is not a directory"), "{error}");
}
