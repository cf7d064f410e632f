//! Changes of a queue pair's state, with the attributes that each requires (IBA 1.3 §11.2.5.2).

use std::ffi::c_int;
use std::time::Duration;

use isolane_verbs::{
    Access, ModifyError, Peer, QueuePair, QueuePairState, ReceiveAttributes, SendAttributes,
};

use crate::abi::{self, QpAttr};
use crate::address::from_gid;
use crate::context::MAX_READS;
use crate::ffi::{Errno, Result, check, object, output, status};
use crate::queue_pair::{Pair, Qp};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut abi::Qp, attributes: *mut QpAttr, mask: c_int) -> c_int {
    status(|| {
        // SAFETY: the program passes null or a live queue pair, and null or attributes that no other thread uses
        // during the call.
        let (found, attributes) = unsafe { (object::<_, Qp>(qp)?, output(attributes)?) };
        modify(found, attributes, mask)?;
        if mask & abi::QP_STATE != 0 {
            // SAFETY: the program changes the state in one thread at a time.
            unsafe { (*qp).state = attributes.qp_state };
        }
        Ok(())
    })
}

/// Changes the state and the attributes.
fn modify(qp: &Qp, new: &QpAttr, mask: c_int) -> Result<()> {
    let mut current = qp.attributes.lock();
    let from = qp.state();
    check(mask & abi::QP_CUR_STATE == 0 || new.cur_qp_state == from)?;
    let to = if mask & abi::QP_STATE != 0 { new.qp_state } else { from };
    let (required, optional) = attributes(qp.kind(), from, to)?;
    let given = mask & !(abi::QP_STATE | abi::QP_CUR_STATE);
    check(given & required == required && given & !(required | optional) == 0)?;
    check_values(new, mask)?;
    let merged = merge(&current, new, mask);
    match (&qp.pair, to) {
        (pair, abi::QPS_RESET) => pair.reset(),
        (pair, abi::QPS_ERR) => pair.fail(),
        (Pair::Connected(pair), _) => modify_connected(pair, qp.kind(), from, to, &merged)?,
        (Pair::Datagrams(pair), _) => {
            pair.set_q_key(merged.qkey);
            let state = [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend]
                [to as usize - 1];
            check(from == to || pair.advance(state))?;
        }
    }
    *current = if to == abi::QPS_RESET { QpAttr { cap: current.cap, ..QpAttr::default() } } else { merged };
    Ok(())
}

/// Changes the state of a connected queue pair to init, ready to receive, or ready to send.
fn modify_connected(pair: &QueuePair, kind: c_int, from: c_int, to: c_int, new: &QpAttr) -> Result<()> {
    let access = Access(new.qp_access_flags & Access::ALL.0);
    if from != abi::QPS_RESET {
        pair.set_access(access);
    }
    match (from, to) {
        (abi::QPS_RESET, abi::QPS_INIT) => pair.initialize(access),
        (abi::QPS_INIT, abi::QPS_RTR) => {
            let peer = Peer { address: from_gid(&new.ah_attr.grh.dgid.0), number: new.dest_qp_num };
            let receive = ReceiveAttributes {
                responder_resources: new.max_dest_rd_atomic.into(),
                rnr_timer: new.min_rnr_timer,
            };
            pair.start_receiving(peer, new.rq_psn & MAX_PSN, &receive)
        }
        (abi::QPS_RTR, abi::QPS_RTS) if kind == abi::QPT_RC => {
            let outstanding_reads = new.max_rd_atomic.into();
            let send = SendAttributes { outstanding_reads, rnr_retries: new.rnr_retry };
            pair.start_sending(new.sq_psn & MAX_PSN, &send, lane_timeout(new.timeout, new.retry_cnt))
        }
        (abi::QPS_RTR, abi::QPS_RTS) => {
            pair.start_sending(new.sq_psn & MAX_PSN, &SendAttributes::default(), None)
        }
        _ => Ok(()),
    }
    .map_err(errno)
}

/// Returns the time after which requests without a lane fail. A device can wait up to four times as long as the code
/// `timeout` says; `None` is forever.
fn lane_timeout(timeout: u8, retries: u8) -> Option<Duration> {
    let code = u32::from(timeout & 31);
    let once = Duration::from_nanos(4096 << code);
    (code != 0).then(|| (once * 4 * (u32::from(retries) + 1)).max(MIN_LANE_TIMEOUT))
}

