//! Data of commands: C2HData for reads, R2T and H2CData for writes (TCP 1.0 §3.3.2).
//!
//! Invariant: every C2HData and R2T is inside the command's data and continues at the end of the
//! last one, so every byte is transferred once.

use isolane_wire::pdu::{C2hData, H2cData, HeaderFault, R2t};

use super::Connection;
use super::commands::Command;
use super::event::Data;
use super::receive::{Receiving, Step, check_data};
use crate::connection::{FatalError, Header, Violation, push_data};

impl Connection {
    /// C2HData: receives the next part of a read into its buffer.
    pub(super) fn handle_c2h_data(
        &mut self,
        header: &Header,
        data: C2hData,
        overflow: &[u8],
    ) -> Result<Step, FatalError> {
        let cid = data.cccid;
        let is_predicted =
            data.datao == 0 && self.receiver.matches_prediction(header, cid, data.datal as usize);
        if self.receiver.has_unverified() && !is_predicted {
            self.rollback_predictions(overflow);
        }
        let unknown = FatalError::new(Violation::UnknownTransfer(cid), HeaderFault::invalid(C2hData::CCCID));
        let command = self.commands.find(cid).ok_or(unknown)?;
        command.transferred = check_data(command, &data, self.flow_control_disabled)?;
        command.last_seen = data.last;
        self.receiver.consume_header(header);
        self.receiver.start_body(header, data.datao as usize);
        self.receiving = Receiving::C2hData { cid, success: data.success };
        Ok(self.receive_data(overflow, cid, data.success))
    }

    /// R2T: queues all of the requested data.
    pub(super) fn handle_r2t(&mut self, header: &Header, overflow: &[u8]) -> Result<(), FatalError> {
        let r2t = self.receiver.decode(overflow, R2t::decode)?;
        let cid = r2t.cccid;
        let unknown = FatalError::new(Violation::UnknownTransfer(cid), HeaderFault::invalid(R2t::CCCID));
        let command = self.commands.find(cid).filter(|command| command.by_r2t).ok_or(unknown)?;
        let end = u64::from(r2t.r2to) + u64::from(r2t.r2tl);
        if end > command.data.len() as u64 {
            return Err(FatalError::new(Violation::R2tRange(cid), HeaderFault::out_of_range()));
        }
        if r2t.r2to as usize != command.transferred {
            return Err(FatalError::sequence(Violation::DataOrder(cid)));
        }
        let sent_bytes = self.output.sent_bytes();
        command.r2t_ends.retain(|end| *end > sent_bytes);
        if command.r2t_ends.len() > self.options.maxr2t as usize {
            return Err(FatalError::new(Violation::R2tLimit(cid), HeaderFault::limit_exceeded()));
        }
        command.transferred = end as usize;
        self.receiver.consume_header(header);
        self.send_data(r2t);
        Ok(())
    }

    /// Queues the data that an R2T requests, in PDUs of up to MAXH2CDATA.
    fn send_data(&mut self, r2t: R2t) {
        let Some(Command { data: Data::Write(buffer), output_end, r2t_ends, .. }) =
            self.commands.find(r2t.cccid)
        else {
            return;
        };
        let mut remaining = r2t.r2tl as usize;
        let mut datao = r2t.r2to as usize;
        while remaining > 0 {
            let datal = remaining.min(self.max_h2c_data_bytes);
            remaining -= datal;
            let data = H2cData {
                cccid: r2t.cccid,
                ttag: r2t.ttag,
                datao: datao as u32,
                datal: datal as u32,
                last: remaining == 0,
            };
            let (header, payload) = (data.encode(&self.outbound), buffer.share(datao, datal));
            push_data::<24>(&mut self.output, &header, payload, self.outbound.data_digest);
            datao += datal;
        }
        *output_end = self.output.queued_bytes();
        r2t_ends.push(*output_end);
    }
}
