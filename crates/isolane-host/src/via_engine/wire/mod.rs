//! Volume protocol between an application and an engine, on top of [`isolane_attach`].
//!
//! A volume is opened with [`OpenParams`], and the reply is an encoded
//! [`Info`](crate::Info). From then on, [`Submission`]s
//! and [`Outcome`]s travel in two rings of entries at the offsets that the application has chosen
//! ([`VolumeLayout`]). One submission is one NVMe command.
//!
//! Decoding checks the format only; the reader must check that the values make sense.

mod layout;
mod open_params;
mod outcome;
mod submission;

pub use layout::{MAX_ENTRIES, VolumeLayout};
pub(crate) use open_params::MAX_TRANSFER_BYTES;
pub use open_params::{OpenParams, OpenParamsError};
pub use outcome::Outcome;
pub use submission::{Operation, RANGE_BYTES, Submission, decode_range, encode_range};

#[cfg(test)]
mod tests {
    use isolane_engine_api::{MAX_TEXT_BYTES, decode, encode};

    use crate::Info;
    use crate::mock::{Script, Target};

    #[test]
    fn round_trips_volume_info() {
        let target = Target::start(Script::default());
        let client = crate::Client::connect(&target.uri(), crate::Options::default()).unwrap();
        let bytes = encode(client.info());
        assert!(bytes.len() <= MAX_TEXT_BYTES);
        assert_eq!(format!("{:?}", decode::<Info>(&bytes).unwrap()), format!("{:?}", client.info()));
        assert!((0..bytes.len()).all(|len| decode::<Info>(&bytes[..len]).is_err()));
        assert!(decode::<Info>(&[&bytes[..], &[0]].concat()).is_err());
    }
}
