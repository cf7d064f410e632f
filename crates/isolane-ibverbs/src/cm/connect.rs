//! Connections: listen, connect, accept, reject, and disconnect.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::Weak;
use std::sync::atomic::Ordering;

use isolane_verbs::connection_manager::{Answer, Attempt, Handler, OTHER_PORT};

use super::agent::agent;
use super::event;
use super::id::{
    self, Id, Shared, Stage, close, complete, from_abi, open, release_event, set_local, set_peer,
};
use super::message::{CONSUMER_DEFINED, INVALID_SERVICE, Kind, Message, VENDOR_OPTION_NOT_SUPPORTED};
use super::migrate::rdma_migrate_id;
use super::qp::{self, UDP_Q_KEY, rdma_create_qp};
use crate::abi;
use crate::device::devices;
use crate::ffi::{Errno, Result, check, object, output, pointer, value, values};
use crate::open::shared_key;

/// Lengths of private data in events, in bytes, as on InfiniBand.
const REQUEST_BYTES: [usize; 2] = [56, 180];
const REPLY_BYTES: [usize; 2] = [196, 136];
const REJECT_BYTES: [usize; 2] = [148, 136];

impl Shared {
    fn length(&self, lengths: [usize; 2]) -> usize {
        lengths[usize::from(self.is_datagram)]
    }

    fn as_handler(&self) -> Weak<dyn Handler> {
        let weak: Weak<dyn Handler> = Weak::<Shared>::clone(&self.weak);
        weak
    }

    fn send(&self, message: &Message) -> Result<()> {
        let number = self.state.lock().number.ok_or(Errno::INVALID)?;
        agent()?.send(number, message)?;
        Ok(())
    }

    /// Reports that an established connection has ended, once.
    fn end(&self) {
        let stage = std::mem::replace(&mut self.state.lock().stage, Stage::Ended);
        if stage == Stage::Established {
            self.push(abi::CM_DISCONNECTED, 0);
        }
    }

    /// Reports that a connection has ended without a message, at a stage.
    fn break_off(&self, stage: Stage) {
        match stage {
            Stage::Established => self.push(abi::CM_DISCONNECTED, 0),
            Stage::Ended => {}
            _ => self.push(abi::CM_CONNECT_ERROR, -libc::ECONNRESET),
        }
    }
}

impl Handler for Shared {
    fn requested(&self, connection: u64, local: SocketAddr, peer: SocketAddr, request: Message) -> Answer {
        let is_alive = self.is_alive.lock();
        if !*is_alive {
            return Answer::Refused;
        }
        let backlog = self.state.lock().backlog;
        if self.waiting_requests() >= backlog {
            return Answer::Busy;
        }
        match self.make_identifier(connection, local, peer, &request) {
            Ok(()) => Answer::Taken,
            Err(_) => Answer::Refused,
        }
    }

    fn received(&self, message: Message) {
        let is_alive = self.is_alive.lock();
        if !*is_alive {
            return;
        }
        let stage = self.state.lock().stage;
        match (message.kind, stage) {
            (Kind::Reply, Stage::Requesting) => self.on_reply(message),
            (Kind::Ready, Stage::Accepted) if !self.is_datagram => {
                if self.state.lock().step(stage, Stage::Established) {
                    self.push(abi::CM_ESTABLISHED, 0);
                }
            }
            (Kind::Reject, Stage::Requesting | Stage::Answered | Stage::Requested | Stage::Accepted) => {
                let reason = message.reason as c_int;
                let len = self.length(REJECT_BYTES);
                self.push_with(abi::CM_REJECTED, reason, None, &message.private_data, len);
                self.state.lock().stage = Stage::Ended;
            }
            (Kind::Disconnect, _) => {
                let _ = self.send(&Message::new(Kind::Disconnected));
                self.end();
            }
            (Kind::Disconnected, _) => self.end(),
            // The peer breaks the protocol, or this end has ended the connection at the same time.
            _ => self.break_off(close(self)),
        }
    }

