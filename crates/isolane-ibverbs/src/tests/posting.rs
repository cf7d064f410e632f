//! Requests of programs, with right and with wrong arguments.

use std::mem::zeroed;

use super::*;
use crate::builder;
use crate::completion_queue::{
    ibv_ack_cq_events, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event, req_notify_cq,
};
use crate::context::MAX_SGE;
use crate::post::post_srq_recv;
use crate::shared_receive_queue::{ibv_create_srq, ibv_destroy_srq};

const INVALID: c_int = libc::EINVAL;

/// Posts a SEND with changes.
fn send(end: &End, change: impl FnOnce(&mut abi::SendWr)) -> c_int {
    let mut sges = [end.sge(8); MAX_SGE as usize + 1];
    // SAFETY: all fields are numbers and pointers.
    let empty: abi::SendWr = unsafe { zeroed() };
    let (sg_list, num_sge) = (sges.as_mut_ptr(), 1);
    let mut request = abi::SendWr { sg_list, num_sge, opcode: abi::WR_SEND, ..empty };
    change(&mut request);
    let mut failed = null_mut();
    // SAFETY: the queue pair lives, and the request is valid as the test says.
    let error = unsafe { post_send(end.qp, &mut request, &mut failed) };
    assert_eq!(failed.is_null(), error == 0, "a refused request is reported");
    error
}

/// Posts a SEND of `length` inline bytes.
fn send_inline(end: &End, length: u32) -> c_int {
    let mut bytes = [7_u8; 256];
    let mut sge = abi::Sge { addr: bytes.as_mut_ptr().expose_provenance() as u64, length, lkey: 0 };
    send(end, |request| (request.sg_list, request.send_flags) = (&raw mut sge, abi::SEND_INLINE))
}

#[test]
fn grants_inline_data_in_the_space_of_sges() {
    for (sges, requested, granted) in [(0, 0, 16), (1, 0, 16), (4, 0, 64), (4, 100, 100)] {
        let peer = End::new();
        let end = End::with(|init| {
            (init.cap.max_send_sge, init.cap.max_inline_data) = (sges, requested);
        });
        end.connect(&peer);
        // SAFETY: all fields are numbers and pointers, and the queue pair lives.
        let reported = unsafe {
            let (mut attributes, mut init) = (abi::QpAttr::default(), zeroed());
            assert_eq!(ibv_query_qp(end.qp, &mut attributes, 0, &mut init), 0);
            [attributes.cap.max_inline_data, init.cap.max_inline_data]
        };
        assert_eq!(reported, [granted, granted]);
        assert_eq!((send_inline(&end, granted), send_inline(&end, granted + 1)), (0, INVALID));
        finish([end, peer]);
    }
}

#[test]
fn reports_receive_found_by_poll_of_another_queue() {
    let (mut channel, mut receives) = (null_mut(), null_mut());
    let near = End::new();
    // SAFETY: the context of the queue lives, and has the new objects.
    let far = End::with(|init| unsafe {
        let context = (*init.send_cq.cast::<abi::Cq>()).context;
        channel = ibv_create_comp_channel(context);
        receives = ibv_create_cq(context, 8, null_mut(), channel, 0);
        init.recv_cq = receives.cast();
    });
    near.connect(&far);
    far.connect(&near);
    assert_eq!((far.receive(1, far.sge(8)), send(&near, |_| ())), (0, 0));
    let deadline = Instant::now() + TEST_TIMEOUT;
    while near.poll().is_none() {
        assert!(Instant::now() < deadline, "the SEND does not complete");
        assert!(far.poll().is_none());
    }
    // SAFETY: all objects live.
    unsafe {
        assert_eq!(req_notify_cq(receives, 0), 0);
        let (mut ready, mut context, mut done) = (null_mut(), null_mut(), abi::Wc::default());
        assert_eq!((ibv_get_cq_event(channel, &mut ready, &mut context), ready), (0, receives));
        ibv_ack_cq_events(receives, 1);
        assert_eq!((poll_cq(receives, 1, &mut done), done.wr_id), (1, 1));
        assert_eq!((ibv_destroy_qp(far.qp), ibv_destroy_cq(receives)), (0, 0));
        assert_eq!((ibv_destroy_comp_channel(channel), ibv_destroy_cq(far.cq)), (0, 0));
    }
    far.deregister();
    far.close();
    far.unmap();
    finish([near]);
}

