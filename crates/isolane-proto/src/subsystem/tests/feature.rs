//! Get Features and Set Features.

use super::*;
use isolane_wire::admin::NSID_ALL;
use isolane_wire::feature::{
    AsyncEventConfiguration, ErrorRecovery, HostBehaviorSupport, NumberOfQueues, TemperatureThreshold,
};

const OFFERED: [FeatureId; 9] = [
    FeatureId::Arbitration,
    FeatureId::PowerManagement,
    FeatureId::TemperatureThreshold,
    FeatureId::ErrorRecovery,
    FeatureId::VolatileWriteCache,
    FeatureId::NumberOfQueues,
    FeatureId::WriteAtomicity,
    FeatureId::AsyncEventConfiguration,
    FeatureId::KeepAliveTimer,
];

/// Read-only features.
const NOT_CHANGEABLE: [FeatureId; 2] = [FeatureId::InterruptCoalescing, FeatureId::InterruptVector];

#[test]
fn interrupts_are_never_coalesced() {
    let mut harness = Harness::new();
    let id = harness.ready();
    assert_eq!(harness.feature(id, FeatureId::InterruptCoalescing), Completion::with_dw0(0));
    for iv in [0, 1, 0xffff] {
        let fid = FeatureId::InterruptVector.code();
        let get = GetFeaturesCommand { fid, cdw11: iv, ..Default::default() };
        assert_eq!(harness.complete(id, get.entry()), Completion::with_dw0(iv | 1 << 16));
    }
}

#[test]
fn host_enables_retry_delays_until_a_reset() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let status =
        Arc::clone(&harness.port.nvm.get_mut(&SubsystemId::FIRST).unwrap().association(id).unwrap().status);
    let get = GetFeaturesCommand { fid: FeatureId::HostBehaviorSupport.code(), ..Default::default() }.entry();
    let set = SetFeaturesCommand { fid: FeatureId::HostBehaviorSupport.code(), ..Default::default() }.entry();
    assert!(takes_data(&set) && !takes_data(&get) && data_expected(&set) == 512);
    let enable = |harness: &mut Harness, behavior: HostBehaviorSupport| {
        completion(harness.port.handle_data(id, &set, &behavior.encode(), harness.now))
    };
    let acre = |acre| HostBehaviorSupport { acre, ..Default::default() };
    assert_eq!(harness.fetch(id, get), Ok(acre(0).encode().to_vec()));
    assert!(enable(&mut harness, acre(1)).is_success() && status.has_retry_delays());
    assert_eq!(harness.fetch(id, get), Ok(acre(1).encode().to_vec()));
    for unsupported in
        [acre(2), HostBehaviorSupport { etdas: 1, ..acre(0) }, HostBehaviorSupport { lbafee: 1, ..acre(0) }]
    {
        assert_eq!(enable(&mut harness, unsupported), rejected_with(Status::INVALID_FIELD));
    }
    assert!(status.has_retry_delays(), "a rejected command changes nothing");
    assert_eq!(
        completion(harness.execute(id, set, 512)),
        rejected_with(Status::DATA_SGL_LENGTH_INVALID),
        "without data"
    );
    assert!(enable(&mut harness, acre(0)).is_success() && !status.has_retry_delays());
    enable(&mut harness, acre(1));
    harness.set_cc(id, Cc(0));
    harness.set_cc(id, Cc::enabled());
    assert!(!status.has_retry_delays());
    assert_eq!(harness.fetch(id, get), Ok(acre(0).encode().to_vec()));
    let short = completion(harness.execute(id, get, 16));
    assert_eq!(short, rejected_with(Status::DATA_SGL_LENGTH_INVALID));
}

#[test]
fn rejects_change_of_fixed_features() {
    let mut harness = Harness::new();
    let id = harness.ready();
    for feature in NOT_CHANGEABLE {
        let set = SetFeaturesCommand { fid: feature.code(), ..Default::default() }.entry();
        for data_bytes in [0, 8, 512] {
            let answer = completion(harness.execute(id, set, data_bytes));
            assert_eq!(answer, rejected_with(Status::FEATURE_NOT_CHANGEABLE), "{feature}");
        }
    }
}

#[test]
fn mandatory_features_round_trip() {
    let mut harness = Harness::new();
    let id = harness.ready();
    for feature in OFFERED {
        let value = harness.feature(id, feature);
        assert!(value.is_success(), "{feature}");
        assert!(harness.set_feature(id, feature, value.dw0).is_success(), "{feature}");
        assert_eq!(harness.feature(id, feature), value, "{feature}");
    }
}

