//! Queue pairs and shared receive queues of identifiers.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::id::{self, Id, from_abi};
use super::message::Message;
use crate::abi;
use crate::completion_queue::{ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_destroy_cq};
use crate::context::MAX_READS;
use crate::create_cq::ibv_create_cq;
use crate::create_qp::{create_qp_ex, ibv_create_qp};
use crate::ffi::{Errno, Result, check, object, output, status, value};
use crate::modify::ibv_modify_qp;
use crate::queue_pair::ibv_destroy_qp;
use crate::shared_receive_queue::{create_srq_ex, ibv_create_srq, ibv_destroy_srq};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut abi::CmId,
    pd: *mut abi::Pd,
    attributes: *mut abi::QpInitAttr,
) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed.
        let shared = unsafe { id::shared(id) }?;
        let _guard = shared.is_alive.lock();
        // SAFETY: as above; the program uses the identifier in one thread, and the lock keeps the agent from it. No
        // other thread uses the attributes.
        let (found, attributes) = unsafe { (from_abi(id)?, output(attributes)?) };
        check_new(found)?;
        let queues = (attributes.send_cq, attributes.recv_cq);
        // SAFETY: the identifier lives; the program passes a live domain or null, and attributes that name live
        // queues or null.
        unsafe {
            let made = prepare(found, pd, attributes)
                .and_then(|()| finish(found, ibv_create_qp(found.abi.pd, attributes)));
            if made.is_err() {
                destroy_queues(id);
                (attributes.send_cq, attributes.recv_cq) = queues;
            }
            made
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut abi::CmId, attributes: *mut abi::QpInitAttrEx) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed.
        let shared = unsafe { id::shared(id) }?;
        let _guard = shared.is_alive.lock();
        // SAFETY: as above; the program uses the identifier in one thread, and the lock keeps the agent from it. No
        // other thread uses the attributes.
        let (found, attributes) = unsafe { (from_abi(id)?, output(attributes)?) };
        let abi::QpInitAttrEx { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, .. } =
            *attributes;
        let mut base = abi::QpInitAttr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
        let has_pd = attributes.comp_mask & abi::QP_INIT_ATTR_PD != 0;
        let pd = if has_pd { attributes.pd.cast() } else { null_mut() };
        check_new(found)?;
        // SAFETY: the identifier lives; the program passes a live domain or null, and attributes that name live
        // queues or null.
        unsafe {
            let made = prepare(found, pd, &mut base).and_then(|()| {
                attributes.comp_mask |= abi::QP_INIT_ATTR_PD;
                attributes.pd = found.abi.pd.cast();
                (attributes.send_cq, attributes.recv_cq) = (base.send_cq, base.recv_cq);
                attributes.srq = base.srq;
                finish(found, create_qp_ex(found.abi.verbs, attributes))
            });
            if made.is_err() {
                destroy_queues(id);
                (attributes.send_cq, attributes.recv_cq) = (send_cq, recv_cq);
            }
            made
        }
    })
}

/// Fails if an identifier has no device, or has a queue pair.
fn check_new(id: &Id) -> Result<()> {
    check(!id.abi.verbs.is_null() && id.abi.qp.is_null())
}

/// Fills in the domain and the completion queues that the program leaves to the library.
///
/// # Safety
/// `pd` and the objects of the attributes are null or live.
unsafe fn prepare(id: &mut Id, pd: *mut abi::Pd, attributes: &mut abi::QpInitAttr) -> Result<()> {
    // SAFETY: guaranteed by the caller; the context of the identifier is never closed, because `id::open` keeps it.
    unsafe {
        set_domain(id, pd)?;
        if attributes.srq.is_null() {
            attributes.srq = id.abi.srq.cast();
        }
        let (verbs, context) = (id.abi.verbs, id.as_context());
        let queue = |count: u32| -> Result<(*mut abi::CompChannel, *mut abi::Cq)> {
            let channel = ibv_create_comp_channel(verbs);
            let cq = ibv_create_cq(verbs, count.max(1) as c_int, context, channel, 0);
            if cq.is_null() { Err(Errno::last()) } else { Ok((channel, cq)) }
        };
        if attributes.send_cq.is_null() {
            (id.abi.send_cq_channel, id.abi.send_cq) = queue(attributes.cap.max_send_wr)?;
            attributes.send_cq = id.abi.send_cq.cast();
        }
        if attributes.recv_cq.is_null() {
            (id.abi.recv_cq_channel, id.abi.recv_cq) = queue(attributes.cap.max_recv_wr)?;
            attributes.recv_cq = id.abi.recv_cq.cast();
        }
    }
    Ok(())
}

