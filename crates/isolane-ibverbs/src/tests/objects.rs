//! Objects are made and destroyed through the C interface, with right and with wrong arguments.

use std::ffi::CStr;
use std::mem::zeroed;

use super::*;
use crate::address::{ibv_create_ah, ibv_create_ah_from_wc, ibv_destroy_ah, ibv_init_ah_from_wc};
use crate::completion_queue::{
    ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event, ibv_resize_cq, req_notify_cq,
};
use crate::context::{MAX_COMPLETIONS, MAX_INLINE_BYTES, MAX_REQUESTS, MAX_SGE};
use crate::create_cq::create_cq_ex;
use crate::create_qp::create_qp_ex;
use crate::device::{
    ibv_free_device_list, ibv_get_device_guid, ibv_get_device_index, ibv_get_device_list, ibv_get_device_name,
};
use crate::memory::{
    advise_mr, alloc_parent_domain, alloc_td, dealloc_td, ibv_reg_mr_iova, ibv_reg_mr_iova2, ibv_rereg_mr,
};
use crate::open::{ibv_ack_async_event, ibv_get_async_event};
use crate::shared_receive_queue::{
    create_srq_ex, ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq,
};

const INVALID: c_int = libc::EINVAL;
const UNSUPPORTED: c_int = libc::EOPNOTSUPP;

/// Returns attributes for a queue pair of an end.
fn qp_attributes(end: &End) -> abi::QpInitAttr {
    // SAFETY: all fields are numbers and pointers.
    let empty: abi::QpInitAttr = unsafe { zeroed() };
    let cap =
        abi::QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    abi::QpInitAttr { send_cq: end.cq.cast(), recv_cq: end.cq.cast(), cap, qp_type: abi::QPT_RC, ..empty }
}

/// Returns the same attributes for the extended function.
fn qp_attributes_ex(end: &End) -> abi::QpInitAttrEx {
    let abi::QpInitAttr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all } = qp_attributes(end);
    // SAFETY: all fields are numbers and pointers.
    let empty: abi::QpInitAttrEx = unsafe { zeroed() };
    let (comp_mask, pd) = (abi::QP_INIT_ATTR_PD, end.pd.cast());
    abi::QpInitAttrEx { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, ..empty }
}

fn srq_attributes() -> abi::SrqInitAttr {
    abi::SrqInitAttr { srq_context: null_mut(), attr: abi::SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 } }
}

fn srq_attributes_ex(end: &End) -> abi::SrqInitAttrEx {
    // SAFETY: all fields are numbers and pointers.
    let empty: abi::SrqInitAttrEx = unsafe { zeroed() };
    let comp_mask = abi::SRQ_INIT_ATTR_PD | abi::SRQ_INIT_ATTR_TYPE;
    abi::SrqInitAttrEx { attr: srq_attributes().attr, comp_mask, pd: end.pd.cast(), ..empty }
}

fn cq_attributes_ex() -> abi::CqInitAttrEx {
    // SAFETY: all fields are numbers and pointers.
    abi::CqInitAttrEx { cqe: 8, ..unsafe { zeroed() } }
}

fn ah_attributes() -> abi::AhAttr {
    abi::AhAttr { is_global: 1, port_num: 1, ..abi::AhAttr::default() }
}

#[test]
fn lists_devices() {
    // SAFETY: the list and its devices live until it is freed; devices live forever.
    unsafe {
        let mut count = 0;
        let list = ibv_get_device_list(&mut count);
        assert!(!list.is_null() && count > 0);
        for index in 0..count {
            let device = *list.add(index as usize);
            assert_eq!(CStr::from_ptr(ibv_get_device_name(device)).to_str(), Ok(&*format!("isolane{index}")));
            assert_eq!(ibv_get_device_index(device), index);
            assert_ne!(ibv_get_device_guid(device), 0);
        }
        assert!((*list.add(count as usize)).is_null());
        ibv_free_device_list(list);
        ibv_free_device_list(ibv_get_device_list(null_mut()));
        ibv_free_device_list(null_mut());
        assert!(ibv_get_device_name(null_mut()).is_null());
        assert_eq!((ibv_get_device_index(null_mut()), ibv_get_device_guid(null_mut())), (-1, 0));
        assert_eq!((error_of(ibv_open_device(null_mut())), ibv_close_device(null_mut())), (INVALID, -1));
    }
}

