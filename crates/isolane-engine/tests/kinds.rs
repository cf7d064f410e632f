//! A kind of objects of another crate: a merger with three descriptors, two of which are sources.
//!
//! It copies datagrams from two inputs to an output, each behind the number of its input.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use isolane_attach::{Allocation, AttachError, Session, SessionOptions};
use isolane_engine::object::{
    BuiltObject, CloseReason, ObjectBuilder, ObjectContext, ObjectKind, PollStatus, PolledObject,
    ProtocolViolation, Ready, RecoveryState, Rejection, Turn,
};
use isolane_engine::{Engine, EngineConfig, SessionLimits, listen};
use isolane_engine_api::{
    CloseMode, MAX_DESCRIPTORS, Object, OpenObject, Reply, Request, decode, encode, kind,
};
use isolane_shm::{ShmRef, WakeFlag};

const MERGER: u16 = kind::FIRST_EXTERNAL + 1;
const INPUTS: usize = 2;

/// Parameters of a merger: the offset of its wakeup flag, and a mask for all bytes.
fn object(need_wakeup: u64, mask: u16) -> Object {
    Object { kind: MERGER, params: encode(&(need_wakeup, mask)) }
}

struct MergerKind;

impl ObjectKind for MergerKind {
    fn name(&self) -> &'static str {
        "mergers"
    }

    fn id(&self) -> u16 {
        MERGER
    }

    fn max_objects(&self, _: &SessionLimits) -> u32 {
        2
    }

    fn descriptors(&self) -> RangeInclusive<usize> {
        INPUTS + 1..=INPUTS + 1
    }

    fn open(&self, params: &[u8], mut descriptors: Vec<OwnedFd>) -> Result<ObjectBuilder, Rejection> {
        let violation = |error: &dyn ToString| Rejection::Violation(error.to_string());
        let (need_wakeup, mask) = decode::<(u64, u16)>(params).map_err(|error| violation(&error))?;
        let mask = mask as u8;
        let output = descriptors.pop().ok_or_else(|| violation(&"a merger without output"))?.into();
        let inputs: [OwnedFd; INPUTS] =
            descriptors.try_into().map_err(|_| violation(&"a merger without inputs"))?;
        let inputs = inputs.map(UnixDatagram::from);
        let build = Box::new(move |context: ObjectContext| {
            let need_wakeup = context.memory.flag(need_wakeup).map_err(|error| error.to_string())?;
            let readable = [true; INPUTS];
            let merger = Merger { inputs, output, need_wakeup, mask, readable, closing: false };
            Ok(BuiltObject { object: Box::new(merger), answer: Some(vec![mask]) })
        });
        Ok(ObjectBuilder { core: None, build, recovery: RecoveryState::default() })
    }
}

struct Merger {
    inputs: [UnixDatagram; INPUTS],
    output: UnixDatagram,
    need_wakeup: ShmRef<WakeFlag>,
    mask: u8,
    readable: [bool; INPUTS],
    closing: bool,
}

impl PolledObject for Merger {
    fn poll(&mut self, _: &Turn) -> Result<PollStatus, ProtocolViolation> {
        if self.closing {
            return Ok(PollStatus::Closed(Ok(())));
        }
        let mut status = PollStatus::Idle;
        let inputs = self.inputs.iter().zip(&mut self.readable).enumerate();
        for (number, (input, readable)) in inputs.filter(|(_, (_, readable))| **readable) {
            let mut bytes = [0; 64];
            let Ok(count) = input.recv(&mut bytes[1..]) else {
                *readable = false;
                continue;
            };
            bytes[0] = number as u8;
            bytes[1..=count].iter_mut().for_each(|byte| *byte ^= self.mask);
            self.output.send(&bytes[..=count]).map_err(|error| ProtocolViolation(error.to_string()))?;
            status = PollStatus::Busy;
        }
        Ok(status)
    }

    fn on_ready(&mut self, source: usize, ready: Ready) {
        self.readable[source] |= ready.readable;
    }

    fn on_close(&mut self, _: CloseReason) {
        self.closing = true;
    }

    fn need_wakeup(&self) -> &WakeFlag {
        &self.need_wakeup
    }

    fn source(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.inputs.get(index).map(AsFd::as_fd)
    }
}

