//! ICReq and ICResp (TCP 1.0 §3.1).

use isolane_wire::Framing;
use isolane_wire::pdu::{Digests, IcReq, IcResp};

use super::Connection;
use super::event::Event;
use super::slots::MAX_GRANTS;
use crate::connection::{FatalError, Header, Phase};

impl Connection {
    /// Answers ICReq and keeps to what was agreed from here on.
    pub(super) fn handle_ic_req(&mut self, header: &Header, overflow: &[u8]) -> Result<(), FatalError> {
        let request = self.receiver.decode(overflow, |bytes, _| IcReq::decode(bytes))?;
        self.receiver.consume_header(header);
        let digests = Digests::default()
            .with_header(request.digests.header() && self.limits.header_digest)
            .with_data(request.digests.data() && self.limits.data_digest);
        let framing = |pda| Framing { header_digest: digests.header(), data_digest: digests.data(), pda };
        self.receiver.set_framing(framing(self.limits.cpda));
        self.outbound = framing(request.hpda);
        self.outbound_plain = self.outbound == Framing::PLAIN;
        self.grants.set_max_per_command(MAX_GRANTS.min(request.maxr2t.saturating_add(1) as usize));
        let response = IcResp { cpda: self.limits.cpda, digests, maxh2cdata: self.limits.max_h2c_data_bytes };
        self.output.push(&response.encode());
        self.phase = Phase::Open;
        self.event = Some(Event::Connected(request));
        Ok(())
    }
}