#[test]
fn rejects_unsupported_features() {
    let mut harness = Harness::new();
    let id = harness.ready();
    for feature in FeatureId::ALL.iter().filter(|feature| !OFFERED.contains(feature)) {
        let has_data = matches!(feature, FeatureId::HostIdentifier | FeatureId::HostBehaviorSupport);
        if has_data || NOT_CHANGEABLE.contains(feature) {
            continue;
        }
        assert_eq!(harness.feature(id, *feature), rejected_with(Status::INVALID_FIELD), "{feature}");
        let set = SetFeaturesCommand { fid: feature.code(), ..Default::default() }.entry();
        for data_bytes in [0, 8, 512] {
            assert_eq!(
                completion(harness.execute(id, set, data_bytes)),
                rejected_with(Status::INVALID_FIELD)
            );
        }
    }
    let unknown = GetFeaturesCommand { fid: 0xff, ..Default::default() };
    assert_eq!(harness.complete(id, unknown.entry()), rejected_with(Status::INVALID_FIELD));
}

#[test]
fn grants_requested_queues_within_limit() {
    let requested = |count: u16| NumberOfQueues(0).with_submission(count - 1).with_completion(count - 1).0;
    for (count, granted) in [(1, 1), (2, 2), (4, 4), (5, 4), (128, 4), (65535, 4)] {
        let mut harness = Harness::new();
        let id = harness.ready();
        let expected = Completion::with_dw0(requested(granted));
        assert_eq!(harness.set_feature(id, FeatureId::NumberOfQueues, requested(count)), expected);
        assert_eq!(harness.feature(id, FeatureId::NumberOfQueues), expected);
    }
}

#[test]
fn checks_number_of_queues() {
    let mut harness = Harness::new();
    let id = harness.ready();
    for cdw11 in [0xffff, 0xffff_0000, u32::MAX] {
        let completion = harness.set_feature(id, FeatureId::NumberOfQueues, cdw11);
        assert_eq!(completion, rejected_with(Status::INVALID_FIELD));
    }
    harness.io_queue(id, 1).unwrap();
    let late = harness.set_feature(id, FeatureId::NumberOfQueues, 0);
    assert_eq!(late, rejected_with(Status::COMMAND_SEQUENCE_ERROR));
}

#[test]
fn disabling_cache_flushes_it() {
    let mut harness = Harness::new();
    let connected = harness.connect(&MockConnect::admin()).unwrap();
    let id = connected.id;
    harness.set_cc(id, Cc::enabled());
    assert!(connected.status.is_write_cache_enabled());
    assert_eq!(harness.feature(id, FeatureId::VolatileWriteCache), Completion::with_dw0(1));

    let off =
        SetFeaturesCommand { fid: FeatureId::VolatileWriteCache.code(), cdw11: 0, ..Default::default() };
    assert_eq!(harness.execute(id, off.entry(), 0), Action::Flush(Completion::success()));
    assert!(!connected.status.is_write_cache_enabled());
    assert_eq!(harness.feature(id, FeatureId::VolatileWriteCache), Completion::with_dw0(0));
    assert_eq!(
        harness.execute(id, off.entry(), 0),
        Action::Flush(Completion::success()),
        "its flush may fail"
    );

    harness.set_feature(id, FeatureId::VolatileWriteCache, 1);
    assert!(connected.status.is_write_cache_enabled());
}

#[test]
fn cache_setting_is_per_controller() {
    let mut harness = Harness::new();
    let one = harness.ready();
    let two = harness.connect(&MockConnect::admin()).unwrap();
    let off = SetFeaturesCommand { fid: FeatureId::VolatileWriteCache.code(), ..Default::default() };
    harness.execute(one, off.entry(), 0);
    assert!(two.status.is_write_cache_enabled());
}

#[test]
fn rejects_cache_setting_without_cache() {
    let mut config = config();
    config.subsystems[0].namespaces.iter_mut().for_each(|namespace| namespace.volatile_cache = false);
    let mut harness = Harness::with(config);
    let connected = harness.connect(&MockConnect::admin()).unwrap();
    harness.set_cc(connected.id, Cc::enabled());
    assert!(!connected.status.is_write_cache_enabled());
    let invalid = rejected_with(Status::INVALID_FIELD);
    assert_eq!(harness.feature(connected.id, FeatureId::VolatileWriteCache), invalid);
    assert_eq!(harness.set_feature(connected.id, FeatureId::VolatileWriteCache, 1), invalid);
}

