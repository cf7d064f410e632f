//! Control socket of an engine.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use isolane_attach::stream::StreamOptions;
use isolane_host::{Buffer, Client, Options, Request, Uri, Via, Wait};
use isolane_observe::snapshot::Snapshot;
use isolane_observe::stage::{Side, Stage};
use isolane_observe::verdict::{Finding, Kind, Verdict};
use isolane_target::{Target, TargetConfig};
use isolane_volume::{open, spec};

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

const NQN: &str = "nqn.2024-01.org.example:engine";

fn target() -> Target {
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.subsystems[0].volumes = [(1, open(&spec::parse("mem:1m").unwrap()).unwrap())].into();
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.mode = isolane_host::Mode::Sleep;
    Target::start(config).unwrap()
}

/// Reads eight blocks, and fetches the completions after a delay.
fn read_late(client: &mut Client, delay: Duration) {
    for tag in 0..8 {
        client.submit(0, Request::Read { lba: tag * 8, buffer: Buffer::contiguous(4096) }, tag);
    }
    let mut completions = Vec::new();
    client.turn(&mut completions, Wait::None);
    std::thread::sleep(delay);
    until("completions", || {
        client.turn(&mut completions, Wait::None);
        (completions.len() == 8).then_some(())
    });
    assert!(completions.iter().all(|it| it.result.is_ok()));
}

fn late_application(socket: &Path) -> Option<Finding> {
    let output = program().args(["explain", "--json", "--window", "60"]).arg(socket).output().unwrap();
    let verdict: Verdict = serde_json::from_slice(&output.stdout).unwrap();
    verdict.findings.into_iter().find(|finding| finding.kind == Kind::Caller)
}

#[test]
fn explain_names_application_that_fetches_late() {
    let (engine, target) = (Engine::start(&[]), target());
    let socket = engine.dir.path().join(format!("engine-{}.sock", engine.supervisor.id()));
    let place: Uri = format!("nvme+tcp://{}/{NQN}", target.local_addrs()[0]).parse().unwrap();
    let uri = Uri { via: Some(Via::EngineAt(engine.path())), ..place };
    let mut client = Client::connect(&uri, Options::default()).unwrap();
    for round in 0..60 {
        let delay = if round % 4 == 0 { Duration::from_millis(20) } else { Duration::ZERO };
        read_late(&mut client, delay);
    }
    let found = until("a finding", || late_application(&socket));
    let own = format!("(PID {})", std::process::id());
    assert!(found.name.ends_with(&own) && found.stage == Some(Stage::Notice), "{found:?}");
    let snapshot = snapshot(&socket).unwrap();
    let series = snapshot.numbers.series.iter().filter(|series| series.side == Side::Engine);
    let notice = Duration::from_nanos(series.map(|series| series.stage_sum_ns(Stage::Notice)).sum());
    assert!(notice > Duration::from_millis(20), "{notice:?}");
}

#[test]
fn explain_names_application_that_reads_late() {
    let engine = Engine::start(&[]);
    let socket = engine.dir.path().join(format!("engine-{}.sock", engine.supervisor.id()));
    let (near, mut peer) = testing::connection().unwrap();
    let mut stream = StreamOptions::default().adopt(&engine.attach().unwrap(), near).unwrap();
    let mut bytes = [0; 64];
    for round in 0..240 {
        peer.write_all(&bytes).unwrap();
        stream.read_exact(&mut bytes[..1]).unwrap();
        if round % 8 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        stream.read_exact(&mut bytes[1..]).unwrap();
    }
    let found = until("a finding", || late_application(&socket));
    let own = format!("(PID {})", std::process::id());
    assert!(found.name.ends_with(&own) && found.stage == Some(Stage::Rx), "{found:?}");
}

#[test]
fn control_socket_is_off_or_refused() {
    let engine = Engine::start(&["--control-socket", "off"]);
    let socket = engine.dir.path().join(format!("engine-{}.sock", engine.supervisor.id()));
    assert_eq!(snapshot(&socket), None);
    let refused = program().args(["engine", "--control-socket", "/no/such/x.sock"]).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && error.contains("/no/such does not exist; create it"), "{error}");
}
