//! Identify.

use super::*;
use isolane_wire::admin::{Cns, IdentifyCommand, NSID_ALL, async_event_request};
use isolane_wire::identify::{
    Controller, ControllerType, Descriptor, DescriptorList, IndependentNamespace, Namespace, NamespaceList,
};
use isolane_wire::registers::Vs;

impl Harness {
    fn identify(&mut self, id: AssociationId, cns: Cns, nsid: u32) -> Result<[u8; 4096], Status> {
        let data = self.fetch(id, IdentifyCommand::new(cns, nsid).entry())?;
        Ok(data.try_into().unwrap())
    }

    fn controller(&mut self, id: AssociationId) -> Controller {
        Controller::decode(&self.identify(id, Cns::Controller, 0).unwrap())
    }

    fn namespace(&mut self, id: AssociationId, nsid: u32) -> Namespace {
        Namespace::decode(&self.identify(id, Cns::Namespace, nsid).unwrap())
    }
}

#[test]
fn identifies_io_controller() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let controller = harness.controller(id);
    assert_eq!(controller.cntrltype, ControllerType::Io.code());
    assert_eq!((controller.ver, controller.cntlid), (Vs::V1_4, id.cntlid));
    assert_eq!(controller.sn.as_str(), Some("0123456789"));
    assert_eq!(controller.subnqn.parse(), Ok(Nqn::new(SUBNQN).unwrap()));
    assert_eq!((controller.sqes, controller.cqes, controller.maxcmd), (0x66, 0x44, 256));
    assert_eq!((controller.kas, controller.ctratt.0), (10, 0x41), "TBKAS and 128-bit host identifiers");
    assert_eq!(controller.cqt_ms, 5000, "without it no host may trust a timeout");
    assert_eq!(controller.sgls.0, 0x0030_0001);
    assert_eq!((controller.ioccsz, controller.iorcsz, controller.icdoff, controller.msdbd), (1028, 1, 0, 1));
    assert_eq!(controller.in_capsule_len(), 16 * 1024);
    assert_eq!(controller.transfer_len_max(0), Some(1 << 20));
    assert_eq!((controller.cmic.0, controller.fcatt.0, controller.ofcs.0), (2, 0, 1));
    assert_eq!((controller.acl, controller.aerl, controller.elpe, controller.frmw), (3, 3, 63, 3));
    assert_eq!((controller.lpa.0, controller.oaes.0, controller.oacs.0), (0b110, 0x100, 0));
    assert_eq!((controller.oncs.0, controller.fuses, controller.awun, controller.awupf), (0xc, 0, 0, 0));
    assert_ne!((controller.wctemp_kelvin, controller.cctemp_kelvin), (0, 0), "required since 1.2");
    assert_eq!(controller.nn, MAX_NSID);
}

#[test]
fn reports_cache_of_any_namespace() {
    let mut harness = Harness::new();
    let id = harness.ready();
    assert_eq!(harness.controller(id).vwc.0, 0b101, "present; flush of all namespaces is refused");
    let mut config = config();
    for namespace in &mut config.subsystems[0].namespaces {
        namespace.volatile_cache = false;
    }
    let mut harness = Harness::with(config);
    let id = harness.ready();
    assert_eq!(harness.controller(id).vwc.0, 0b100);
}

#[test]
fn mdts_follows_transfer_limit() {
    for (bytes, mdts) in [(8192, 1), (1 << 20, 8), (1 << 28, 16)] {
        let subsystem = SubsystemConfig { max_transfer_bytes: bytes, ..SubsystemConfig::default() };
        assert_eq!(subsystem.mdts(), mdts);
    }
}

#[test]
fn identifies_discovery_controller() {
    let mut harness = Harness::new();
    let id = harness.discovery();
    let controller = harness.controller(id);
    assert_eq!(controller.cntrltype, ControllerType::Discovery.code());
    assert!(controller.subnqn.parse().unwrap().is_discovery());
    assert_eq!((controller.nn, controller.oncs.0, controller.ioccsz), (0, 0, 0));
    assert_eq!((controller.lpa.0, controller.oaes.0, controller.kas), (0b100, 0x8000_0000, 10));
    for cns in [Cns::Namespace, Cns::ActiveNamespaces, Cns::CommandSetController] {
        assert_eq!(harness.identify(id, cns, 0), Err(Status::INVALID_FIELD.with_dnr(true)));
    }
}

#[test]
fn identifies_namespace() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let namespace = harness.namespace(id, 3);
    assert_eq!((namespace.nsze, namespace.ncap, namespace.nuse), (2048, 2048, 2048));
    assert_eq!((namespace.block_len(), namespace.nvmcap_bytes), (Some(512), 1 << 20));
    assert_eq!((namespace.nguid, namespace.nmic.shared()), ([0x83; 16], true));
    assert_eq!((namespace.dlfeat.read(), namespace.dlfeat.write_zeroes_deallocate()), (1, true));
    assert_eq!((namespace.npwg, namespace.npwa, namespace.npdg, namespace.nows), (7, 7, 7, 7));
    assert!(!namespace.nsattr.write_protected());
}

