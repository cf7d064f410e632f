//! What a path can do to the answers of an honest target: the host comes back, and no data is lost or mixed.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use isolane_host::{
    Buffer, Client, Completion, ConnectError, Mode, Options, Reconnect, Request, RequestError, Wait,
};
use isolane_target::{Target, TargetConfig};
use isolane_volume::{open, spec};

use crate::path::{Carried, Damage, Path};
use crate::patience::PATIENCE;

const NQN: &str = "nqn.2024-01.org.example:path";
/// The connections of one client.
const ADMIN: usize = 0;
const IO: usize = 1;

fn target() -> (Target, SocketAddr) {
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.volumes.push((1, open(&spec::parse("mem:1M").unwrap()).unwrap()));
    config.listen.push("127.0.0.1:0".parse().unwrap());
    let target = Target::start(config).unwrap();
    let address = target.local_addrs()[0];
    (target, address)
}

/// A host without much patience.
fn options(has_digests: bool) -> Options {
    Options {
        mode: Mode::Sleep,
        depth: 8,
        header_digest: has_digests,
        data_digest: has_digests,
        connect_timeout: Duration::from_millis(500),
        command_timeout: Duration::from_millis(300),
        reconnect: Reconnect { delay_min: Duration::from_millis(1), ..Reconnect::default() },
        ..Options::default()
    }
}

/// One damage, and what it did.
struct Trial {
    what: String,
    path: Path,
    target: SocketAddr,
    /// Then commands are in flight together: without, one answer can be made that of another.
    has_digests: bool,
    is_flip: bool,
}

impl Trial {
    fn new(target: SocketAddr, (connection, damage): (usize, Damage), has_digests: bool) -> Trial {
        let path = Path::start(target, connection, damage);
        let what = format!("{damage:?} on connection {connection}, digests: {has_digests}");
        Trial { what, path, target, has_digests, is_flip: matches!(damage, Damage::Flip { .. }) }
    }

    /// Connects, and works if that succeeds. What fails says with whom.
    fn run(&self, seed: u8) -> Vec<Carried> {
        let uri = format!("nvme+tcp://{}/{NQN}", self.path.address).parse().unwrap();
        match Client::connect(&uri, options(self.has_digests)) {
            Ok(client) => self.work(client, seed),
            Err(error) => self.check_error(&error),
        }
        self.path.carried()
    }

    fn check_error(&self, error: &ConnectError) {
        let text = error.to_string();
        // What the target says of itself leads to errors that speak of the volume.
        let is_of_facts = !matches!(
            error,
            ConnectError::Socket { .. }
                | ConnectError::Timeout { .. }
                | ConnectError::Closed { .. }
                | ConnectError::Misbehaved { .. }
                | ConnectError::Refused { .. }
                | ConnectError::NotReady { .. }
                | ConnectError::Lost { .. }
        );
        let names = text.contains(&self.path.address.to_string());
        assert!(is_of_facts || names, "{}: {text} does not say with whom", self.what);
    }

    /// Writes in capsules and after an R2T, flushes, and reads again.
    fn work(&self, mut client: Client, seed: u8) {
        let writes = PLACES.map(|place| {
            let mut buffer = Buffer::contiguous(place.1);
            buffer.place(0, &pattern(seed, place));
            Request::Write { lba: place.0, buffer, fua: false }
        });
        let mut are_all_done = self.run_all(&mut client, writes.into()).is_some();
        are_all_done &= self.run_all(&mut client, vec![Request::Flush]).is_some();
        // What is long is not read: every byte of it would be a place to cut at.
        self.check(&mut client, seed, &PLACES[..PLACES.len() - 1]);
        drop(client);
        if are_all_done {
            self.check_volume(seed);
        }
    }