#[test]
fn refuses_malformed_send_requests() {
    let (near, far) = pair();
    let cases: [(&str, Change<abi::SendWr>); 8] = [
        ("unknown opcode", |request| request.opcode = 77),
        ("negative opcode", |request| request.opcode = -1),
        ("too many SGEs", |request| request.num_sge = MAX_SGE as c_int + 1),
        ("negative number of SGEs", |request| request.num_sge = -1),
        ("no SGEs", |request| request.sg_list = null_mut()),
        ("inline READ", |request| {
            (request.opcode, request.send_flags) = (abi::WR_RDMA_READ, abi::SEND_INLINE);
        }),
        // SAFETY: the list has an SGE.
        ("atomic operation of 4 bytes", |request| unsafe {
            request.opcode = abi::WR_ATOMIC_FETCH_AND_ADD;
            (*request.sg_list).length = 4;
        }),
        // SAFETY: the list has an SGE.
        ("more than 2 GiB", |request| unsafe { (*request.sg_list).length = (1 << 31) + 1 }),
    ];
    for (name, change) in cases {
        assert_eq!(send(&near, change), INVALID, "{name}");
    }
    assert_eq!((near.state(), near.poll().is_none()), (abi::QPS_RTS, true));
    let fill = || send(&near, |_| ());
    assert!((0..DEPTH).all(|_| fill() == 0));
    assert_eq!(fill(), libc::ENOMEM);
    finish([near, far]);
}

#[test]
fn posts_requests_only_in_their_states() {
    let end = End::new();
    assert_eq!((send(&end, |_| ()), end.receive(1, end.sge(8))), (INVALID, INVALID));
    let init = abi::QpAttr { qp_state: abi::QPS_INIT, port_num: 1, ..Default::default() };
    assert_eq!(end.modify(init, abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS), 0);
    assert_eq!((send(&end, |_| ()), end.receive(1, end.sge(8))), (INVALID, 0));
    assert_eq!(end.modify(abi::QpAttr { qp_state: abi::QPS_ERR, ..Default::default() }, 0), 0);
    // Requests are flushed.
    assert_eq!((send(&end, |request| request.wr_id = 2), end.receive(3, end.sge(8))), (0, 0));
    let done = [end.next(), end.next(), end.next()].map(|done| (done.wr_id, done.status));
    assert_eq!(done, [(1, 5), (2, 5), (3, 5)]);
    finish([end]);
}

#[test]
fn refuses_malformed_receives() {
    let (near, far) = pair();
    // SAFETY: all objects live.
    unsafe {
        let mut attributes = abi::SrqInitAttr {
            srq_context: null_mut(),
            attr: abi::SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 },
        };
        let srq = ibv_create_srq(near.pd, &mut attributes);
        let mut sges = [near.sge(8); 2];
        let sges = sges.as_mut_ptr();
        let post = |num_sge: c_int, sges: *mut abi::Sge, is_shared: bool| {
            let mut request = abi::RecvWr { wr_id: 1, next: null_mut(), sg_list: sges, num_sge };
            let mut failed = null_mut();
            let error = if is_shared {
                post_srq_recv(srq, &mut request, &mut failed)
            } else {
                post_recv(near.qp, &mut request, &mut failed)
            };
            assert_eq!(failed.is_null(), error == 0, "a refused receive is reported");
            error
        };
        for is_shared in [true, false] {
            for (count, list) in [(2, sges), (-1, sges), (1, null_mut())] {
                assert_eq!(post(count, list, is_shared), INVALID, "{count} SGEs");
            }
        }
        let post = |is_shared| post(1, sges, is_shared);
        assert_eq!((post(true), post(true)), (0, libc::ENOMEM));
        assert!((0..DEPTH).all(|_| post(false) == 0));
        assert_eq!(post(false), libc::ENOMEM);
        for refused in [
            post_srq_recv(null_mut(), null_mut(), null_mut()),
            post_srq_recv(srq, null_mut(), null_mut()),
            post_recv(near.qp, null_mut(), null_mut()),
        ] {
            assert_eq!(refused, INVALID);
        }
        assert_eq!(ibv_destroy_srq(srq), 0);
    }
    finish([near, far]);
}