    fn failed(&self, is_refused: bool) {
        let is_alive = self.is_alive.lock();
        if !*is_alive {
            return;
        }
        self.state.lock().stage = Stage::Ended;
        if is_refused {
            self.push(abi::CM_REJECTED, INVALID_SERVICE as c_int)
        } else {
            self.push(abi::CM_UNREACHABLE, -libc::ETIMEDOUT)
        }
    }

    fn closed(&self) {
        let is_alive = self.is_alive.lock();
        if !*is_alive {
            return;
        }
        let stage = std::mem::replace(&mut self.state.lock().stage, Stage::Ended);
        self.break_off(stage);
    }
}

impl Shared {
    /// Makes the identifier of a request, and reports it to the listener.
    fn make_identifier(
        &self,
        connection: u64,
        local: SocketAddr,
        peer: SocketAddr,
        request: &Message,
    ) -> Result<()> {
        // The port that the program knows, even if the agent listens at the other one.
        let port = self.state.lock().local.map_or(local.port(), |listening| listening.port());
        check(
            request.kind == Kind::Request
                && (request.port, request.is_datagram) == (port, self.is_datagram)
                && !request.spares_receives,
        )?;
        let listener = self.id.load(Ordering::Acquire);
        // SAFETY: the listener and its channel live: this thread holds `is_alive`, which `rdma_destroy_id` and
        // `rdma_migrate_id` take before they change or free either, and the program does not destroy the channel of an
        // identifier.
        let made = unsafe {
            let (channel, context, port_space) = ((*listener).channel, (*listener).context, (*listener).ps);
            id::create(channel, context, port_space, Weak::clone(&self.weak))
        }?;
        // SAFETY: just made, so no other thread has it yet.
        let id = unsafe { from_abi(made) }?;
        let local = SocketAddr::new(local.ip().to_canonical(), port);
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        set_local(id, local);
        set_peer(id, peer);
        {
            let mut state = id.shared.state.lock();
            (state.local, state.peer, state.number) = (Some(local), Some(peer), Some(connection));
            (state.responder_resources, state.initiator_depth) =
                (request.initiator_depth, request.responder_resources);
            (state.offer, state.stage) = (Some(request.clone()), Stage::Requested);
        }
        agent()?.adopt(connection, id.shared.as_handler());
        let len = self.length(REQUEST_BYTES);
        let param = (!self.is_datagram).then(|| conn_param(request));
        id.shared.push_with(abi::CM_CONNECT_REQUEST, 0, param, &request.private_data, len);
        Ok(())
    }

    /// The peer has accepted.
    fn on_reply(&self, reply: Message) {
        let made = self.id.load(Ordering::Acquire);
        // SAFETY: the identifier lives: this thread holds `is_alive`, which `rdma_destroy_id` takes before it frees it.
        let Ok(id) = (unsafe { object::<_, Id>(made) }) else { return };
        let len = self.length(REPLY_BYTES);
        {
            let mut state = self.state.lock();
            if !state.step(Stage::Requesting, Stage::Answered) {
                return;
            }
            state.offer = Some(reply.clone());
        }
        if self.is_datagram {
            let none = abi::CmUdParam {
                private_data: std::ptr::null(),
                private_data_len: 0,
                ah_attr: qp::ah_attributes(id),
                qp_num: reply.number,
                qkey: reply.q_key,
            };
            let param = Some(abi::CmParam { ud: none });
            return self.push_with(abi::CM_ESTABLISHED, 0, param, &reply.private_data, len);
        }
        if id.abi.qp.is_null() {
            let param = Some(conn_param(&reply));
            return self.push_with(abi::CM_CONNECT_RESPONSE, 0, param, &reply.private_data, len);
        }
        // SAFETY: this thread holds `is_alive`, which `rdma_destroy_qp` takes before it destroys the queue pair.
        let connected = unsafe { qp::connect(id, &reply) };
        match connected.and_then(|()| self.send(&Message::new(Kind::Ready))) {
            Ok(()) => {
                self.state.lock().step(Stage::Answered, Stage::Established);
                self.push_with(abi::CM_ESTABLISHED, 0, Some(conn_param(&reply)), &reply.private_data, len);
            }
            Err(error) => {
                self.push(abi::CM_CONNECT_ERROR, -error.0);
                close(self);
            }
        }
    }
}

