//! An end in another process, which is killed and starts again. The survivor keeps its device and its memory.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use fastrand::Rng;
use isolane_verbs::{
    Access, DeviceConfig, Peer, QueuePair, QueuePairState, ReceiveAttributes, SendAttributes, Status,
};

use super::end::{End, Plan, Program};
use super::{LANES, LOCALHOST, PAUSE, TIMEOUT, seed, variable};

const NAME: &str = "kill::requests_fail_in_time_when_peer_is_killed";
/// Set for the other process: seed and number of the messages of each direction.
const VARIABLE: &str = "ISOLANE_TEST_OTHER_END";
/// Time without a lane after which requests of the survivor fail.
const LANE_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of such times within which they have failed on a busy machine.
const MAX_TIMEOUTS: u32 = 20;
/// Number of messages that no life reaches, and of the messages of the last life.
const ENDLESS: u64 = 10_000_000;
const LAST: u64 = 1000;

fn program() -> Program {
    Program::new(DeviceConfig { lanes: LANES, ..DeviceConfig::default() })
}

/// Returns the messages of the survivor, and of the other end.
fn plans(seed: u64, count: u64) -> [Plan; 2] {
    [0, 1].map(|end| Plan { seed: seed.wrapping_mul(2).wrapping_add(end), count })
}

/// Connects a queue pair by number.
fn connect(pair: &QueuePair, number: u32, lane_timeout: Duration) {
    pair.initialize(Access::ALL).unwrap();
    let peer = Peer { address: LOCALHOST, number };
    pair.start_receiving(peer, number, &ReceiveAttributes::default()).unwrap();
    pair.start_sending(pair.number(), &SendAttributes::default(), Some(lane_timeout)).unwrap();
}

/// The other process: sends and checks messages until its input ends.
fn run_other_end(text: &str) {
    let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().unwrap()).collect();
    let [survivor, own] = plans(numbers[0], numbers[1]);
    let program = program();
    let mut end = End::new(&program, own, survivor);
    let pair = program.device.create_queue_pair(&end.config).unwrap();
    println!("\ncontact {} {}", pair.number(), program.key());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let [number, key] = numbers_of(line.trim());
    connect(&pair, number, TIMEOUT);
    end.start(pair, key);
    run_until(&mut end, End::is_done);
    // The survivor can wait for an acknowledgment.
    std::io::stdin().read_line(&mut line).unwrap();
}

/// Sends and checks messages.
fn run_until<'a>(end: &mut End<'a>, is_over: impl Fn(&End<'a>) -> bool) {
    let mut active = Instant::now();
    while !is_over(end) {
        if end.turn() || end.wait(PAUSE) {
            active = Instant::now();
        }
        assert_eq!(end.failure, None, "a request has failed");
        assert!(active.elapsed() < TIMEOUT, "no message arrives");
    }
}

fn numbers_of(text: &str) -> [u32; 2] {
    let mut numbers = text.split(' ').map(|number| number.parse().unwrap());
    [numbers.next().unwrap(), numbers.next().unwrap()]
}

/// The other process. It is killed when the value is dropped.
struct OtherEnd {
    process: Child,
    /// Open as long as the process can write.
    lines: Option<Lines<BufReader<ChildStdout>>>,
}

impl OtherEnd {
    fn start(seed: u64, count: u64) -> (OtherEnd, [u32; 2]) {
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(VARIABLE, format!("{seed} {count}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut other = OtherEnd { process, lines: None };
        let stdout = other.process.stdout.take().unwrap();
        let lines = other.lines.insert(BufReader::new(stdout).lines());
        let mut lines = lines.map_while(Result::ok);
        let contact = lines.find_map(|line| line.strip_prefix("contact ").map(numbers_of));
        (other, contact.expect("the other end starts"))
    }
}

impl Drop for OtherEnd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn requests_fail_in_time_when_peer_is_killed() {
    if let Ok(text) = std::env::var(VARIABLE) {
        return run_other_end(&text);
    }
    let kills = variable("ISOLANE_TEST_KILLS").unwrap_or(4);
    let (program, mut rng) = (program(), Rng::with_seed(seed()));
    for _ in 0..kills {
        live_until_kill(&program, &mut rng);
    }
    live_to_the_end(&program, &mut rng);
}

/// Starts another process and connects to it. The survivor has checked a message then, so a lane is open.
fn start<'a>(program: &'a Program, rng: &mut Rng, count: u64) -> (OtherEnd, End<'a>) {
    let seed = rng.u64(..);
    let (mut other, [number, key]) = OtherEnd::start(seed, count);
    let [own, incoming] = plans(seed, count);
    let mut end = End::new(program, own, incoming);
    let pair = program.device.create_queue_pair(&end.config).unwrap();
    writeln!(other.process.stdin.as_mut().unwrap(), "{} {}", pair.number(), program.key()).unwrap();
    connect(&pair, number, LANE_TIMEOUT);
    end.start(pair, key);
    while end.checked == 0 {
        assert!(end.wait(TIMEOUT), "the other end does not connect");
    }
    (other, end)
}

fn live_until_kill(program: &Program, rng: &mut Rng) {
    let (mut other, mut end) = start(program, rng, ENDLESS);
    let last = rng.u64(0..2000);
    run_until(&mut end, |end| end.done + end.checked >= last);
    std::thread::sleep(Duration::from_micros(rng.u64(0..2000)));
    other.process.kill().unwrap();
    other.process.wait().unwrap();
    let killed = Instant::now();
    let mut timeouts = 0;
    while end.failure.is_none() || end.outstanding() > 0 {
        if end.failure.is_none() {
            end.turn();
            end.request_if_idle();
        }
        timeouts += u32::from(!end.wait(LANE_TIMEOUT));
        assert!(timeouts < MAX_TIMEOUTS, "{} requests are silent after the kill", end.outstanding());
    }
    println!(
        "killed after {} of {last} messages, failed after {:?}",
        end.done + end.checked,
        killed.elapsed()
    );
    assert_eq!((end.failure, end.state()), (Some(Status::RetryExceeded), QueuePairState::Error));
    end.check_unfinished();
}

fn live_to_the_end(program: &Program, rng: &mut Rng) {
    let (mut other, mut end) = start(program, rng, LAST);
    run_until(&mut end, End::is_done);
    drop(other.process.stdin.take());
    assert!(other.process.wait().unwrap().success(), "the other end has found a fault");
}
