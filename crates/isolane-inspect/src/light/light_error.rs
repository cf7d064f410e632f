//! Errors of lights, with their remedies.

use std::time::Duration;

use super::Light;
use crate::system::{ReadError, Reason};

/// Failure to find or change a light.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LightError {
    /// The block device does not exist.
    #[error("{0}: no such block device; `isolane light list` lists the drives with lights")]
    NoDevice(String),
    /// The device is no hardware of this machine.
    #[error("{0}: not on a drive of this machine; name a drive, as nvme0n1")]
    NoDrive(String),
    /// The device uses several drives.
    #[error("{name}: uses {} drives; name one of them: {}", drives.len(), shown(drives))]
    SeveralDrives {
        /// Name of the device or volume.
        name: String,
        /// Names of the drives.
        drives: Vec<String>,
    },
    /// No interface has a slot for the drive.
    #[error(
        "{0}: the kernel shows no slot with lights (NPEM, SES, or VMD), and ledctl is not installed; install the package \
         ledmon, or use the management of the server"
    )]
    NoSlot(String),
    /// The slot lacks a light.
    #[error("{slot}: no {} light; try the other one", light.name())]
    NoLight {
        /// The slot.
        slot: String,
        /// The missing light.
        light: Light,
    },
    /// A file cannot be read.
    #[error("{error}; {}", remedy(&error.reason))]
    Unreadable {
        /// The file and the reason.
        error: ReadError,
    },
    /// A light cannot be changed.
    #[error("{slot}: {error}; {}", remedy(&error.reason))]
    NotWritten {
        /// The slot.
        slot: String,
        /// The file and the reason.
        error: ReadError,
    },
    /// A read or write has not ended.
    #[error(
        "{slot}: no response within {limit:?}; the light can still change: check the kernel log (dmesg) and the enclosure"
    )]
    NoResponse {
        /// The slot.
        slot: String,
        /// The longest time that was waited.
        limit: Duration,
    },
    /// `ledctl` has failed.
    #[error(
        "ledctl: /dev/{drive}: {reason}; run as root, and check that the drive is in a slot that ledctl supports"
    )]
    Ledctl {
        /// Name of the drive.
        drive: String,
        /// The reason.
        reason: String,
    },
}

/// Most drives that an error names.
const MAX_DRIVES: usize = 16;

impl From<ReadError> for LightError {
    fn from(error: ReadError) -> LightError {
        LightError::Unreadable { error }
    }
}

fn shown(drives: &[String]) -> String {
    let more = if drives.len() > MAX_DRIVES { ", …" } else { "" };
    drives.iter().take(MAX_DRIVES).map(String::as_str).collect::<Vec<_>>().join(", ") + more
}

fn remedy(reason: &Reason) -> &'static str {
    match reason {
        Reason::Missing => "the slot has vanished: run `isolane light list`",
        Reason::NotPermitted => "run as root",
        _ => "check the kernel log (dmesg) and the enclosure",
    }
}
