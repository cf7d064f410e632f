//! Admin queue while an association is set up: Connect, enabling the controller, Identify Controller, and
//! shutdown.
//!
//! Registers are accessed by Property Get and Set (Fabrics 1.1 §3.4, §3.5).
//!
//! Invariant: an [`Admin`] whose `enable_and_identify` succeeded belongs to a controller that is ready.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use isolane_memory::Buffer;
use isolane_proto::host::{Connection, Data};
use isolane_wire::admin::{Cns, GetLogPageCommand, IdentifyCommand, LogPage};
use isolane_wire::fabrics::{
    CNTLID_DYNAMIC, ConnectResponse, PropertyGetCommand, PropertySetCommand, PropertySize,
};
use isolane_wire::registers::{Cap, Cc, Csts, Vs, offset};
use isolane_wire::{Nqn, SubmissionEntry, identify};

use super::connect_queue::{QueueSpec, connect_queue};
use super::connection::BlockingConnection;
use crate::error::{ConnectError, Step};
use crate::info::ControllerInfo;
use crate::options::Options;

/// Entries of the admin queue: the minimum that every target supports.
const ADMIN_ENTRIES: u16 = 32;

/// Delay between two reads of CSTS.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Delays that CRD of a status selects, after "no delay": CRDT1-3.
pub(crate) type RetryDelays = [Duration; 3];

/// The admin queue while an association is set up.
pub(crate) struct Admin {
    pub connection: BlockingConnection,
    pub cntlid: u16,
    cap: Cap,
    pub controller: identify::Controller,
}

impl Admin {
    /// Connects the admin queue of a new controller of `nqn`: the dynamic controller model.
    pub(crate) fn connect(
        address: SocketAddr,
        nqn: &Nqn,
        options: &Options,
        deadline: Instant,
    ) -> Result<Admin, ConnectError> {
        let spec = QueueSpec { nqn: *nqn, qid: 0, entries: ADMIN_ENTRIES, cntlid: CNTLID_DYNAMIC };
        let (connection, reply) = connect_queue(address, &spec, options, deadline)?;
        let response = ConnectResponse(reply.dw0);
        let controller = identify::Controller::default();
        let cntlid = response.cntlid();
        Ok(Admin { connection, cntlid, cap: Cap(0), controller })
    }

    /// Enables the controller, waits until it is ready, and identifies it.
    pub(crate) fn enable_and_identify(&mut self) -> Result<ControllerInfo, ConnectError> {
        self.cap = Cap(self.property(PropertySize::Bytes8, offset::CAP)?);
        let version = Vs(self.property(PropertySize::Bytes4, offset::VS)? as u32);
        self.enable()?;
        let data = self.identify(Cns::Controller, 0)?;
        let short = || self.connection.protocol_violation(Step::Identify, "returned short data".to_owned());
        self.controller = identify::Controller::decode_prefix(&data).ok_or_else(short)?;
        Ok(self.controller_info(version))
    }

    /// Identify, whose data is always 4,096 bytes.
    pub(crate) fn identify(&mut self, cns: Cns, nsid: u32) -> Result<Vec<u8>, ConnectError> {
        let command = IdentifyCommand::new(cns, nsid);
        self.read(Step::Identify, command.entry(), IdentifyCommand::DATA_LEN as usize)
    }

