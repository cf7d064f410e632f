//! Devices that are slower than their peers, by the rule of [`isolane_observe::peers`].
//!
//! Members of a stripe or mirror are compared by their totals, volumes by their stage `device`, which no host delays.

use std::collections::{BTreeMap, BTreeSet};

use isolane_observe::histogram::{Histogram, Resolution};
use isolane_observe::peers::compare::work_of;
use isolane_observe::peers::{GroupDetector, Level, MemberSecond, Reason};
use isolane_observe::snapshot::{Numbers, Series, Snapshot};
use isolane_observe::stage::{Operation, SizeClass, Stage};
use isolane_observe::topology::{Peer, Topology};

/// Operations that are compared with each other.
type Class = (Operation, SizeClass);

/// Groups with two or more devices, by their name.
#[derive(Debug, Default)]
pub struct SlowDevices {
    groups: BTreeMap<String, Group>,
}

/// State of a device that has peers.
#[derive(Debug)]
pub struct DeviceState {
    /// Name of its volume, or of the disk of several volumes.
    pub volume: String,
    /// The first of its volumes.
    pub id: u32,
    /// Its disk.
    pub disk: Option<String>,
    /// Whether it is slower than its peers, at no more work.
    pub level: Level,
    /// Largest ratio of any operation at the quantiles of [`isolane_observe::peers::Status::ratios`].
    pub ratios: [Option<f64>; 3],
}

#[derive(Debug, Default)]
struct Group {
    devices: Vec<Peer>,
    detectors: BTreeMap<Class, GroupDetector>,
}

impl SlowDevices {
    /// Adds the numbers of a step.
    pub fn push(&mut self, snapshot: &Snapshot, numbers: &Numbers, seconds: f64) {
        let mut groups: BTreeMap<String, Vec<Peer>> = BTreeMap::new();
        for device in Topology::new(snapshot).devices() {
            groups.entry(device.group.clone()).or_default().push(device);
        }
        groups.retain(|_, devices| devices.len() > 1);
        self.groups.retain(|name, _| groups.contains_key(name));
        let mut by_volume: BTreeMap<u32, Vec<&Series>> = BTreeMap::new();
        numbers.series.iter().for_each(|series| by_volume.entry(series.volume).or_default().push(series));
        for (name, devices) in groups {
            let group = self.groups.entry(name).or_default();
            group.set_devices(devices);
            group.push(&by_volume, seconds);
        }
    }

    /// Returns the states of all devices that have peers.
    pub fn states(&self) -> impl Iterator<Item = DeviceState> {
        self.groups.values().flat_map(Group::states)
    }
}

impl Group {
    /// Updates the devices. Other devices are a new group.
    fn set_devices(&mut self, devices: Vec<Peer>) {
        if !self.devices.iter().map(|at| &at.volumes).eq(devices.iter().map(|at| &at.volumes)) {
            self.detectors.clear();
        }
        self.devices = devices;
    }

    fn push(&mut self, by_volume: &BTreeMap<u32, Vec<&Series>>, seconds: f64) {
        let series_of = |device: &Peer| {
            let volumes = device.volumes.iter();
            volumes.filter_map(|volume| by_volume.get(volume)).flatten().copied().collect::<Vec<_>>()
        };
        let series: Vec<Vec<&Series>> = self.devices.iter().map(series_of).collect();
        let mut classes: BTreeSet<Class> = self.detectors.keys().copied().collect();
        classes.extend(series.iter().flatten().map(|series| (series.operation, series.size)));
        for class in classes {
            let of_device = |(device, series): (&Peer, &Vec<&Series>)| {
                device.busy.is_none().then(|| second(device.above.is_some(), series, class, seconds))
            };
            let members: Vec<_> = self.devices.iter().zip(&series).map(of_device).collect();
            let new = || GroupDetector::new(members.len());
            self.detectors.entry(class).or_insert_with(new).push(&members);
        }
    }

    fn states(&self) -> Vec<DeviceState> {
        let state = |device: &Peer| DeviceState {
            volume: device.name.clone(),
            id: device.volumes.first().copied().unwrap_or_default(),
            disk: device.disk.clone(),
            level: Level::Fine,
            ratios: [None; 3],
        };
        let mut states: Vec<DeviceState> = self.devices.iter().map(state).collect();
        for detector in self.detectors.values() {
            for (state, status) in states.iter_mut().zip(detector.statuses()) {
                if status.reason == Reason::Slow {
                    state.level = state.level.max(status.level);
                }
                for (largest, ratio) in state.ratios.iter_mut().zip(status.ratios) {
                    *largest = [*largest, ratio].into_iter().flatten().reduce(f64::max);
                }
            }
        }
        states
    }
}

