use std::sync::atomic::{AtomicBool, Ordering};

use isolane_observe::snapshot::{Core, SeriesKey, Volume};
use isolane_observe::stage::{Operation, Side, SizeClass};

use super::*;
use crate::source::{Parts, Source};

/// A volume with one read on the second of two cores.
struct Fake {
    name: &'static str,
    process: u32,
    is_open: Arc<AtomicBool>,
}

impl Fake {
    fn new(name: &'static str) -> Fake {
        Fake { name, process: std::process::id(), is_open: Arc::new(true.into()) }
    }
}

impl Observable for Fake {
    fn source(&self) -> Arc<dyn SnapshotSource> {
        Arc::new(Fake { is_open: Arc::clone(&self.is_open), ..*self })
    }
}

impl SnapshotSource for Fake {
    fn snapshot(&self) -> Option<Snapshot> {
        let (operation, size) = (Operation::Read, SizeClass::Small);
        let mut series = SeriesKey { side: Side::Host, volume: 0, core: 1, operation, size }.empty();
        series.total.record(1000, 1);
        let mut snapshot = Snapshot { version: VERSION, ..Snapshot::default() };
        snapshot.volumes.push(Volume { name: self.name.to_owned(), ..Volume::default() });
        snapshot.numbers.series.push(series);
        snapshot.numbers.cores.extend([0, 1].map(|index| Core { index, ..Core::default() }));
        self.is_open.load(Ordering::Relaxed).then_some(snapshot)
    }

    fn cpus(&self) -> Vec<u32> {
        Vec::new()
    }

    fn process(&self) -> u32 {
        self.process
    }
}

fn read(control: &HostControl) -> Snapshot {
    Source::Socket(control.socket().to_owned()).read(Parts::Now).unwrap()
}

/// Returns the IDs and names of the volumes.
fn volumes(snapshot: &Snapshot) -> Vec<(u32, &str)> {
    snapshot.volumes.iter().map(|volume| (volume.id, &*volume.name)).collect()
}

/// Returns the volume and core of each series.
fn series(snapshot: &Snapshot) -> Vec<(u32, u32)> {
    snapshot.numbers.series.iter().map(|series| (series.volume, series.core)).collect()
}

#[test]
fn serves_volumes_until_they_are_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let (first, second, third) = (Fake::new("first"), Fake::new("second"), Fake::new("third"));
    let control = serve(&first, &path).unwrap();
    control.add(&second).unwrap();
    let snapshot = read(&control);
    assert_eq!(volumes(&snapshot), [(0, "first"), (1, "second")]);
    assert_eq!(series(&snapshot), [(0, 1), (1, 3)]);
    assert_eq!(snapshot.numbers.cores.iter().map(|core| core.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!((snapshot.program.pid, snapshot.program.name), (std::process::id(), own_name()));
    first.is_open.store(false, Ordering::Relaxed);
    control.add(&third).unwrap();
    let snapshot = read(&control);
    assert_eq!(volumes(&snapshot), [(1, "second"), (2, "third")]);
    assert_eq!(series(&snapshot), [(1, 3), (2, 5)]);
    drop(control);
    assert!(!path.exists());
}

#[test]
fn each_volume_can_have_its_socket() {
    let dir = tempfile::tempdir().unwrap();
    let controls = ["first", "second"].map(|name| serve(&Fake::new(name), dir.path().join(name)).unwrap());
    for (control, name) in controls.iter().zip(["first", "second"]) {
        assert_eq!(volumes(&read(control)), [(0, name)]);
    }
    let error = serve(&Fake::new("first"), dir.path().join("first")).unwrap_err().to_string();
    assert!(error.ends_with("stop it, or choose another path"), "{error}");
}

#[test]
fn rejects_volumes_of_other_processes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let inherited = Fake { process: 1, ..Fake::new("inherited") };
    assert!(matches!(serve(&inherited, &path), Err(ServeError::Forked { process: 1 })));
    assert!(!path.exists());
    let control = serve(&Fake::new("own"), &path).unwrap();
    assert!(control.add(&inherited).is_err());
}

#[test]
fn privileged_programs_ignore_the_variable() {
    assert_eq!(path_to_open(Some("/run/x.sock".into()), false), Some("/run/x.sock".into()));
    for (value, is_privileged) in
        [(Some("/run/x.sock".into()), true), (Some("".into()), false), (None, false)]
    {
        assert_eq!(path_to_open(value, is_privileged), None);
    }
}