#[test]
fn reports_read_only_namespace() {
    let mut config = config();
    config.subsystems[0].namespaces[0].geometry.read_only = true;
    let mut harness = Harness::with(config);
    let id = harness.ready();
    assert!(harness.namespace(id, 1).nsattr.write_protected());
    let data = harness.identify(id, Cns::IndependentNamespace, 1).unwrap();
    assert!(IndependentNamespace::decode(&data).nsattr.write_protected());
}

#[test]
fn distinguishes_inactive_and_invalid_nsid() {
    let mut harness = Harness::new();
    let id = harness.ready();
    for cns in [Cns::Namespace, Cns::CommandSetNamespace, Cns::IndependentNamespace] {
        assert_eq!(harness.identify(id, cns, 2), Ok([0; 4096]));
        assert_eq!(harness.identify(id, cns, MAX_NSID), Ok([0; 4096]));
        for nsid in [0, MAX_NSID + 1, NSID_ALL - 1, NSID_ALL] {
            assert_eq!(harness.identify(id, cns, nsid), Err(Status::INVALID_NAMESPACE.with_dnr(true)));
        }
    }
}

#[test]
fn active_list_starts_after_nsid() {
    let mut harness = Harness::new();
    let id = harness.ready();
    for (nsid, expected) in [(0, vec![1, 3]), (1, vec![3]), (2, vec![3]), (3, vec![]), (NSID_ALL - 2, vec![])]
    {
        for cns in [Cns::ActiveNamespaces, Cns::CommandSetActiveNamespaces] {
            let list = NamespaceList::decode(&harness.identify(id, cns, nsid).unwrap());
            assert_eq!(list.nsids(), expected);
        }
    }
    for nsid in [NSID_ALL - 1, NSID_ALL] {
        let refused = Err(Status::INVALID_NAMESPACE.with_dnr(true));
        assert_eq!(harness.identify(id, Cns::ActiveNamespaces, nsid), refused);
    }
}

#[test]
fn full_subsystem_fits_active_list() {
    let mut config = config();
    config.subsystems[0].namespaces = (1..=MAX_NSID).map(namespace).collect();
    let mut harness = Harness::with(config);
    let id = harness.ready();
    let list = NamespaceList::decode(&harness.identify(id, Cns::ActiveNamespaces, 0).unwrap());
    assert_eq!(list.nsids().len(), MAX_NSID as usize);
}

#[test]
fn lists_nguid_and_uuid() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let data = harness.identify(id, Cns::NamespaceDescriptors, 1).unwrap();
    assert!(DescriptorList::decode(&data).eq([Descriptor::Nguid([0x81; 16]), Descriptor::Uuid([1; 16])]));
    for nsid in [0, 2, NSID_ALL] {
        let refused = Err(Status::INVALID_NAMESPACE.with_dnr(true));
        assert_eq!(harness.identify(id, Cns::NamespaceDescriptors, nsid), refused);
    }
}

#[test]
fn handles_cns_of_later_specs() {
    let mut harness = Harness::new();
    let id = harness.ready();
    assert_eq!(harness.identify(id, Cns::CommandSetController, 0), Ok([0; 4096]), "no further limits");
    assert_eq!(harness.identify(id, Cns::CommandSetNamespace, 1), Ok([0; 4096]));
    let invalid = Err(Status::INVALID_FIELD.with_dnr(true));
    for cns in [Cns::CommandSetController, Cns::CommandSetNamespace, Cns::CommandSetActiveNamespaces] {
        let zoned = IdentifyCommand { csi: 2, ..IdentifyCommand::new(cns, 1) };
        assert_eq!(harness.fetch(id, zoned.entry()).map(drop), invalid.map(drop));
    }
    for cns in [Cns::CommandSets, Cns::Controllers, Cns::AllocatedNamespaces, Cns::NvmSets, Cns::UuidList] {
        assert_eq!(harness.identify(id, cns, 0), invalid, "{cns}");
    }
    let unknown = IdentifyCommand { cns: 0xff, ..IdentifyCommand::default() };
    assert_eq!(harness.fetch(id, unknown.entry()).map(drop), invalid.map(drop));
}

#[test]
fn rejects_identify_of_wrong_length() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let entry = IdentifyCommand::new(Cns::Controller, 0).entry();
    for data_bytes in [0, 4095, 8192, u32::MAX] {
        let action = harness.execute(id, entry, data_bytes);
        assert_eq!(completion(action), rejected_with(Status::DATA_SGL_LENGTH_INVALID));
    }
}

#[test]
fn rejects_fused_admin_commands() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let identify = IdentifyCommand::new(Cns::Controller, 0).entry();
    for fuse in 1..4 {
        let fused = SubmissionEntry { flags: identify.flags.with_fuse(fuse), ..identify };
        assert_eq!(completion(harness.execute(id, fused, 4096)), rejected_with(Status::INVALID_FIELD));
        let held = SubmissionEntry { flags: identify.flags.with_fuse(fuse), ..async_event_request() };
        assert_eq!(completion(harness.execute(id, held, 0)), rejected_with(Status::INVALID_FIELD));
    }
}