/// Returns the operations of a device in a step. All have one resolution, also without operations.
fn second(is_member: bool, series: &[&Series], class: Class, seconds: f64) -> MemberSecond {
    let resolution = if is_member { Resolution::Eight } else { Resolution::Four };
    let mut second = MemberSecond { times: Histogram::new(resolution), work: 0.0 };
    for series in series.iter().filter(|at| (at.operation, at.size) == class) {
        second.work += work_of(series.total.count(), series.bytes) / seconds.max(f64::MIN_POSITIVE);
        if is_member {
            second.times.merge(&series.total);
        } else if let Some(device) = series.stage(Stage::Device) {
            second.times.merge(device);
            // The others spent no time in it.
            second.times.record(0, series.total.count().saturating_sub(device.count()));
        }
    }
    second
}

#[cfg(test)]
mod tests {
    use isolane_observe::snapshot::{StageHistogram, Volume};

    use super::*;
    use crate::recorder::tests::series;

    /// Returns a stripe of three members, and three volumes of one group.
    fn snapshot() -> Snapshot {
        let volume = |id, parent, group: Option<&str>| Volume {
            id,
            parent,
            name: format!("v{id}"),
            group: group.map(str::to_owned),
            ..Volume::default()
        };
        let members = (1..4).map(|id| volume(id, Some(0), None));
        let others = (4..7).map(|id| volume(id, None, Some("g")));
        let volumes = [volume(0, None, None)].into_iter().chain(members).chain(others).collect();
        Snapshot { volumes, ..Snapshot::default() }
    }

    /// Returns reads of a volume that took this time in the device, and the same in other stages.
    fn reads(volume: u32, device_us: u64, has_stages: bool) -> Series {
        let mut reads = series(volume, 0);
        let mut times = Histogram::new(Resolution::Four);
        times.record(device_us * 1000, 600);
        let others = if has_stages { 10_000_000 } else { 0 };
        reads.total.record(device_us * 1000 + others, 600);
        reads.stages.extend(has_stages.then_some(StageHistogram { stage: Stage::Device, times }));
        reads
    }

    fn step(slow: &[u32]) -> Numbers {
        let us = |volume: u32| if slow.contains(&volume) { 900 } else { 200 };
        let series = (1..7).map(|volume| reads(volume, us(volume), volume > 3)).collect();
        Numbers { series, ..Numbers::default() }
    }

    fn slow_volumes(devices: &SlowDevices) -> Vec<String> {
        devices.states().filter(|state| state.level == Level::Slow).map(|state| state.volume).collect()
    }

    #[test]
    fn names_slow_members_and_volumes() {
        let mut devices = SlowDevices::default();
        (0..12).for_each(|_| devices.push(&snapshot(), &step(&[2, 5]), 1.0));
        assert_eq!(slow_volumes(&devices), ["v5", "v2"]);
        let ratios: Vec<[Option<f64>; 3]> = devices.states().map(|state| state.ratios).collect();
        assert_eq!(ratios.len(), 6);
        let slow = ratios.iter().filter(|ratios| ratios[0].is_some_and(|ratio| (4.0..5.0).contains(&ratio)));
        assert_eq!(slow.count(), 2, "{ratios:?}");
        // Six windows of ten seconds without stalls.
        (0..80).for_each(|_| devices.push(&snapshot(), &step(&[]), 1.0));
        assert_eq!(slow_volumes(&devices), [""; 0]);
    }

    #[test]
    fn leaves_out_member_that_copies() {
        let mut snapshot = snapshot();
        snapshot.volumes[2].background = Some("copying 40 %".to_owned());
        let mut devices = SlowDevices::default();
        (0..20).for_each(|_| devices.push(&snapshot, &step(&[2]), 1.0));
        assert_eq!(slow_volumes(&devices), [""; 0]);
        let state = devices.states().find(|state| state.id == 2).unwrap();
        assert_eq!(state.ratios, [None; 3]);
    }

    #[test]
    fn changed_group_starts_again() {
        let mut devices = SlowDevices::default();
        (0..12).for_each(|_| devices.push(&snapshot(), &step(&[2]), 1.0));
        let mut larger = snapshot();
        larger.volumes.push(Volume { id: 7, parent: Some(0), ..Volume::default() });
        devices.push(&larger, &step(&[2]), 1.0);
        assert_eq!(slow_volumes(&devices), [""; 0]);
        larger.volumes.truncate(2);
        devices.push(&larger, &step(&[2]), 1.0);
        assert_eq!(devices.states().count(), 0, "nothing to compare with");
    }
}
