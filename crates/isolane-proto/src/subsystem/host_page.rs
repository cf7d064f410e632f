//! Stages of the host (vendor specific log page C0h).
//!
//! The driver collects the text, because only the driver has the numbers. A read at offset 0 collects it again; reads
//! at other offsets get parts of the same page, or an error after it was dropped.
//!
//! Invariant: an association only has pages with the text for its host, and no read at another offset than 0 collects
//! one, because its parts would not belong to those that the host has.

use std::time::Instant;

use isolane_wire::digest::crc32c;
use isolane_wire::log::{HostStagesHeader, SIGNATURE};

/// Text for the page of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPage {
    /// A JSON document of at most [`HostStagesHeader::MAX_TEXT`] bytes. A longer one is left out.
    pub text: Vec<u8>,
    /// Number of connections that did not fit.
    pub connections_left_out: u32,
    /// Number of slow operations that did not fit.
    pub slow_left_out: u32,
}

/// A page that an association keeps.
#[derive(Debug)]
pub(super) struct KeptPage {
    content: Vec<u8>,
    pub(super) collected_at: Instant,
    /// No read at offset 0 has returned it yet.
    is_new: bool,
}

impl KeptPage {
    pub(super) fn new(page: &HostPage, now: Instant) -> KeptPage {
        let text = Some(page.text.as_slice()).filter(|text| text.len() <= HostStagesHeader::MAX_TEXT);
        let text = text.unwrap_or_default();
        let header = HostStagesHeader {
            signature: SIGNATURE,
            version: HostStagesHeader::VERSION,
            text_bytes: text.len() as u32,
            connections_left_out: page.connections_left_out,
            slow_left_out: page.slow_left_out,
            text_crc: crc32c(text),
        };
        let content = [&header.encode()[..], text].concat();
        KeptPage { content, collected_at: now, is_new: true }
    }

    /// Returns the page for a read at `offset`, or `None` if this read requires a new one.
    pub(super) fn read(&mut self, offset: u64) -> Option<&[u8]> {
        let is_valid = offset > 0 || std::mem::take(&mut self.is_new);
        is_valid.then_some(&self.content)
    }
}

/// Associations of a port that keep a page. With another one, the oldest page is dropped.
pub(super) const MAX_KEPT_PAGES: usize = 64;