#[test]
fn refuses_objects_of_another_context() {
    let (near, other) = (End::new(), End::new());
    // SAFETY: all objects live.
    unsafe {
        let channel = ibv_create_comp_channel(other.context);
        let srq = ibv_create_srq(other.pd, &mut srq_attributes());
        let td = alloc_td(other.context, &mut abi::TdInitAttr { comp_mask: 0 });
        let empty: abi::ParentDomainInitAttr = zeroed();
        let other_pd: *mut c_void = other.pd.cast();
        let send_cq = abi::QpInitAttr { send_cq: other.cq.cast(), ..qp_attributes(&near) };
        let recv_cq = abi::QpInitAttr { recv_cq: other.cq.cast(), ..qp_attributes(&near) };
        let with_srq = abi::QpInitAttr { srq: srq.cast(), ..qp_attributes(&near) };
        let with_td = abi::ParentDomainInitAttr { pd: near.pd.cast(), td: td.cast(), ..empty };
        let cq_ex = abi::CqInitAttrEx { channel: channel.cast(), ..cq_attributes_ex() };
        let refused = [
            ("channel", error_of(ibv_create_cq(near.context, 8, null_mut(), channel, 0))),
            ("channel of an extended queue", error_of(create_cq_ex(near.context, &mut { cq_ex }))),
            ("send queue", error_of(ibv_create_qp(near.pd, &mut { send_cq }))),
            ("receive queue", error_of(ibv_create_qp(near.pd, &mut { recv_cq }))),
            ("shared receives", error_of(ibv_create_qp(near.pd, &mut { with_srq }))),
            ("domain of a queue pair", error_of(create_qp_ex(near.context, &mut qp_attributes_ex(&other)))),
            ("domain of a queue", error_of(create_srq_ex(near.context, &mut srq_attributes_ex(&other)))),
            (
                "domain of a parent",
                error_of(alloc_parent_domain(
                    near.context,
                    &mut abi::ParentDomainInitAttr { pd: other_pd, ..empty },
                )),
            ),
            ("thread domain", error_of(alloc_parent_domain(near.context, &mut { with_td }))),
        ];
        for (name, error) in refused {
            assert_eq!(error, INVALID, "{name}");
        }
        // The region keeps its domain.
        let flags = abi::REREG_MR_CHANGE_PD;
        assert_eq!(ibv_rereg_mr(near.mr, flags, other.pd, null_mut(), 0, 0), -1);
        assert_eq!((errno(), (*near.mr).pd), (INVALID, near.pd));
        assert_eq!(
            (ibv_destroy_comp_channel(channel), ibv_destroy_srq(srq), dealloc_td(td)),
            (0, 0, 0),
            "refused calls use no object"
        );
    }
    finish([near, other]);
}

