//! Each function with right and with wrong arguments.

use std::ffi::{CStr, c_int};
use std::os::fd::BorrowedFd;
use std::ptr::{null, null_mut};

use super::super::addrinfo::{rdma_create_ep, rdma_destroy_ep, rdma_freeaddrinfo, rdma_getaddrinfo};
use super::super::connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_free_devices, rdma_get_devices,
    rdma_get_request, rdma_listen, rdma_notify, rdma_reject, rdma_reject_ece, rdma_set_option,
};
use super::super::event::{rdma_ack_cm_event, rdma_destroy_event_channel, rdma_event_str, rdma_get_cm_event};
use super::super::id::{
    rdma_bind_addr, rdma_create_id, rdma_destroy_id, rdma_get_dst_port, rdma_get_src_port, rdma_resolve_addr,
    rdma_resolve_route, read_address, write_address,
};
use super::super::migrate::rdma_migrate_id;
use super::super::qp::{
    rdma_create_qp, rdma_create_qp_ex, rdma_create_srq, rdma_create_srq_ex, rdma_destroy_qp,
    rdma_destroy_srq, rdma_init_qp_attr,
};
use super::{Channel, Id, loopback, queue_pair, result};
use crate::abi;
use crate::completion_queue::ibv_destroy_cq;
use crate::context::ibv_close_device;
use crate::create_cq::ibv_create_cq;
use crate::device::devices;
use crate::memory::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::open::ibv_open_device;
use crate::shared_receive_queue::{ibv_create_srq, ibv_destroy_srq};
use crate::unsupported::{
    rdma_get_remote_ece, rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast,
    rdma_set_local_ece,
};

/// Error of glibc for addresses of another family.
const EAI_ADDRFAMILY: c_int = -9;
const SHARED: abi::SrqInitAttr =
    abi::SrqInitAttr { srq_context: null_mut(), attr: abi::SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 } };

