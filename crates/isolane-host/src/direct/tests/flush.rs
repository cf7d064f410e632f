//! The first flush after an association was lost that had acknowledged writes: whether it may succeed.

use isolane_wire::log::{GenerationLog, RestartLoss, SIGNATURE};

use super::*;
use crate::error::{LossCause, RequestError};
use crate::mock::Fault;
use crate::options::FlushAfterLoss;

/// The page of an Isolane target.
fn page(generation: u8, loses: RestartLoss) -> GenerationLog {
    GenerationLog {
        signature: SIGNATURE,
        version: GenerationLog::VERSION,
        loses: loses.code(),
        nsid: 1,
        generation: [generation; 16],
    }
}

fn isolane(loses: RestartLoss) -> Script {
    Script { isolane: true, generation: Some(page(1, loses)), ..Script::default() }
}

/// Loses the association; the next one is another generation.
fn restart(target: &Target, client: &mut Client, generation: u8) {
    if let Some(page) = &mut target.shared.script.lock().generation {
        page.generation = [generation; 16];
    }
    lose(target, client);
}

/// Loses the association and waits for the next.
fn lose(target: &Target, client: &mut Client) {
    let before = client.info().controller.cntlid;
    target.drop_connections();
    turn_until(client, &mut Vec::new(), |client, _| {
        client.is_connected() && client.info().controller.cntlid != before
    });
}

fn durable(lba: u64, bytes: usize) -> Request {
    Request::Write { lba, buffer: buffer(bytes, 1), fua: true }
}

/// Result of the next flush.
fn flush(client: &mut Client) -> Option<(u64, LossCause)> {
    match run(client, Request::Flush).result {
        Ok(()) => None,
        Err(RequestError::WritesLost { writes, cause }) => Some((writes, cause)),
        Err(error) => panic!("{error}"),
    }
}

fn start(script: Script, options: Options) -> (Target, Client) {
    let target = Target::start(script);
    let client = connect(&target, options);
    (target, client)
}

#[test]
fn fails_first_flush_after_lossy_restart() {
    let (target, mut client) = start(isolane(RestartLoss::Cache), options());
    for lba in 0..3 {
        assert!(run(&mut client, write(lba, 512, 1)).result.is_ok());
    }
    restart(&target, &mut client, 2);
    assert_eq!(flush(&mut client), Some((3, LossCause::Cache)));
    assert_eq!(flush(&mut client), None);
    assert!(run(&mut client, write(0, 512, 1)).result.is_ok());
    restart(&target, &mut client, 3);
    assert_eq!(flush(&mut client), Some((1, LossCause::Cache)));
}

#[test]
fn keeps_flushing_after_a_network_break() {
    let (target, mut client) = start(isolane(RestartLoss::Cache), options());
    assert!(run(&mut client, write(0, 512, 1)).result.is_ok());
    for _ in 0..3 {
        lose(&target, &mut client);
        assert_eq!(flush(&mut client), None);
    }
}

#[test]
fn keeps_flushing_where_nothing_was_at_risk() {
    let (target, mut client) = start(isolane(RestartLoss::Cache), options());
    assert!(run(&mut client, write(0, 512, 1)).result.is_ok());
    assert_eq!(flush(&mut client), None);
    assert!(run(&mut client, durable(0, 512)).result.is_ok());
    let range = crate::request::BlockRange { lba: 8, blocks: 8 };
    let zeroes = Request::WriteZeroes { range, fua: true, deallocate: true };
    assert!(run(&mut client, zeroes).result.is_ok());
    assert!(run(&mut client, read(0, 512)).result.is_ok());
    restart(&target, &mut client, 2);
    assert_eq!(flush(&mut client), None, "all of it was durable");
}

#[test]
fn counts_zeroing_and_deallocating_as_writes() {
    let (target, mut client) = start(isolane(RestartLoss::Cache), options());
    let range = crate::request::BlockRange { lba: 8, blocks: 8 };
    let zeroes = Request::WriteZeroes { range, fua: false, deallocate: true };
    assert!(run(&mut client, zeroes).result.is_ok());
    assert!(run(&mut client, Request::Deallocate { ranges: vec![range] }).result.is_ok());
    restart(&target, &mut client, 2);
    assert_eq!(flush(&mut client), Some((2, LossCause::Cache)));
}

#[test]
fn reports_durable_writes_to_memory_as_lost() {
    let (target, mut client) = start(isolane(RestartLoss::Content), options());
    assert!(run(&mut client, durable(0, 512)).result.is_ok());
    assert_eq!(flush(&mut client), None);
    restart(&target, &mut client, 2);
    assert_eq!(flush(&mut client), Some((1, LossCause::Content)));
    assert_eq!(flush(&mut client), None);
}

