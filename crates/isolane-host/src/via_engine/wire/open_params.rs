//! Parameters of opening a volume.

use std::time::Duration;

use isolane_engine_api::{DecodeError, Object, decode, encode, kind};
use serde::{Deserialize, Serialize};

use super::VolumeLayout;
use crate::options::Options;

/// URI of a volume, its layout in the session's memory, and the options of the connection.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct OpenParams {
    /// URI of the volume, without an engine or cores.
    pub uri: String,
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
    /// Returns the object to open.
    ///
    /// # Errors
    /// [`OpenParamsError::TooLong`], [`OpenParamsError::TooMuch`].
    pub fn object(&self) -> Result<Object, OpenParamsError> {
        if !is_bounded(&self.options) {
            return Err(OpenParamsError::TooMuch);
        }
        let params = encode(self);
        if params.len() <= Object::MAX_PARAMS_BYTES {
            Ok(Object { kind: kind::VOLUME, params })
        } else {
            Err(OpenParamsError::TooLong)
        }
    }

    /// Decodes the parameters of an object.
    ///
    /// # Errors
    /// [`OpenParamsError::Malformed`], [`OpenParamsError::TooMuch`].
    pub fn decode(bytes: &[u8]) -> Result<OpenParams, OpenParamsError> {
        let params: OpenParams = decode(bytes)?;
        if is_bounded(&params.options) { Ok(params) } else { Err(OpenParamsError::TooMuch) }
    }

    /// Encodes the options, which distinguish shared clients.
    pub fn client_key(&self) -> Vec<u8> {
        encode(&self.options)
    }
}

/// Returns whether the lanes, which cost memory and which no controller exceeds, and all times are within limits.
fn is_bounded(options: &Options) -> bool {
    let Options { lanes, read_lanes, poll_lanes, max_transfer_bytes, .. } = options;
    let Options { connect_timeout, command_timeout, reconnect, .. } = options;
    let waits = [*connect_timeout, *command_timeout, reconnect.min_delay, reconnect.max_delay];
    let limits = [Some(options.keep_alive), reconnect.timeout, reconnect.quiesce];
    [lanes, read_lanes, poll_lanes].iter().all(|count| **count <= MAX_LANES)
        && waits.iter().all(|time| *time <= MAX_TIME)
        && limits.iter().flatten().all(|time| *time <= FOREVER)
        && *connect_timeout <= MAX_CONNECT_TIME
        && *max_transfer_bytes <= MAX_TRANSFER_BYTES
}

const MAX_LANES: usize = 128;
/// Maximum data of one command through an engine.
pub(crate) const MAX_TRANSFER_BYTES: usize = 4 << 20;
const MAX_TIME: Duration = Duration::from_secs(24 * 3600);
/// Maximum timeout: a thread of the engine waits for it, even if the client has gone.
const MAX_CONNECT_TIME: Duration = Duration::from_secs(300);
/// Maximum of the other times, which can be added to any time of a clock.
const FOREVER: Duration = Duration::from_millis(u64::MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{FlushAfterLoss, Reconnect, WriteReplay};

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
        let layout = VolumeLayout { offset: 4096, flag: 256, submissions: 64, outcomes: 128 };
        OpenParams { uri: "nvme+tcp://127.0.0.1:4420".to_owned(), layout, options }
    }

    #[test]
    fn they_read_back_as_they_were_written() {
        let decoded = OpenParams::decode(&details().object().unwrap().params).unwrap();
        assert_eq!(format!("{decoded:?}"), format!("{:?}", details()));
        assert_eq!(decoded.client_key(), details().client_key());
    }

    #[test]
    fn malformed_ones_are_refused() {
        let bytes = details().object().unwrap().params;
        assert!((0..bytes.len()).all(|len| OpenParams::decode(&bytes[..len]).is_err()));
        assert!(OpenParams::decode(&[&bytes[..], &[0]].concat()).is_err());
        let options = Options { lanes: 100_000, ..Options::default() };
        let many = encode(&OpenParams { options, ..details() });
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
            Options { keep_alive: Duration::MAX, ..Options::default() },
            Options {
                reconnect: Reconnect { timeout: Some(Duration::MAX), ..Reconnect::default() },
                ..Options::default()
            },
        ] {
            assert_eq!(OpenParams { options, ..details() }.object().unwrap_err(), OpenParamsError::TooMuch);
        }
        let options = Options { lanes: 128, command_timeout: day, ..Options::default() };
        assert!(OpenParams::decode(&OpenParams { options, ..details() }.object().unwrap().params).is_ok());
    }

    #[test]
    fn parameters_that_fit_no_message_are_an_error() {
        let uri = format!("nvme+tcp://{}", "x".repeat(Object::MAX_PARAMS_BYTES));
        assert_eq!(OpenParams { uri, ..details() }.object().unwrap_err(), OpenParamsError::TooLong);
    }
}