/// Returns parameters of a connection with private data.
fn parameters(private_data: &[u8]) -> abi::CmConnParam {
    abi::CmConnParam {
        private_data: private_data.as_ptr().cast(),
        private_data_len: private_data.len() as u8,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}

fn extended(base: abi::QpInitAttr, comp_mask: u32) -> abi::QpInitAttrEx {
    // SAFETY: all fields are numbers and pointers.
    let empty: abi::QpInitAttrEx = unsafe { std::mem::zeroed() };
    abi::QpInitAttrEx { cap: base.cap, qp_type: base.qp_type, comp_mask, ..empty }
}

impl Channel {
    /// Makes both ends of a connection that is requested.
    fn requested(&self) -> (Id, Id, Id) {
        let (listener, address) = self.listen(1);
        let id = self.resolve(address);
        id.connect();
        (listener, id, self.expect(abi::CM_CONNECT_REQUEST))
    }
}

#[test]
fn refuses_null_pointers() {
    let none = null_mut();
    let (mut attributes, mut found) = (queue_pair(1), null_mut());
    // SAFETY: null pointers are allowed.
    unsafe {
        for returned in [
            rdma_create_id(null_mut(), null_mut(), null_mut(), abi::PS_TCP),
            rdma_destroy_id(none),
            rdma_bind_addr(none, null_mut()),
            rdma_resolve_addr(none, null_mut(), null_mut(), 0),
            rdma_resolve_route(none, 0),
            rdma_listen(none, 0),
            rdma_connect(none, null_mut()),
            rdma_accept(none, null_mut()),
            rdma_reject(none, null(), 0),
            rdma_reject_ece(none, null(), 0),
            rdma_establish(none),
            rdma_disconnect(none),
            rdma_notify(none, abi::EVENT_COMM_EST),
            rdma_migrate_id(none, null_mut()),
            rdma_set_option(none, 0, 0, null_mut(), 0),
            rdma_get_request(none, &mut found),
            rdma_get_cm_event(null_mut(), null_mut()),
            rdma_ack_cm_event(null_mut()),
            rdma_create_qp(none, null_mut(), &mut attributes),
            rdma_create_qp_ex(none, null_mut()),
            rdma_create_srq(none, null_mut(), null_mut()),
            rdma_create_srq_ex(none, null_mut()),
            rdma_init_qp_attr(none, null_mut(), null_mut()),
            rdma_getaddrinfo(null(), c"1".as_ptr(), null(), null_mut()),
            rdma_getaddrinfo(null(), null(), null(), &mut null_mut()),
            rdma_create_ep(null_mut(), null_mut(), null_mut(), null_mut()),
            rdma_create_ep(&mut found, null_mut(), null_mut(), null_mut()),
        ] {
            assert_eq!((returned, result(returned)), (-1, Err(libc::EINVAL)));
        }
        rdma_destroy_qp(none);
        rdma_destroy_srq(none);
        rdma_destroy_ep(none);
        rdma_destroy_event_channel(null_mut());
        rdma_free_devices(null_mut());
        rdma_freeaddrinfo(null_mut());
        assert_eq!((rdma_get_src_port(none), rdma_get_dst_port(none)), (0, 0));
    }
}

#[test]
fn refuses_null_arguments_of_an_identifier() {
    let channel = Channel::new();
    let id = channel.bound(loopback(0));
    // SAFETY: the identifier lives, and null pointers are allowed.
    unsafe {
        for returned in [
            rdma_bind_addr(id.0, null_mut()),
            rdma_resolve_addr(id.0, null_mut(), null_mut(), 0),
            rdma_set_option(id.0, 0, 0, null_mut(), 1),
            rdma_get_request(id.0, null_mut()),
            rdma_get_cm_event(channel.0, null_mut()),
            rdma_create_qp(id.0, null_mut(), null_mut()),
            rdma_create_qp_ex(id.0, null_mut()),
            rdma_create_srq(id.0, null_mut(), null_mut()),
            rdma_create_srq_ex(id.0, null_mut()),
            rdma_init_qp_attr(id.0, null_mut(), null_mut()),
        ] {
            assert_eq!((returned, result(returned)), (-1, Err(libc::EINVAL)));
        }
        // Nothing to destroy.
        rdma_destroy_qp(id.0);
        rdma_destroy_srq(id.0);
    }
    id.destroy();
}

#[test]
fn refuses_addresses_and_port_spaces() {
    let channel = Channel::new();
    let mut created = null_mut();
    for port_space in [0, -1, abi::PS_TCP + 1] {
        // SAFETY: the channel lives.
        let returned = unsafe { rdma_create_id(channel.0, &mut created, null_mut(), port_space) };
        assert_eq!(result(returned), Err(libc::EINVAL));
    }
    let id = channel.id();
    for family in [libc::AF_UNSPEC, libc::AF_UNIX, 27] {
        let mut address = write_address(loopback(0));
        address.ss_family = family as u16;
        let address = (&raw mut address).cast();
        // SAFETY: the identifier lives.
        let returned =
            unsafe { [rdma_bind_addr(id.0, address), rdma_resolve_addr(id.0, null_mut(), address, 0)] };
        assert_eq!(returned.map(result), [Err(libc::EINVAL); 2]);
    }
    // An address of no interface.
    assert_eq!(id.bind("198.51.100.1:0".parse().unwrap()), Err(libc::EADDRNOTAVAIL));
    assert_eq!(id.bind(loopback(0)), Ok(()));
    assert_eq!(id.bind(loopback(0)), Err(libc::EINVAL));
    // SAFETY: the identifier lives.
    assert_eq!(unsafe { rdma_get_dst_port(id.0) }, 0);
    id.destroy();
}

/// Calls that need a connection or a request.
fn need_a_connection(id: Id) -> [c_int; 7] {
    // SAFETY: the identifier lives.
    unsafe {
        [
            rdma_accept(id.0, null_mut()),
            rdma_reject(id.0, null(), 0),
            rdma_reject_ece(id.0, null(), 0),
            rdma_establish(id.0),
            rdma_disconnect(id.0),
            rdma_notify(id.0, abi::EVENT_COMM_EST),
            rdma_get_request(id.0, &mut null_mut()),
        ]
    }
}

#[test]
fn refuses_calls_before_a_connection() {
    let channel = Channel::new();
    let mut attributes = queue_pair(1);
    let (mut shared, mut state, mut mask) = (SHARED, abi::QpAttr::default(), 0);
    let (listener, address) = channel.listen(1);
    let (new, resolved) = (channel.id(), channel.resolve(address));
    for id in [new, listener, resolved] {
        assert_eq!(need_a_connection(id).map(result), [Err(libc::EINVAL); 7]);
    }
    let mut address = write_address(address);
    // SAFETY: the identifiers live.
    unsafe {
        for returned in [
            rdma_listen(new.0, 1),
            rdma_connect(new.0, null_mut()),
            rdma_resolve_route(new.0, 0),
            rdma_create_qp(new.0, null_mut(), &mut attributes),
            rdma_create_qp_ex(new.0, &mut extended(attributes, 0)),
            rdma_create_srq(new.0, null_mut(), &mut shared),
            rdma_init_qp_attr(new.0, &mut state, &mut mask),
            rdma_listen(listener.0, 1),
            rdma_connect(listener.0, null_mut()),
            rdma_resolve_route(listener.0, 0),
            rdma_resolve_addr(listener.0, null_mut(), (&raw mut address).cast(), 0),
            rdma_resolve_addr(resolved.0, null_mut(), (&raw mut address).cast(), 0),
            rdma_resolve_route(resolved.0, 0),
            rdma_listen(resolved.0, 1),
        ] {
            assert_eq!(result(returned), Err(libc::EINVAL));
        }
        // An address alone is not enough.
        assert_eq!(rdma_resolve_addr(new.0, null_mut(), (&raw mut address).cast(), 0), 0);
        channel.expect(abi::CM_ADDR_RESOLVED);
        assert_eq!(result(rdma_connect(new.0, null_mut())), Err(libc::EINVAL));
        assert_eq!(rdma_get_dst_port(new.0), rdma_get_src_port(listener.0));
    }
    assert!(channel.is_empty());
    [new, listener, resolved].into_iter().for_each(Id::destroy);
}

#[test]
fn refuses_calls_in_a_connection() {
    let channel = Channel::new();
    let (listener, id, request) = channel.requested();
    // SAFETY: the identifiers live.
    unsafe {
        // Neither end is connected.
        assert_eq!(result(rdma_accept(id.0, null_mut())), Err(libc::EINVAL));
        assert_eq!(result(rdma_establish(request.0)), Err(libc::EINVAL));
        request.create_qp();
        request.accept();
        channel.expect(abi::CM_CONNECT_RESPONSE);
        assert_eq!(rdma_establish(id.0), 0);
        channel.expect(abi::CM_ESTABLISHED);
        for end in [id, request] {
            for returned in [
                rdma_accept(end.0, null_mut()),
                rdma_connect(end.0, null_mut()),
                rdma_establish(end.0),
                rdma_reject(end.0, null(), 0),
                rdma_resolve_route(end.0, 0),
                rdma_notify(end.0, -1),
                rdma_get_request(end.0, &mut null_mut()),
            ] {
                assert_eq!(result(returned), Err(libc::EINVAL));
            }
            assert_eq!(rdma_notify(end.0, abi::EVENT_COMM_EST), 0);
        }
    }
    id.disconnect();
    channel.expect(abi::CM_DISCONNECTED);
    channel.expect(abi::CM_DISCONNECTED);
    [id, request, listener].into_iter().for_each(Id::destroy);
}

#[test]
fn carries_private_data_up_to_its_limit() {
    let channel = Channel::new();
    let data = [7; 255];
    for is_accepted in [true, false] {
        let (listener, address) = channel.listen(1);
        let id = channel.resolve(address);
        // SAFETY: the identifiers live.
        unsafe {
            assert_eq!(result(rdma_connect(id.0, &mut parameters(&data[..57]))), Err(libc::EINVAL));
            assert_eq!(rdma_connect(id.0, &mut parameters(&data[..56])), 0);
            let request = channel.next();
            assert_eq!((request.kind, request.private_data.len()), (abi::CM_CONNECT_REQUEST, 56));
            let request_id = request.id;
            let kind = if is_accepted {
                let returned = rdma_accept(request_id.0, &mut parameters(&data[..197]));
                assert_eq!(result(returned), Err(libc::EINVAL));
                assert_eq!(rdma_accept(request_id.0, &mut parameters(&data[..196])), 0);
                abi::CM_CONNECT_RESPONSE
            } else {
                assert_eq!(result(rdma_reject(request_id.0, data.as_ptr().cast(), 149)), Err(libc::EINVAL));
                assert_eq!(result(rdma_reject(request_id.0, null(), 1)), Err(libc::EINVAL));
                assert_eq!(rdma_reject_ece(request_id.0, data.as_ptr().cast(), 148), 0);
                abi::CM_REJECTED
            };
            let reply = channel.next();
            let (status, len) = if is_accepted { (0, 196) } else { (35, 148) };
            assert_eq!((reply.kind, reply.status, reply.private_data), (kind, status, data[..len].to_vec()));
            [id, request_id, listener].into_iter().for_each(Id::destroy);
        }
    }
}

#[test]
fn refuses_objects_of_another_context() {
    let channel = Channel::new();
    let id = channel.bound(loopback(0));
    // SAFETY: the objects live until they are destroyed.
    unsafe {
        let other = ibv_open_device(devices()[0].as_abi());
        let pd = ibv_alloc_pd(other);
        let cq = ibv_create_cq(other, 1, null_mut(), null_mut(), 0);
        let mut shared = SHARED;
        let srq = ibv_create_srq(pd, &mut shared);
        let mut attributes = queue_pair(1);
        assert_eq!(result(rdma_create_qp(id.0, pd, &mut attributes)), Err(libc::EINVAL));
        for wrong in [
            abi::QpInitAttr { send_cq: cq.cast(), ..attributes },
            abi::QpInitAttr { recv_cq: cq.cast(), ..attributes },
            abi::QpInitAttr { srq: srq.cast(), ..attributes },
        ] {
            let mut wrong = wrong;
            assert_eq!(result(rdma_create_qp(id.0, null_mut(), &mut wrong)), Err(libc::EINVAL));
        }
        let with_pd = extended(attributes, abi::QP_INIT_ATTR_PD);
        let mut with_pd = abi::QpInitAttrEx { pd: pd.cast(), ..with_pd };
        assert_eq!(result(rdma_create_qp_ex(id.0, &mut with_pd)), Err(libc::EINVAL));
        assert_eq!(result(rdma_create_srq(id.0, pd, &mut shared)), Err(libc::EINVAL));
        assert!((*id.0).qp.is_null() && (*id.0).srq.is_null());
        assert_eq!(ibv_destroy_srq(srq), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
        assert_eq!(ibv_close_device(other), 0);
    }
    id.destroy();
}

#[test]
fn creates_queue_pairs_after_a_refusal() {
    let channel = Channel::new();
    let id = channel.bound(loopback(0));
    // SAFETY: the identifier lives.
    unsafe {
        let mut attributes = queue_pair(1 << 20);
        assert_eq!(result(rdma_create_qp(id.0, null_mut(), &mut attributes)), Err(libc::EINVAL));
        let mut unknown = extended(queue_pair(1), 1 << 31);
        assert_eq!(result(rdma_create_qp_ex(id.0, &mut unknown)), Err(libc::EOPNOTSUPP));
        // Queues of the library are gone with the queue pair.
        assert!(attributes.send_cq.is_null() && unknown.send_cq.is_null());
        assert!((*id.0).send_cq.is_null() && (*id.0).recv_cq_channel.is_null());
        let mut attributes = queue_pair(1);
        assert_eq!(rdma_create_qp(id.0, null_mut(), &mut attributes), 0);
        assert!(!(*id.0).qp.is_null() && !(*id.0).send_cq.is_null());
        assert_eq!(result(rdma_create_qp(id.0, null_mut(), &mut queue_pair(1))), Err(libc::EINVAL));
        assert!(!(*id.0).send_cq.is_null());
        rdma_destroy_qp(id.0);
        assert!((*id.0).qp.is_null() && (*id.0).send_cq.is_null());
        assert_eq!(rdma_create_qp_ex(id.0, &mut extended(queue_pair(1), 0)), 0);
    }
    id.destroy();
}

#[test]
fn creates_one_shared_receive_queue() {
    let channel = Channel::new();
    let id = channel.bound(loopback(0));
    let attr = abi::SrqAttr { max_wr: 0, ..SHARED.attr };
    // SAFETY: all fields are numbers and pointers.
    let empty: abi::SrqInitAttrEx = unsafe { std::mem::zeroed() };
    // SAFETY: the identifier lives.
    unsafe {
        let mut wrong = abi::SrqInitAttr { attr, ..SHARED };
        assert_eq!(result(rdma_create_srq(id.0, null_mut(), &mut wrong)), Err(libc::EINVAL));
        let mut extended = abi::SrqInitAttrEx { attr: SHARED.attr, comp_mask: 1 << 31, ..empty };
        assert_eq!(result(rdma_create_srq_ex(id.0, &mut extended)), Err(libc::EOPNOTSUPP));
        assert_eq!(rdma_create_srq(id.0, null_mut(), &mut { SHARED }), 0);
        assert_eq!(result(rdma_create_srq(id.0, null_mut(), &mut { SHARED })), Err(libc::EINVAL));
        id.create_qp();
        assert_eq!((*(*id.0).qp).srq, (*id.0).srq);
        rdma_destroy_qp(id.0);
        rdma_destroy_srq(id.0);
        let mut extended = abi::SrqInitAttrEx { attr: SHARED.attr, ..empty };
        assert_eq!(rdma_create_srq_ex(id.0, &mut extended), 0);
    }
    id.destroy();
}

#[test]
fn returns_attributes_of_the_next_state() {
    let channel = Channel::new();
    let (listener, id, request) = channel.requested();
    let next = |id: Id, qp_state| {
        let (mut attributes, mut mask) = (abi::QpAttr { qp_state, ..Default::default() }, 0);
        // SAFETY: the identifier lives.
        result(unsafe { rdma_init_qp_attr(id.0, &mut attributes, &mut mask) })
            .map(|()| mask & abi::QP_STATE != 0 && attributes.qp_state == qp_state)
    };
    for end in [id, request] {
        assert_eq!(next(end, abi::QPS_INIT), Ok(true));
        assert_eq!([next(end, abi::QPS_RESET), next(end, -1)], [Err(libc::EINVAL); 2]);
    }
    for state in [abi::QPS_RTR, abi::QPS_RTS] {
        // Only one end knows its peer.
        assert_eq!((next(request, state), next(id, state)), (Ok(true), Err(libc::EINVAL)));
    }
    [id, request, listener].into_iter().for_each(Id::destroy);
}

#[test]
fn sets_options_of_the_right_length() {
    const LEVEL_ID: c_int = 0;
    let channel = Channel::new();
    let id = channel.id();
    for (level, name, value, expected) in [
        (LEVEL_ID, 0, &[1][..], Ok(())),
        (LEVEL_ID, 0, &[1; 4], Err(libc::EINVAL)),
        (LEVEL_ID, 1, &[1; 4], Ok(())),
        (LEVEL_ID, 1, &[1], Err(libc::EINVAL)),
        (LEVEL_ID, 2, &[0; 4], Ok(())),
        (LEVEL_ID, 2, &[0; 5], Err(libc::EINVAL)),
        (LEVEL_ID, 3, &[31], Ok(())),
        (LEVEL_ID, 3, &[32], Err(libc::EINVAL)),
        (LEVEL_ID, 3, &[], Err(libc::EINVAL)),
        (LEVEL_ID, 4, &[0; 4], Err(libc::ENOSYS)),
        (LEVEL_ID, -1, &[0; 4], Err(libc::ENOSYS)),
        (2, 0, &[0; 4], Err(libc::ENOSYS)),
    ] {
        let start = value.as_ptr().cast_mut().cast();
        // SAFETY: the identifier lives.
        let returned = unsafe { rdma_set_option(id.0, level, name, start, value.len()) };
        assert_eq!(result(returned), expected, "{level} {name} {value:?}");
    }
    id.destroy();
}

#[test]
fn resolves_names_and_reports_their_errors() {
    // SAFETY: all fields are numbers and pointers.
    let empty: abi::CmAddrInfo = unsafe { std::mem::zeroed() };
    let numeric = abi::CmAddrInfo { ai_flags: abi::RAI_NUMERICHOST, ..empty };
    let passive = abi::CmAddrInfo { ai_flags: abi::RAI_PASSIVE, ..numeric };
    let v6 = abi::CmAddrInfo { ai_family: libc::AF_INET6, ..numeric };
    let mut found = null_mut();
    // SAFETY: the arguments are valid.
    unsafe {
        for (node, service, hints, expected) in [
            (c"127.0.0.1", c"none", &numeric, libc::EAI_SERVICE),
            (c"localhost", c"1", &numeric, libc::EAI_NONAME),
            (c"127.0.0.1", c"1", &v6, EAI_ADDRFAMILY),
        ] {
            assert_eq!(rdma_getaddrinfo(node.as_ptr(), service.as_ptr(), hints, &mut found), expected);
        }
        assert_eq!(rdma_getaddrinfo(c"127.0.0.1".as_ptr(), c"7".as_ptr(), null(), &mut found), 0);
        assert_eq!(read_address((*found).ai_dst_addr), Ok(loopback(7)));
        assert_eq!(((*found).ai_src_len, (*found).ai_port_space), (0, abi::PS_TCP));
        rdma_freeaddrinfo(found);
        assert_eq!(rdma_getaddrinfo(null(), c"7".as_ptr(), &passive, &mut found), 0);
        assert_eq!(read_address((*found).ai_src_addr).map(|address| address.port()), Ok(7));
        assert!((*found).ai_dst_addr.is_null());
        rdma_freeaddrinfo(found);
    }
}

#[test]
fn copies_addresses_of_hints() {
    // SAFETY: all fields are numbers and pointers.
    let empty: abi::CmAddrInfo = unsafe { std::mem::zeroed() };
    let (mut source, mut destination) = (write_address(loopback(1)), write_address(loopback(2)));
    let len = size_of::<libc::sockaddr_in>() as u32;
    let hints = abi::CmAddrInfo {
        ai_port_space: abi::PS_TCP,
        ai_src_addr: (&raw mut source).cast(),
        ai_src_len: len,
        ai_dst_addr: (&raw mut destination).cast(),
        ai_dst_len: len,
        ..empty
    };
    let mut found = null_mut();
    // SAFETY: the arguments are valid.
    unsafe {
        assert_eq!(rdma_getaddrinfo(null_mut(), null_mut(), &hints, &mut found), 0);
        let copied = &*found;
        assert_eq!((copied.ai_src_len, copied.ai_dst_len), (len, len));
        assert_eq!(read_address(copied.ai_src_addr), Ok(loopback(1)));
        assert_eq!(read_address(copied.ai_dst_addr), Ok(loopback(2)));
        rdma_freeaddrinfo(found);
        let returned = rdma_getaddrinfo(null_mut(), null_mut(), null_mut(), &mut found);
        assert_eq!(result(returned), Err(libc::EINVAL));
    }
}

#[test]
fn makes_endpoints_whose_calls_wait() {
    let service = c"0";
    // SAFETY: all fields are numbers and pointers.
    let empty: abi::CmAddrInfo = unsafe { std::mem::zeroed() };
    let hints = abi::CmAddrInfo { ai_flags: abi::RAI_PASSIVE, ai_port_space: abi::PS_TCP, ..empty };
    // SAFETY: the objects live until they are destroyed.
    unsafe {
        let (mut addresses, mut listener, mut id) = (null_mut(), null_mut(), null_mut());
        let node = c"127.0.0.1".as_ptr();
        assert_eq!(rdma_getaddrinfo(node, service.as_ptr(), &hints, &mut addresses), 0);
        assert_eq!(rdma_create_ep(&mut listener, addresses, null_mut(), &mut queue_pair(1)), 0);
        rdma_freeaddrinfo(addresses);
        assert_eq!(rdma_listen(listener, 1), 0);
        let mut address = write_address(loopback(u16::from_be(rdma_get_src_port(listener))));
        let towards = abi::CmAddrInfo {
            ai_port_space: abi::PS_TCP,
            ai_qp_type: abi::QPT_RC,
            ai_dst_addr: (&raw mut address).cast(),
            ai_dst_len: size_of::<libc::sockaddr_in>() as u32,
            ..empty
        };
        let mut towards = towards;
        assert_eq!(
            result(rdma_create_ep(&mut id, &mut towards, null_mut(), &mut queue_pair(1 << 20))),
            Err(libc::EINVAL)
        );
        assert_eq!(rdma_create_ep(&mut id, &mut towards, null_mut(), &mut queue_pair(1)), 0);
        let (client, server) = (Id(id), Id(listener));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (server, mut request) = (server, null_mut());
                assert_eq!(rdma_get_request(server.0, &mut request), 0);
                assert!(!(*request).qp.is_null());
                assert_eq!(rdma_accept(request, null_mut()), 0);
                // Waits for the peer.
                assert_eq!(rdma_disconnect(request), 0);
                rdma_destroy_ep(request);
            });
            client.connect();
        });
        rdma_destroy_ep(client.0);
        rdma_destroy_ep(server.0);
    }
}

