//! Parameters of opening a volume, in addition to its URI.

use std::time::Duration;

use isolane_engine_api::{DecodeError, Decoder, Encoder, MAX_TEXT_BYTES, Object, kind};
use isolane_wire::Nqn;
use uuid::Uuid;

use super::VolumeLayout;
use crate::options::{FlushAfterLoss, Options, Reconnect, WriteReplay};

/// Layout of a volume in the session's memory, and the options of the connection.
#[derive(Clone, Debug)]
pub struct OpenParams {
    /// Layout of the rings and flags.
    pub layout: VolumeLayout,
    /// Options of the connection. The engine applies the options about lanes, digests, timeouts,
    /// reconnecting, and sockets. The client applies the options about threads and waiting; the other options
    /// have their defaults.
    pub options: Options,
}

/// Error of encoding or decoding parameters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenParamsError {
    /// They exceed a message.
    #[error("the options do not fit into a message to an engine: give fewer socket options")]
    TooLong,
    /// They exceed the limits of an engine.
    #[error(
        "an engine opens no volume with more than {MAX_LANES} lanes of a class, commands of more than 4 MiB, or \
         times to wait of more than a day, or more than five minutes to connect: ask for less"
    )]
    TooMuch,
    /// They are malformed.
    #[error("the details of a volume: {0}")]
    Malformed(#[from] DecodeError),
}

impl OpenParams {
    /// Encodes the layout and the options that distinguish shared clients.
    ///
    /// # Errors
    /// [`OpenParamsError::TooLong`], [`OpenParamsError::TooMuch`].
    pub fn encode(&self) -> Result<Vec<u8>, OpenParamsError> {
        if !is_bounded(&self.options) {
            return Err(OpenParamsError::TooMuch);
        }
        let mut sink = Encoder::default();
        sink.u64(self.layout.offset);
        sink.u64(self.layout.flag);
        sink.u64(u64::from(self.layout.submissions) << 32 | u64::from(self.layout.outcomes));
        encode_options(&self.options, &mut sink);
        let socket = self.options.socket.to_string();
        if socket.len() > MAX_DETAILS_BYTES {
            return Err(OpenParamsError::TooLong);
        }
        sink.text(&socket, MAX_DETAILS_BYTES);
        let bytes = sink.into_bytes();
        match bytes.len() <= MAX_DETAILS_BYTES {
            true => Ok(bytes),
            false => Err(OpenParamsError::TooLong),
        }
    }

    /// Returns the object to open.
    ///
    /// # Errors
    /// As [`OpenParams::encode`].
    ///
    /// # Panics
    /// If the URI is longer than [`MAX_TEXT_BYTES`].
    pub fn object(&self, uri: &str) -> Result<Object, OpenParamsError> {
        let mut sink = Encoder::default();
        sink.bytes(uri.as_bytes(), MAX_TEXT_BYTES);
        sink.bytes(&self.encode()?, MAX_DETAILS_BYTES);
        Ok(Object { kind: kind::VOLUME, params: sink.into_bytes() })
    }

    /// Decodes the parameters of an object: the URI, and the bytes for [`OpenParams::decode`].
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode_object(params: &[u8]) -> Result<(String, Vec<u8>), DecodeError> {
        let mut source = Decoder::new(params);
        let uri = source.text("URI of the volume", MAX_TEXT_BYTES)?;
        let details = source.bytes("details of the volume", MAX_DETAILS_BYTES)?;
        source.end()?;
        Ok((uri, details))
    }

    /// Decodes parameters. Also returns the bytes of the options that distinguish shared clients.
    ///
    /// # Errors
    /// [`OpenParamsError::Malformed`], [`OpenParamsError::TooMuch`].
    pub fn decode(bytes: &[u8]) -> Result<(OpenParams, &[u8]), OpenParamsError> {
        let mut source = Decoder::new(bytes);
        let (offset, flag, counts) = (source.u64(PLACE)?, source.u64(PLACE)?, source.u64(PLACE)?);
        let layout =
            VolumeLayout { offset, flag, submissions: (counts >> 32) as u32, outcomes: counts as u32 };
        let options = decode_options(&mut source)?;
        source.end()?;
        match is_bounded(&options) {
            true => Ok((OpenParams { layout, options }, &bytes[PLACE_BYTES..])),
            false => Err(OpenParamsError::TooMuch),
        }
    }
}

fn encode_options(options: &Options, sink: &mut Encoder) {
    let Reconnect { timeout, min_delay, max_delay, writes, quiesce } = &options.reconnect;
    for count in [options.lanes, options.read_lanes, options.poll_lanes, options.max_transfer_bytes] {
        sink.u64(count as u64);
    }
    sink.u64(options.depth.into());
    sink.flags([options.header_digest, options.data_digest]);
    let times =
        [options.keep_alive, options.connect_timeout, options.command_timeout, *min_delay, *max_delay];
    times.into_iter().for_each(|time| sink.u64(milliseconds(time)));
    sink.optional_number(timeout.map(milliseconds));
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
    sink.text(options.host_nqn.as_str(), MAX_TEXT_BYTES);
}

