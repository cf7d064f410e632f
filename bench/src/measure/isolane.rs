//! `isolane serve` and `isolane bench`, run as a user would run them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use super::entrant::Lanes;
use super::figures::{Figure, Sample, of_report};
use super::lab::{Lab, START_LIMIT, VOLUME_BYTES};
use super::program::Program;
use super::row::Load;
use super::start::{NQN, Serving};
use crate::processor;

/// Serves memory that was written, so that a read finds pages of its own instead of the one zero page.
pub fn serve_memory(lab: &Lab, arguments: &str) -> io::Result<Serving> {
    let serving = serve(lab, &format!("mem:{VOLUME_BYTES}"), arguments)?;
    fill(lab, serving.port)?;
    Ok(serving)
}

/// Writes the volume from its start, for longer and longer until one run has come to its end: how fast memory
/// that nobody has touched yet can be written differs from one moment to the next. So deep that a target has
/// the memory, too, that the requests of every row take.
pub fn fill(lab: &Lab, port: u16) -> io::Result<()> {
    for seconds in [0.5, 2.0, 8.0, 32.0] {
        let arguments = format!("--rw write --bs 1m --depth 64 --time {}ms --mode poll", seconds * 1e3);
        let report = serde_json::from_str(&bench(lab, port, &arguments, seconds)?)?;
        let iops = of_report(&report).and_then(|sample| sample.get("iops").copied()).unwrap_or(0.0);
        let written = iops * seconds * f64::from(1 << 20);
        if written >= VOLUME_BYTES as f64 * 1.1 {
            return Ok(());
        }
    }
    Err(io::Error::other("the volume could not be written once in 32 s"))
}

/// Serves a file of the scratch folder.
pub fn serve_file(lab: &Lab, is_direct: bool) -> io::Result<Serving> {
    let file = prepared_file(lab, is_direct)?;
    let option = if is_direct { "" } else { ",buffered" };
    serve(lab, &format!("{}{option},block-size=4096", file.replace(',', ",,")), "--mode poll")
}

/// Serves memory with a reactor on the target's core and another on the host's.
pub fn serve_on_both(lab: &Lab, arguments: &str) -> io::Result<Serving> {
    let program = lab.free_program(&lab.isolane);
    let cores = format!("{},{}", lab.target_core, lab.host_core);
    let serving = start(lab, program, &cores, &format!("mem:{VOLUME_BYTES}"), arguments)?;
    fill(lab, serving.port)?;
    Ok(serving)
}

/// Measures a load over a target on `port`.
pub fn measure(lab: &Lab, port: u16, load: &Load, arguments: &str, seconds: f64) -> io::Result<Sample> {
    let report = bench(lab, port, &load_arguments(lab, load, arguments, seconds), seconds)?;
    sample_of(&report)
}

/// Measures a load of two threads that share a volume, one on either core.
pub fn measure_on_both(lab: &Lab, port: u16, load: &Load, lanes: Lanes, seconds: f64) -> io::Result<Sample> {
    let both = format!("{},{}", lab.target_core, lab.host_core);
    let cores = match lanes {
        Lanes::Anywhere => String::new(),
        Lanes::OnOne => format!("--cores {}", lab.target_core),
        Lanes::OnEach => format!("--cores {both}"),
    };
    let arguments = format!("--mode adaptive --threads 2 --thread-cores {both} {cores}");
    let program = bench_command(lab.free_program(&lab.isolane), port);
    let program = program.args(&load_arguments(lab, load, &arguments, seconds));
    sample_of(&program.run(START_LIMIT + Duration::from_secs_f64(2.0 * seconds))?)
}

/// The same as [`measure`], begun so long before that connections have found their places; and what processor
/// time the target takes.
pub fn measure_settled(
    lab: &Lab,
    serving: &Serving,
    load: &Load,
    arguments: &str,
    seconds: f64,
) -> io::Result<Sample> {
    let target = serving.program.as_ref().ok_or(io::ErrorKind::Unsupported)?.id();
    let all = SETTLE.as_secs_f64() + seconds;
    let host = bench_program(lab, serving.port, &load_arguments(lab, load, arguments, all)).start()?;
    sleep(SETTLE);
    let percent = processor::percent(target, seconds)?;
    let mut sample = sample_of(&host.finish(START_LIMIT + Duration::from_secs_f64(all))?)?;
    sample.insert(Figure::Processor.key().to_owned(), percent);
    Ok(sample)
}

/// The scheduler looks once a second, and moves a connection when it has seen the same for several seconds.
const SETTLE: Duration = Duration::from_secs(12);

fn sample_of(report: &str) -> io::Result<Sample> {
    of_report(&serde_json::from_str(report)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn load_arguments(lab: &Lab, load: &Load, arguments: &str, seconds: f64) -> String {
    // Lanes of several classes are named by the arguments.
    let lanes = match arguments.contains("--lanes") {
        true => String::new(),
        false => format!("--lanes {}", load.connections),
    };
    format!(
        "--rw {} --bs {} --depth {} {lanes} --time {}ms {arguments} {}",
        load.pattern(),
        load.block_bytes,
        load.depth,
        (seconds * 1e3) as u64,
        lab.bench_arguments,
    )
}

/// A file with random bytes of the volume's size; the rows about files share it. All of it is in the page
/// cache, unless it is used past that.
pub fn prepared_file(lab: &Lab, is_direct: bool) -> io::Result<String> {
    let path = lab.file("isolane-bench.img");
    if !fs::metadata(&path).is_ok_and(|found| found.len() == VOLUME_BYTES) {
        write_random(&path)?;
    } else if !is_direct {
        io::copy(&mut File::open(&path)?, &mut io::sink())?;
    }
    Ok(path.to_string_lossy().into_owned())
}

/// A file with random bytes of the volume's size.
pub fn write_random(path: &Path) -> io::Result<()> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut chunk = vec![0; 1 << 20];
    let mut file = File::create(path)?;
    for _ in 0..VOLUME_BYTES >> 20 {
        random.fill(&mut chunk);
        file.write_all(&chunk)?;
    }
    file.sync_all()
}

fn serve(lab: &Lab, volume: &str, arguments: &str) -> io::Result<Serving> {
    start(lab, lab.target_program(&lab.isolane), &lab.target_core.to_string(), volume, arguments)
}

fn start(lab: &Lab, program: Program, cores: &str, volume: &str, arguments: &str) -> io::Result<Serving> {
    let program = program.arg("serve").arg(volume);
    let program = program.args("--listen 127.0.0.1:0 --log-level warn --nqn").arg(NQN);
    let program = program.args(&format!("--cores {cores}"));
    let mut program = program.args(arguments).args(&lab.serve_arguments).start()?;
    let port = program.wait_for(START_LIMIT, |said| {
        let line = said.lines().find_map(|line| line.strip_prefix("listening on "))?;
        line.rsplit(':').next()?.parse().ok()
    })?;
    Ok(Serving { program: Some(program), port })
}

/// Runs `isolane bench`; returns its JSON report.
fn bench(lab: &Lab, port: u16, arguments: &str, seconds: f64) -> io::Result<String> {
    bench_program(lab, port, arguments).run(START_LIMIT + Duration::from_secs_f64(2.0 * seconds))
}

fn bench_program(lab: &Lab, port: u16, arguments: &str) -> Program {
    bench_command(lab.host_program(&lab.isolane), port).args(arguments)
}

fn bench_command(program: Program, port: u16) -> Program {
    let program = program.arg("bench").arg(format!("nvme+tcp://127.0.0.1:{port}/{NQN}"));
    program.args("--log-level warn --json -")
}
