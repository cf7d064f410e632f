//! Damaged replies of a correct target: the host reconnects, and no data is lost or mixed up.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use isolane_host::{
    Buffer, Client, Completion, ConnectError, Mode, Options, Reconnect, Request, RequestError, Wait,
};
use isolane_target::{Target, TargetConfig};
use isolane_volume::{open, spec};

use crate::faulty_path::{Damage, FaultyPath, PathLog};
use crate::timeout::TEST_TIMEOUT;

const NQN: &str = "nqn.2024-01.org.example:path";
/// The connections of one client.
const ADMIN: usize = 0;
const IO: usize = 1;

fn target() -> (Target, SocketAddr) {
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.subsystems[0].volumes.push((1, open(&spec::parse("mem:1M").unwrap()).unwrap()));
    config.listen.push("127.0.0.1:0".parse().unwrap());
    let target = Target::start(config).unwrap();
    let address = target.local_addrs()[0];
    (target, address)
}

/// Options with short timeouts.
fn options(has_digests: bool) -> Options {
    Options {
        mode: Mode::Sleep,
        depth: 8,
        header_digest: has_digests,
        data_digest: has_digests,
        connect_timeout: Duration::from_millis(500),
        command_timeout: Duration::from_millis(300),
        reconnect: Reconnect { min_delay: Duration::from_millis(1), ..Reconnect::default() },
        ..Options::default()
    }
}

/// One damaged run.
struct Trial {
    what: String,
    path: FaultyPath,
    target: SocketAddr,
    /// With digests, several commands are in flight: without, a flipped bit can swap their responses.
    has_digests: bool,
    flip: bool,
}

impl Trial {
    fn new(target: SocketAddr, (connection, damage): (usize, Damage), has_digests: bool) -> Trial {
        let path = FaultyPath::start(target, connection, damage);
        let what = format!("{damage:?} on connection {connection}, digests: {has_digests}");
        Trial { what, path, target, has_digests, flip: matches!(damage, Damage::Flip { .. }) }
    }

    /// Connects and runs I/O. Every error names the peer.
    fn run(&self, seed: u8) -> Vec<PathLog> {
        let uri = format!("nvme+tcp://{}/{NQN}", self.path.address).parse().unwrap();
        match Client::connect(&uri, options(self.has_digests)) {
            Ok(client) => self.work(client, seed),
            Err(error) => self.check_error(&error),
        }
        self.path.carried()
    }

    fn check_error(&self, error: &ConnectError) {
        let text = error.to_string();
        // Errors about properties of the volume name the volume.
        let about_properties = !matches!(
            error,
            ConnectError::Socket { .. }
                | ConnectError::Timeout { .. }
                | ConnectError::Closed { .. }
                | ConnectError::ProtocolViolation { .. }
                | ConnectError::Refused { .. }
                | ConnectError::NotReady { .. }
                | ConnectError::Lost { .. }
        );
        let names = text.contains(&self.path.address.to_string());
        assert!(about_properties || names, "{}: {text} does not name the peer", self.what);
    }

    /// Writes in capsules and after an R2T, flushes, and reads again.
    fn work(&self, mut client: Client, seed: u8) {
        let writes = RANGES.map(|range| {
            let mut buffer = Buffer::contiguous(range.1);
            buffer.copy_in(0, &pattern(seed, range));
            Request::Write { lba: range.0, buffer, fua: false }
        });
        let mut all_done = self.run_all(&mut client, writes.into()).is_some();
        all_done &= self.run_all(&mut client, vec![Request::Flush]).is_some();
        // The long range is not read: a run for each of its bytes would take too long.
        self.check(&mut client, seed, &RANGES[..RANGES.len() - 1]);
        drop(client);
        if all_done {
            self.check_volume(seed);
        }
    }

    /// Returns the completions in the order of the requests; `None` if one failed, which is allowed only where
    /// no digest detects a flipped bit.
    fn run_all(&self, client: &mut Client, requests: Vec<Request>) -> Option<Vec<Completion>> {
        let depth = if self.has_digests { requests.len() } else { 1 };
        let mut all = Vec::new();
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            all.extend(finish(client, requests.by_ref().take(depth).collect(), &self.what));
        }
        for completion in &all {
            let reported = matches!(completion.result, Err(RequestError::Status(_)));
            let is_right = completion.result.is_ok() || reported && !self.has_digests && self.flip;
            assert!(is_right, "{}: {completion:?}", self.what);
        }
        all.iter().all(|completion| completion.result.is_ok()).then_some(all)
    }

    fn check(&self, client: &mut Client, seed: u8, ranges: &[(u64, usize)]) {
        let read = |&(lba, len): &(u64, usize)| Request::Read { lba, buffer: Buffer::contiguous(len) };
        let completions = self.run_all(client, ranges.iter().map(read).collect());
        for (completion, range) in completions.into_iter().flatten().zip(ranges) {
            let data = completion.buffer.unwrap().to_vec();
            assert!(data == pattern(seed, *range), "{}: other data at {range:?} than written", self.what);
        }
    }

    /// Checks the volume without the proxy.
    fn check_volume(&self, seed: u8) {
        let uri = format!("nvme+tcp://{}/{NQN}", self.target).parse().unwrap();
        let slow = Options { connect_timeout: TEST_TIMEOUT, command_timeout: TEST_TIMEOUT, ..options(false) };
        self.check(&mut Client::connect(&uri, slow).unwrap(), seed, &RANGES);
    }
}

