//! Controller properties: CAP, VS, CC, CSTS (Base 1.4 §3.1, Fabrics 1.1 §3.4 and §3.5).
//!
//! The states of enabling, resetting, and shutting down, driven by CC and reported by CSTS. The
//! port requests the closes and flushes.
//!
//! Invariant: SHST becomes "complete" only after a flush of all namespaces that can be flushed, and
//! RDY drops only without I/O queues.

use isolane_wire::Status;
use isolane_wire::fabrics::{PropertyGetCommand, PropertySetCommand, PropertySize};
use isolane_wire::registers::{Cap, Cc, Csts, Vs, offset};

use super::MAX_ADMIN_ENTRIES;
use super::namespace::{SubsystemKind, SubsystemProfile};
use crate::failure::Failure;

/// Version that every controller claims: 1.4.
pub(super) const VERSION: Vs = Vs::V1_4;

/// Longest time to become ready or to stop, in units of 500 ms (CAP.TO): a reset waits for I/O in
/// flight.
const READY_TIMEOUT: u8 = 60;

/// The registers of one controller.
#[derive(Debug)]
pub(super) struct Registers {
    cc: Cc,
    phase: Phase,
    discovery: bool,
    /// Requested flushes that have not ended.
    flushes: u32,
}

/// State of a controller between enabled and shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// CC.EN is 0.
    Disabled,
    /// Commands are accepted.
    Ready,
    /// CC.SHN is set; I/O ends and caches are flushed.
    ShuttingDown,
    /// All caches are flushed.
    ShutDown,
    /// CC.EN became 0, but I/O queues still exist.
    Resetting,
    /// CC requested an unsupported value, or the host was silent for too long.
    Failed,
}

/// The phases that can be continued elsewhere, by their numbers in a state.
const PHASES: [Phase; 4] = [Phase::Disabled, Phase::Ready, Phase::ShutDown, Phase::Failed];

/// Action that a write to CC requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// None.
    None,
    /// Close the I/O queues.
    CloseIoQueues,
    /// Reset the controller, which is disabled already.
    Reset,
    /// End all I/O and flush the caches.
    Shutdown,
}

impl Registers {
    /// A disabled controller.
    pub(super) fn new(discovery: bool) -> Registers {
        Registers { cc: Cc(0), phase: Phase::Disabled, discovery, flushes: 0 }
    }

    /// Returns CC and the phase as numbers; `None` while flushes or I/O queues must end first.
    pub(super) fn state(&self) -> Option<(u32, u8)> {
        let phase = PHASES.iter().position(|phase| *phase == self.phase)?;
        (self.flushes == 0).then_some((self.cc.0, phase as u8))
    }

    /// Returns the registers with this state; `None` if there is no such phase.
    pub(super) fn from_state(discovery: bool, (cc, phase): (u32, u8)) -> Option<Registers> {
        let phase = *PHASES.get(usize::from(phase))?;
        Some(Registers { cc: Cc(cc), phase, discovery, flushes: 0 })
    }

    /// Whether I/O is accepted and KATO runs.
    pub(super) fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Whether admin commands are accepted.
    pub(super) fn is_enabled(&self) -> bool {
        matches!(self.phase, Phase::Ready | Phase::ShuttingDown | Phase::ShutDown)
    }

    /// CSTS.
    pub(super) fn csts(&self) -> Csts {
        let csts = Csts(0);
        match self.phase {
            Phase::Disabled => csts,
            Phase::Ready | Phase::Resetting => csts.with_rdy(true),
            Phase::ShuttingDown => csts.with_rdy(true).with_shst(Csts::SHST_OCCURRING),
            Phase::ShutDown => csts.with_rdy(true).with_shst(Csts::SHST_COMPLETE),
            Phase::Failed => csts.with_cfs(true),
        }
    }