    /// Get Log Page, from an offset in bytes. The page may belong to a namespace.
    pub(crate) fn log_page(
        &mut self,
        page: LogPage,
        nsid: u32,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, ConnectError> {
        let command = GetLogPageCommand { nsid, ..GetLogPageCommand::new(page, offset, len as u32) };
        self.read(Step::Log, command.entry(), len)
    }

    fn read(&mut self, step: Step, entry: SubmissionEntry, len: usize) -> Result<Vec<u8>, ConnectError> {
        let reply = self.connection.command(step, entry, Data::Read(Buffer::contiguous(len)))?;
        let short = || self.connection.protocol_violation(step, format!("returned less than {len} bytes"));
        reply.buffer.map(|buffer| buffer.to_vec()).ok_or_else(short)
    }

    /// Returns the requested depth, or less if the controller's queues hold fewer commands.
    ///
    /// # Errors
    /// [`ConnectError::Depth`] if the requested depth must not be lowered.
    pub(crate) fn negotiate_depth(&self, options: &Options) -> Result<u16, ConnectError> {
        // MQES is 0's based, and a queue holds one command less than it has entries: the two cancel out.
        let by_commands = match self.controller.maxcmd {
            0 => u16::MAX,
            maxcmd => maxcmd,
        };
        let max = self.cap.mqes().min(by_commands).min(Connection::MAX_DEPTH as u16);
        match options.depth.min(max) {
            depth if depth > 0 && (depth == options.depth || !options.exact_depth) => Ok(depth),
            _ => Err(ConnectError::Depth { requested: options.depth, max }),
        }
    }

    /// Returns the maximum data of one command: the requested size, limited by MDTS.
    pub(crate) fn max_transfer_bytes(&self, requested: usize) -> usize {
        let requested = requested.max(4096);
        self.mdts_bytes().map_or(requested, |mdts| requested.min(usize::try_from(mdts).unwrap_or(usize::MAX)))
    }

    /// Write data that fits into a capsule of an I/O queue, in bytes.
    pub(crate) fn max_in_capsule_bytes(&self) -> u32 {
        match self.controller.icdoff {
            0 => u32::try_from(self.controller.in_capsule_len()).unwrap_or(u32::MAX),
            // In-capsule data that does not follow the command directly: NVMe/TCP has none.
            _ => 0,
        }
    }

    fn property(&mut self, size: PropertySize, offset: u32) -> Result<u64, ConnectError> {
        let entry = PropertyGetCommand { size, offset }.entry();
        Ok(self.connection.command(Step::Enable, entry, Data::None)?.entry.value())
    }

    fn enable(&mut self) -> Result<(), ConnectError> {
        let cc = Cc::enabled().with_css(self.command_set()?);
        set_cc(&mut self.connection, Step::Enable, cc)?;
        // CAP.TO is in units of 500 ms.
        let deadline = Instant::now() + Duration::from_millis(500) * u32::from(self.cap.to()).max(1);
        loop {
            let csts = Csts(self.property(PropertySize::Bytes4, offset::CSTS)? as u32);
            if csts.cfs() {
                return Err(self
                    .connection
                    .not_ready("CSTS.CFS reports a fatal error; see the log of the target"));
            }
            if csts.rdy() {
                return Ok(());
            }
            if Instant::now() >= deadline || !self.connection.pause(POLL_INTERVAL) {
                return Err(self
                    .connection
                    .not_ready("CSTS.RDY stays 0 after CAP.TO; see the log of the target"));
            }
        }
    }

    /// CC.CSS: 000b where the NVM command set is the choice, 110b where a controller has several (Base 2.0).
    fn command_set(&self) -> Result<u8, ConnectError> {
        match self.cap.css() {
            // Some older targets leave CAP.CSS zero.
            css if css & 1 != 0 || css == 0 => Ok(0b000),
            css if css & 1 << 6 != 0 => Ok(0b110),
            css => Err(ConnectError::Unsupported(format!(
                "the controller has no NVM command set (CAP.CSS {css:#x})"
            ))),
        }
    }

    fn mdts_bytes(&self) -> Option<u64> {
        self.controller.transfer_len_max(self.cap.mpsmin())
    }

    fn controller_info(&self, version: Vs) -> ControllerInfo {
        let controller = &self.controller;
        ControllerInfo {
            cntlid: self.cntlid,
            serial: controller.sn.to_string(),
            model: controller.mn.to_string(),
            firmware: controller.fr.to_string(),
            version,
            max_transfer_bytes: self.mdts_bytes(),
            max_queue_entries: u32::from(self.cap.mqes()) + 1,
            has_volatile_cache: controller.vwc.present(),
            has_write_zeroes: controller.oncs.write_zeroes(),
            has_deallocate: controller.oncs.dataset_management(),
            traffic_based_keep_alive: controller.ctratt.tbkas(),
            command_quiesce_time: Duration::from_millis(u64::from(controller.cqt_ms)),
        }
    }
}

/// Shuts the controller down and waits until it reports that this is complete.
///
/// # Errors
/// Among others [`ConnectError::Timeout`] if it does not within the deadline of the connection, and
/// [`ConnectError::NotReady`] if it reports a fatal error instead: its commands may still be in progress.
pub(crate) fn shutdown(mut connection: BlockingConnection) -> Result<(), ConnectError> {
    set_cc(&mut connection, Step::Shutdown, Cc::enabled().with_shn(Cc::SHN_NORMAL))?;
    let entry = PropertyGetCommand { size: PropertySize::Bytes4, offset: offset::CSTS }.entry();
    loop {
        let csts = Csts(connection.command(Step::Shutdown, entry, Data::None)?.entry.value() as u32);
        if csts.shst() == Csts::SHST_COMPLETE {
            return Ok(());
        }
        if csts.cfs() {
            let reason = "CSTS.CFS reports a fatal error during shutdown; see the log of the target";
            return Err(connection.not_ready(reason));
        }
        if !connection.pause(POLL_INTERVAL) {
            return Err(connection.timed_out(Step::Shutdown));
        }
    }
}

fn set_cc(connection: &mut BlockingConnection, step: Step, cc: Cc) -> Result<(), ConnectError> {
    let command =
        PropertySetCommand { size: PropertySize::Bytes4, offset: offset::CC, value: u64::from(cc.0) };
    connection.command(step, command.entry(), Data::None).map(drop)
}
