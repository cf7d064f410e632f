//! Targets that send wrong replies, wrong properties, or wrong data.

use std::time::{Duration, Instant};

use isolane_host::{
    BlockRange, Buffer, Client, Completion, ConnectError, Info, Options, Reconnect, Request, RequestError,
    Wait, discover, inspect,
};
use isolane_wire::identify::{Flbas, LbaFormat};
use isolane_wire::log::{DiscoveryEntry, DiscoveryHeader, SubsystemType, Transport};
use isolane_wire::opcode::{AdminOpcode, FabricsType, IoOpcode};
use isolane_wire::pdu::{CapsuleCmd, Digests, HeaderFault, IcReq, IcResp, TermReq};
use isolane_wire::registers::{Cap, Csts};
use isolane_wire::{Ascii, Direction, Nqn, Status, SubmissionEntry};

use crate::rogue_target::*;
use crate::timeout::{TEST_TIMEOUT, with_timeout};

/// Number of commands of one `inspect`, including ICReqs.
const STEPS: usize = 16;

/// Wrong replies to one PDU.
fn bad_replies(observed: &Observed) -> Vec<(&'static str, Reaction)> {
    let cid = observed.entry.map_or(0, |entry| entry.cid);
    let capsule = CapsuleCmd { entry: SubmissionEntry::new(0, 0), data_len: 0 }.encode(&PLAIN).to_vec();
    let term =
        TermReq::new(Direction::ControllerToHost, HeaderFault::sequence(), &[0; 128]).encode().to_vec();
    let ic_resp = IcResp { cpda: 0, digests: Digests(0), maxh2cdata: 4096 }.encode().to_vec();
    let mut long = response(cid, Status::SUCCESS);
    long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    vec![
        ("garbage", Reaction::Replace(vec![0xff; 4096])),
        ("zeroes", Reaction::Replace(vec![0; 4096])),
        ("a PDU of a host", Reaction::Replace(capsule)),
        ("ICReq", Reaction::Replace(IcReq::default().encode().to_vec())),
        ("ICResp", Reaction::Replace(ic_resp.clone())),
        ("ICResp before the reply", Reaction::Before(ic_resp)),
        ("a termination request", Reaction::Replace(term)),
        ("another CID", Reaction::Replace(response(cid ^ 0x4001, Status::SUCCESS))),
        ("success without more", Reaction::Replace(response(cid, Status::SUCCESS))),
        ("failure", Reaction::Replace(response(cid, Status::INTERNAL_ERROR))),
        ("an unknown status", Reaction::Replace(response(cid, Status(0x7ffe)))),
        ("two responses", Reaction::After(response(cid, Status::SUCCESS))),
        ("a response of 4 GiB", Reaction::Replace(long)),
        ("data beyond the end", Reaction::Replace(c2h_data(cid, 1 << 20, 512, true, true))),
        ("data whose end wraps", Reaction::Replace(c2h_data(cid, u32::MAX - 3, 8, true, false))),
        ("too much data", Reaction::Replace(c2h_data(cid, 0, 1 << 20, true, true))),
        ("early success", Reaction::Replace(c2h_data(cid, 0, 4, true, true))),
        (
            "a little data and success",
            Reaction::Replace([c2h_data(cid, 0, 4, true, false), response(cid, Status::SUCCESS)].concat()),
        ),
        ("data after the end", Reaction::After(c2h_data(cid, 0, 4096, true, false))),
        ("an R2T", Reaction::Replace(r2t(cid, 0, 0, 4096))),
        ("an R2T of 4 GiB", Reaction::Replace(r2t(cid, 0, u32::MAX, u32::MAX))),
        ("an R2T and then the truth", Reaction::Before(r2t(cid, 0xffff, 0, 4))),
        ("half a response", Reaction::Cut(13)),
        ("all but a byte", Reaction::Cut(4096)),
        ("silence", Reaction::Silence),
        ("the end", Reaction::Close),
    ]
}