struct Fixture {
    _engine: Engine,
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let mut config = EngineConfig::new(vec![isolane_reactor::cpu::allowed().unwrap()[0]]);
        config.mode = isolane_reactor::Mode::Sleep;
        let listener = listen(&dir.path().join("sock")).unwrap();
        let engine = Engine::with_kinds(config, listener, vec![Box::new(MergerKind)]).unwrap();
        Fixture { _engine: engine, dir }
    }

    fn attach(&self) -> Session {
        let path = self.dir.path().join("sock");
        let options =
            SessionOptions { path, memory_bytes: 4 << 20, spawn_engine: false, ..Default::default() };
        Session::open(&options).unwrap()
    }
}

/// Application's side of a merger.
struct Client {
    session: Session,
    id: u32,
    inputs: [UnixDatagram; INPUTS],
    output: UnixDatagram,
    _flag: Allocation,
}

fn pair() -> (UnixDatagram, UnixDatagram) {
    let (ours, engine) = UnixDatagram::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    engine.set_nonblocking(true).unwrap();
    (ours, engine)
}

fn request_open(
    session: &Session,
    object: Object,
    descriptors: &[BorrowedFd<'_>],
) -> Result<Reply, AttachError> {
    let open = OpenObject { id: session.next_id(), core: None, queue: None, object };
    session.request("a merger", &Request::OpenObject(open), descriptors)
}

fn open(session: &Session, mask: u8) -> Result<Client, AttachError> {
    let flag = session.alloc(WakeFlag::BYTES)?;
    flag.clear(WakeFlag::BYTES)?;
    let (inputs, output) = ([pair(), pair()], pair());
    let descriptors = [inputs[0].1.as_fd(), inputs[1].1.as_fd(), output.1.as_fd()];
    let id = session.next_id();
    let open = OpenObject { id, core: None, queue: None, object: object(flag.offset(), mask.into()) };
    let reply = session.request("a merger", &Request::OpenObject(open), &descriptors)?;
    assert_eq!(reply, Reply::Opened { core: 0, answer: vec![mask] });
    let inputs = inputs.map(|(ours, _)| ours);
    Ok(Client { session: session.clone(), id, inputs, output: output.0, _flag: flag })
}

impl Client {
    fn next(&self) -> Vec<u8> {
        let mut bytes = [0; 64];
        let count = self.output.recv(&mut bytes).unwrap();
        bytes[..count].to_vec()
    }
}

/// The core sleeps between the datagrams, so each source must wake it.
#[test]
fn serves_external_kind_with_two_sources() {
    let fixture = Fixture::new();
    let session = fixture.attach();
    let mergers = [open(&session, 0).unwrap(), open(&session, 0xff).unwrap()];
    for round in 0..20u8 {
        for (merger, mask) in mergers.iter().zip([0, 0xff]) {
            for number in [round % 2, (round + 1) % 2] {
                merger.inputs[usize::from(number)].send(&[round, 7]).unwrap();
                assert_eq!(merger.next(), [number, round ^ mask, 7 ^ mask]);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    let error = open(&session, 1).err().expect("a third merger is beyond the limit of the kind");
    assert!(error.to_string().contains("2 mergers"), "{error}");
    let [first, second] = mergers;
    let close = Request::CloseObject { id: first.id, how: CloseMode::Release };
    assert_eq!(first.session.request("a release", &close, &[]).unwrap(), Reply::Ack);
    assert!(first.inputs[0].send(&[1]).is_err(), "the engine still holds a descriptor");
    second.inputs[1].send(&[9]).unwrap();
    assert_eq!(second.next(), [1, 0xf6]);
    open(&session, 1).unwrap();
}

#[test]
fn invalid_requests_end_only_their_session() {
    let fixture = Fixture::new();
    let bystander = fixture.attach();
    let merger = open(&bystander, 0).unwrap();
    let valid = object(0, 0);
    let truncated = Object { params: valid.params[1..].to_vec(), ..valid.clone() };
    let unknown = Object { kind: MERGER + 1, ..valid.clone() };
    let stream = Object { kind: kind::STREAM, ..valid.clone() };
    let volume = Object { kind: kind::VOLUME, ..valid.clone() };
    let cases = [
        (valid.clone(), 2),
        (valid, MAX_DESCRIPTORS),
        (truncated, 3),
        (unknown, 3),
        (stream, 1),
        (volume, 0),
    ];
    for (object, count) in cases {
        let session = fixture.attach();
        let descriptors: Vec<OwnedFd> = (0..count).map(|_| pair().1.into()).collect();
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let error = request_open(&session, object.clone(), &descriptors).unwrap_err();
        assert!(matches!(error, AttachError::Refused { .. } | AttachError::SessionClosed(_)), "{error}");
        while session.check().is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    merger.inputs[0].send(&[5]).unwrap();
    assert_eq!(merger.next(), [0, 5]);
}
