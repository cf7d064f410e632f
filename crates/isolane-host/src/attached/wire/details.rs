//! What a volume is opened with, beside its URI.

use std::time::Duration;

use isolane_attach::control::{Malformed, Object, Sink, Source, TEXT_BYTES_MAX};
use isolane_wire::Nqn;
use uuid::Uuid;

use super::VolumePlace;
use crate::options::{FlushAfterLoss, Options, Reconnect, WriteReplay};

/// Where a volume is in the session's memory, and how the engine is to connect to it.
#[derive(Clone, Debug)]
pub struct Details {
    /// Where.
    pub place: VolumePlace,
    /// How. Of these options the engine follows those about lanes, digests, times, reconnecting and sockets;
    /// those about threads and waiting are for whoever drives a client, and the others as they are by default.
    pub options: Options,
}

/// Why there are no details.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DetailsError {
    /// They have no room in a message.
    #[error("the options do not fit into a message to an engine: give fewer socket options")]
    TooLong,
    /// An engine would refuse them.
    #[error(
        "an engine opens no volume with more than {LANES_MAX} lanes of a class, commands of more than 4 MiB, or \
         times to wait of more than a day, or more than five minutes to connect: ask for less"
    )]
    TooMuch,
    /// They are none.
    #[error("the details of a volume: {0}")]
    Malformed(#[from] Malformed),
}

impl Details {
    /// As bytes: the place, and behind it what tells one set of options from another.
    ///
    /// # Errors
    /// [`DetailsError::TooLong`], [`DetailsError::TooMuch`].
    pub fn encode(&self) -> Result<Vec<u8>, DetailsError> {
        if !is_bounded(&self.options) {
            return Err(DetailsError::TooMuch);
        }
        let mut sink = Sink::default();
        sink.u64(self.place.offset);
        sink.u64(self.place.flag);
        sink.u64(u64::from(self.place.submissions) << 32 | u64::from(self.place.outcomes));
        encode_options(&self.options, &mut sink);
        let socket = self.options.socket.to_string();
        if socket.len() > Object::DETAILS_BYTES_MAX {
            return Err(DetailsError::TooLong);
        }
        sink.text(&socket, Object::DETAILS_BYTES_MAX);
        let bytes = sink.into_bytes();
        match bytes.len() <= Object::DETAILS_BYTES_MAX {
            true => Ok(bytes),
            false => Err(DetailsError::TooLong),
        }
    }

    /// From bytes; with them come those that tell one set of options from another.
    ///
    /// # Errors
    /// [`DetailsError::Malformed`], [`DetailsError::TooMuch`].
    pub fn decode(bytes: &[u8]) -> Result<(Details, &[u8]), DetailsError> {
        let mut source = Source::new(bytes);
        let (offset, flag, counts) = (source.u64(PLACE)?, source.u64(PLACE)?, source.u64(PLACE)?);
        let place = VolumePlace { offset, flag, submissions: (counts >> 32) as u32, outcomes: counts as u32 };
        let options = decode_options(&mut source)?;
        source.end()?;
        match is_bounded(&options) {
            true => Ok((Details { place, options }, &bytes[PLACE_BYTES..])),
            false => Err(DetailsError::TooMuch),
        }
    }
}

fn encode_options(options: &Options, sink: &mut Sink) {
    let Reconnect { give_up_after, delay_min, delay_max, writes, quiesce } = &options.reconnect;
    for count in [options.lanes, options.read_lanes, options.poll_lanes, options.transfer_bytes_max] {
        sink.u64(count as u64);
    }
    sink.u64(options.depth.into());
    sink.flags([options.header_digest, options.data_digest]);
    let times =
        [options.keep_alive, options.connect_timeout, options.command_timeout, *delay_min, *delay_max];
    times.into_iter().for_each(|time| sink.u64(milliseconds(time)));
    sink.optional_number(give_up_after.map(milliseconds));
    sink.optional_number(quiesce.map(milliseconds));
    sink.u64(match writes {
        WriteReplay::WhenGone => 0,
        WriteReplay::AfterTimeout => 1,
        WriteReplay::Never => 2,
    });
    sink.u64(match options.flush_after_loss {
        None => 0,
        Some(FlushAfterLoss::Trust) => 1,
        Some(FlushAfterLoss::Fail) => 2,
    });
    sink.array(options.host_id.as_bytes());
    sink.text(options.host_nqn.as_str(), TEXT_BYTES_MAX);
}