/// Sets the domain of an identifier, if the program has one.
///
/// # Safety
/// `pd` is null, or a live domain.
unsafe fn set_domain(id: &mut Id, pd: *mut abi::Pd) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    if let Some(domain) = unsafe { pd.as_ref() } {
        check(domain.context == id.abi.verbs)?;
        id.abi.pd = pd;
    }
    Ok(())
}

/// Moves a new queue pair to the state in which receives can be posted; one for datagrams can also send.
///
/// # Safety
/// `created` is null, or a queue pair that no other thread uses.
unsafe fn finish(id: &mut Id, created: *mut abi::Qp) -> Result<c_int> {
    if created.is_null() {
        return Err(Errno::last());
    }
    id.abi.qp = created;
    // SAFETY: `ibv_create_qp` has just made it, so the program does not have it yet.
    let moved = unsafe {
        id.abi.qp_type = (*created).qp_type;
        match id.abi.qp_type {
            abi::QPT_UD => start_datagrams(created),
            _ => initialize(created),
        }
    };
    if moved.is_err() {
        id.abi.qp = null_mut();
        // SAFETY: as above, and the identifier no longer has it.
        unsafe { ibv_destroy_qp(created) };
    }
    moved.map(|()| 0)
}

impl Id {
    fn as_context(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

/// Changes a queue pair.
///
/// # Safety
/// `qp` is null, or a live queue pair whose state no other thread changes.
unsafe fn modify(qp: *mut abi::Qp, mut attributes: abi::QpAttr, mask: c_int) -> Result<()> {
    // SAFETY: guaranteed by the caller; the attributes are a local variable.
    match unsafe { ibv_modify_qp(qp, &mut attributes, mask) } {
        0 => Ok(()),
        error => Err(Errno(error)),
    }
}

/// # Safety
/// As [`modify`].
unsafe fn initialize(qp: *mut abi::Qp) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe { modify(qp, init_attributes(), INIT_MASK) }
}

fn init_attributes() -> abi::QpAttr {
    let access = abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ;
    let qp_access_flags = (access | abi::ACCESS_REMOTE_ATOMIC) as u32;
    abi::QpAttr { qp_state: abi::QPS_INIT, port_num: 1, qp_access_flags, ..Default::default() }
}

const INIT_MASK: c_int = abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS;

/// # Safety
/// As [`modify`].
unsafe fn start_datagrams(qp: *mut abi::Qp) -> Result<()> {
    let attributes = |qp_state| abi::QpAttr { qp_state, port_num: 1, qkey: UDP_Q_KEY, ..Default::default() };
    let to_init = abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_QKEY;
    // SAFETY: guaranteed by the caller.
    unsafe {
        modify(qp, attributes(abi::QPS_INIT), to_init)?;
        modify(qp, attributes(abi::QPS_RTR), abi::QP_STATE)?;
        modify(qp, attributes(abi::QPS_RTS), abi::QP_STATE | abi::QP_SQ_PSN)
    }
}

/// Connects the queue pair of an identifier with the one that the peer offers.
///
/// # Safety
/// The queue pair of the identifier is null, or lives during the call: the program has not destroyed it, or the
/// caller holds `is_alive`.
pub(super) unsafe fn connect(id: &Id, offer: &Message) -> Result<()> {
    // SAFETY: guaranteed by the caller: the queue pair lives during the call.
    unsafe {
        let (receive, mask) = receive_attributes(id, offer);
        modify(id.abi.qp, receive, mask)?;
        let (send, mask) = send_attributes(id, offer);
        modify(id.abi.qp, send, mask)
    }
}

pub(super) fn ah_attributes(id: &Id) -> abi::AhAttr {
    let grh = abi::GlobalRoute { dgid: id.abi.route.addr.dgid, hop_limit: 64, ..Default::default() };
    abi::AhAttr { grh, is_global: 1, port_num: 1, ..Default::default() }
}

fn receive_attributes(id: &Id, offer: &Message) -> (abi::QpAttr, c_int) {
    let resources = id.shared.state.lock().responder_resources;
    let attributes = abi::QpAttr {
        qp_state: abi::QPS_RTR,
        path_mtu: abi::MTU_4096,
        dest_qp_num: offer.number,
        rq_psn: offer.first_message,
        ah_attr: ah_attributes(id),
        max_dest_rd_atomic: resources.min(MAX_READS),
        min_rnr_timer: 12,
        ..Default::default()
    };
    let connected = abi::QP_STATE | abi::QP_AV | abi::QP_PATH_MTU | abi::QP_DEST_QPN | abi::QP_RQ_PSN;
    let reliable = abi::QP_MAX_DEST_RD_ATOMIC | abi::QP_MIN_RNR_TIMER;
    (attributes, if id.abi.qp_type == abi::QPT_RC { connected | reliable } else { connected })
}

fn send_attributes(id: &Id, offer: &Message) -> (abi::QpAttr, c_int) {
    let state = id.shared.state.lock();
    let attributes = abi::QpAttr {
        qp_state: abi::QPS_RTS,
        sq_psn: state.first_message,
        timeout: state.timeout.unwrap_or(14),
        retry_cnt: 7,
        rnr_retry: offer.rnr_retries.min(7),
        max_rd_atomic: state.initiator_depth.min(MAX_READS),
        ..Default::default()
    };
    let connected = abi::QP_STATE | abi::QP_SQ_PSN;
    let reliable = abi::QP_TIMEOUT | abi::QP_RETRY_CNT | abi::QP_RNR_RETRY | abi::QP_MAX_QP_RD_ATOMIC;
    (attributes, if id.abi.qp_type == abi::QPT_RC { connected | reliable } else { connected })
}

/// Fails the queue pair of an identifier.
///
/// # Safety
/// As [`connect`].
pub(super) unsafe fn fail(id: &Id) {
    if !id.abi.qp.is_null() {
        let attributes = abi::QpAttr { qp_state: abi::QPS_ERR, ..Default::default() };
        // SAFETY: not null, and guaranteed by the caller to live during the call.
        let _ = unsafe { modify(id.abi.qp, attributes, abi::QP_STATE) };
    }
}

/// Returns the attributes of the next state, for programs that move their queue pair themselves.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut abi::CmId,
    attributes: *mut abi::QpAttr,
    mask: *mut c_int,
) -> c_int {
    value(|| {
        // SAFETY: null, or an identifier that the program does not use in another thread, and null or structures of
        // this thread.
        let (found, attributes, mask) = unsafe { (object::<_, Id>(id)?, output(attributes)?, output(mask)?) };
        check(!found.abi.verbs.is_null())?;
        let offer = found.shared.state.lock().offer.clone();
        let offer = || offer.ok_or(Errno::INVALID);
        (*attributes, *mask) = match attributes.qp_state {
            abi::QPS_INIT if found.shared.is_datagram => {
                let to_init = abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_QKEY;
                (abi::QpAttr { qkey: UDP_Q_KEY, qp_access_flags: 0, ..init_attributes() }, to_init)
            }
            abi::QPS_INIT => (init_attributes(), INIT_MASK),
            abi::QPS_RTR if found.shared.is_datagram => (*attributes, abi::QP_STATE),
            abi::QPS_RTR => receive_attributes(found, &offer()?),
            abi::QPS_RTS if found.shared.is_datagram => (*attributes, abi::QP_STATE | abi::QP_SQ_PSN),
            abi::QPS_RTS => send_attributes(found, &offer()?),
            _ => return Err(Errno::INVALID),
        };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut abi::CmId) {
    status(|| {
        // SAFETY: the program passes null or a live identifier, which owns its queue pair and its queues. The lock
        // keeps the agent from the queue pair.
        unsafe {
            let shared = id::shared(id)?;
            let qp = {
                // The agent can be connecting it.
                let _guard = shared.is_alive.lock();
                std::mem::replace(&mut from_abi(id)?.abi.qp, null_mut())
            };
            if !qp.is_null() {
                ibv_destroy_qp(qp);
            }
            destroy_queues(id);
        }
        Ok(())
    });
}

/// Destroys the completion queues that the library has made for an identifier.
///
/// # Safety
/// `id` is a live identifier, whose queues no other thread uses, and no queue pair.
unsafe fn destroy_queues(id: *mut abi::CmId) {
    // SAFETY: guaranteed by the caller; the pointers are taken before their objects are destroyed.
    unsafe {
        for cq in [&raw mut (*id).send_cq, &raw mut (*id).recv_cq] {
            let cq = cq.replace(null_mut());
            if !cq.is_null() {
                ibv_destroy_cq(cq);
            }
        }
        for channel in [&raw mut (*id).send_cq_channel, &raw mut (*id).recv_cq_channel] {
            let channel = channel.replace(null_mut());
            if !channel.is_null() {
                ibv_destroy_comp_channel(channel);
            }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut abi::CmId,
    pd: *mut abi::Pd,
    attributes: *mut abi::SrqInitAttr,
) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed and uses in one thread, and the
        // lock keeps the agent from it; `pd` is null or a live domain.
        unsafe {
            let shared = id::shared(id)?;
            let _guard = shared.is_alive.lock();
            let found = from_abi(id)?;
            check(!found.abi.verbs.is_null() && found.abi.srq.is_null())?;
            set_domain(found, pd)?;
            found.abi.srq = ibv_create_srq(found.abi.pd, attributes);
            if found.abi.srq.is_null() { Err(Errno::last()) } else { Ok(0) }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut abi::CmId,
    attributes: *mut abi::SrqInitAttrEx,
) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed and uses in one thread, and the
        // lock keeps the agent from it; the domain is null or a live one.
        unsafe {
            let shared = id::shared(id)?;
            let _guard = shared.is_alive.lock();
            let (found, fields) = (from_abi(id)?, output(attributes)?);
            check(!found.abi.verbs.is_null() && found.abi.srq.is_null())?;
            let has_pd = fields.comp_mask & abi::SRQ_INIT_ATTR_PD != 0;
            set_domain(found, if has_pd { fields.pd.cast() } else { null_mut() })?;
            fields.comp_mask |= abi::SRQ_INIT_ATTR_PD;
            fields.pd = found.abi.pd.cast();
            found.abi.srq = create_srq_ex(found.abi.verbs, attributes);
            if found.abi.srq.is_null() { Err(Errno::last()) } else { Ok(0) }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut abi::CmId) {
    status(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed and uses in one thread, and
        // which owns its queue. The lock keeps the agent from it.
        unsafe {
            let shared = id::shared(id)?;
            let srq = {
                let _guard = shared.is_alive.lock();
                std::mem::replace(&mut (*id).srq, null_mut())
            };
            if !srq.is_null() {
                ibv_destroy_srq(srq);
            }
        }
        Ok(())
    });
}

/// Q_Key of datagrams of the connection manager.
pub(super) const UDP_Q_KEY: u32 = 0x0123_4567;
