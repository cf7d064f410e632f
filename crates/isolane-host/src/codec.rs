//! Encoding of the types of other crates for another process.

use std::fmt::Display;
use std::str::FromStr;

use isolane_wire::Status;
use isolane_wire::log::RestartLoss;
use isolane_wire::registers::Vs;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Encodes a value as its text form.
pub(crate) mod text {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        <&str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[derive(Deserialize, Serialize)]
#[serde(remote = "Status")]
pub(crate) struct EncodedStatus(u16);

#[derive(Deserialize, Serialize)]
#[serde(remote = "Vs")]
pub(crate) struct EncodedVersion(u32);

#[derive(Deserialize, Serialize)]
#[serde(remote = "RestartLoss")]
pub(crate) enum EncodedRestartLoss {
    Nothing,
    Cache,
    Content,
}
