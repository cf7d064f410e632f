//! The measurement: both ends in one process over loopback. The destination is memory of the host, or of a GPU that is
//! found behind a pointer.

use std::fmt::Write;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use isolane_cuda::{Gpu, find};
use isolane_memory::MemoryRegion;
use isolane_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, LocalData, ProtectionDomain, QueuePair, QueuePairConfig,
    Registration, SendOperation, SendRequest, Sge, Status,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What to measure.
pub struct Plan {
    /// Index of the GPU.
    pub index: usize,
    /// Time for each size.
    pub time: Duration,
    /// Time after which nothing more is measured.
    pub limit: Duration,
}

/// The result.
pub enum Report {
    /// The computer has no GPU, for this reason.
    Skipped(String),
    /// One cell for each memory, with and without a hog.
    Measured {
        /// Name of the GPU.
        gpu: String,
        /// The cells.
        cells: Vec<Cell>,
    },
}

/// Figures of one kind of memory.
pub struct Cell {
    memory: &'static str,
    has_hog: bool,
    rows: Vec<Row>,
}

/// Figures of one size.
struct Row {
    size: u32,
    depth: usize,
    requests: usize,
    p50: Duration,
    p99: Duration,
    bytes_per_second: f64,
}

impl Report {
    /// Returns one line of JSON.
    pub fn to_json(&self) -> String {
        match self {
            Report::Skipped(reason) => format!("{{\"skipped\":{reason:?}}}"),
            Report::Measured { gpu, cells } => {
                let cells: Vec<String> = cells.iter().map(Cell::to_json).collect();
                format!("{{\"gpu\":{gpu:?},\"cells\":[{}]}}", cells.join(","))
            }
        }
    }
}

impl Cell {
    fn to_json(&self) -> String {
        let mut json = format!("{{\"memory\":{:?},\"hog\":{},\"rows\":[", self.memory, self.has_hog);
        for (index, row) in self.rows.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let us = |time: Duration| time.as_secs_f64() * 1e6;
            let Row { size, depth, requests, p50, p99, bytes_per_second } = row;
            let _ = write!(
                json,
                "{comma}{{\"size\":{size},\"depth\":{depth},\"requests\":{requests},\"p50_us\":{:.2},\"p99_us\":{:.2},\
                 \"gb_per_s\":{:.3}}}",
                us(*p50),
                us(*p99),
                bytes_per_second / 1e9
            );
        }
        json + "]}"
    }
}

/// Measures all cells.
///
/// # Errors
/// If there is a GPU, and it cannot be opened, an operation fails, or bytes are wrong.
pub fn run(plan: &Plan) -> Result<Report> {
    let started = Instant::now();
    let gpu = match Gpu::open(plan.index) {
        Ok(gpu) => gpu,
        Err(error) if error.is_no_gpu() => return Ok(Report::Skipped(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let allocated = gpu.allocate(LEN)?;
    let start = NonNull::new(std::ptr::without_provenance_mut(allocated.address() as usize));
    // SAFETY: `allocated` lives longer than the region.
    let on_gpu = unsafe { find(start.ok_or("no address")?, LEN) }?;
    let on_gpu = Arc::new(on_gpu.ok_or("the driver does not know its memory")?);
    let mut cells = Vec::new();
    for has_hog in [false, true] {
        for (memory, region) in [("host", MemoryRegion::allocate(LEN)?), ("gpu", Arc::clone(&on_gpu))] {
            let rows = with_hog(has_hog, || measure(plan, &region, started))?;
            cells.push(Cell { memory, has_hog, rows });
        }
    }
    Ok(Report::Measured { gpu: gpu.info().name.clone(), cells })
}

/// Runs a function while threads move memory that is in no cache.
fn with_hog<T>(has_hog: bool, function: impl FnOnce() -> T) -> T {
    // Two threads of the measurement spin.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = if has_hog { cores.saturating_sub(2).max(1) } else { 0 };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let (mut from, mut to) = (vec![1_u8; HOG_BYTES], vec![0_u8; HOG_BYTES]);
                while !is_over.load(Ordering::Relaxed) {
                    to.copy_from_slice(std::hint::black_box(&from));
                    std::mem::swap(&mut from, &mut to);
                }
            });
        }
        let result = function();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

/// The two ends. Dropping the queue pairs ends their lane.
struct Ends {
    near: QueuePair,
    _far: QueuePair,
    completions: Arc<CompletionQueue>,
    source: Arc<Registration>,
    target: Arc<Registration>,
}

fn connect(
    devices: &[Device; 2],
    region: &Arc<MemoryRegion>,
    far_queue: &Arc<CompletionQueue>,
) -> Result<Ends> {
    let domains = [0; 2].map(|_| Arc::new(ProtectionDomain::default()));
    let source = domains[0].register(MemoryRegion::allocate(LEN)?, 0, Access::ALL)?;
    let target = domains[1].register(Arc::clone(region), 0, Access::ALL)?;
    let [near_domain, far_domain] = domains;
    let completions = devices[0].completion_queue(2 * MAX_DEPTH);
    let near_config = QueuePairConfig::new(near_domain, Arc::clone(&completions));
    let far_config = QueuePairConfig::new(far_domain, Arc::clone(far_queue));
    let listener = devices[1].listen("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (near, far) = thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(&far_config));
        (devices[0].connect(address, &near_config), accepted.join())
    });
    let _far = far.map_err(|_| "the accepting thread has failed")??;
    Ok(Ends { near: near?, _far, completions, source, target })
}

