//! Names of numbers, and conversions of rates.

use std::ffi::{CStr, c_char, c_int};

use crate::ffi::text;

fn name(names: &[&'static CStr], number: c_int) -> *const c_char {
    text(usize::try_from(number).ok().and_then(|at| names.get(at)).copied().unwrap_or(c"unknown"))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(number: c_int) -> *const c_char {
    name(
        &[
            c"unknown",
            c"InfiniBand channel adapter",
            c"InfiniBand switch",
            c"InfiniBand router",
            c"iWARP NIC",
        ],
        number,
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(number: c_int) -> *const c_char {
    const NAMES: [&CStr; 6] = [
        c"no state change (NOP)",
        c"PORT_DOWN",
        c"PORT_INIT",
        c"PORT_ARMED",
        c"PORT_ACTIVE",
        c"PORT_ACTIVE_DEFER",
    ];
    name(&NAMES, number)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(number: c_int) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    name(&NAMES, number)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(number: c_int) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"remote aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    name(&NAMES, number)
}

/// Codes of rates, with the multiple of 2.5 Gb/s and the rate in Mb/s. 0 as a multiple: none.
const RATES: [(c_int, c_int, c_int); 22] = [
    (2, 1, 2500),
    (5, 2, 5000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 0, 25_781),
    (16, 0, 103_125),
    (17, 0, 206_250),
    (18, 0, 309_375),
    (19, 0, 28_125),
    (20, 0, 50_000),
    (21, 0, 400_000),
    (22, 0, 600_000),
    (23, 0, 800_000),
];

#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|(code, multiple, _)| *code == rate && *multiple > 0).map_or(-1, |found| found.1)
}

#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    RATES.iter().find(|(_, found, _)| *found > 0 && *found == multiple).map_or(0, |found| found.0)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |found| found.2)
}

#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|(_, _, found)| *found == mbps).map_or(0, |found| found.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_convert_in_both_directions() {
        for (code, multiple, mbps) in RATES {
            assert_eq!((ibv_rate_to_mbps(code), mbps_to_ibv_rate(mbps)), (mbps, code));
            if multiple > 0 {
                assert_eq!((ibv_rate_to_mult(code), mult_to_ibv_rate(multiple)), (multiple, code));
            }
        }
        assert_eq!((ibv_rate_to_mult(99), mult_to_ibv_rate(3), ibv_rate_to_mbps(0)), (-1, 0, -1));
    }

    #[test]
    fn unknown_numbers_have_a_name() {
        // SAFETY: the names are constants.
        let name = |number| unsafe { CStr::from_ptr(ibv_wc_status_str(number)) };
        assert_eq!(
            [name(0), name(12), name(-1), name(24)].map(|name| name.to_str().unwrap()),
            ["success", "transport retry counter exceeded", "unknown", "unknown"]
        );
    }
}
