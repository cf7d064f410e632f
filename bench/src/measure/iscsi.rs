//! tgtd, and iscsi-perf of libiscsi.

use std::io;
use std::time::Duration;

use super::figures::{Figure, Sample};
use super::lab::{Lab, START_LIMIT, free_port};
use super::row::Load;
use super::start::{Serving, listening, memory_file};

const NAME: &str = "iqn.2026-01.org.isolane:bench";

/// Starts tgtd with one disk, a file in memory.
pub fn serve(lab: &Lab) -> io::Result<Serving> {
    let port = free_port()?;
    let program = lab.target_program("/usr/sbin/tgtd");
    let program = program.args(&format!("-f -C {} --iscsi portal=127.0.0.1:{port}", control(port)));
    let serving = listening(program.start()?, port)?;
    let file = memory_file()?;
    for command in [
        format!("--mode target --op new --tid 1 --targetname {NAME}"),
        format!("--mode logicalunit --op new --tid 1 --lun 1 --backing-store {file}"),
        "--mode target --op bind --tid 1 --initiator-address ALL".to_owned(),
    ] {
        let program = lab.free_program("/usr/sbin/tgtadm").args(&format!("-C {} --lld iscsi", control(port)));
        program.args(&command).run(START_LIMIT)?;
    }
    Ok(serving)
}

/// Runs iscsi-perf, random reads over one connection.
pub fn measure(lab: &Lab, port: u16, load: &Load, seconds: f64) -> io::Result<Sample> {
    let program = lab.host_program("iscsi-perf").args(&format!(
        "-m {} -b {} -t {} -r iscsi://127.0.0.1:{port}/{NAME}/1",
        load.depth,
        load.block_bytes / 512,
        seconds.ceil(),
    ));
    let said = program.run(START_LIMIT + Duration::from_secs_f64(2.0 * seconds))?;
    let rate = parse(&said).ok_or_else(|| io::Error::other(format!("iscsi-perf shows no rate: {said}")))?;
    // It does not tell round trips: by Little's law.
    let mean_us = f64::from(load.under_way()) * 1e6 / rate;
    let figures = [(Figure::Rate, rate), (Figure::Mean, mean_us)];
    Ok(figures.map(|(figure, value)| (figure.key().to_owned(), value)).into())
}

/// Several daemons live together if their control sockets have numbers of their own.
fn control(port: u16) -> u16 {
    port % 32_000 + 1
}

/// The average over the whole run is the last one that it prints.
fn parse(said: &str) -> Option<f64> {
    let at = said.rfind("iops average ")?;
    said[at + "iops average ".len()..].split_whitespace().next()?.parse().ok()
}