#[test]
fn makes_completion_queues_within_limits() {
    let end = End::new();
    // SAFETY: all objects live.
    unsafe {
        let channel = ibv_create_comp_channel(end.context);
        let create = |cqe, vector| ibv_create_cq(end.context, cqe, null_mut(), channel, vector);
        for (cqe, vector) in [(0, 0), (-1, 0), (MAX_COMPLETIONS as c_int + 1, 0), (8, 1), (8, -1)] {
            assert_eq!(error_of(create(cqe, vector)), INVALID, "{cqe} completions, vector {vector}");
        }
        let cq = create(8, 0);
        assert_eq!((error_of(cq), ibv_destroy_comp_channel(channel)), (0, libc::EBUSY));
        for (cqe, expected) in [(0, INVALID), (-1, INVALID), (c_int::MAX, INVALID), (100, 0)] {
            assert_eq!(ibv_resize_cq(cq, cqe), expected, "{cqe} completions");
        }
        assert_eq!(((*cq).cqe, req_notify_cq(cq, 0), req_notify_cq(null_mut(), 0)), (100, 0, INVALID));
        let (mut ready, mut context) = (null_mut(), null_mut());
        assert_eq!(ibv_get_cq_event(null_mut(), &mut ready, &mut context), -1);
        assert_eq!(ibv_get_cq_event(channel, null_mut(), &mut context), -1);
        libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
        assert_eq!((ibv_get_cq_event(channel, &mut ready, &mut context), errno()), (-1, libc::EAGAIN));
        assert_eq!((ibv_destroy_cq(cq), ibv_destroy_comp_channel(channel)), (0, 0));
        assert_eq!((ibv_resize_cq(null_mut(), 8), ibv_destroy_comp_channel(null_mut())), (INVALID, INVALID));
        let cases = [
            (cq_attributes_ex(), 0),
            (abi::CqInitAttrEx { cqe: 0, ..cq_attributes_ex() }, INVALID),
            (abi::CqInitAttrEx { comp_vector: 1, ..cq_attributes_ex() }, INVALID),
            (abi::CqInitAttrEx { wc_flags: 1 << 7, ..cq_attributes_ex() }, UNSUPPORTED),
            (abi::CqInitAttrEx { comp_mask: 1 << 31, ..cq_attributes_ex() }, INVALID),
        ];
        for (at, (mut attributes, expected)) in cases.into_iter().enumerate() {
            let cq = create_cq_ex(end.context, &mut attributes);
            assert_eq!(error_of(cq), expected, "case {at}");
            assert!(cq.is_null() || ibv_destroy_cq(cq.cast()) == 0);
        }
        assert_eq!(error_of(create_cq_ex(end.context, null_mut())), INVALID);
        assert_eq!(error_of(ibv_create_comp_channel(null_mut())), INVALID);
    }
    finish([end]);
}

#[test]
fn makes_queue_pairs_within_limits() {
    let end = End::new();
    let changes: [(Change<abi::QpInitAttr>, c_int); 12] = [
        (|_| (), 0),
        (|init| init.qp_type = abi::QPT_UC, 0),
        (|init| init.qp_type = abi::QPT_UD, 0),
        (|init| init.cap = abi::QpCap::default(), 0),
        (|init| init.qp_type = 8, UNSUPPORTED),
        (|init| init.send_cq = null_mut(), INVALID),
        (|init| init.recv_cq = null_mut(), INVALID),
        (|init| init.cap.max_send_wr = MAX_REQUESTS + 1, INVALID),
        (|init| init.cap.max_recv_wr = MAX_REQUESTS + 1, INVALID),
        (|init| init.cap.max_send_sge = MAX_SGE + 1, INVALID),
        (|init| init.cap.max_recv_sge = MAX_SGE + 1, INVALID),
        (|init| init.cap.max_inline_data = MAX_INLINE_BYTES + 1, INVALID),
    ];
    for (at, (change, expected)) in changes.into_iter().enumerate() {
        let mut attributes = qp_attributes(&end);
        change(&mut attributes);
        // SAFETY: all objects live.
        unsafe {
            let qp = ibv_create_qp(end.pd, &mut attributes);
            assert_eq!(error_of(qp), expected, "case {at}");
            assert!(qp.is_null() || ibv_destroy_qp(qp) == 0);
        }
    }
    let changes: [(Change<abi::QpInitAttrEx>, c_int); 5] = [
        (|_| (), 0),
        (|init| init.comp_mask = 0, INVALID),
        (|init| init.pd = null_mut(), INVALID),
        (|init| init.comp_mask |= 1 << 5, UNSUPPORTED),
        (|init| (init.comp_mask, init.send_ops_flags) = (init.comp_mask | 1 << 6, 1 << 8), UNSUPPORTED),
    ];
    for (at, (change, expected)) in changes.into_iter().enumerate() {
        let mut attributes = qp_attributes_ex(&end);
        change(&mut attributes);
        // SAFETY: all objects live.
        unsafe {
            let qp = create_qp_ex(end.context, &mut attributes);
            assert_eq!(error_of(qp), expected, "extended case {at}");
            if !qp.is_null() {
                assert_eq!((attributes.cap.max_inline_data, ibv_destroy_qp(qp)), (16, 0));
            }
        }
    }
    // SAFETY: null pointers are allowed.
    unsafe {
        assert_eq!(error_of(ibv_create_qp(null_mut(), &mut qp_attributes(&end))), INVALID);
        assert_eq!(error_of(ibv_create_qp(end.pd, null_mut())), INVALID);
        assert_eq!(error_of(create_qp_ex(end.context, null_mut())), INVALID);
    }
    finish([end]);
}