#[test]
fn bad_replies_during_setup_never_hang() {
    let probe = RogueTarget::start(TargetFacts::default(), |_| Reaction::Correct);
    inspect(&probe.uri(), &short_timeouts()).unwrap();
    let count = bad_replies(&Observed { number: 0, entry: None, io: false }).len();
    let attacks: Vec<(usize, usize)> =
        (0..STEPS).flat_map(|step| (0..count).map(move |reply| (step, reply))).collect();
    let options = Options { connect_timeout: Duration::from_millis(150), ..short_timeouts() };
    std::thread::scope(|scope| {
        for attacks in attacks.chunks(attacks.len() / 16 + 1) {
            let options = &options;
            scope.spawn(move || {
                for &(step, reply) in attacks {
                    let rogue = RogueTarget::start(TargetFacts::default(), move |observed| {
                        if observed.number == step {
                            bad_replies(observed).swap_remove(reply).1
                        } else {
                            Reaction::Correct
                        }
                    });
                    let (uri, options) = (rogue.uri(), options.clone());
                    // Some replies come too late to matter, and a failed feature does not end the setup.
                    let _ =
                        with_timeout(&format!("step {step}, reply {reply}"), move || inspect(&uri, &options));
                }
            });
        }
    });
}

#[test]
fn bytes_after_the_last_setup_reply_are_kept() {
    let is_connect_of_io = |entry: &SubmissionEntry| {
        entry.opcode == AdminOpcode::Fabrics.code()
            && FabricsType::decode(entry.fctype()) == Some(FabricsType::Connect)
            && entry.cdw10 >> 16 != 0
    };
    let excess = |cid| {
        let response = response(cid, Status::SUCCESS);
        vec![response.clone(), response[..20].to_vec(), c2h_data(cid, 0, 4096, true, true)]
    };
    for at in 0..excess(0).len() {
        let rogue = RogueTarget::start(TargetFacts::default(), move |observed| match observed.entry {
            Some(entry) if is_connect_of_io(&entry) => Reaction::After(excess(entry.cid).swap_remove(at)),
            _ => Reaction::Correct,
        });
        let error = match Client::connect(&rogue.uri(), short_timeouts()) {
            Err(error) => error.to_string(),
            // Half a PDU: the next bytes complete it to a response without a command.
            Ok(mut client) => {
                client.submit(0, Request::Read { lba: 0, buffer: Buffer::contiguous(4096) }, 0);
                finish(&mut client, 1, "half a response").remove(0).result.unwrap_err().to_string()
            }
        };
        assert!(error.contains(&rogue.address.to_string()), "excess {at}: {error}");
    }
}

/// Connects to a target with these properties and runs every kind of request.
fn exercise(what: &str, facts: TargetFacts, options: Options) -> Result<Info, ConnectError> {
    let rogue = RogueTarget::start(facts, |_| Reaction::Correct);
    let mut client = Client::connect(&rogue.uri(), options)?;
    let info = client.info().clone();
    let (blocks, block_bytes) = (client.namespace().blocks, client.namespace().block_bytes as usize);
    let _ = client.namespace().len_bytes();
    let block = || Buffer::contiguous(block_bytes);
    let last = BlockRange { lba: blocks.saturating_sub(1), blocks: 1 };
    let all = BlockRange { lba: 0, blocks };
    let requests = [
        Request::Read { lba: 0, buffer: block() },
        Request::Write { lba: last.lba, buffer: block(), fua: true },
        Request::Read { lba: blocks, buffer: block() },
        Request::Read { lba: u64::MAX, buffer: block() },
        Request::Write { lba: 0, buffer: Buffer::contiguous(block_bytes * 17), fua: false },
        Request::WriteZeroes { range: last, fua: false, deallocate: true },
        Request::Deallocate { ranges: vec![last; 256] },
        Request::Deallocate { ranges: vec![all] },
        Request::Flush,
    ];
    let count = requests.len();
    requests.into_iter().enumerate().for_each(|(tag, request)| client.submit(0, request, tag as u64));
    let completions = finish(&mut client, count, what);
    assert_eq!(completions.len(), count, "{what}");
    drop(client);
    Ok(info)
}

fn finish(client: &mut Client, count: usize, what: &str) -> Vec<Completion> {
    let deadline = Instant::now() + TEST_TIMEOUT;
    let mut completions = Vec::new();
    while completions.len() < count {
        client.turn(&mut completions, Wait::Until(Instant::now() + Duration::from_millis(50)));
        assert!(Instant::now() < deadline, "{what}: {} of {count} requests ended", completions.len());
    }
    completions
}

fn facts(change: impl FnOnce(&mut TargetFacts)) -> TargetFacts {
    let mut facts = TargetFacts::default();
    change(&mut facts);
    facts
}