    /// Property Get; the size must match the property (Fabrics 1.1 §3.4).
    pub(super) fn property(&self, command: &PropertyGetCommand, cap: Cap) -> Result<u64, Status> {
        let (size, value) = match command.offset {
            offset::CAP => (PropertySize::Bytes8, cap.0),
            offset::VS => (PropertySize::Bytes4, VERSION.0.into()),
            offset::CC => (PropertySize::Bytes4, self.cc.0.into()),
            offset::CSTS => (PropertySize::Bytes4, self.csts().0.into()),
            _ => return Err(Failure::Field.status()),
        };
        if command.size == size { Ok(value) } else { Err(Failure::Field.status()) }
    }

    /// Property Set: only CC can be written.
    pub(super) fn set_property(
        &mut self,
        command: &PropertySetCommand,
        has_io_queues: bool,
    ) -> Result<Transition, Status> {
        if command.offset != offset::CC || command.size != PropertySize::Bytes4 {
            return Err(Failure::Field.status());
        }
        let cc = Cc(command.value as u32);
        if self.phase == Phase::Resetting && cc.en() {
            return Err(Failure::Resetting.status());
        }
        self.cc = cc;
        Ok(self.on_cc(has_io_queues))
    }

    fn on_cc(&mut self, has_io_queues: bool) -> Transition {
        let is_shutdown = self.cc.shn() != Cc::SHN_NONE;
        match (self.phase, self.cc.en()) {
            (Phase::Disabled, true) => {
                self.phase = if self.is_supported() { Phase::Ready } else { Phase::Failed };
                if self.phase == Phase::Ready && is_shutdown {
                    self.begin_shutdown()
                } else {
                    Transition::None
                }
            }
            (Phase::Disabled | Phase::Resetting, _) => Transition::None,
            (_, false) if has_io_queues => {
                self.phase = Phase::Resetting;
                Transition::CloseIoQueues
            }
            (_, false) => {
                self.phase = Phase::Disabled;
                Transition::Reset
            }
            (Phase::Ready, true) if is_shutdown => self.begin_shutdown(),
            (_, true) => Transition::None,
        }
    }

    fn begin_shutdown(&mut self) -> Transition {
        self.phase = Phase::ShuttingDown;
        self.flushes += 1;
        Transition::Shutdown
    }

    /// Whether CC selects a supported command set, page size, arbitration, and entry size (Base 1.4
    /// §3.1.5). A discovery controller has no I/O queues, so its entry sizes are ignored.
    fn is_supported(&self) -> bool {
        let sizes = (self.cc.iosqes(), self.cc.iocqes());
        let has_sizes = self.discovery || sizes == (Cc::IOSQES_64, Cc::IOCQES_16);
        has_sizes && self.cc.css() == 0 && self.cc.mps() == 0 && self.cc.ams() == 0
    }

    /// Handles the end of the last I/O queue. Returns `true` if that completed a reset.
    pub(super) fn handle_io_queues_gone(&mut self) -> bool {
        let was_resetting = self.phase == Phase::Resetting;
        if was_resetting {
            self.phase = Phase::Disabled;
        }
        was_resetting
    }

    /// Handles the end of the flush of a shutdown. A shutdown that follows a reset waits for its
    /// own flush. A volume that cannot be flushed has failed its own commands and would fail every
    /// later shutdown; for the other volumes the shutdown is complete.
    pub(super) fn handle_flushed(&mut self) {
        self.flushes = self.flushes.saturating_sub(1);
        if self.phase == Phase::ShuttingDown && self.flushes == 0 {
            self.phase = Phase::ShutDown;
        }
    }

    /// Marks the controller as failed (CSTS.CFS).
    pub(super) fn fail(&mut self) {
        self.phase = Phase::Failed;
    }
}

/// CAP (Base 1.4 §3.1.1): contiguous queues, the NVM command set, 4 KiB pages, round robin only.
pub(super) fn cap(profile: &SubsystemProfile) -> Cap {
    let max_entries = match profile.kind {
        SubsystemKind::Nvm => profile.config.max_queue_entries,
        SubsystemKind::Discovery => MAX_ADMIN_ENTRIES,
    };
    Cap(0).with_mqes(max_entries - 1).with_cqr(true).with_to(READY_TIMEOUT).with_css(CSS_NVM)
}

/// CAP.CSS: bit 0, the NVM command set.
const CSS_NVM: u8 = 1;
