//! A target that restarts while volumes are open, in process and through an engine: both report the same.

use std::sync::Arc;

use isolane_host::{Buffer, Client, ConnectError, Difference, LossCause, Request, RequestError, RestartLoss};
use isolane_volume::{open, spec};

use crate::clients::{options, pattern, run};
use crate::harness::Harness;

#[test]
fn rejects_another_volume_as_in_process() {
    let mut harness = Harness::new();
    let mut clients = [Client::connect(&harness.place(), options()).unwrap(), harness.connect(options())];
    harness.restart_target(|config| {
        let other = spec::parse("mem:64m,uuid=1b4e28ba-2fa1-4d2b-883f-0016d3cca427").unwrap();
        config.subsystems[0].volumes = vec![(1, open(&other).unwrap())];
    });
    let texts = clients.each_mut().map(|client| {
        let completion = run(client, Request::Read { lba: 0, buffer: Buffer::contiguous(4096) });
        let Err(RequestError::Lost(why)) = completion.result else { panic!("{completion:?}") };
        assert!(matches!(*why, ConnectError::VolumeChanged(Difference::Uuid(..))), "{why}");
        why.to_string()
    });
    assert_eq!(texts[0], texts[1]);
    assert!(texts[0].contains("1b4e28ba-2fa1-4d2b-883f-0016d3cca427"), "{}", texts[0]);
}

/// A volume that is the same one after a restart, and empty.
fn memory() -> Arc<dyn isolane_volume::Volume> {
    open(&spec::parse("mem:64m,uuid=1b4e28ba-2fa1-4d2b-883f-0016d3cca427").unwrap()).unwrap()
}

fn write(client: &mut Client, lba: u64) {
    let written = run(client, Request::Write { lba, buffer: pattern(lba, 4096, 1), fua: true });
    assert!(written.result.is_ok(), "{written:?}");
}

/// Result of the next flush.
fn flush(client: &mut Client) -> Option<(u64, LossCause)> {
    match run(client, Request::Flush).result {
        Ok(()) => None,
        Err(RequestError::WritesLost { writes, cause }) => Some((writes, cause)),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn fails_first_flush_of_each_writer() {
    let mut harness = Harness::of(|config| config.subsystems[0].volumes = vec![(1, memory())]);
    let mut own = Client::connect(&harness.place(), options()).unwrap();
    // They share an association.
    let [mut one, mut two, mut idle] = [(); 3].map(|()| harness.connect(options()));
    [&mut own, &mut one, &mut two].into_iter().for_each(|client| write(client, 0));
    write(&mut two, 8);
    assert!([&mut own, &mut one, &mut two, &mut idle].map(flush) == [None; 4]);
    harness.restart_target(|config| config.subsystems[0].volumes = vec![(1, memory())]);
    let lost = |writes| Some((writes, LossCause::Content));
    assert_eq!([&mut own, &mut one, &mut two, &mut idle].map(flush), [lost(1), lost(1), lost(2), None]);
    assert_eq!([&mut own, &mut one, &mut two, &mut idle].map(flush), [None; 4]);
    [&mut own, &mut one].into_iter().for_each(|client| write(client, 0));
    harness.restart_target(|config| config.subsystems[0].volumes = vec![(1, memory())]);
    assert_eq!([&mut own, &mut one, &mut two, &mut idle].map(flush), [lost(1), lost(1), None, None]);
}

#[test]
fn keeps_flushing_after_a_restart_that_lost_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let file = || open(&spec::parse(&format!("{},size=64m", path.display())).unwrap()).unwrap();
    let mut harness = Harness::of(|config| config.subsystems[0].volumes = vec![(1, file())]);
    let mut clients = [Client::connect(&harness.place(), options()).unwrap(), harness.connect(options())];
    for client in &mut clients {
        let buffer = pattern(0, 4096, 1);
        assert!(run(client, Request::Write { lba: 0, buffer, fua: false }).result.is_ok());
    }
    harness.restart_target(|config| config.subsystems[0].volumes = vec![(1, file())]);
    assert_eq!(clients.each_mut().map(flush), [None; 2]);
    let generation = clients[0].namespace().generation.unwrap();
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!((generation.id.to_string().as_str(), generation.loses), (boot_id.trim(), RestartLoss::Cache));
    assert_eq!(clients[1].namespace().generation, Some(generation));
}