    /// The completions in the order of the requests, unless one says that it failed, as it may if nothing
    /// shows a flipped bit.
    fn run_all(&self, client: &mut Client, requests: Vec<Request>) -> Option<Vec<Completion>> {
        let depth = if self.has_digests { requests.len() } else { 1 };
        let mut all = Vec::new();
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            all.extend(finish(client, requests.by_ref().take(depth).collect(), &self.what));
        }
        for completion in &all {
            let is_told = matches!(completion.result, Err(RequestError::Status(_)));
            let is_right = completion.result.is_ok() || is_told && !self.has_digests && self.is_flip;
            assert!(is_right, "{}: {completion:?}", self.what);
        }
        all.iter().all(|completion| completion.result.is_ok()).then_some(all)
    }

    fn check(&self, client: &mut Client, seed: u8, places: &[(u64, usize)]) {
        let read = |&(lba, len): &(u64, usize)| Request::Read { lba, buffer: Buffer::contiguous(len) };
        let completions = self.run_all(client, places.iter().map(read).collect());
        for (completion, place) in completions.into_iter().flatten().zip(places) {
            let data = completion.buffer.unwrap().to_vec();
            assert!(data == pattern(seed, *place), "{}: other data at {place:?} than written", self.what);
        }
    }

    /// What is on the volume, seen without the path.
    fn check_volume(&self, seed: u8) {
        let uri = format!("nvme+tcp://{}/{NQN}", self.target).parse().unwrap();
        let patient = Options { connect_timeout: PATIENCE, command_timeout: PATIENCE, ..options(false) };
        self.check(&mut Client::connect(&uri, patient).unwrap(), seed, &PLACES);
    }
}

fn finish(client: &mut Client, requests: Vec<Request>, what: &str) -> Vec<Completion> {
    let until = Instant::now() + PATIENCE;
    let (count, mut completions) = (requests.len(), Vec::new());
    requests.into_iter().enumerate().for_each(|(tag, request)| client.submit(0, request, tag as u64));
    while completions.len() < count {
        client.turn(&mut completions, Wait::Until(Instant::now() + Duration::from_millis(50)));
        assert!(Instant::now() < until, "{what}: it hangs");
    }
    completions.sort_by_key(|completion| completion.tag);
    completions
}

/// Other bytes for each place.
fn pattern(seed: u8, (lba, len): (u64, usize)) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(lba << 8 | u64::from(seed));
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}

/// Block and length in bytes. The last does not fit into a capsule.
const PLACES: [(u64, usize); 4] = [(0, 512), (1, 512), (2, 512), (8, 20 << 10)];

/// What the target says on each connection when nothing is damaged.
fn honest(has_digests: bool) -> Vec<Carried> {
    let (_target, address) = target();
    Trial::new(address, (ADMIN, Damage::None), has_digests).run(1)
}

/// Tries all of them, several at once.
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

/// Headers whole, data here and there: bits of one connection's PDUs.
fn header_bits(carried: &Carried, digest_len: usize) -> Vec<Damage> {
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
fn a_connection_that_is_cut_at_any_byte_loses_no_data() {
    let honest = honest(false);
    let io = (0..honest[IO].bytes()).map(|at| (IO, Damage::CutAt(at)));
    // Identify pages are long, and one place in them is like another.
    let admin = (0..honest[ADMIN].bytes()).filter(|at| *at < 400 || at % 97 == 0);
    let trials: Vec<_> = io.chain(admin.map(|at| (ADMIN, Damage::CutAt(at)))).collect();
    assert!(trials.len() > 800, "the target said less than expected");
    try_all(&trials, false);
}

#[test]
fn a_flipped_bit_in_any_header_is_found_by_its_digest_and_loses_no_data() {
    let trials: Vec<_> = header_bits(&honest(true)[IO], 4).into_iter().map(|it| (IO, it)).collect();
    assert!(trials.len() > 1000, "the target said less than expected");
    try_all(&trials, true);
}

/// Some of them are right for all that the host can know; but none hangs, and no data comes that was not
/// written.
#[test]
fn a_flipped_bit_in_any_header_without_a_digest_is_lived_through() {
    let trials: Vec<_> = header_bits(&honest(false)[IO], 0).into_iter().map(|it| (IO, it)).collect();
    try_all(&trials, false);
}

#[test]
fn answers_that_come_twice_or_late_or_not_at_all_lose_no_data() {
    for has_digests in [false, true] {
        try_all(&orders(&honest(has_digests)), has_digests);
    }
}

fn orders(honest: &[Carried]) -> Vec<(usize, Damage)> {
    let damages = |pdu| {
        let twice = [false, true].map(|is_late| Damage::Twice { pdu, is_late });
        twice.into_iter().chain([Damage::Lost(pdu), Damage::Behind(pdu)])
    };
    let of = |connection: usize| {
        (0..honest[connection].pdus.len()).flat_map(damages).map(move |damage| (connection, damage))
    };
    of(ADMIN).chain(of(IO)).chain([(ADMIN, Damage::Trickle), (IO, Damage::Trickle)]).collect()
}
