//! What connections cost that do nothing: processor time and memory of the target.

use std::fs;
use std::io;
use std::thread::sleep;
use std::time::Duration;

use super::figures::{Figure, Sample};
use super::lab::{Lab, START_LIMIT};
use super::row::Load;
use super::start::{NQN, Serving};
use crate::processor;

/// Opens connections, has each of them read once, and looks at the target while they do nothing, after `rest`
/// seconds.
pub fn measure(lab: &Lab, serving: &Serving, load: &Load, rest: u64, seconds: f64) -> io::Result<Sample> {
    let target = serving.program.as_ref().ok_or(io::ErrorKind::Unsupported)?.id();
    sleep(SETTLE);
    let resident_before_kib = resident_kib(target)?;
    let program = lab.host_program(&lab.capsules).args(&format!(
        "127.0.0.1:{} {NQN} --depth 1 --connections {} --block-bytes {} --idle",
        serving.port, load.connections, load.block_bytes,
    ));
    let mut host = program.start()?;
    host.wait_for(START_LIMIT, |said| said.starts_with("idle").then_some(()))?;
    sleep(Duration::from_secs(rest));
    let resident_kib = resident_kib(target)? - resident_before_kib;
    let percent = processor::percent(target, seconds)?;
    let memory_kib = resident_kib / f64::from(load.connections);
    let figures = [(Figure::Processor, percent), (Figure::Memory, memory_kib)];
    Ok(figures.map(|(figure, value)| (figure.key().to_owned(), value)).into())
}

/// Until what filled the volume is forgotten.
const SETTLE: Duration = Duration::from_secs(2);

fn resident_kib(process: u32) -> io::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}