/// Measures all sizes for one destination.
fn measure(plan: &Plan, region: &Arc<MemoryRegion>, started: Instant) -> Result<Vec<Row>> {
    let devices = [Device::open(DeviceConfig::default())?, Device::open(DeviceConfig::default())?];
    let far_queue = devices[1].completion_queue(16);
    let ends = connect(&devices, region, &far_queue)?;
    let pattern: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8 | 1).collect();
    ends.source.region().copy_in(0, &pattern);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // The far end polls, as its program would.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                far_queue.poll();
            }
        });
        let rows = measure_sizes(plan, &ends, region, &pattern, started);
        is_over.store(true, Ordering::Relaxed);
        rows
    })
}

fn measure_sizes(
    plan: &Plan,
    ends: &Ends,
    region: &MemoryRegion,
    pattern: &[u8],
    started: Instant,
) -> Result<Vec<Row>> {
    let sizes = LATENCY_SIZES.map(|size| (size, 1)).into_iter().chain([(1 << 20, MAX_DEPTH)]);
    let mut rows = Vec::new();
    for (size, depth) in sizes {
        if started.elapsed() > plan.limit {
            return Err("the measurement takes too long".into());
        }
        let mut bytes = vec![0; size as usize];
        if !region.try_copy_in(0, &bytes) {
            return Err("the destination cannot be written".into());
        }
        rows.push(measure_size(plan, ends, size, depth)?);
        if !region.try_copy_out(0, &mut bytes) || bytes != pattern[..size as usize] {
            return Err(format!("{size} bytes have not arrived unchanged").into());
        }
    }
    Ok(rows)
}

fn measure_size(plan: &Plan, ends: &Ends, size: u32, depth: usize) -> Result<Row> {
    let data = Sge { address: 0, length: size, lkey: ends.source.key() };
    let operation = SendOperation::Write { address: 0, rkey: ends.target.key(), immediate: None };
    let (started, mut posted, mut latencies) = (Instant::now(), Vec::new(), Vec::new());
    while started.elapsed() < plan.time || latencies.len() < posted.len() {
        while posted.len() < latencies.len() + depth && (posted.is_empty() || started.elapsed() < plan.time) {
            let (id, data) = (posted.len() as u64, LocalData::Sges([data].into_iter().collect()));
            posted.push(Instant::now());
            let request =
                SendRequest { id, operation, data, signaled: true, solicited: false, fenced: false };
            ends.near.post_send(request)?;
        }
        let done = loop {
            if let Some(done) = ends.completions.poll() {
                break done.completion;
            }
            if posted.last().is_some_and(|posted| posted.elapsed() > TIMEOUT) {
                return Err("a request does not complete".into());
            }
        };
        if done.status != Status::Success {
            return Err(format!("a WRITE has failed: {}", done.status.name()).into());
        }
        latencies.push(posted[done.id as usize].elapsed());
    }
    let bytes_per_second = f64::from(size) * latencies.len() as f64 / started.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |part: usize| latencies[(latencies.len() * part / 100).min(latencies.len() - 1)];
    Ok(Row { size, depth, requests: latencies.len(), p50: at(50), p99: at(99), bytes_per_second })
}

const LATENCY_SIZES: [u32; 5] = [64, 4096, 16 * 1024, 64 * 1024, 256 * 1024];
const MAX_DEPTH: usize = 16;
const LEN: usize = 1 << 20;
/// Larger than the caches of a core.
const HOG_BYTES: usize = 64 << 20;
const TIMEOUT: Duration = Duration::from_secs(10);