#[test]
fn makes_shared_receive_queues_within_limits() {
    let end = End::new();
    // SAFETY: all objects live.
    unsafe {
        for (max_wr, max_sge) in [(0, 1), (MAX_REQUESTS + 1, 1), (8, MAX_SGE + 1)] {
            let attr = abi::SrqAttr { max_wr, max_sge, srq_limit: 0 };
            let mut attributes = abi::SrqInitAttr { attr, ..srq_attributes() };
            assert_eq!(error_of(ibv_create_srq(end.pd, &mut attributes)), INVALID, "{max_wr} of {max_sge}");
        }
        let cases = [
            (abi::SrqInitAttrEx { srq_type: 1, ..srq_attributes_ex(&end) }, UNSUPPORTED),
            (abi::SrqInitAttrEx { comp_mask: 1 << 2, ..srq_attributes_ex(&end) }, UNSUPPORTED),
            (abi::SrqInitAttrEx { comp_mask: abi::SRQ_INIT_ATTR_TYPE, ..srq_attributes_ex(&end) }, INVALID),
            (abi::SrqInitAttrEx { pd: null_mut(), ..srq_attributes_ex(&end) }, INVALID),
        ];
        for (at, (mut attributes, expected)) in cases.into_iter().enumerate() {
            assert_eq!(error_of(create_srq_ex(end.context, &mut attributes)), expected, "case {at}");
        }
        let srq = create_srq_ex(end.context, &mut srq_attributes_ex(&end));
        assert_eq!(error_of(srq), 0);
        let modify = |srq_limit, mask| {
            ibv_modify_srq(srq, &mut abi::SrqAttr { srq_limit, max_wr: 16, max_sge: 1 }, mask)
        };
        let limit = abi::SRQ_LIMIT;
        assert_eq!((modify(8, limit), modify(9, limit)), (0, INVALID));
        assert_eq!((modify(1, abi::SRQ_MAX_WR), modify(1, 1 << 5), modify(1, 0)), (UNSUPPORTED, INVALID, 0));
        let mut attributes = abi::SrqAttr::default();
        assert_eq!((ibv_query_srq(srq, &mut attributes), attributes.srq_limit, attributes.max_wr), (0, 8, 8));
        for error in [
            ibv_query_srq(null_mut(), &mut attributes),
            ibv_query_srq(srq, null_mut()),
            ibv_modify_srq(null_mut(), &mut attributes, limit),
            ibv_modify_srq(srq, null_mut(), limit),
            ibv_destroy_srq(null_mut()),
        ] {
            assert_eq!(error, INVALID);
        }
        assert_eq!(error_of(ibv_create_srq(null_mut(), &mut srq_attributes())), INVALID);
        assert_eq!(error_of(ibv_create_srq(end.pd, null_mut())), INVALID);
        // A queue that a queue pair uses stays.
        let mut init = abi::QpInitAttr { srq: srq.cast(), ..qp_attributes(&end) };
        let qp = ibv_create_qp(end.pd, &mut init);
        assert_eq!((error_of(qp), ibv_destroy_srq(srq)), (0, libc::EBUSY));
        assert_eq!((ibv_destroy_qp(qp), ibv_destroy_srq(srq)), (0, 0));
    }
    finish([end]);
}

