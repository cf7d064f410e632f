//! Data and completions of programs that use datagrams, READs, atomic operations, shared receives, and extended polls.

use std::mem::zeroed;

use super::*;
use crate::address::{ibv_create_ah, ibv_create_ah_from_wc, ibv_destroy_ah};
use crate::open::{ibv_ack_async_event, ibv_get_async_event};
use crate::post::post_srq_recv;
use crate::shared_receive_queue::{ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq};

const KEY: u32 = 0x1234;
/// Length of the header before a datagram in bytes.
const HEADER_BYTES: usize = 40;

/// Posts a signaled request with `length` bytes from the start of the memory.
fn send(end: &End, opcode: c_int, id: u64, length: u32, wr: abi::Arguments) {
    // SAFETY: all fields are numbers and pointers, and the objects of the end live.
    unsafe {
        let (addr, lkey) = (end.memory.addr() as u64, (*end.mr).lkey);
        let mut data = abi::Sge { addr, length, lkey };
        let (sg_list, imm_data) = (&raw mut data, 7_u32.to_be());
        let empty: abi::SendWr = zeroed();
        let mut request = abi::SendWr { wr_id: id, sg_list, num_sge: 1, opcode, imm_data, wr, ..empty };
        assert_eq!(post_send(end.qp, &mut request, null_mut()), 0);
    }
}

/// Posts a receive of `length` bytes at the start of the memory.
fn receive(end: &End, id: u64, length: usize) {
    // SAFETY: the region lives.
    let lkey = unsafe { (*end.mr).lkey };
    let data = abi::Sge { addr: end.memory.addr() as u64, length: length as u32, lkey };
    assert_eq!(end.receive(id, data), 0);
}

