//! Sockets of the clients: accepts, receives, sends, and closes.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use isolane_connection::{ReceivePlan, StallDetector, TransmitPlan};
use isolane_reactor::Received;
use rustix::io::Errno;
use slotmap::DefaultKey;
use socket2::{SockRef, TcpKeepalive};

use super::Core;
use super::clients::{Client, STALL_TIMEOUT, TICK};
use super::jobs::{Orphans, Waiting};
use crate::{Connection, Event};

impl Core {
    /// Accepts a bounded number of connections.
    pub(super) fn accept(&mut self, index: usize) {
        for _ in 0..MAX_ACCEPTS {
            let (listener, token) = &self.listeners[index];
            match listener.accept() {
                Ok(Some(socket)) => {
                    self.reactor.on_read(*token, true);
                    self.add(socket);
                }
                Ok(None) => return self.reactor.on_read(*token, false),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    log::limited!(Warn, "cannot accept connections; raise the limit of open files");
                    self.listeners.iter().for_each(|(_, token)| self.reactor.pause(*token));
                    self.accept_after = Some(self.now + TICK);
                    return;
                }
                // The connection broke before it was accepted.
                Err(error) => log::debug!("connection lost before accept: {error}"),
            }
        }
    }

    pub(super) fn add(&mut self, socket: OwnedFd) {
        let peer = peer_name(&socket);
        if self.clients.len() + self.orphans.len() >= MAX_CONNECTIONS {
            log::limited!(
                Warn,
                "{peer}: refused, because {MAX_CONNECTIONS} connections are open or have requests at the volume; close some"
            );
            return;
        }
        configure(&socket);
        let token = match self.reactor.add(socket) {
            Ok(token) => token,
            Err(error) => return log::limited!(Warn, "{peer}: cannot be served: {error}"),
        };
        log::debug!("{peer}: connected");
        let key = self.clients.insert(Client {
            conn: Connection::new(Arc::clone(&self.export)),
            token,
            peer,
            since: self.now,
            stall: StallDetector::new(self.now, STALL_TIMEOUT),
            is_paused: false,
            awaited: None,
            waiting_bytes: 0,
            is_dirty: false,
            is_blocked: false,
            is_ending: false,
        });
        if let Some(client) = self.clients.get_mut(key) {
            client.list(key, &mut self.dirty);
        }
    }

    pub(super) fn receive(&mut self, key: DefaultKey) {
        let Some(client) = self.clients.get_mut(key) else { return };
        if client.is_paused || client.is_ending {
            return self.reactor.pause(client.token);
        }
        if client.conn.is_full() {
            client.is_paused = true;
            return self.reactor.pause(client.token);
        }
        let mut plan = ReceivePlan::new();
        client.conn.fill_receive_plan(&mut self.overflow, &mut plan);
        let received = self.reactor.receive(client.token, &mut plan);
        drop(plan);
        match received {
            Ok(Received::Bytes(count)) => {
                client.conn.handle_received(count);
                let overflow = std::mem::take(&mut self.overflow);
                self.process_input(key, &overflow);
                self.overflow = overflow;
            }
            Ok(Received::WouldBlock) => {}
            Ok(Received::Eof) => self.end(key),
            Err(error) => {
                log::debug!("{}: receive failed: {error}", client.peer);
                self.close(key);
            }
        }
    }

    /// Handles all received requests, as far as there is memory.
    pub(super) fn process_input(&mut self, key: DefaultKey, overflow: &[u8]) {
        loop {
            let Some(client) = self.clients.get_mut(key) else { return };
            if client.is_ending {
                return;
            }
            let is_full = client.conn.is_full();
            if is_full || client.awaited.is_some() {
                client.conn.defer_input(overflow);
                client.is_paused = true;
                self.reactor.pause(client.token);
                return client.list(key, &mut self.dirty);
            }
            match client.conn.poll(overflow) {
                Ok(None) => return client.list(key, &mut self.dirty),
                Ok(Some(Event::Command(permit, command))) => self.start(key, permit, command),
                Ok(Some(Event::Memory { len })) => {
                    client.awaited = Some(len);
                    client.waiting_bytes += len;
                    if self.has_memory_now(key, len) {
                        self.grant(key);
                    } else {
                        self.waiting.push_back(Waiting::Write(key));
                    }
                }
                Ok(Some(Event::Disconnect)) => return self.end(key),
                Err(error) => {
                    log::limited!(Warn, "{}: {error}; closed", client.peer);
                    return self.close(key);
                }
            }
        }
    }

    /// Continues a connection that was paused.
    pub(super) fn resume(&mut self, key: DefaultKey) {
        let Some(client) = self.clients.get_mut(key) else { return };
        if client.is_paused && !client.is_ending && client.awaited.is_none() && !client.conn.is_full() {
            client.is_paused = false;
            self.reactor.resume(client.token);
            self.process_input(key, &[]);
        }
    }

    /// Sends once to each listed client.
    pub(super) fn send_dirty(&mut self) {
        for key in std::mem::take(&mut self.dirty) {
            if let Some(client) = self.clients.get_mut(key) {
                client.is_dirty = false;
                self.send(key);
            }
        }
    }

    pub(super) fn send(&mut self, key: DefaultKey) {
        let Some(client) = self.clients.get_mut(key) else { return };
        if client.conn.wants_transmit() && !client.is_blocked {
            let mut plan = TransmitPlan::new();
            client.conn.fill_transmit_plan(&mut plan);
            let offered = plan.bytes();
            let sent = self.reactor.send(client.token, &plan);
            drop(plan);
            match sent {
                Ok(count) => {
                    client.conn.handle_transmitted(count, |payload| self.pool.recycle_payload(payload));
                    client.is_blocked = count < offered;
                }
                Err(error) => {
                    log::debug!("{}: send failed: {error}", client.peer);
                    return self.close(key);
                }
            }
            if client.conn.wants_transmit() && !client.is_blocked {
                client.list(key, &mut self.dirty);
            }
        }
        if client.is_done() {
            return self.close(key);
        }
        self.resume(key);
    }

    /// Ends a connection after its last reply.
    pub(super) fn end(&mut self, key: DefaultKey) {
        let Some(client) = self.clients.get_mut(key) else { return };
        client.is_ending = true;
        client.waiting_bytes -= client.awaited.take().unwrap_or(0);
        self.reactor.pause(client.token);
        if let Some(buffer) = client.conn.close() {
            self.pool.recycle_buffer(buffer);
        }
        client.list(key, &mut self.dirty);
    }

    /// Closes a connection. Its requests at the volume complete without replies, and count until then.
    pub(super) fn close(&mut self, key: DefaultKey) {
        let Some(mut client) = self.clients.remove(key) else { return };
        log::debug!("{}: closed", client.peer);
        if let Some(buffer) = client.conn.close() {
            self.pool.recycle_buffer(buffer);
        }
        drop(self.reactor.remove(client.token));
        self.waiting.retain(|waiting| !matches!(waiting, Waiting::Read { job, .. } if job.client == key));
        self.statuses.retain(|status| status.client != key);
        let jobs = self.jobs.values().filter(|job| job.client == key);
        let orphans = jobs.fold(Orphans::default(), |sum, job| Orphans {
            jobs: sum.jobs + 1,
            bytes: sum.bytes + job.bytes(),
        });
        if orphans.jobs > 0 {
            self.orphans.insert(key, orphans);
        }
    }
}

/// Makes the kernel send small replies immediately, and probe whether an idle client is alive. Has no effect on a Unix
/// socket.
fn configure(socket: &OwnedFd) {
    let socket = SockRef::from(socket);
    if socket.domain().is_ok_and(|domain| domain == socket2::Domain::UNIX) {
        return;
    }
    let probes =
        TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_INTERVAL).with_retries(PROBES);
    let configured = socket.set_tcp_nodelay(true).and_then(|()| socket.set_tcp_keepalive(&probes));
    if let Err(error) = configured {
        log::debug!("cannot set options of a connection: {error}");
    }
}

/// Returns the address of a TCP client.
fn peer_name(socket: &OwnedFd) -> String {
    let peer = SockRef::from(socket).peer_addr().ok().and_then(|peer| peer.as_socket());
    peer.map_or_else(|| "local client".to_owned(), |peer| peer.to_string())
}

pub(super) const MAX_CONNECTIONS: usize = 128;
/// Limit per listener and turn.
const MAX_ACCEPTS: usize = 16;
/// TCP keep-alive: idle time before the first probe, interval, and number of probes.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;