#[test]
fn rejects_invalid_properties_and_accepts_odd_ones() {
    let ic_resp = |change: fn(&mut IcResp)| {
        let mut ic_resp = IcResp { cpda: 0, digests: Digests(0), maxh2cdata: 4096 };
        change(&mut ic_resp);
        facts(|facts| facts.ic_resp = ic_resp.encode().to_vec())
    };
    let patched = |at: usize, byte: u8| facts(|facts| facts.ic_resp[at] = byte);
    let lbads = |lbads| facts(|facts| facts.namespace.lbaf[0] = LbaFormat(0).with_lbads(lbads));
    let rejected = [
        ("MAXH2CDATA 0", ic_resp(|it| it.maxh2cdata = 0)),
        ("MAXH2CDATA 4092", ic_resp(|it| it.maxh2cdata = 4092)),
        ("MAXH2CDATA 4098", ic_resp(|it| it.maxh2cdata = 4098)),
        ("digests without a request", ic_resp(|it| it.digests = Digests(3))),
        ("CPDA 32", ic_resp(|it| it.cpda = 32)),
        ("PFV 1", patched(8, 1)),
        ("HLEN 127", patched(2, 127)),
        ("CSTS.CFS", facts(|it| it.csts = Some(Csts(0).with_cfs(true)))),
        ("never ready", facts(|it| it.csts = Some(Csts(0)))),
        (
            "never ready, with the longest CAP.TO",
            facts(|it| (it.csts, it.cap) = (Some(Csts(0)), it.cap.with_to(255))),
        ),
        ("no NVM command set", facts(|it| it.cap = it.cap.with_css(0x80))),
        ("MQES 0", facts(|it| it.cap = it.cap.with_mqes(0))),
        ("fewer queues", facts(|it| it.queues = 0)),
        ("no namespace", facts(|it| it.nsids = Vec::new())),
        ("an empty namespace", facts(|it| it.namespace.ncap = 0)),
        ("blocks of 1 byte", lbads(0)),
        ("blocks of 256 bytes", lbads(8)),
        ("blocks of 128 KiB", lbads(17)),
        ("blocks of 2 GiB", lbads(31)),
        ("blocks of 2^32 bytes", lbads(32)),
        ("blocks of 2^255 bytes", lbads(255)),
        ("an LBA format that does not exist", facts(|it| it.namespace.flbas = Flbas(0xff))),
        ("2^64 - 1 blocks", facts(|it| it.namespace.nsze = u64::MAX)),
        ("8 EiB", facts(|it| it.namespace.nsze = 1 << 54)),
        ("blocks with metadata", facts(|it| it.namespace.lbaf[0] = LbaFormat(0).with_lbads(9).with_ms(8))),
    ];
    for (what, facts) in rejected {
        let options = Options { lanes: 2, ..short_timeouts() };
        let result = exercise(what, facts, options);
        assert!(result.is_err(), "{what}: {result:?}");
    }
    let accepted = [
        ("MAXH2CDATA 2^32 - 4", ic_resp(|it| it.maxh2cdata = u32::MAX - 3)),
        ("no block at all", facts(|it| it.namespace.nsze = 0)),
        ("8 EiB but for a block", facts(|it| it.namespace.nsze = (1 << 54) - 1)),
        ("MDTS 1", facts(|it| it.controller.mdts = 1)),
        ("MDTS 0", facts(|it| it.controller.mdts = 0)),
        ("MDTS 255", facts(|it| it.controller.mdts = 255)),
        ("MDTS 255 and MPSMIN 15", facts(|it| (it.controller.mdts, it.cap) = (255, it.cap.with_mpsmin(15)))),
        (
            "MDTS 1 with blocks of 64 KiB",
            facts(|it| {
                it.controller.mdts = 1;
                it.namespace.lbaf[0] = LbaFormat(0).with_lbads(16);
            }),
        ),
        ("IOCCSZ 0", facts(|it| it.controller.ioccsz = 0)),
        ("IOCCSZ 2^32 - 1", facts(|it| it.controller.ioccsz = u32::MAX)),
        ("IOCCSZ 5", facts(|it| it.controller.ioccsz = 5)),
        ("ICDOFF", facts(|it| (it.controller.icdoff, it.controller.ioccsz) = (9, 1028))),
        ("MQES FFFFh", facts(|it| (it.cap, it.controller.maxcmd) = (it.cap.with_mqes(0xffff), 0))),
        ("MAXCMD 1", facts(|it| it.controller.maxcmd = 1)),
        ("AERL 255", facts(|it| it.controller.aerl = 255)),
        ("65,536 queues", facts(|it| it.queues = u32::MAX)),
        ("a list that does not rise", facts(|it| it.nsids = vec![1, 1, 1])),
        (
            "all bits of Identify Controller",
            facts(|it| {
                let mut bytes = [0xff; 4096];
                bytes[514..516].fill(0xff);
                it.controller = isolane_wire::identify::Controller::decode(&bytes);
            }),
        ),
    ];
    for (what, facts) in accepted {
        let info = exercise(what, facts, short_timeouts()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let _ = format!("{info:?}");
    }
}

#[test]
fn rejects_or_serves_any_depth() {
    let facts =
        facts(|it| (it.cap, it.controller.maxcmd) = (Cap(0).with_css(1).with_to(1).with_mqes(0xffff), 0));
    for depth in [0, 1, 4095, 4096, 65_534, 65_535] {
        let _ = exercise("depth", facts.clone(), Options { depth, ..short_timeouts() });
    }
}

#[test]
fn discovery_of_invalid_logs_ends() {
    let entry = |change: fn(&mut DiscoveryEntry)| {
        let mut entry = DiscoveryEntry {
            trtype: Transport::Tcp.code(),
            subtype: SubsystemType::Nvm.code(),
            trsvcid: Ascii::lossy("4420"),
            traddr: Ascii::lossy("127.0.0.1"),
            subnqn: NQN.parse::<Nqn>().unwrap().into(),
            ..DiscoveryEntry::default()
        };
        change(&mut entry);
        entry
    };
    let log = |numrec, recfmt, log_entry| {
        facts(|it| (it.log_header, it.log_entry) = (DiscoveryHeader { genctr: 1, numrec, recfmt }, log_entry))
    };
    let logs = [
        log(u64::MAX, 0, entry(|_| ())),
        log(0, 0, entry(|_| ())),
        log(3, 9, entry(|_| ())),
        log(3, 0, DiscoveryEntry::decode(&[0xff; 1024])),
        log(3, 0, DiscoveryEntry::decode(&[0; 1024])),
        log(1, 0, entry(|it| it.trsvcid = Ascii::lossy("70000"))),
        log(1, 0, entry(|it| it.traddr = Ascii::lossy("no.such.address"))),
        log(1, 0, entry(|it| it.traddr = Ascii::lossy("0.0.0.0"))),
        log(1, 0, entry(|it| it.traddr = Ascii::lossy(&"9".repeat(256)))),
    ];
    for (at, facts) in logs.into_iter().enumerate() {
        let rogue = RogueTarget::start(facts, |_| Reaction::Correct);
        let uri = format!("nvme+tcp://{}", rogue.address).parse().unwrap();
        let options = Options { connect_timeout: Duration::from_secs(2), ..short_timeouts() };
        let listed = with_timeout(&format!("log {at}"), move || {
            let listed = discover(&uri, &options).map_or(0, |entries| entries.len());
            let _ = inspect(&uri, &options);
            listed
        });
        assert!(listed <= 1024, "log {at}");
    }
}

#[test]
fn bad_io_replies_fail_with_reason() {
    let count = bad_replies(&Observed { number: 0, entry: None, io: true }).len();
    for reply in 0..count {
        for opcode in [IoOpcode::Read, IoOpcode::Write, IoOpcode::Flush] {
            let rogue = RogueTarget::start(TargetFacts::default(), move |observed| match observed.entry {
                Some(entry) if observed.io && entry.opcode == opcode.code() => {
                    bad_replies(observed).swap_remove(reply).1
                }
                _ => Reaction::Correct,
            });
            let mut client = Client::connect(&rogue.uri(), short_timeouts()).unwrap();
            let what = format!("reply {reply} to {opcode:?}");
            for tag in 0..4 {
                client.submit(0, Request::Read { lba: tag, buffer: Buffer::contiguous(4096) }, tag);
                client.submit(
                    0,
                    Request::Write { lba: tag, buffer: Buffer::contiguous(4096), fua: false },
                    tag,
                );
                client.submit(0, Request::Flush, tag);
            }
            for completion in finish(&mut client, 12, &what) {
                let is_right = match &completion.result {
                    Ok(()) | Err(RequestError::Status(_)) => true,
                    Err(RequestError::Lost(_) | RequestError::FateUnknown | RequestError::DataDigest) => true,
                    Err(_) => false,
                };
                assert!(is_right, "{what}: {completion:?}");
            }
        }
    }
}

#[test]
fn endless_small_pdus_end_with_a_timeout() {
    type MakePdu = fn(u16) -> Vec<u8>;
    let cases: [(&str, MakePdu); 5] = [
        ("data of no bytes", |cid| c2h_data(cid, 0, 0, false, false)),
        ("data of four bytes", |cid| c2h_data(cid, 0, 4, false, false)),
        ("data of no bytes that ends", |cid| c2h_data(cid, 0, 0, true, false)),
        ("R2Ts of no bytes", |cid| r2t(cid, 0, 0, 0)),
        ("R2Ts of four bytes", |cid| r2t(cid, 0, 0, 4)),
    ];
    for (what, make) in cases {
        for opcode in [IoOpcode::Read, IoOpcode::Write] {
            let rogue = RogueTarget::start(TargetFacts::default(), move |observed| match observed.entry {
                Some(entry) if observed.io && entry.opcode == opcode.code() => {
                    Reaction::Repeat(make(entry.cid).repeat(1000))
                }
                _ => Reaction::Correct,
            });
            let mut client = Client::connect(&rogue.uri(), short_timeouts()).unwrap();
            let buffer = Buffer::contiguous(64 << 10);
            client.submit(
                0,
                match opcode {
                    IoOpcode::Read => Request::Read { lba: 0, buffer },
                    _ => Request::Write { lba: 0, buffer, fua: false },
                },
                0,
            );
            let completion = finish(&mut client, 1, what).remove(0);
            let Err(error) = completion.result else { panic!("{what}: {opcode:?} succeeded") };
            let reported = matches!(error, RequestError::FateUnknown)
                || error.to_string().contains(&rogue.address.to_string());
            assert!(reported, "{what}: {error}");
        }
    }
}

#[test]
fn backs_off_when_every_association_is_dropped() {
    let rogue = RogueTarget::start(TargetFacts::default(), |observed| match observed.entry {
        Some(entry) if observed.io && entry.opcode == IoOpcode::Read.code() => Reaction::Close,
        _ => Reaction::Correct,
    });
    let reconnect = Reconnect { timeout: Some(Duration::from_secs(60)), ..Reconnect::default() };
    let mut client = Client::connect(&rogue.uri(), Options { reconnect, ..short_timeouts() }).unwrap();
    client.submit(0, Request::Read { lba: 0, buffer: Buffer::contiguous(4096) }, 0);
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut completions = Vec::new();
    while Instant::now() < deadline {
        client.turn(&mut completions, Wait::Until(deadline));
    }
    assert!(completions.is_empty(), "{completions:?}");
    assert!(rogue.connections() < 60, "{} connections in 2 s", rogue.connections());
}

#[test]
fn endless_events_do_not_stop_io() {
    let rogue = RogueTarget::start(TargetFacts::default(), |observed| match observed.entry {
        Some(entry) if entry.opcode == AdminOpcode::AsyncEventRequest.code() => {
            Reaction::Replace(response(entry.cid, Status::SUCCESS))
        }
        _ => Reaction::Correct,
    });
    let mut client = Client::connect(&rogue.uri(), short_timeouts()).unwrap();
    for tag in 0..200 {
        client.submit(0, Request::Read { lba: tag, buffer: Buffer::contiguous(512) }, tag);
    }
    let completions = finish(&mut client, 200, "events");
    assert!(completions.iter().all(|completion| completion.result.is_ok()));
}

#[test]
fn reports_the_violation_of_the_target() {
    let rogue = RogueTarget::start(TargetFacts::default(), |observed| match observed.entry {
        Some(entry) if observed.io && entry.opcode == IoOpcode::Read.code() => {
            Reaction::Replace(c2h_data(entry.cid, 4096, 4, true, true))
        }
        _ => Reaction::Correct,
    });
    let mut client = Client::connect(&rogue.uri(), short_timeouts()).unwrap();
    client.submit(0, Request::Read { lba: 0, buffer: Buffer::contiguous(4096) }, 0);
    let completion = finish(&mut client, 1, "range").remove(0);
    let Err(RequestError::Lost(reason)) = completion.result else { panic!("{completion:?}") };
    assert!(reason.to_string().contains("outside the range"), "{reason}");
    assert_eq!(completion.buffer.unwrap().to_vec(), vec![0; 4096], "no byte was stored");
}