fn finish(client: &mut Client, requests: Vec<Request>, what: &str) -> Vec<Completion> {
    let until = Instant::now() + TEST_TIMEOUT;
    let (count, mut completions) = (requests.len(), Vec::new());
    requests.into_iter().enumerate().for_each(|(tag, request)| client.submit(0, request, tag as u64));
    while completions.len() < count {
        client.turn(&mut completions, Wait::Until(Instant::now() + Duration::from_millis(50)));
        assert!(Instant::now() < until, "{what}: timed out");
    }
    completions.sort_by_key(|completion| completion.tag);
    completions
}

/// Different bytes for each range.
fn pattern(seed: u8, (lba, len): (u64, usize)) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(lba << 8 | u64::from(seed));
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}

/// Block and length in bytes. The last range does not fit into a capsule.
const RANGES: [(u64, usize); 4] = [(0, 512), (1, 512), (2, 512), (8, 20 << 10)];

/// PDUs of the target on each connection without damage.
fn baseline(has_digests: bool) -> Vec<PathLog> {
    let (_target, address) = target();
    Trial::new(address, (ADMIN, Damage::None), has_digests).run(1)
}

/// Runs all trials, several at a time.
fn try_all(trials: &[(usize, Damage)], has_digests: bool) {
    std::thread::scope(|scope| {
        for part in trials.chunks(trials.len().div_ceil(6)) {
            scope.spawn(move || {
                let (_target, address) = target();
                for (seed, damage) in part.iter().enumerate() {
                    Trial::new(address, *damage, has_digests).run(seed as u8);
                }
            });
        }
    });
}

/// Every header bit of the PDUs of one connection.
fn header_bits(carried: &PathLog, digest_len: usize) -> Vec<Damage> {
    let bits = |header: usize| -> Range<usize> { 0..(header + digest_len) * 8 };
    let pdus = carried.pdus.iter().enumerate();
    pdus.flat_map(|(pdu, (len, header))| {
        // ICResp has no digest, and is mostly reserved.
        let bits = if *header > 64 { 0..20 * 8 } else { bits(*header) };
        bits.filter(move |bit| bit / 8 < *len).map(move |bit| Damage::Flip { pdu, bit })
    })
    .collect()
}

#[test]
fn connection_cut_at_any_byte_loses_no_data() {
    let baseline = baseline(false);
    let io = (0..baseline[IO].bytes()).map(|at| (IO, Damage::CutAt(at)));
    // Identify data is long and uniform.
    let admin = (0..baseline[ADMIN].bytes()).filter(|at| *at < 400 || at % 97 == 0);
    let trials: Vec<_> = io.chain(admin.map(|at| (ADMIN, Damage::CutAt(at)))).collect();
    assert!(trials.len() > 800, "the target sent less than expected");
    try_all(&trials, false);
}

#[test]
fn header_digest_detects_any_flipped_bit() {
    let trials: Vec<_> = header_bits(&baseline(true)[IO], 4).into_iter().map(|it| (IO, it)).collect();
    assert!(trials.len() > 1000, "the target sent less than expected");
    try_all(&trials, true);
}

/// Some of these headers are valid for the host; but no request hangs, and no read returns unwritten data.
#[test]
fn survives_any_flipped_header_bit_without_digest() {
    let trials: Vec<_> = header_bits(&baseline(false)[IO], 0).into_iter().map(|it| (IO, it)).collect();
    try_all(&trials, false);
}

#[test]
fn duplicate_late_and_lost_replies_lose_no_data() {
    for has_digests in [false, true] {
        try_all(&orders(&baseline(has_digests)), has_digests);
    }
}

fn orders(baseline: &[PathLog]) -> Vec<(usize, Damage)> {
    let damages = |pdu| {
        let twice = [false, true].map(|late| Damage::Duplicate { pdu, late });
        twice.into_iter().chain([Damage::Drop(pdu), Damage::Reorder(pdu)])
    };
    let of = |connection: usize| {
        (0..baseline[connection].pdus.len()).flat_map(damages).map(move |damage| (connection, damage))
    };
    of(ADMIN).chain(of(IO)).chain([(ADMIN, Damage::Trickle), (IO, Damage::Trickle)]).collect()
}