/// Writes to the memory of an end.
fn fill(end: &End, bytes: &[u8]) {
    // SAFETY: the memory is longer, and no request uses it.
    unsafe { end.memory.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// Reads from an offset of the memory of an end.
fn bytes_at<const N: usize>(end: &End, offset: usize) -> [u8; N] {
    // SAFETY: the memory is longer, and no request uses it.
    unsafe { end.memory.cast::<u8>().add(offset).cast::<[u8; N]>().read() }
}

fn number(end: &End) -> u32 {
    // SAFETY: the queue pair lives.
    unsafe { (*end.qp).qp_num }
}

/// Returns an end for datagrams, which can send and receive.
fn datagram_end() -> End {
    let end = End::with(|init| init.qp_type = abi::QPT_UD);
    let attributes = |qp_state| abi::QpAttr { qp_state, port_num: 1, qkey: KEY, ..Default::default() };
    let to_init = abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_QKEY;
    assert_eq!(end.modify(attributes(abi::QPS_INIT), to_init), 0);
    assert_eq!(end.modify(attributes(abi::QPS_RTR), 0), 0);
    assert_eq!(end.modify(attributes(abi::QPS_RTS), abi::QP_SQ_PSN), 0);
    end
}

#[test]
fn datagrams_are_answered_by_their_header() {
    let (near, far) = (datagram_end(), datagram_end());
    let device = devices().iter().find(|device| device.address.is_loopback()).unwrap();
    let grh = abi::GlobalRoute { dgid: abi::GidBytes(device.gid()), ..Default::default() };
    let mut attributes = abi::AhAttr { grh, is_global: 1, port_num: 1, ..Default::default() };
    // SAFETY: all objects live until the end of the block, and the header has arrived.
    unsafe {
        let to_far = ibv_create_ah(near.pd, &mut attributes);
        let to = |ah: *mut abi::Ah, remote_qpn, remote_qkey| abi::Arguments {
            ud: abi::Datagram { ah: ah.cast(), remote_qpn, remote_qkey },
        };
        receive(&far, 1, HEADER_BYTES + 64);
        fill(&near, b"other");
        // A wrong Q_Key: the datagram completes and is dropped.
        send(&near, abi::WR_SEND, 2, 5, to(to_far, number(&far), KEY + 1));
        assert_eq!((near.next().wr_id, near.state()), (2, abi::QPS_RTS));
        fill(&near, b"hello");
        send(&near, abi::WR_SEND_WITH_IMM, 3, 5, to(to_far, number(&far), KEY));
        let sent = near.next();
        assert_eq!((sent.wr_id, sent.status, sent.opcode), (3, 0, abi::WC_SEND));
        let mut arrived = far.next();
        assert_eq!((arrived.wr_id, arrived.status, arrived.opcode), (1, 0, abi::WC_RECV));
        assert_eq!((arrived.byte_len, arrived.src_qp), (HEADER_BYTES as u32 + 5, number(&near)));
        assert_eq!(arrived.wc_flags, abi::WC_GRH | abi::WC_WITH_IMM);
        assert_eq!(u32::from_be(arrived.imm_data), 7);
        assert_eq!(&bytes_at::<5>(&far, HEADER_BYTES), b"hello");

        let to_near = ibv_create_ah_from_wc(far.pd, &mut arrived, far.memory.cast(), 1);
        assert_eq!(error_of(to_near), 0);
        receive(&near, 4, HEADER_BYTES + 64);
        fill(&far, b"answer");
        send(&far, abi::WR_SEND, 5, 6, to(to_near, arrived.src_qp, KEY));
        assert_eq!(far.next().wr_id, 5);
        let answer = near.next();
        assert_eq!((answer.wr_id, answer.src_qp, answer.wc_flags), (4, number(&far), abi::WC_GRH));
        assert_eq!(&bytes_at::<6>(&near, HEADER_BYTES), b"answer");
        assert_eq!((ibv_destroy_ah(to_far), ibv_destroy_ah(to_near)), (0, 0));
    }
    finish([near, far]);
}

#[test]
fn reads_and_atomic_operations_return_values_of_the_peer() {
    let (near, far) = pair();
    // SAFETY: the region lives.
    let rkey = unsafe { (*far.mr).rkey };
    let remote_addr = far.memory.addr() as u64;
    let atomic =
        |compare_add, swap| abi::Arguments { atomic: abi::Atomic { remote_addr, compare_add, swap, rkey } };
    let value = |end: &End| u64::from_ne_bytes(bytes_at(end, 0));
    fill(&far, &5_u64.to_ne_bytes());
    let steps = [
        (abi::WR_ATOMIC_FETCH_AND_ADD, atomic(3, 0), abi::WC_FETCH_ADD, 5, 8),
        // The first comparison fails, and changes nothing.
        (abi::WR_ATOMIC_CMP_AND_SWP, atomic(5, 1), abi::WC_COMP_SWAP, 8, 8),
        (abi::WR_ATOMIC_CMP_AND_SWP, atomic(8, 9), abi::WC_COMP_SWAP, 8, 9),
        (
            abi::WR_RDMA_READ,
            abi::Arguments { rdma: abi::Rdma { remote_addr, rkey } },
            abi::WC_RDMA_READ,
            9,
            9,
        ),
    ];
    for (id, (opcode, arguments, completed, found, left)) in steps.into_iter().enumerate() {
        send(&near, opcode, id as u64, 8, arguments);
        let done = near.next();
        assert_eq!((done.wr_id, done.status, done.opcode), (id as u64, 0, completed));
        assert_eq!((done.byte_len, value(&near), value(&far)), (8, found, left), "step {id}");
    }
    finish([near, far]);
}

#[test]
fn extended_polls_show_each_completion() {
    let (near, far) = pair();
    let rdma = abi::Rdma { remote_addr: 0, rkey: 0 };
    for id in 1..=3 {
        receive(&far, id, 64);
    }
    for (id, opcode) in [(11, abi::WR_SEND), (12, abi::WR_SEND_WITH_IMM), (13, abi::WR_SEND)] {
        send(&near, opcode, id, id as u32, abi::Arguments { rdma });
        assert_eq!(near.next().wr_id, id);
    }
    let cq = far.cq.cast::<abi::CqEx>();
    let mut attributes = abi::PollCqAttr { comp_mask: 0 };
    let deadline = Instant::now() + TEST_TIMEOUT;
    // SAFETY: the queue lives, and this thread alone polls it.
    unsafe {
        let start = (*cq).start_poll;
        let mut unknown = abi::PollCqAttr { comp_mask: 1 };
        assert_eq!([start(cq, null_mut()), start(cq, &mut unknown)], [libc::EINVAL; 2]);
        assert_eq!(start(null_mut(), &mut attributes), libc::EINVAL);
        let mut shown = Vec::new();
        while shown.len() < 3 {
            assert!(Instant::now() < deadline, "completions are missing");
            let mut polled = start(cq, &mut attributes);
            while polled == 0 {
                assert_eq!(((*cq).status, ((*cq).read_opcode)(cq)), (0, abi::WC_RECV));
                let immediate = (((*cq).read_wc_flags)(cq), u32::from_be(((*cq).read_imm_data)(cq)));
                shown.push(((*cq).wr_id, ((*cq).read_byte_len)(cq), immediate));
                assert_eq!((((*cq).read_qp_num)(cq), ((*cq).read_vendor_err)(cq)), (number(&far), 0));
                polled = ((*cq).next_poll)(cq);
            }
            assert_eq!(polled, libc::ENOENT);
            ((*cq).end_poll)(cq);
        }
        assert_eq!(shown, [(1, 11, (0, 0)), (2, 12, (abi::WC_WITH_IMM, 7)), (3, 13, (0, 0))]);
    }
    finish([near, far]);
}

/// Returns an end whose queue pair takes receives from a shared queue, and that queue.
fn sharing_end() -> (End, *mut abi::Srq) {
    let end = End::new();
    let attr = abi::SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 };
    // SAFETY: all fields are numbers and pointers, and the objects of the end live.
    unsafe {
        let srq = ibv_create_srq(end.pd, &mut abi::SrqInitAttr { srq_context: null_mut(), attr });
        let (mut attributes, mut init) = (abi::QpAttr::default(), zeroed());
        assert_eq!((error_of(srq), ibv_query_qp(end.qp, &mut attributes, 0, &mut init)), (0, 0));
        init.srq = srq.cast();
        assert_eq!(ibv_destroy_qp(end.qp), 0);
        let qp = ibv_create_qp(end.pd, &mut init);
        assert_eq!(error_of(qp), 0);
        (End { qp, ..end }, srq)
    }
}

/// Posts a receive without memory to a shared queue.
fn post_shared(srq: *mut abi::Srq, id: u64) {
    let mut request = abi::RecvWr { wr_id: id, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
    // SAFETY: the queue lives, and the request is valid.
    assert_eq!(unsafe { post_srq_recv(srq, &mut request, null_mut()) }, 0);
}

/// Waits for an event of the context, acknowledges it, and returns it.
fn next_event(end: &End) -> abi::AsyncEvent {
    let deadline = Instant::now() + TEST_TIMEOUT;
    // SAFETY: all fields are numbers and pointers, and the context lives.
    unsafe {
        libc::fcntl((*end.context).async_fd, libc::F_SETFL, libc::O_NONBLOCK);
        let mut event: abi::AsyncEvent = zeroed();
        while ibv_get_async_event(end.context, &mut event) != 0 {
            assert!(Instant::now() < deadline && errno() == libc::EAGAIN, "no event arrives");
            std::thread::yield_now();
        }
        ibv_ack_async_event(&mut event);
        event
    }
}

#[test]
fn shared_receives_are_taken_in_order_and_report_their_end() {
    let (near, (far, srq)) = (End::new(), sharing_end());
    near.connect(&far);
    far.connect(&near);
    let nothing = abi::Arguments { rdma: abi::Rdma { remote_addr: 0, rkey: 0 } };
    (1..=3).for_each(|id| post_shared(srq, id));
    // SAFETY: the queue lives until the end of the block.
    unsafe {
        let mut limit = abi::SrqAttr { srq_limit: 2, ..abi::SrqAttr::default() };
        assert_eq!(ibv_modify_srq(srq, &mut limit, abi::SRQ_LIMIT), 0);
        for id in 1..=2 {
            send(&near, abi::WR_SEND, 10 + id, 0, nothing);
            assert_eq!((far.next().wr_id, near.next().wr_id), (id, 10 + id));
        }
        let event = next_event(&far);
        assert_eq!((event.event_type, event.element.srq), (abi::EVENT_SRQ_LIMIT_REACHED, srq.cast()));
        assert_eq!((ibv_query_srq(srq, &mut limit), limit.srq_limit), (0, 0), "the limit is reported once");
        // The second SEND waits for a receive.
        send(&near, abi::WR_SEND, 13, 0, nothing);
        send(&near, abi::WR_SEND, 14, 0, nothing);
        assert_eq!((far.next().wr_id, near.next().wr_id), (3, 13));
        post_shared(srq, 4);
        assert_eq!((far.next().wr_id, near.next().wr_id), (4, 14));
        assert_eq!(far.modify(abi::QpAttr { qp_state: abi::QPS_ERR, ..Default::default() }, 0), 0);
        let event = next_event(&far);
        assert_eq!((event.event_type, event.element.qp), (abi::EVENT_QP_LAST_WQE_REACHED, far.qp.cast()));
        far.deregister();
        assert_eq!((ibv_destroy_qp(far.qp), ibv_destroy_srq(srq), ibv_destroy_cq(far.cq)), (0, 0, 0));
    }
    far.close();
    far.unmap();
    finish([near]);
}
