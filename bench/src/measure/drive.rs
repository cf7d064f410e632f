//! Driving what serves, and reading what the driver found.

use std::io;
use std::time::Duration;

use super::entrant::{Entrant, Host};
use super::figures::{Sample, of_report};
use super::lab::{Lab, START_LIMIT};
use super::row::Load;
use super::start::{NQN, Serving, start};
use super::{fio, idle, iscsi, isolane, spdk};

/// One sample: starts the target, measures, ends both.
pub fn sample(lab: &Lab, entrant: &Entrant, load: &Load, seconds: f64) -> io::Result<Sample> {
    let serving = start(lab, entrant.target, load.connections)?;
    match entrant.host {
        Host::Floor(arguments) => floor(lab, load, arguments, seconds),
        Host::Isolane(arguments) => isolane::measure(lab, serving.port, load, arguments, seconds),
        Host::Settled(arguments) => isolane::measure_settled(lab, &serving, load, arguments, seconds),
        Host::IsolaneOnBoth(lanes) => isolane::measure_on_both(lab, serving.port, load, lanes, seconds),
        Host::Spdk(sockets, arguments) => spdk::measure(lab, serving.port, sockets, load, arguments, seconds),
        Host::Capsules(arguments) => capsules(lab, &serving, load, arguments, seconds),
        Host::FioNbd => fio::over_nbd(lab, serving.port, entrant.target, load, seconds),
        Host::FioFile { is_direct } => fio::on_file(lab, is_direct, load, seconds),
        Host::IscsiPerf => iscsi::measure(lab, serving.port, load, seconds),
        Host::Idle(rest) => idle::measure(lab, &serving, load, rest, seconds),
    }
}

/// The floor pins its threads itself.
fn floor(lab: &Lab, load: &Load, arguments: &str, seconds: f64) -> io::Result<Sample> {
    let work = load.floor_work().ok_or(io::ErrorKind::Unsupported)?;
    let work = clap::ValueEnum::to_possible_value(&work).expect("no hidden work");
    let program = lab.free_program(&lab.floor).args(&format!(
        "--json --seconds {seconds} --work {} --depth {} --connections {} --target-core {} --host-core {}",
        work.get_name(),
        load.depth,
        load.connections,
        lab.target_core,
        lab.host_core,
    ));
    let program = program.args(arguments);
    parse(&program.run(START_LIMIT + Duration::from_secs_f64(2.0 * seconds))?)
}

fn capsules(lab: &Lab, serving: &Serving, load: &Load, arguments: &str, seconds: f64) -> io::Result<Sample> {
    let program = lab.host_program(&lab.capsules).args(&format!(
        "127.0.0.1:{} {NQN} --depth {} --connections {} --block-bytes {} --seconds {seconds} --json",
        serving.port, load.depth, load.connections, load.block_bytes,
    ));
    parse(&program.args(arguments).run(START_LIMIT + Duration::from_secs_f64(2.0 * seconds))?)
}

fn parse(report: &str) -> io::Result<Sample> {
    of_report(&serde_json::from_str(report)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