fn decode_options(source: &mut Decoder<'_>) -> Result<Options, DecodeError> {
    let (lanes, read_lanes, poll_lanes) =
        (source.number(LANES)?, source.number(LANES)?, source.number(LANES)?);
    let (max_transfer_bytes, depth) = (source.number(LANES)?, source.number(LANES)?);
    let [header_digest, data_digest] = source.flags(DIGESTS)?;
    let mut time = || source.u64(TIMES).map(Duration::from_millis);
    let (keep_alive, connect_timeout, command_timeout) = (time()?, time()?, time()?);
    let (min_delay, max_delay) = (time()?, time()?);
    let timeout = source.optional_number(TIMES)?.map(Duration::from_millis);
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
    let host_nqn = source.text(HOST, MAX_TEXT_BYTES)?;
    let host_nqn = Nqn::new(&host_nqn).map_err(|_| source.malformed(HOST))?;
    let socket = source.text(SOCKET, MAX_DETAILS_BYTES)?;
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
        max_transfer_bytes,
        reconnect: Reconnect { timeout, min_delay, max_delay, writes, quiesce },
        flush_after_loss,
        socket,
        ..Options::default()
    })
}

/// Maximum number of lanes, which cost memory and which no controller exceeds, and maximum of a timeout.
fn is_bounded(options: &Options) -> bool {
    let Options { lanes, read_lanes, poll_lanes, max_transfer_bytes, .. } = options;
    let Options { connect_timeout, command_timeout, reconnect, .. } = options;
    let times = [*connect_timeout, *command_timeout, reconnect.min_delay, reconnect.max_delay];
    [lanes, read_lanes, poll_lanes].iter().all(|count| **count <= MAX_LANES)
        && times.iter().all(|time| *time <= MAX_TIME)
        && *connect_timeout <= MAX_CONNECT_TIME
        && *max_transfer_bytes <= MAX_TRANSFER_BYTES
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Maximum length of encoded parameters.
const MAX_DETAILS_BYTES: usize = 512;
const _: () = assert!(MAX_TEXT_BYTES + MAX_DETAILS_BYTES + 4 <= Object::MAX_PARAMS_BYTES);
/// Length of an encoded [`VolumeLayout`].
const PLACE_BYTES: usize = 24;
const PLACE: &str = "its layout";
const LANES: &str = "its lanes";
const DIGESTS: &str = "its digests";
const TIMES: &str = "its times";
const WRITES: &str = "what becomes of writes";
const HOST: &str = "the host";
const SOCKET: &str = "its socket options";
const MAX_LANES: usize = 128;
/// Maximum data of one command through an engine.
pub(crate) const MAX_TRANSFER_BYTES: usize = 4 << 20;
const MAX_TIME: Duration = Duration::from_secs(24 * 3600);
/// Maximum timeout: a thread of the engine waits for it, even if the client has gone.
const MAX_CONNECT_TIME: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn details() -> OpenParams {
        let options = Options {
            lanes: 3,
            read_lanes: 2,
            poll_lanes: 1,
            depth: 77,
            data_digest: true,
            keep_alive: Duration::ZERO,
            max_transfer_bytes: 65536,
            reconnect: Reconnect {
                writes: WriteReplay::Never,
                timeout: None,
                quiesce: Some(Duration::from_secs(7)),
                ..Reconnect::default()
            },
            flush_after_loss: Some(FlushAfterLoss::Fail),
            socket: "priority=5,tos=0x68".parse().unwrap(),
            ..Options::default()
        };
        OpenParams {
            layout: VolumeLayout { offset: 4096, flag: 256, submissions: 64, outcomes: 128 },
            options,
        }
    }

    #[test]
    fn they_read_back_as_they_were_written() {
        let bytes = details().encode().unwrap();
        let (decoded, key) = OpenParams::decode(&bytes).unwrap();
        assert_eq!((decoded.layout, key), (details().layout, &bytes[24..]));
        assert_eq!(format!("{:?}", decoded.options), format!("{:?}", details().options));
    }

    #[test]
    fn malformed_ones_are_refused() {
        let bytes = details().encode().unwrap();
        assert!((0..bytes.len()).all(|len| OpenParams::decode(&bytes[..len]).is_err()));
        assert!(OpenParams::decode(&[&bytes[..], &[0]].concat()).is_err());
        let mut many = bytes;
        many[24..32].copy_from_slice(&100_000_u64.to_le_bytes());
        assert_eq!(OpenParams::decode(&many).unwrap_err(), OpenParamsError::TooMuch);
    }

    #[test]
    fn rejects_parameters_beyond_engine_limits() {
        let day = Duration::from_secs(24 * 3600);
        for options in [
            Options { lanes: 129, ..Options::default() },
            Options { poll_lanes: 129, ..Options::default() },
            Options { max_transfer_bytes: 8 << 20, ..Options::default() },
            Options { command_timeout: 2 * day, ..Options::default() },
            Options { connect_timeout: day, ..Options::default() },
        ] {
            assert_eq!(OpenParams { options, ..details() }.encode().unwrap_err(), OpenParamsError::TooMuch);
        }
        let options = Options { lanes: 128, command_timeout: day, ..Options::default() };
        assert!(OpenParams::decode(&OpenParams { options, ..details() }.encode().unwrap()).is_ok());
    }

    #[test]
    fn options_that_fit_no_message_are_an_error() {
        let socket = format!("congestion={}", "x".repeat(500)).parse();
        let Ok(socket) = socket else { return };
        let details = OpenParams { options: Options { socket, ..Options::default() }, ..details() };
        assert_eq!(details.encode().unwrap_err(), OpenParamsError::TooLong);
    }
}