#[test]
fn moves_events_with_an_identifier() {
    let (old, new) = (Channel::new(), Channel::new());
    let id = old.id();
    let mut address = write_address(loopback(1));
    // SAFETY: the identifier lives.
    unsafe {
        assert_eq!(rdma_resolve_addr(id.0, null_mut(), (&raw mut address).cast(), 0), 0);
        assert_eq!(rdma_migrate_id(id.0, new.0), 0);
    }
    assert!(old.is_empty());
    assert_eq!(new.expect(abi::CM_ADDR_RESOLVED), id);
    id.destroy();
}

#[test]
fn returns_no_event_of_an_empty_channel() {
    let channel = Channel::new();
    // SAFETY: the channel lives.
    unsafe {
        let fd = BorrowedFd::borrow_raw((*channel.0).fd);
        rustix::io::ioctl_fionbio(fd, true).unwrap();
        assert_eq!(result(rdma_get_cm_event(channel.0, &mut null_mut())), Err(libc::EAGAIN));
    }
    for (number, name) in [(0, c"RDMA_CM_EVENT_ADDR_RESOLVED"), (15, c"RDMA_CM_EVENT_TIMEWAIT_EXIT")] {
        // SAFETY: the text lives forever.
        assert_eq!(unsafe { CStr::from_ptr(rdma_event_str(number)) }, name);
    }
    for number in [-1, 16] {
        // SAFETY: the text lives forever.
        assert_eq!(unsafe { CStr::from_ptr(rdma_event_str(number)) }, c"UNKNOWN EVENT");
    }
}

#[test]
fn lists_all_devices() {
    let mut count = -1;
    // SAFETY: the list is freed once.
    unsafe {
        let list = rdma_get_devices(&mut count);
        assert_eq!(count as usize, devices().len());
        assert!((*list.add(count as usize)).is_null());
        rdma_free_devices(list);
        rdma_free_devices(rdma_get_devices(null_mut()));
    }
}

#[test]
fn refuses_multicast_and_enhanced_connections() {
    for function in [
        rdma_join_multicast,
        rdma_join_multicast_ex,
        rdma_leave_multicast,
        rdma_set_local_ece,
        rdma_get_remote_ece,
    ] {
        assert_eq!(result(function()), Err(libc::EOPNOTSUPP));
    }
}