#[test]
fn makes_address_handles_for_the_port() {
    let end = End::new();
    // SAFETY: all objects live.
    unsafe {
        let grh = abi::GlobalRoute { sgid_index: 1, ..abi::GlobalRoute::default() };
        let cases = [
            (ah_attributes(), 0),
            (abi::AhAttr { is_global: 0, ..ah_attributes() }, INVALID),
            (abi::AhAttr { port_num: 2, ..ah_attributes() }, INVALID),
            (abi::AhAttr { grh, ..ah_attributes() }, INVALID),
        ];
        for (at, (mut attributes, expected)) in cases.into_iter().enumerate() {
            let ah = ibv_create_ah(end.pd, &mut attributes);
            assert_eq!(error_of(ah), expected, "case {at}");
            if !ah.is_null() {
                assert_eq!((ibv_dealloc_pd(end.pd), ibv_destroy_ah(ah)), (libc::EBUSY, 0));
            }
        }
        assert_eq!(error_of(ibv_create_ah(null_mut(), &mut ah_attributes())), INVALID);
        assert_eq!(
            (error_of(ibv_create_ah(end.pd, null_mut())), ibv_destroy_ah(null_mut())),
            (INVALID, INVALID)
        );
        let mut header = [0_u64; 5];
        let header = header.as_mut_ptr().cast();
        let mut done = abi::Wc { wc_flags: abi::WC_GRH, ..abi::Wc::default() };
        let mut attributes = abi::AhAttr::default();
        assert_eq!(ibv_init_ah_from_wc(end.context, 1, &mut done, header, &mut attributes), 0);
        assert_eq!((attributes.port_num, attributes.is_global), (1, 1));
        let ah = ibv_create_ah_from_wc(end.pd, &mut done, header, 1);
        assert_eq!((error_of(ah), ibv_destroy_ah(ah)), (0, 0));
        assert_eq!(error_of(ibv_create_ah_from_wc(end.pd, &mut done, header, 2)), INVALID);
        assert_eq!(error_of(ibv_create_ah_from_wc(end.pd, null_mut(), header, 1)), INVALID);
        let mut plain = abi::Wc::default();
        for refused in [
            ibv_init_ah_from_wc(end.context, 2, &mut done, header, &mut attributes),
            ibv_init_ah_from_wc(end.context, 1, &mut plain, header, &mut attributes),
            ibv_init_ah_from_wc(end.context, 1, &mut done, null_mut(), &mut attributes),
            ibv_init_ah_from_wc(end.context, 1, &mut done, header, null_mut()),
        ] {
            assert_eq!((refused, errno()), (-1, INVALID));
        }
    }
    finish([end]);
}

