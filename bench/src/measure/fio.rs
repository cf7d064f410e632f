//! fio, over NBD and on a file.

use std::io;
use std::time::Duration;

use serde_json::Value;

use super::entrant::Target;
use super::figures::{Figure, Sample};
use super::isolane::prepared_file;
use super::lab::{Lab, START_LIMIT, VOLUME_BYTES};
use super::program::Program;
use super::row::{Load, Rw};

/// Drives an NBD export.
pub fn over_nbd(lab: &Lab, port: u16, target: Target, load: &Load, seconds: f64) -> io::Result<Sample> {
    let export = if matches!(target, Target::QemuNbd) { "disk" } else { "" };
    let engine = format!("--ioengine=nbd --uri=nbd://127.0.0.1:{port}/{export}");
    if load.rw == Rw::Read {
        fill(lab, &engine)?;
    }
    run(lab.host_program("fio"), &engine, load, seconds)
}

/// Drives the file that the rows about files share, in the target's place: on its core, and through a ring
/// without fixed buffers and registered files, as our target does.
pub fn on_file(lab: &Lab, is_direct: bool, load: &Load, seconds: f64) -> io::Result<Sample> {
    let file = prepared_file(lab, is_direct)?;
    let engine = format!("--ioengine=io_uring --direct={} --filename={file}", u8::from(is_direct));
    run(lab.target_program("fio"), &engine, load, seconds)
}

/// Writes everything once, so that no read finds a hole.
fn fill(lab: &Lab, engine: &str) -> io::Result<()> {
    let program = lab.host_program("fio").args("--name=fill --rw=write --bs=1m --iodepth=8 --thread");
    program.args(&format!("--size={VOLUME_BYTES} {engine}")).run(START_LIMIT).map(drop)
}

fn run(fio: Program, engine: &str, load: &Load, seconds: f64) -> io::Result<Sample> {
    let program = fio.args(&format!(
        "--name=bench --output-format=json --group_reporting --time_based --runtime={}ms --ramp_time=300ms \
         --rw={} --bs={} --iodepth={} --numjobs={} --size={VOLUME_BYTES} --norandommap --thread {engine}",
        (seconds * 1e3) as u64,
        load.pattern(),
        load.block_bytes,
        load.depth,
        load.connections,
    ));
    let said = program.run(START_LIMIT + Duration::from_secs_f64(2.0 * seconds))?;
    parse(&said, load.rw).ok_or_else(|| io::Error::other("fio shows no figures"))
}

/// Before its JSON fio may say what it thinks of the job.
fn parse(said: &str, rw: Rw) -> Option<Sample> {
    let report: Value = serde_json::from_str(&said[said.find('{')?..]).ok()?;
    let side = &report["jobs"][0][if rw == Rw::Read { "read" } else { "write" }];
    let mean_us = side["lat_ns"]["mean"].as_f64()? / 1e3;
    let figures = [(Figure::Rate, side["iops"].as_f64()?), (Figure::Mean, mean_us)];
    Some(figures.map(|(figure, value)| (figure.key().to_owned(), value)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_side_that_was_asked_for_is_read() {
        let said = r#"note: a hint
            {"jobs": [{"read": {"iops": 1000.0, "lat_ns": {"mean": 2500.0}},
                       "write": {"iops": 0.0, "lat_ns": {"mean": 0.0}}}]}"#;
        let sample = parse(said, Rw::Read).unwrap();
        assert_eq!((sample["iops"], sample["mean_us"]), (1000.0, 2.5));
        assert!(parse("fio: engine nbd not loadable", Rw::Read).is_none());
    }
}