#[test]
fn keeps_flushing_where_every_write_is_durable() {
    let (target, mut client) = start(isolane(RestartLoss::Nothing), options());
    assert!(run(&mut client, write(0, 512, 1)).result.is_ok());
    restart(&target, &mut client, 2);
    assert_eq!(flush(&mut client), None);
}

#[test]
fn fails_flush_of_partly_acknowledged_write() {
    let options = Options { depth: 1, ..options() };
    let (target, mut client) = start(Script { mdts: 1, ..isolane(RestartLoss::Cache) }, options);
    target.inject(5, Fault::Close);
    target.shared.script.lock().generation = Some(page(2, RestartLoss::Cache));
    assert!(run(&mut client, write(0, 20 * 8192, 8)).result.is_ok());
    assert_eq!(flush(&mut client), Some((5, LossCause::Cache)));
    assert_eq!(flush(&mut client), None);
}

#[test]
fn fails_every_flush_in_flight_at_the_restart() {
    let (target, mut client) = start(isolane(RestartLoss::Cache), options());
    assert!(run(&mut client, write(0, 512, 1)).result.is_ok());
    target.inject(0, Fault::Close);
    target.shared.script.lock().generation = Some(page(2, RestartLoss::Cache));
    client.submit(0, Request::Flush, 1);
    client.submit(0, Request::Flush, 2);
    let completions = wait_for(&mut client, 2);
    for completion in completions {
        assert!(
            matches!(completion.result, Err(RequestError::WritesLost { writes: 1, .. })),
            "{completion:?}"
        );
    }
    assert_eq!(flush(&mut client), None);
}

#[test]
fn trusts_target_without_generation_by_default() {
    let careful = || Options { flush_after_loss: Some(FlushAfterLoss::Fail), ..options() };
    // Valid pages without the signature in Identify belong to another kind of target.
    let foreign = || Script { isolane: false, ..isolane(RestartLoss::Content) };
    let cases = [
        (foreign(), options(), None),
        (foreign(), careful(), Some((1, LossCause::Unknown))),
        (Script { has_cache: false, ..foreign() }, careful(), None),
        (Script { generation: None, isolane: true, ..Script::default() }, options(), None),
    ];
    for (script, options, expected) in cases {
        let (target, mut client) = start(script, options);
        assert_eq!(client.namespace().generation, None);
        assert!(run(&mut client, write(0, 512, 1)).result.is_ok());
        restart(&target, &mut client, 2);
        assert_eq!(flush(&mut client), expected);
        assert_eq!(flush(&mut client), None);
    }
}

#[test]
fn same_generation_proves_no_loss() {
    let options = Options { flush_after_loss: Some(FlushAfterLoss::Fail), ..options() };
    let (target, mut client) = start(isolane(RestartLoss::Cache), options);
    assert!(run(&mut client, write(0, 512, 1)).result.is_ok());
    lose(&target, &mut client);
    assert_eq!(flush(&mut client), None);
}

#[test]
fn takes_the_choice_from_the_uri() {
    let target = Target::start(Script::default());
    let uri = format!("{}?flush-after-loss=fail", target.uri()).parse().unwrap();
    let mut client = Client::connect(&uri, options()).unwrap();
    assert!(run(&mut client, write(0, 512, 1)).result.is_ok());
    lose(&target, &mut client);
    assert_eq!(flush(&mut client), Some((1, LossCause::Unknown)));
}

#[test]
fn ignores_malformed_pages() {
    let good = || page(1, RestartLoss::Cache);
    let pages = [
        GenerationLog { signature: [0; 16], ..good() },
        GenerationLog { version: 0, ..good() },
        GenerationLog { nsid: 2, ..good() },
        GenerationLog { loses: 4, ..good() },
        GenerationLog { generation: [0; 16], ..good() },
        GenerationLog::decode(&[0xff; 64]),
    ];
    for page in pages {
        let script = Script { isolane: true, generation: Some(page), ..Script::default() };
        let (target, mut client) = start(script, options());
        assert_eq!(client.namespace().generation, None);
        assert!(run(&mut client, write(0, 512, 1)).result.is_ok());
        lose(&target, &mut client);
        assert_eq!(flush(&mut client), None);
    }
}

#[test]
fn leaves_losses_to_a_caller_that_serves_others() {
    let (target, mut client) = start(isolane(RestartLoss::Cache), options());
    client.leave_losses_to_caller();
    let before = client.era();
    assert!(run(&mut client, write(0, 512, 1)).result.is_ok());
    restart(&target, &mut client, 2);
    assert_eq!(flush(&mut client), None);
    assert_ne!(client.era(), before);
}