#[test]
fn registers_memory_with_valid_rights() {
    let end = End::new();
    // SAFETY: all objects live.
    unsafe {
        let (memory, length) = (end.memory, MEMORY_BYTES);
        for access in [abi::ACCESS_REMOTE_WRITE, abi::ACCESS_REMOTE_ATOMIC, 1 << 8, 1 << 30] {
            assert_eq!(error_of(ibv_reg_mr(end.pd, memory, length, access)), INVALID, "access {access:#x}");
        }
        assert_eq!(error_of(ibv_reg_mr(end.pd, null_mut(), length, 0)), libc::EFAULT);
        assert_eq!(error_of(ibv_reg_mr(end.pd, memory, usize::MAX, 0)), libc::EFAULT);
        assert_eq!(error_of(ibv_reg_mr_iova2(end.pd, memory, length, u64::MAX, 0)), INVALID);
        assert_eq!(error_of(ibv_reg_mr_iova(null_mut(), memory, length, 0, 0)), INVALID);
        let mr = ibv_reg_mr_iova(end.pd, memory, length, 4096, 0);
        assert_eq!((error_of(mr), (*mr).addr, (*mr).length), (0, memory, length));
        let advise =
            |addr, length| advise_mr(end.pd, 0, 0, &mut abi::Sge { addr, length, lkey: (*mr).lkey }, 1);
        assert_eq!((advise(4096, 8), advise(0, 8)), (0, libc::EFAULT));
        assert_eq!(advise_mr(null_mut(), 0, 0, null_mut(), 0), INVALID);
        assert_eq!(advise_mr(end.pd, 0, 0, null_mut(), 1), INVALID);
        let rereg = |flags, addr, length, access| ibv_rereg_mr(mr, flags, end.pd, addr, length, access);
        let moved = abi::REREG_MR_CHANGE_TRANSLATION;
        for (refused, error) in [
            (rereg(0, memory, length, 0), INVALID),
            (rereg(1 << 5, memory, length, 0), INVALID),
            (rereg(moved, null_mut(), length, 0), libc::EFAULT),
            (rereg(moved, memory, 0, 0), INVALID),
            (rereg(abi::REREG_MR_CHANGE_ACCESS, memory, length, abi::ACCESS_REMOTE_WRITE), INVALID),
            (ibv_rereg_mr(mr, abi::REREG_MR_CHANGE_PD, null_mut(), memory, length, 0), INVALID),
            (ibv_rereg_mr(null_mut(), moved, end.pd, memory, length, 0), INVALID),
        ] {
            assert!(refused < 0, "error {error}");
        }
        // The old registration is still there.
        assert_eq!((advise(4096, 8), (*mr).length), (0, length));
        assert_eq!((rereg(moved, memory, 4096, 0), (*mr).length), (0, 4096));
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
    finish([end]);
}

#[test]
fn makes_domains() {
    let end = End::new();
    // SAFETY: all objects live.
    unsafe {
        let td = alloc_td(end.context, &mut abi::TdInitAttr { comp_mask: 0 });
        let empty: abi::ParentDomainInitAttr = zeroed();
        let mut attributes = abi::ParentDomainInitAttr { pd: end.pd.cast(), td: td.cast(), ..empty };
        let parent = alloc_parent_domain(end.context, &mut attributes);
        assert_eq!((error_of(td), error_of(parent)), (0, 0));
        assert_eq!(ibv_dealloc_pd(end.pd), libc::EBUSY);
        assert_eq!((ibv_dealloc_pd(parent), dealloc_td(td)), (0, 0));
        attributes.pd = null_mut();
        for error in [
            error_of(alloc_td(null_mut(), null_mut())),
            error_of(alloc_parent_domain(end.context, null_mut())),
            error_of(alloc_parent_domain(end.context, &mut attributes)),
            dealloc_td(null_mut()),
            error_of(ibv_alloc_pd(null_mut())),
            ibv_dealloc_pd(null_mut()),
        ] {
            assert_eq!(error, INVALID);
        }
    }
    finish([end]);
}

#[test]
fn reports_asynchronous_events_once() {
    let (near, far) = pair();
    // SAFETY: all objects live.
    unsafe {
        // A WRITE with a wrong key.
        assert_eq!(near.write_with((*near.mr).lkey, !(*far.mr).rkey, far.memory, 1, 8), 0);
        assert_ne!(near.next().status, 0);
        let mut event: abi::AsyncEvent = zeroed();
        assert_eq!(ibv_get_async_event(far.context, &mut event), 0);
        assert_eq!((event.event_type, event.element.qp), (abi::EVENT_QP_ACCESS_ERR, far.qp.cast()));
        ibv_ack_async_event(&mut event);
        ibv_ack_async_event(null_mut());
        libc::fcntl((*near.context).async_fd, libc::F_SETFL, libc::O_NONBLOCK);
        assert_eq!((ibv_get_async_event(near.context, &mut event), errno()), (-1, libc::EAGAIN));
        assert_eq!((ibv_get_async_event(null_mut(), &mut event), errno()), (-1, INVALID));
        assert_eq!((ibv_get_async_event(near.context, null_mut()), errno()), (-1, INVALID));
    }
    finish([near, far]);
}