fn errno(error: ModifyError) -> Errno {
    match error {
        ModifyError::State(_) => Errno::INVALID,
        ModifyError::Connect(_) => Errno(libc::EIO),
    }
}

/// Returns the attributes that a change requires and allows.
fn attributes(kind: c_int, from: c_int, to: c_int) -> Result<(c_int, c_int)> {
    use abi::{QPS_ERR, QPS_INIT, QPS_RESET, QPS_RTR, QPS_RTS, QPS_SQD};
    let of = |kinds: &[c_int], mask| if kinds.contains(&kind) { mask } else { 0 };
    let (reliable, connected, datagram) = ([abi::QPT_RC], [abi::QPT_RC, abi::QPT_UC], [abi::QPT_UD]);
    let q_key = of(&datagram, abi::QP_QKEY);
    let to_init = abi::QP_PKEY_INDEX | abi::QP_PORT | of(&connected, abi::QP_ACCESS_FLAGS) | q_key;
    Ok(match (from, to) {
        (_, QPS_RESET | QPS_ERR) => (0, 0),
        (QPS_RESET, QPS_INIT) => (to_init, 0),
        (QPS_INIT, QPS_INIT) => (0, to_init),
        (QPS_INIT, QPS_RTR) => {
            let path = abi::QP_AV | abi::QP_PATH_MTU | abi::QP_DEST_QPN | abi::QP_RQ_PSN;
            let responses = abi::QP_MAX_DEST_RD_ATOMIC | abi::QP_MIN_RNR_TIMER;
            let optional = of(&connected, abi::QP_ALT_PATH | abi::QP_ACCESS_FLAGS) | q_key;
            (of(&connected, path) | of(&reliable, responses), optional | abi::QP_PKEY_INDEX)
        }
        (QPS_RTR, QPS_RTS) => {
            let retries = abi::QP_TIMEOUT | abi::QP_RETRY_CNT | abi::QP_RNR_RETRY | abi::QP_MAX_QP_RD_ATOMIC;
            (abi::QP_SQ_PSN | of(&reliable, retries), of(&connected, CHANGEABLE) | q_key)
        }
        (QPS_RTS, QPS_RTS) => (0, of(&connected, CHANGEABLE) | q_key),
        (QPS_RTS, QPS_SQD) => return Err(Errno::UNSUPPORTED),
        _ => return Err(Errno::INVALID),
    })
}

/// Attributes that a connected queue pair can change.
const CHANGEABLE: c_int =
    abi::QP_ACCESS_FLAGS | abi::QP_ALT_PATH | abi::QP_PATH_MIG_STATE | abi::QP_MIN_RNR_TIMER;

fn check_values(new: &QpAttr, mask: c_int) -> Result<()> {
    let has = |bit| mask & bit != 0;
    check(!has(abi::QP_PKEY_INDEX) || new.pkey_index == 0)?;
    check(!has(abi::QP_PORT) || new.port_num == 1)?;
    check(!has(abi::QP_PATH_MTU) || (1..=abi::MTU_4096).contains(&new.path_mtu))?;
    let ah = &new.ah_attr;
    check(!has(abi::QP_AV) || (ah.is_global != 0 && ah.grh.sgid_index == 0 && ah.port_num == 1))?;
    check(!has(abi::QP_DEST_QPN) || new.dest_qp_num <= MAX_QP_NUMBER)?;
    check(!has(abi::QP_MAX_DEST_RD_ATOMIC) || new.max_dest_rd_atomic <= MAX_READS)?;
    check(!has(abi::QP_MAX_QP_RD_ATOMIC) || new.max_rd_atomic <= MAX_READS)?;
    check(!has(abi::QP_TIMEOUT) || new.timeout < 32)?;
    check(!has(abi::QP_RETRY_CNT) || new.retry_cnt < 8)?;
    check(!has(abi::QP_RNR_RETRY) || new.rnr_retry < 8)?;
    check(!has(abi::QP_MIN_RNR_TIMER) || new.min_rnr_timer < 32)
}

/// Copies an attribute.
type Copy<'a> = &'a dyn Fn(&mut QpAttr);