/// Returns the parameters that a message of the peer has: its depth is the resources of this end, and vice versa.
fn conn_param(message: &Message) -> abi::CmParam {
    let conn = abi::CmConnParam {
        private_data: std::ptr::null(),
        private_data_len: 0,
        responder_resources: message.initiator_depth,
        initiator_depth: message.responder_resources,
        flow_control: 1,
        retry_count: message.retries,
        rnr_retry_count: message.rnr_retries,
        srq: message.shares_receives.into(),
        qp_num: message.number,
    };
    abi::CmParam { conn }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut abi::CmId, backlog: c_int) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed.
        let found = unsafe { object::<_, Id>(id) }?;
        let (agent, key) = (agent()?, shared_key()?);
        let number = agent.number();
        let (bound, port) = {
            let mut state = found.shared.state.lock();
            let bound = state.bound.take().ok_or(Errno::INVALID)?;
            state.number = Some(number);
            (bound, state.local.map_or(0, |local| local.port()))
        };
        let port = (port, found.shared.is_datagram);
        let listener = bound.listen(backlog, port, key, found.shared.as_handler())?;
        found.shared.state.lock().backlog = listener.backlog();
        agent.listen(number, listener)?;
        Ok(0)
    })
}

/// Returns a message with the parameters of the program.
///
/// # Safety
/// `param` is null, or parameters with private data of the length that they name; the queue pair of the identifier is
/// null or lives.
unsafe fn message(kind: Kind, id: &Id, param: *mut abi::CmConnParam) -> Result<Message> {
    let mut message = Message::new(kind);
    (message.rnr_retries, message.retries) = (7, 7);
    (message.responder_resources, message.initiator_depth) = (16, 16);
    message.is_datagram = id.shared.is_datagram;
    // SAFETY: guaranteed by the caller.
    if let Some(param) = unsafe { param.as_ref() } {
        // SAFETY: guaranteed by the caller: private data has `private_data_len` bytes.
        let data = unsafe { values(param.private_data.cast::<u8>(), param.private_data_len.into()) }?;
        let max = if kind == Kind::Request { REQUEST_BYTES } else { REPLY_BYTES };
        check(data.len() <= id.shared.length(max))?;
        message.private_data = data.to_vec();
        message.responder_resources = param.responder_resources.min(16);
        message.initiator_depth = param.initiator_depth.min(16);
        message.rnr_retries = param.rnr_retry_count;
        message.retries = param.retry_count;
        message.shares_receives = param.srq != 0;
        message.number = param.qp_num;
    }
    if !id.abi.qp.is_null() {
        // SAFETY: not null, and guaranteed by the caller to live.
        message.number = unsafe { (*id.abi.qp).qp_num };
        message.shares_receives = !id.abi.srq.is_null();
    }
    let mut state = id.shared.state.lock();
    (message.q_key, message.first_message) = (UDP_Q_KEY, state.first_message);
    (state.responder_resources, state.initiator_depth) =
        (message.responder_resources, message.initiator_depth);
    Ok(message)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut abi::CmId, param: *mut abi::CmConnParam) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed and changes in no other thread.
        let found = unsafe { object::<_, Id>(id) }?;
        // SAFETY: the program passes null, or parameters with private data of the length that they name.
        let request = unsafe { message(Kind::Request, found, param) }?;
        let (agent, key) = (agent()?, shared_key()?);
        let number = agent.number();
        let (local, peer) = {
            let mut state = found.shared.state.lock();
            let is_resolved = !found.abi.route.path_rec.is_null();
            check(is_resolved && state.number.is_none() && state.stage == Stage::Idle)?;
            let (local, peer) = (state.local.ok_or(Errno::INVALID)?, state.peer.ok_or(Errno::INVALID)?);
            (state.number, state.stage) = (Some(number), Stage::Requesting);
            (local, peer)
        };
        let other = SocketAddr::new(peer.ip(), peer.port() ^ OTHER_PORT);
        let request = Message { port: peer.port(), ..request };
        agent.connect(number, Attempt::new(local, &[peer, other], request, key, found.shared.as_handler()));
        // SAFETY: the identifier lives, and `found` is not used again.
        unsafe { complete(id) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut abi::CmId, param: *mut abi::CmConnParam) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed and changes in no other thread.
        let found = unsafe { object::<_, Id>(id) }?;
        let offer = {
            let state = found.shared.state.lock();
            check(state.stage == Stage::Requested)?;
            state.offer.clone().ok_or(Errno::INVALID)?
        };
        // SAFETY: the program passes null, or parameters with private data of the length that they name.
        let mut reply = unsafe { message(Kind::Reply, found, param) }?;
        if param.is_null() {
            (reply.responder_resources, reply.initiator_depth) =
                (offer.initiator_depth, offer.responder_resources);
        }
        // Neither end does more at a time than the other allows.
        reply.responder_resources = reply.responder_resources.min(offer.initiator_depth);
        reply.initiator_depth = reply.initiator_depth.min(offer.responder_resources);
        {
            let mut state = found.shared.state.lock();
            (state.responder_resources, state.initiator_depth) =
                (reply.responder_resources, reply.initiator_depth);
        }
        if !found.abi.qp.is_null() && !found.shared.is_datagram {
            // SAFETY: the queue pair lives: only the program destroys it, which uses the identifier in this thread.
            unsafe { qp::connect(found, &offer) }?;
        }
        check(found.shared.state.lock().step(Stage::Requested, Stage::Accepted))?;
        found.shared.send(&reply)?;
        if found.shared.is_datagram {
            return Ok(0);
        }
        // SAFETY: the identifier lives, and `found` is not used again.
        unsafe { complete(id) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut abi::CmId) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed.
        let found = unsafe { object::<_, Id>(id) }?;
        check(found.abi.qp.is_null())?;
        {
            let mut state = found.shared.state.lock();
            // Set first: the peer can end the connection as soon as it has the message.
            check(state.step(Stage::Answered, Stage::Established))?;
        }
        found.shared.send(&Message::new(Kind::Ready))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut abi::CmId, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the program passes null or a live identifier, and null or `len` bytes.
    unsafe { reject(id, data, len, CONSUMER_DEFINED) }
}