#[test]
fn host_identifier_is_fixed() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let fid = FeatureId::HostIdentifier.code();
    let extended = GetFeaturesCommand { fid, cdw11: 1, ..Default::default() };
    assert_eq!(harness.fetch(id, extended.entry()), Ok(vec![7; 16]));
    let short = GetFeaturesCommand { fid, cdw11: 0, ..Default::default() };
    assert_eq!(harness.fetch(id, short.entry()), Err(Status::INVALID_FIELD.with_dnr(true)));
    let set = SetFeaturesCommand { fid, cdw11: 1, ..Default::default() };
    let action = harness.execute(id, set.entry(), 16);
    assert_eq!(completion(action), rejected_with(Status::COMMAND_SEQUENCE_ERROR));
}

#[test]
fn offers_one_temperature_and_one_power_state() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let feature = FeatureId::TemperatureThreshold;
    assert_eq!(harness.feature(id, feature), Completion::with_dw0(0x157));
    let under = TemperatureThreshold(0).with_tmpth(300).with_thsel(1).with_tmpsel(0xf);
    assert_eq!(harness.set_feature(id, feature, under.0), Completion::success());
    assert_eq!(harness.feature(id, feature), Completion::with_dw0(0x157), "the other threshold");
    for wrong in [under.with_tmpsel(1), under.with_thsel(2), under.with_tmpsel(8)] {
        assert_eq!(harness.set_feature(id, feature, wrong.0), rejected_with(Status::INVALID_FIELD));
    }
    assert_eq!(harness.set_feature(id, FeatureId::PowerManagement, 1), rejected_with(Status::INVALID_FIELD));
}

#[test]
fn rejects_deallocated_block_error() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let value = ErrorRecovery(0).with_tler(10);
    assert!(harness.set_feature(id, FeatureId::ErrorRecovery, value.0).is_success());
    let completion = harness.set_feature(id, FeatureId::ErrorRecovery, value.with_dulbe(true).0);
    assert_eq!(completion, rejected_with(Status::INVALID_FIELD));
    assert_eq!(harness.feature(id, FeatureId::ErrorRecovery), Completion::with_dw0(value.0));
}

#[test]
fn rejects_unsupported_events() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let feature = FeatureId::AsyncEventConfiguration;
    let linux = AsyncEventConfiguration(0).with_namespace_attribute(true);
    assert!(harness.set_feature(id, feature, linux.with_smart(0x1f).0).is_success());
    for config in
        [linux.with_discovery_log(true), linux.with_asymmetric_access(true), linux.with_telemetry(true)]
    {
        assert_eq!(harness.set_feature(id, feature, config.0), rejected_with(Status::INVALID_FIELD));
    }
}

#[test]
fn rejects_save_select_and_namespace() {
    let mut harness = Harness::new();
    let id = harness.ready();
    let set = SetFeaturesCommand { fid: FeatureId::Arbitration.code(), ..Default::default() };
    let saved = SetFeaturesCommand { save: true, ..set };
    assert_eq!(harness.complete(id, saved.entry()), rejected_with(Status::FEATURE_NOT_SAVEABLE));
    let of_one = SetFeaturesCommand { nsid: 1, ..set };
    assert_eq!(harness.complete(id, of_one.entry()), rejected_with(Status::FEATURE_NOT_NAMESPACE_SPECIFIC));
    let of_all = SetFeaturesCommand { nsid: NSID_ALL, ..set };
    assert!(harness.complete(id, of_all.entry()).is_success());
    for sel in 1..=7 {
        let select = GetFeaturesCommand { fid: set.fid, sel, ..Default::default() };
        assert_eq!(harness.complete(id, select.entry()), rejected_with(Status::INVALID_FIELD));
    }
}

#[test]
fn reset_restores_defaults() {
    let mut harness = Harness::new();
    let connected = harness.connect(&MockConnect::admin()).unwrap();
    let id = connected.id;
    harness.set_cc(id, Cc::enabled());
    harness.set_feature(id, FeatureId::NumberOfQueues, 0);
    harness.set_feature(id, FeatureId::Arbitration, 3);
    connected.status.set_write_cache(false);
    harness.set_cc(id, Cc(0));
    harness.set_cc(id, Cc::enabled());
    assert_eq!(harness.feature(id, FeatureId::NumberOfQueues), Completion::with_dw0(0x0003_0003));
    assert_eq!(harness.feature(id, FeatureId::Arbitration), Completion::with_dw0(7));
    assert!(connected.status.is_write_cache_enabled());
}

#[test]
fn discovery_offers_kato_and_events_only() {
    let mut harness = Harness::new();
    let id = harness.discovery();
    for feature in OFFERED {
        let is_offered = matches!(feature, FeatureId::KeepAliveTimer | FeatureId::AsyncEventConfiguration);
        assert_eq!(harness.feature(id, feature).is_success(), is_offered, "{feature}");
    }
}