/// Returns the attributes after a change.
fn merge(old: &QpAttr, new: &QpAttr, mask: c_int) -> QpAttr {
    let mut merged = *old;
    let copies: [(c_int, Copy<'_>); 17] = [
        (abi::QP_ACCESS_FLAGS, &|to| to.qp_access_flags = new.qp_access_flags),
        (abi::QP_PKEY_INDEX, &|to| to.pkey_index = new.pkey_index),
        (abi::QP_PORT, &|to| to.port_num = new.port_num),
        (abi::QP_QKEY, &|to| to.qkey = new.qkey),
        (abi::QP_AV, &|to| to.ah_attr = new.ah_attr),
        (abi::QP_ALT_PATH, &|to| to.alt_ah_attr = new.alt_ah_attr),
        (abi::QP_PATH_MTU, &|to| to.path_mtu = new.path_mtu),
        (abi::QP_TIMEOUT, &|to| to.timeout = new.timeout),
        (abi::QP_RETRY_CNT, &|to| to.retry_cnt = new.retry_cnt),
        (abi::QP_RNR_RETRY, &|to| to.rnr_retry = new.rnr_retry),
        (abi::QP_RQ_PSN, &|to| to.rq_psn = new.rq_psn),
        (abi::QP_SQ_PSN, &|to| to.sq_psn = new.sq_psn),
        (abi::QP_MAX_QP_RD_ATOMIC, &|to| to.max_rd_atomic = new.max_rd_atomic),
        (abi::QP_MAX_DEST_RD_ATOMIC, &|to| to.max_dest_rd_atomic = new.max_dest_rd_atomic),
        (abi::QP_MIN_RNR_TIMER, &|to| to.min_rnr_timer = new.min_rnr_timer),
        (abi::QP_DEST_QPN, &|to| to.dest_qp_num = new.dest_qp_num),
        (abi::QP_PATH_MIG_STATE, &|to| to.path_mig_state = new.path_mig_state),
    ];
    copies.iter().filter(|(bit, _)| mask & bit != 0).for_each(|(_, copy)| copy(&mut merged));
    merged
}

/// First messages are packet sequence numbers of 24 bits.
const MAX_PSN: u32 = (1 << 24) - 1;
const MAX_QP_NUMBER: u32 = (1 << 24) - 1;
/// A connection of TCP takes longer than a packet of InfiniBand.
const MIN_LANE_TIMEOUT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_follow_the_specification() {
        assert_eq!(lane_timeout(0, 7), None);
        assert_eq!(lane_timeout(1, 0), Some(MIN_LANE_TIMEOUT));
        assert_eq!(lane_timeout(18, 7), Some(Duration::from_nanos(4096 << 18) * 32));
        assert!(lane_timeout(31, 7).is_some_and(|timeout| timeout > Duration::from_secs(200_000)));
    }

    #[test]
    fn refuses_destination_numbers_beyond_24_bits() {
        let check =
            |dest_qp_num| check_values(&QpAttr { dest_qp_num, ..QpAttr::default() }, abi::QP_DEST_QPN);
        assert_eq!((check((1 << 24) - 1), check(1 << 24)), (Ok(()), Err(Errno::INVALID)));
    }

    #[test]
    fn each_change_has_its_attributes() {
        let is_allowed = |from, to| attributes(abi::QPT_RC, from, to).is_ok();
        assert!(is_allowed(abi::QPS_RESET, abi::QPS_INIT) && !is_allowed(abi::QPS_RESET, abi::QPS_RTR));
        assert!(is_allowed(abi::QPS_RTR, abi::QPS_RTS) && !is_allowed(abi::QPS_RTS, abi::QPS_RTR));
        assert!((0..=6).all(|from| is_allowed(from, abi::QPS_ERR) && is_allowed(from, abi::QPS_RESET)));
        let (reliable, _) = attributes(abi::QPT_RC, abi::QPS_RTR, abi::QPS_RTS).unwrap();
        let (unreliable, _) = attributes(abi::QPT_UC, abi::QPS_RTR, abi::QPS_RTS).unwrap();
        assert_eq!((unreliable, reliable & abi::QP_TIMEOUT), (abi::QP_SQ_PSN, abi::QP_TIMEOUT));
    }
}