fn decode_options(source: &mut Source<'_>) -> Result<Options, Malformed> {
    let (lanes, read_lanes, poll_lanes) =
        (source.number(LANES)?, source.number(LANES)?, source.number(LANES)?);
    let (transfer_bytes_max, depth) = (source.number(LANES)?, source.number(LANES)?);
    let [header_digest, data_digest] = source.flags(DIGESTS)?;
    let mut time = || source.u64(TIMES).map(Duration::from_millis);
    let (keep_alive, connect_timeout, command_timeout) = (time()?, time()?, time()?);
    let (delay_min, delay_max) = (time()?, time()?);
    let give_up_after = source.optional_number(TIMES)?.map(Duration::from_millis);
    let quiesce = source.optional_number(TIMES)?.map(Duration::from_millis);
    let writes = match source.u64(WRITES)? {
        0 => WriteReplay::WhenGone,
        1 => WriteReplay::AfterTimeout,
        2 => WriteReplay::Never,
        _ => return Err(source.malformed(WRITES)),
    };
    let flush_after_loss = match source.u64(WRITES)? {
        0 => None,
        1 => Some(FlushAfterLoss::Trust),
        2 => Some(FlushAfterLoss::Fail),
        _ => return Err(source.malformed(WRITES)),
    };
    let host_id = Uuid::from_bytes(source.array(HOST)?);
    let host_nqn = source.text(HOST, TEXT_BYTES_MAX)?;
    let host_nqn = Nqn::new(&host_nqn).map_err(|_| source.malformed(HOST))?;
    let socket = source.text(SOCKET, Object::DETAILS_BYTES_MAX)?;
    let socket = socket.parse().map_err(|_| source.malformed(SOCKET))?;
    Ok(Options {
        host_nqn,
        host_id,
        lanes,
        read_lanes,
        poll_lanes,
        depth,
        header_digest,
        data_digest,
        keep_alive,
        connect_timeout,
        command_timeout,
        transfer_bytes_max,
        reconnect: Reconnect { give_up_after, delay_min, delay_max, writes, quiesce },
        flush_after_loss,
        socket,
        ..Options::default()
    })
}

/// Lanes cost memory; a wish beyond this is none that a controller grants. And no client of ours waits for longer.
fn is_bounded(options: &Options) -> bool {
    let Options { lanes, read_lanes, poll_lanes, transfer_bytes_max, .. } = options;
    let Options { connect_timeout, command_timeout, reconnect, .. } = options;
    let times = [*connect_timeout, *command_timeout, reconnect.delay_min, reconnect.delay_max];
    [lanes, read_lanes, poll_lanes].iter().all(|count| **count <= LANES_MAX)
        && times.iter().all(|time| *time <= TIME_MAX)
        && *connect_timeout <= CONNECT_TIME_MAX
        && *transfer_bytes_max <= TRANSFER_BYTES_MAX
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Of an encoded [`VolumePlace`].
const PLACE_BYTES: usize = 24;
const PLACE: &str = "its place";
const LANES: &str = "its lanes";
const DIGESTS: &str = "its digests";
const TIMES: &str = "its times";
const WRITES: &str = "what becomes of writes";
const HOST: &str = "the host";
const SOCKET: &str = "its socket options";
const LANES_MAX: usize = 128;
/// The most data of one command through an engine.
pub(crate) const TRANSFER_BYTES_MAX: usize = 4 << 20;
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// The engine has a thread that waits so long, even if the one who asked has gone.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn details() -> Details {
        let options = Options {
            lanes: 3,
            read_lanes: 2,
            poll_lanes: 1,
            depth: 77,
            data_digest: true,
            keep_alive: Duration::ZERO,
            transfer_bytes_max: 65536,
            reconnect: Reconnect {
                writes: WriteReplay::Never,
                give_up_after: None,
                quiesce: Some(Duration::from_secs(7)),
                ..Reconnect::default()
            },
            flush_after_loss: Some(FlushAfterLoss::Fail),
            socket: "priority=5,tos=0x68".parse().unwrap(),
            ..Options::default()
        };
        Details { place: VolumePlace { offset: 4096, flag: 256, submissions: 64, outcomes: 128 }, options }
    }

    #[test]
    fn they_read_back_as_they_were_written() {
        let bytes = details().encode().unwrap();
        let (decoded, key) = Details::decode(&bytes).unwrap();
        assert_eq!((decoded.place, key), (details().place, &bytes[24..]));
        assert_eq!(format!("{:?}", decoded.options), format!("{:?}", details().options));
    }

    #[test]
    fn malformed_ones_are_refused() {
        let bytes = details().encode().unwrap();
        assert!((0..bytes.len()).all(|len| Details::decode(&bytes[..len]).is_err()));
        assert!(Details::decode(&[&bytes[..], &[0]].concat()).is_err());
        let mut many = bytes;
        many[24..32].copy_from_slice(&100_000_u64.to_le_bytes());
        assert_eq!(Details::decode(&many).unwrap_err(), DetailsError::TooMuch);
    }

    #[test]
    fn what_an_engine_would_refuse_is_not_asked_for() {
        let day = Duration::from_secs(24 * 3600);
        for options in [
            Options { lanes: 129, ..Options::default() },
            Options { poll_lanes: 129, ..Options::default() },
            Options { transfer_bytes_max: 8 << 20, ..Options::default() },
            Options { command_timeout: 2 * day, ..Options::default() },
            Options { connect_timeout: day, ..Options::default() },
        ] {
            assert_eq!(Details { options, ..details() }.encode().unwrap_err(), DetailsError::TooMuch);
        }
        let options = Options { lanes: 128, command_timeout: day, ..Options::default() };
        assert!(Details::decode(&Details { options, ..details() }.encode().unwrap()).is_ok());
    }

    #[test]
    fn options_that_fit_no_message_are_an_error() {
        let socket = format!("congestion={}", "x".repeat(500)).parse();
        let Ok(socket) = socket else { return };
        let details = Details { options: Options { socket, ..Options::default() }, ..details() };
        assert_eq!(details.encode().unwrap_err(), DetailsError::TooLong);
    }
}