#[test]
fn builds_requests_field_by_field() {
    let (near, far) = pair();
    // SAFETY: all objects live, and requests are built between start and completion.
    unsafe {
        let qp = crate::queue_pair::ibv_qp_to_qp_ex(near.qp);
        let functions = builder::functions(std::ptr::read(near.qp));
        let abi::QpEx { wr_start, wr_complete, wr_abort, wr_send, wr_rdma_write, wr_set_sge, .. } = functions;
        let abi::QpEx {
            wr_set_ud_addr, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge_list, ..
        } = functions;
        let sge = near.sge(8);
        (*qp).wr_id = 9;
        let build = |part: &dyn Fn()| {
            wr_start(qp);
            part();
            wr_complete(qp)
        };
        assert_eq!(
            build(&|| {
                wr_rdma_write(qp, (*far.mr).rkey, far.memory.addr() as u64);
                wr_set_sge(qp, sge.lkey, sge.addr, sge.length);
            }),
            0
        );
        assert_eq!((near.next().wr_id, build(&|| ())), (9, 0));
        let bytes = [1_u8; 256];
        let refused: [(&str, &dyn Fn()); 6] = [
            ("data without a request", &|| wr_set_sge(qp, sge.lkey, sge.addr, sge.length)),
            ("address of a connected queue pair", &|| {
                wr_send(qp);
                wr_set_ud_addr(qp, null_mut(), 1, 1);
            }),
            ("too much inline data", &|| {
                wr_send(qp);
                wr_set_inline_data(qp, bytes.as_ptr().cast_mut().cast(), 256);
            }),
            ("no list of inline data", &|| {
                wr_send(qp);
                wr_set_inline_data_list(qp, 1, std::ptr::null());
            }),
            ("no list of SGEs", &|| {
                wr_send(qp);
                wr_set_sge_list(qp, 1, std::ptr::null());
            }),
            ("too many SGEs", &|| {
                wr_send(qp);
                wr_set_sge_list(qp, 2, [sge; 2].as_ptr());
            }),
        ];
        for (name, part) in refused {
            assert_eq!(build(part), INVALID, "{name}");
        }
        wr_start(qp);
        wr_send(qp);
        wr_abort(qp);
        assert!(near.poll().is_none());
        assert_eq!(wr_complete(null_mut()), INVALID);
    }
    finish([near, far]);
}

#[test]
fn modifies_queue_pairs_with_valid_attributes() {
    let end = End::new();
    let required = abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS;
    let init = abi::QpAttr { qp_state: abi::QPS_INIT, port_num: 1, ..Default::default() };
    for bit in [abi::QP_PKEY_INDEX, abi::QP_PORT, abi::QP_ACCESS_FLAGS] {
        assert_eq!(end.modify(init, required & !bit), INVALID, "without {bit:#x}");
    }
    let cases: [(&str, c_int, Change<abi::QpAttr>); 5] = [
        ("another attribute", required | abi::QP_TIMEOUT, |_| ()),
        ("wrong port", required, |new| new.port_num = 2),
        ("wrong key", required, |new| new.pkey_index = 1),
        ("wrong current state", required | abi::QP_CUR_STATE, |new| new.cur_qp_state = abi::QPS_RTS),
        ("skipped state", required, |new| new.qp_state = abi::QPS_RTS),
    ];
    for (name, mask, change) in cases {
        let mut attributes = init;
        change(&mut attributes);
        assert_eq!(end.modify(attributes, mask), INVALID, "{name}");
    }
    assert_eq!((end.state(), end.modify(init, required)), (abi::QPS_RESET, 0));
    let path = abi::QP_AV | abi::QP_PATH_MTU | abi::QP_DEST_QPN | abi::QP_RQ_PSN;
    let required = path | abi::QP_MAX_DEST_RD_ATOMIC | abi::QP_MIN_RNR_TIMER;
    let ah_attr = abi::AhAttr { is_global: 1, port_num: 1, ..Default::default() };
    let receive =
        abi::QpAttr { qp_state: abi::QPS_RTR, path_mtu: abi::MTU_4096, dest_qp_num: 1 << 8, ah_attr, ..init };
    let changes: [(&str, Change<abi::QpAttr>); 8] = [
        ("number of 25 bits", |new| new.dest_qp_num = 1 << 24),
        ("no MTU", |new| new.path_mtu = 0),
        ("large MTU", |new| new.path_mtu = 6),
        ("local address", |new| new.ah_attr.is_global = 0),
        ("wrong GID", |new| new.ah_attr.grh.sgid_index = 1),
        ("wrong port of the path", |new| new.ah_attr.port_num = 2),
        ("many READs", |new| new.max_dest_rd_atomic = 17),
        ("large timer", |new| new.min_rnr_timer = 32),
    ];
    for (name, change) in changes {
        let mut attributes = receive;
        change(&mut attributes);
        assert_eq!(end.modify(attributes, required), INVALID, "{name}");
    }
    assert_eq!((end.state(), end.modify(receive, required)), (abi::QPS_INIT, 0));
    let required =
        abi::QP_SQ_PSN | abi::QP_TIMEOUT | abi::QP_RETRY_CNT | abi::QP_RNR_RETRY | abi::QP_MAX_QP_RD_ATOMIC;
    let send = abi::QpAttr { qp_state: abi::QPS_RTS, ..Default::default() };
    let changes: [(&str, Change<abi::QpAttr>); 4] = [
        ("large timeout", |new| new.timeout = 32),
        ("many retries", |new| new.retry_cnt = 8),
        ("many retries without a receive", |new| new.rnr_retry = 8),
        ("many READs", |new| new.max_rd_atomic = 17),
    ];
    for (name, change) in changes {
        let mut attributes = send;
        change(&mut attributes);
        assert_eq!(end.modify(attributes, required), INVALID, "{name}");
    }
    assert_eq!((end.state(), end.modify(send, required), end.state()), (abi::QPS_RTR, 0, abi::QPS_RTS));
    finish([end]);
}