/// # Safety
/// `id` is null or a live identifier, and `data` null or `len` bytes.
unsafe fn reject(id: *mut abi::CmId, data: *const c_void, len: u8, reason: u32) -> c_int {
    value(|| {
        // SAFETY: guaranteed by the caller.
        let (found, data) = unsafe { (object::<_, Id>(id)?, values(data.cast::<u8>(), len.into())?) };
        check(data.len() <= found.shared.length(REJECT_BYTES))?;
        let rejection = Message { reason, private_data: data.to_vec(), ..Message::new(Kind::Reject) };
        {
            let mut state = found.shared.state.lock();
            check(matches!(state.stage, Stage::Requested | Stage::Accepted | Stage::Answered))?;
            state.stage = Stage::Ended;
        }
        found.shared.send(&rejection)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(id: *mut abi::CmId, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the program passes null or a live identifier, and null or `len` bytes.
    unsafe { reject(id, data, len, VENDOR_OPTION_NOT_SUPPORTED) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut abi::CmId) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed and changes in no other thread.
        let found = unsafe { object::<_, Id>(id) }?;
        // SAFETY: the queue pair lives: only the program destroys it, which uses the identifier in this thread.
        unsafe { qp::fail(found) };
        let is_established = {
            let state = found.shared.state.lock();
            check(state.offer.is_some())?;
            state.stage == Stage::Established
        };
        // The peer can have ended the connection at the same time.
        let _ = found.shared.send(&Message::new(Kind::Disconnect));
        if !is_established {
            return Ok(0);
        }
        // SAFETY: the identifier lives, and `found` is not used again.
        unsafe { complete(id) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(listener: *mut abi::CmId, request: *mut *mut abi::CmId) -> c_int {
    value(|| {
        // SAFETY: the program passes null or a live listener, and null or a pointer that no other thread uses during
        // the call.
        let (found, request) = unsafe { (object::<_, Id>(listener)?, output(request)?) };
        let is_listening = {
            let state = found.shared.state.lock();
            state.number.is_some() && state.peer.is_none()
        };
        check(found.is_synchronous && is_listening)?;
        let (channel, pd, qp_attributes) = (found.abi.channel, found.abi.pd, found.qp_attributes);
        let mut taken = null_mut();
        // SAFETY: the listener is synchronous, so it owns its channel and its last event. The program does not have the
        // identifier of the request yet.
        unsafe {
            release_event(listener);
            if event::rdma_get_cm_event(channel, &mut taken) != 0 {
                return Err(Errno::last());
            }
            let id = (*taken).id;
            if (*taken).status != 0 || (*taken).event != abi::CM_CONNECT_REQUEST {
                let status = (*taken).status;
                event::rdma_ack_cm_event(taken);
                return Err(Errno(status.abs().max(libc::EINVAL)));
            }
            if rdma_migrate_id(id, null_mut()) != 0 {
                return Err(Errno::last());
            }
            if let Some(mut attributes) = qp_attributes
                && rdma_create_qp(id, pd, &mut attributes) != 0
            {
                return Err(Errno::last());
            }
            (*id).event = taken;
            *request = id;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut abi::CmId, event: c_int) -> c_int {
    value(|| {
        // SAFETY: the program passes null, or an identifier that it has not destroyed.
        let found = unsafe { object::<_, Id>(id) }?;
        check(found.shared.state.lock().offer.is_some() && event == abi::EVENT_COMM_EST)?;
        // A connection is established when the peer is ready, not when its first data arrives.
        Ok(0)
    })
}

/// Sets the timeout of requests, or whether a listener at `[::]` excludes addresses of version 4. The other options concern
/// the reuse of ports and routes, for which TCP has its own rules.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut abi::CmId,
    level: c_int,
    name: c_int,
    option: *mut c_void,
    len: usize,
) -> c_int {
    value(|| {
        // SAFETY: the program passes null or a live identifier, and null or an option of `len` bytes.
        let (found, option) = unsafe { (object::<_, Id>(id)?, values(option.cast::<u8>(), len)?) };
        let mut state = found.shared.state.lock();
        match (level, name, option) {
            (OPTION_ID, OPTION_ID_ACK_TIMEOUT, [timeout @ 0..32]) => state.timeout = Some(*timeout),
            (OPTION_ID, OPTION_ID_AFONLY, [_, _, _, _]) => {
                check(state.local.is_none())?;
                state.is_v6_only = Some(option.iter().any(|byte| *byte != 0));
            }
            (OPTION_ID, OPTION_ID_TOS, [_]) | (OPTION_ID, OPTION_ID_REUSEADDR, [_, _, _, _]) => {}
            (OPTION_ID, OPTION_ID_TOS..=OPTION_ID_ACK_TIMEOUT, _) => return Err(Errno::INVALID),
            (OPTION_IB, OPTION_IB_PATH, _) => {}
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut abi::Context {
    pointer(|| {
        let contexts = devices().iter().map(|device| open(device).context).chain([null_mut()]);
        let list: Vec<*mut abi::Context> = contexts.collect();
        // SAFETY: the program passes null, or a number that no other thread uses during the call.
        if let Ok(count) = unsafe { output(count) } {
            *count = (list.len() - 1) as c_int;
        }
        Ok(Box::into_raw(list.into_boxed_slice()).cast())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut abi::Context) {
    if !list.is_null() {
        let list = std::ptr::slice_from_raw_parts_mut(list, devices().len() + 1);
        // SAFETY: the list is from `rdma_get_devices`, which makes it with this length.
        drop(unsafe { Box::from_raw(list) });
    }
}

const OPTION_ID: c_int = 0;
const OPTION_IB: c_int = 1;
const OPTION_IB_PATH: c_int = 1;
const OPTION_ID_TOS: c_int = 0;
const OPTION_ID_REUSEADDR: c_int = 1;
const OPTION_ID_AFONLY: c_int = 2;
const OPTION_ID_ACK_TIMEOUT: c_int = 3;
