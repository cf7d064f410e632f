//! Queue pairs and shared receive queues of identifiers.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::id::{Id, from_abi};
use super::message::Message;
use crate::abi;
use crate::completion_queue::{ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_destroy_cq};
use crate::context::{MAX_READS, check};
use crate::create_cq::ibv_create_cq;
use crate::create_qp::{create_qp_ex, ibv_create_qp};
use crate::ffi::{Errno, Result, output, status, value};
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
        // SAFETY: see `ffi`.
        let (found, attributes) = unsafe { (from_abi(id)?, output(attributes)?) };
        check_new(found)?;
        let queues = (attributes.send_cq, attributes.recv_cq);
        // SAFETY: see `ffi`.
        unsafe {
            let made = prepare(found, pd, attributes)
                .and_then(|()| finish(found, ibv_create_qp(found.abi.pd, attributes)));
            if made.is_err() {
                destroy_queues(found);
                (attributes.send_cq, attributes.recv_cq) = queues;
            }
            made
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut abi::CmId, attributes: *mut abi::QpInitAttrEx) -> c_int {
    value(|| {
        // SAFETY: see `ffi`.
        let (found, attributes) = unsafe { (from_abi(id)?, output(attributes)?) };
        let abi::QpInitAttrEx { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, .. } =
            *attributes;
        let mut base = abi::QpInitAttr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
        let has_pd = attributes.comp_mask & abi::QP_INIT_ATTR_PD != 0;
        let pd = if has_pd { attributes.pd.cast() } else { null_mut() };
        check_new(found)?;
        // SAFETY: see `ffi`.
        unsafe {
            let made = prepare(found, pd, &mut base).and_then(|()| {
                attributes.comp_mask |= abi::QP_INIT_ATTR_PD;
                attributes.pd = found.abi.pd.cast();
                (attributes.send_cq, attributes.recv_cq) = (base.send_cq, base.recv_cq);
                attributes.srq = base.srq;
                finish(found, create_qp_ex(found.abi.verbs, attributes))
            });
            if made.is_err() {
                destroy_queues(found);
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
/// See `ffi`.
unsafe fn prepare(id: &mut Id, pd: *mut abi::Pd, attributes: &mut abi::QpInitAttr) -> Result<()> {
    // SAFETY: see `ffi`.
    unsafe {
        set_domain(id, pd)?;
        if attributes.srq.is_null() {
            attributes.srq = id.abi.srq.cast();
        }
        let (verbs, context) = (id.abi.verbs, id.as_context());
        let queue = |count: u32| -> Result<(*mut abi::CompChannel, *mut abi::Cq)> {
            let channel = ibv_create_comp_channel(verbs);
            let cq = ibv_create_cq(verbs, count.max(1) as c_int, context, channel, 0);
            if cq.is_null() { Err(last_error()) } else { Ok((channel, cq)) }
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
/// See `ffi`.
unsafe fn set_domain(id: &mut Id, pd: *mut abi::Pd) -> Result<()> {
    // SAFETY: see `ffi`.
    if let Some(domain) = unsafe { pd.as_ref() } {
        check(domain.context == id.abi.verbs)?;
        id.abi.pd = pd;
    }
    Ok(())
}

/// Moves a new queue pair to the state in which receives can be posted; one for datagrams can also send.
///
/// # Safety
/// See `ffi`.
unsafe fn finish(id: &mut Id, created: *mut abi::Qp) -> Result<c_int> {
    if created.is_null() {
        return Err(last_error());
    }
    id.abi.qp = created;
    // SAFETY: just made.
    let moved = unsafe {
        id.abi.qp_type = (*created).qp_type;
        match id.abi.qp_type {
            abi::QPT_UD => start_datagrams(created),
            _ => initialize(created),
        }
    };
    if moved.is_err() {
        id.abi.qp = null_mut();
        // SAFETY: just made.
        unsafe { ibv_destroy_qp(created) };
    }
    moved.map(|()| 0)
}

fn last_error() -> Errno {
    // SAFETY: the location of this thread's error is valid.
    Errno(unsafe { *libc::__errno_location() })
}

impl Id {
    fn as_context(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

/// Changes a queue pair.
///
/// # Safety
/// See `ffi`.
unsafe fn modify(qp: *mut abi::Qp, mut attributes: abi::QpAttr, mask: c_int) -> Result<()> {
    // SAFETY: see `ffi`.
    match unsafe { ibv_modify_qp(qp, &mut attributes, mask) } {
        0 => Ok(()),
        error => Err(Errno(error)),
    }
}

/// # Safety
/// See `ffi`.
unsafe fn initialize(qp: *mut abi::Qp) -> Result<()> {
    // SAFETY: see `ffi`.
    unsafe { modify(qp, init_attributes(), INIT_MASK) }
}

fn init_attributes() -> abi::QpAttr {
    let access = abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ;
    let qp_access_flags = (access | abi::ACCESS_REMOTE_ATOMIC) as u32;
    abi::QpAttr { qp_state: abi::QPS_INIT, port_num: 1, qp_access_flags, ..Default::default() }
}

const INIT_MASK: c_int = abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS;

/// # Safety
/// See `ffi`.
unsafe fn start_datagrams(qp: *mut abi::Qp) -> Result<()> {
    let attributes = |qp_state| abi::QpAttr { qp_state, port_num: 1, qkey: UDP_Q_KEY, ..Default::default() };
    let to_init = abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_QKEY;
    // SAFETY: see `ffi`.
    unsafe {
        modify(qp, attributes(abi::QPS_INIT), to_init)?;
        modify(qp, attributes(abi::QPS_RTR), abi::QP_STATE)?;
        modify(qp, attributes(abi::QPS_RTS), abi::QP_STATE | abi::QP_SQ_PSN)
    }
}

/// Connects the queue pair of an identifier with the one that the peer offers.
///
/// # Safety
/// See `ffi`.
pub(super) unsafe fn connect(id: &Id, offer: &Message) -> Result<()> {
    // SAFETY: see `ffi`.
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
/// See `ffi`.
pub(super) unsafe fn fail(id: &Id) {
    if !id.abi.qp.is_null() {
        let attributes = abi::QpAttr { qp_state: abi::QPS_ERR, ..Default::default() };
        // SAFETY: see `ffi`.
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
        // SAFETY: see `ffi`.
        let (found, attributes, mask) = unsafe { (from_abi(id)?, output(attributes)?, output(mask)?) };
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
        // SAFETY: see `ffi`; the identifier owns its queues.
        unsafe {
            let found = from_abi(id)?;
            let qp = {
                // The agent can be connecting it.
                let _guard = found.shared.is_alive.lock();
                std::mem::replace(&mut found.abi.qp, null_mut())
            };
            if !qp.is_null() {
                ibv_destroy_qp(qp);
            }
            destroy_queues(found);
        }
        Ok(())
    });
}

/// Destroys the completion queues that the library has made for an identifier.
///
/// # Safety
/// See `ffi`; no queue pair uses them.
unsafe fn destroy_queues(id: &mut Id) {
    for cq in [&mut id.abi.send_cq, &mut id.abi.recv_cq] {
        let cq = std::mem::replace(cq, null_mut());
        if !cq.is_null() {
            // SAFETY: guaranteed by the caller.
            unsafe { ibv_destroy_cq(cq) };
        }
    }
    for channel in [&mut id.abi.send_cq_channel, &mut id.abi.recv_cq_channel] {
        let channel = std::mem::replace(channel, null_mut());
        if !channel.is_null() {
            // SAFETY: its queue is destroyed.
            unsafe { ibv_destroy_comp_channel(channel) };
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
        // SAFETY: see `ffi`.
        unsafe {
            let found = from_abi(id)?;
            check(!found.abi.verbs.is_null() && found.abi.srq.is_null())?;
            set_domain(found, pd)?;
            found.abi.srq = ibv_create_srq(found.abi.pd, attributes);
            if found.abi.srq.is_null() { Err(last_error()) } else { Ok(0) }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut abi::CmId,
    attributes: *mut abi::SrqInitAttrEx,
) -> c_int {
    value(|| {
        // SAFETY: see `ffi`.
        unsafe {
            let (found, fields) = (from_abi(id)?, output(attributes)?);
            check(!found.abi.verbs.is_null() && found.abi.srq.is_null())?;
            let has_pd = fields.comp_mask & abi::SRQ_INIT_ATTR_PD != 0;
            set_domain(found, if has_pd { fields.pd.cast() } else { null_mut() })?;
            fields.comp_mask |= abi::SRQ_INIT_ATTR_PD;
            fields.pd = found.abi.pd.cast();
            found.abi.srq = create_srq_ex(found.abi.verbs, attributes);
            if found.abi.srq.is_null() { Err(last_error()) } else { Ok(0) }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut abi::CmId) {
    status(|| {
        // SAFETY: see `ffi`.
        unsafe {
            let srq = std::mem::replace(&mut from_abi(id)?.abi.srq, null_mut());
            if !srq.is_null() {
                ibv_destroy_srq(srq);
            }
        }
        Ok(())
    });
}

/// Q_Key of datagrams of the connection manager.
pub(super) const UDP_Q_KEY: u32 = 0x0123_4567;
