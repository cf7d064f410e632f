//! Epoll sets with adopted members.
//!
//! The kernel has the other members. The first adopted one adds two descriptors to the kernel's set: the engine's bell,
//! and an eventfd for events that another thread has fetched. A thread that waits sleeps in the kernel's set.
//!
//! Members that may have an event are queued. A wait checks only these: the engine is asked to report the next event
//! before a member without one leaves the queue.
//!
//! Invariant: a change after the check of a member queues it again. For edge-triggered members the request precedes the
//! check, so that no edge is missed; one can be reported twice.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use libc::{
    EEXIST, EINVAL, ENOENT, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLHUP,
    EPOLLIN, EPOLLONESHOT, epoll_event,
};
use parking_lot::Mutex;

use crate::adopted::{Adopted, Watcher, catch_up};
use crate::engine::Engine;
use crate::numbers::NumberMap;
use crate::policy::now_ns;
use crate::{gate, own, real};

/// An epoll set of this process.
pub(crate) struct Set {
    fd: c_int,
    inner: Mutex<Inner>,
    /// Number of adopted members.
    adopted: AtomicUsize,
    /// Threads that sleep, or are about to.
    sleepers: AtomicU32,
    /// Eventfd for these threads, or -1.
    event: AtomicI32,
    /// Generation of the engine whose bell is a member, and the bell, or -1.
    generation: AtomicU64,
    bell: AtomicI32,
    /// Another process has the set, or another set has it as a member.
    shared: AtomicBool,
    /// The next wait starts with the kernel's members, because the last reported adopted ones only.
    kernel_first: AtomicBool,
    /// Time of the last wait in which no member of the kernel had an event, or 0.
    checked_at: AtomicU64,
}

#[derive(Default)]
struct Inner {
    members: NumberMap<c_int, Member>,
    /// Queued members, and others that were removed or checked in the meantime.
    queue: VecDeque<(c_int, u64)>,
    /// Ticket of the last entry.
    ticket: u64,
    /// Of the adopted members.
    engine: Weak<Engine>,
}

/// A TCP socket of this process in a set.
#[derive(Clone)]
struct Member {
    events: u32,
    data: u64,
    adopted: Option<Arc<Adopted>>,
    /// Ticket of its entry in the queue, or 0.
    queued: u64,
    /// Ticket of its last change.
    changed: u64,
    /// One-shot, and reported.
    disabled: bool,
    /// Not a member of the kernel's set although it is with the kernel, because it is disabled.
    detached: bool,
}

impl Set {
    pub(crate) fn new(fd: c_int) -> Set {
        Set {
            fd,
            inner: Mutex::default(),
            adopted: AtomicUsize::new(0),
            sleepers: AtomicU32::new(0),
            event: AtomicI32::new(-1),
            generation: AtomicU64::new(0),
            bell: AtomicI32::new(-1),
            shared: AtomicBool::new(false),
            kernel_first: AtomicBool::new(false),
            checked_at: AtomicU64::new(0),
        }
    }

    /// Sets whether others have the set.
    pub(crate) fn set_shared(&self, shared: bool) {
        self.shared.store(shared, Ordering::SeqCst);
    }

    /// Returns `true` if others have the set, so that its members stay with the kernel.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::SeqCst)
    }

    /// Returns `true` if a member was ever adopted, so that waits need this library.
    #[inline]
    pub(crate) fn is_mixed(&self) -> bool {
        self.event.load(Ordering::Acquire) >= 0
    }

    pub(crate) fn members(&self) -> Vec<c_int> {
        self.inner.lock().members.keys().copied().collect()
    }

    /// Changes the membership of a socket that is with the kernel. Returns the number of an error.
    pub(crate) fn control_kernel(
        &self,
        operation: c_int,
        fd: c_int,
        event: Option<epoll_event>,
    ) -> Result<(), c_int> {
        let mut inner = self.inner.lock();
        let detached = inner.members.get(&fd).is_some_and(|member| member.detached);
        let real_operation = match operation {
            EPOLL_CTL_MOD if detached => EPOLL_CTL_ADD,
            EPOLL_CTL_ADD if detached => return Err(EEXIST),
            operation => operation,
        };
        if !(operation == EPOLL_CTL_DEL && detached) {
            control(self.fd, real_operation, fd, event)?;
        }
        match (operation, event) {
            (EPOLL_CTL_DEL, _) => drop(inner.remove(fd)),
            (_, Some(event)) => inner.insert(fd, event, None),
            _ => {}
        }
        Ok(())
    }

    /// Changes the membership of an adopted socket. Returns the number of an error, or `None` if the socket must return
    /// first: others have the set, or the system has no descriptor for it.
    pub(crate) fn control_adopted(
        self: &Arc<Set>,
        operation: c_int,
        fd: c_int,
        event: Option<epoll_event>,
        adopted: &Arc<Adopted>,
    ) -> Option<Result<(), c_int>> {
        let mut inner = self.inner.lock();
        let known = inner.members.contains_key(&fd);
        match (operation, event) {
            (EPOLL_CTL_DEL, _) if known => {
                drop(inner);
                adopted.unwatch_set(&self.watcher());
                self.remove(fd);
                return Some(Ok(()));
            }
            (EPOLL_CTL_DEL | EPOLL_CTL_MOD, _) if !known => return Some(Err(ENOENT)),
            (EPOLL_CTL_ADD, _) if known => return Some(Err(EEXIST)),
            // Under the lock: the members are released after the set is shared.
            (EPOLL_CTL_ADD, Some(_)) if self.is_shared() => return None,
            (EPOLL_CTL_ADD | EPOLL_CTL_MOD, Some(event)) => {
                inner.insert(fd, event, Some(Arc::clone(adopted)));
            }
            _ => return Some(Err(EINVAL)),
        }
        if operation == EPOLL_CTL_ADD {
            self.adopted.fetch_add(1, Ordering::SeqCst);
            if !self.register(&mut inner, adopted.engine()) {
                inner.remove(fd);
                self.adopted.fetch_sub(1, Ordering::SeqCst);
                return None;
            }
            drop(inner);
            adopted.watch_set(self.watcher());
        } else {
            drop(inner);
        }
        // As the kernel does, an event that has occurred is reported again.
        self.mark(fd);
        Some(Ok(()))
    }

    /// Prepares for the adoption of a member. Returns `false` if the member must stay with the kernel: the set is shared,
    /// or the kernel may report the member at any moment, which is one-shot.
    pub(crate) fn prepare(&self, fd: c_int, engine: &Arc<Engine>) -> bool {
        let mut inner = self.inner.lock();
        let is_armed = inner.members.get(&fd).is_some_and(|member| member.is_one_shot() && !member.detached)
            && (inner.members.len() > MAX_ONE_SHOT || is_armed(self.fd, fd));
        !is_armed && !self.is_shared() && self.register(&mut inner, engine)
    }

    /// Takes a member that was adopted from the kernel's set, after [`Set::prepare`]. Its descriptor is locked, so that
    /// no thread has changed it since.
    pub(crate) fn adopt(self: &Arc<Set>, fd: c_int, adopted: &Arc<Adopted>) {
        let mut inner = self.inner.lock();
        let Some(member) = inner.members.get_mut(&fd) else { return };
        member.adopted = Some(Arc::clone(adopted));
        (member.detached, member.disabled) = (false, member.is_one_shot());
        self.adopted.fetch_add(1, Ordering::SeqCst);
        // Again, because a wait removes the descriptors of a set without adopted members.
        self.register(&mut inner, adopted.engine());
        drop(inner);
        adopted.watch_set(self.watcher());
        // Fails only for a detached member.
        let _ = control(self.fd, EPOLL_CTL_DEL, fd, None);
        self.mark(fd);
    }

    /// Returns a member to the kernel's set.
    pub(crate) fn give_back(&self, fd: c_int) {
        let mut inner = self.inner.lock();
        let ticket = inner.next_ticket();
        let Some(member) = inner.members.get_mut(&fd).filter(|member| member.adopted.is_some()) else {
            return;
        };
        // A thread that has found an event does not report it: the kernel does.
        (member.adopted, member.changed) = (None, ticket);
        self.adopted.fetch_sub(1, Ordering::SeqCst);
        if member.disabled {
            member.detached = true;
        } else {
            let event = epoll_event { events: member.events, u64: member.data };
            let _ = control(self.fd, EPOLL_CTL_ADD, fd, Some(event));
        }
    }

    /// Forgets a member that the program has closed.
    pub(crate) fn remove(&self, fd: c_int) {
        let member = self.inner.lock().remove(fd);
        if member.is_some_and(|member| member.adopted.is_some()) {
            self.adopted.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Removes this library's descriptors from the kernel's set, which has all members again.
    pub(crate) fn withdraw(&self) {
        self.unregister(&mut self.inner.lock());
    }

    fn unregister(&self, inner: &mut Inner) {
        inner.engine = Weak::new();
        self.generation.store(0, Ordering::SeqCst);
        self.remove_bell();
        let event = self.event.swap(-1, Ordering::SeqCst);
        if event >= 0 {
            // Before the close, because a child may have both.
            let _ = control(self.fd, EPOLL_CTL_DEL, event, None);
            own::close_event(event);
        }
    }

    fn remove_bell(&self) {
        let bell = self.bell.swap(-1, Ordering::SeqCst);
        if bell >= 0 {
            // Fails if the bell is closed, which the kernel has removed then.
            let _ = control(self.fd, EPOLL_CTL_DEL, bell, None);
        }
    }

    /// Makes the engine's bell and the eventfd members of the kernel's set. Returns `false` if there is none.
    fn register(&self, inner: &mut Inner, engine: &Arc<Engine>) -> bool {
        let own = |marked| Some(epoll_event { events: EPOLLIN as u32, u64: marker(marked) });
        if self.event.load(Ordering::Acquire) < 0 {
            let Some(event) = own::new_event() else { return false };
            if control(self.fd, EPOLL_CTL_ADD, event, own(&EVENT)).is_err() {
                own::close_event(event);
                return false;
            }
            self.event.store(event, Ordering::Release);
        }
        if self.generation.load(Ordering::Acquire) != engine.generation {
            self.remove_bell();
            if control(self.fd, EPOLL_CTL_ADD, engine.bell(), own(&BELL)).is_err() {
                return false;
            }
            self.bell.store(engine.bell(), Ordering::Release);
            self.generation.store(engine.generation, Ordering::Release);
            inner.engine = Arc::downgrade(engine);
        }
        true
    }

    fn watcher(self: &Arc<Set>) -> Arc<dyn Watcher> {
        Arc::clone(self) as _
    }

    /// Writes the events of adopted members to `events`. Returns their number.
    fn collect(&self, engine: Option<&LiveEngine<'_>>, events: &mut [epoll_event]) -> usize {
        let mut count = 0;
        let queued = self.inner.lock().queue.len();
        for _ in 0..queued {
            if count == events.len() {
                break;
            }
            let Some((fd, Member { events: interest, data, changed, adopted, .. })) =
                self.inner.lock().dequeue()
            else {
                continue;
            };
            let Some(adopted) = adopted else { continue };
            let wanted = interest | (EPOLLERR | EPOLLHUP) as u32;
            let is_edge = interest & EPOLLET as u32 != 0;
            let Some(found) = adopted.events_or_arm(wanted, is_edge) else { continue };
            if found & EPOLLERR as u32 != 0 && adopted.engine().is_lost() {
                // Not of the connection, which returns to the kernel.
                engine.into_iter().for_each(|engine| (engine.1)(adopted.engine()));
                continue;
            }
            if found & wanted == 0 {
                continue;
            }
            let mut inner = self.inner.lock();
            let Some(member) = inner.members.get_mut(&fd) else { continue };
            if member.disabled || member.changed != changed {
                // Changed in the meantime, and queued by that, or reported by another thread.
                continue;
            }
            if interest & EPOLLONESHOT as u32 != 0 {
                member.disabled = true;
            } else if !is_edge {
                inner.enqueue(fd);
            }
            events[count] = epoll_event { events: found & wanted, u64: data };
            count += 1;
        }
        count
    }

    fn has_queued(&self) -> bool {
        !self.inner.lock().queue.is_empty()
    }
}

/// An engine, and what to do once it has ended.
pub(crate) struct LiveEngine<'a>(pub(crate) &'a Arc<Engine>, pub(crate) fn(&Arc<Engine>));

impl LiveEngine<'_> {
    /// Forgets the engine if it has ended.
    fn check(&self, is_open: bool) {
        if !is_open {
            (self.1)(self.0);
        }
    }
}

/// A part of a wait that ends with a sleep, or with events.
pub(crate) enum Step {
    /// So many events are at the start of the buffer. Add the kernel's without waiting.
    Ready(usize),
    /// Sleep in the kernel's set, then call [`Set::after_sleep`].
    Sleep,
}

impl Set {
    /// From now on, a queued member wakes this thread.
    pub(crate) fn start_sleep(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn end_sleep(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Prepares a wait.
    pub(crate) fn before_sleep(&self, engine: Option<&LiveEngine<'_>>, events: &mut [epoll_event]) -> Step {
        // Before this thread counts as a sleeper, which each event would wake.
        engine.into_iter().for_each(|engine| engine.check(engine.0.fetch()));
        let count = self.collect(engine, events);
        if count > 0 {
            return Step::Ready(count);
        }
        self.start_sleep();
        engine.into_iter().for_each(|engine| engine.check(engine.0.arm()));
        if self.has_queued() {
            self.end_sleep();
            return Step::Ready(self.collect(engine, events));
        }
        Step::Sleep
    }

    /// Ends a sleep. Removes this library's descriptors from the first `count` events; returns the number of the others.
    pub(crate) fn after_sleep(&self, engine: Option<&LiveEngine<'_>>, events: &mut [epoll_event]) -> usize {
        self.end_sleep();
        self.remove_own(engine, events)
    }

    /// Removes this library's descriptors from events of the kernel. Returns the number of the others.
    pub(crate) fn remove_own(&self, engine: Option<&LiveEngine<'_>>, events: &mut [epoll_event]) -> usize {
        let mut kept = 0;
        for index in 0..events.len() {
            let event = events[index];
            if event.u64 == marker(&EVENT) {
                let _unchanged = self.inner.lock();
                own::clear(self.event.load(Ordering::Acquire));
            } else if event.u64 == marker(&BELL) {
                match engine {
                    Some(engine) => engine.check(engine.0.clear()),
                    None => self.withdraw_if_unused(),
                }
            } else {
                events[kept] = event;
                kept += 1;
            }
        }
        kept
    }

    /// Another member or thread would be woken by events that are none of this set's.
    fn withdraw_if_unused(&self) {
        let mut inner = self.inner.lock();
        if self.adopted.load(Ordering::SeqCst) == 0 {
            self.unregister(&mut inner);
        }
    }

    /// Sets whether the next wait starts with the kernel's members. Returns the previous value.
    pub(crate) fn set_kernel_first(&self, first: bool) -> bool {
        self.kernel_first.swap(first, Ordering::Relaxed)
    }

    /// Queues members of which the kernel has data from peers on the same machine, once the engine has fetched it.
    pub(crate) fn queue_unfetched(&self) {
        let is_wanted = |member: &&Member| member.events & EPOLLIN as u32 != 0 && !member.disabled;
        let adopted = |it: &Member| Some((it.events & EPOLLET as u32 != 0, it.adopted.clone()?));
        let all: Vec<_> = self.inner.lock().members.values().filter(is_wanted).filter_map(adopted).collect();
        // Data of an edge-triggered member that was there before has been reported, and is no new event.
        let has_data = |it: &Adopted| it.events(false).is_none_or(|found| found & EPOLLIN as u32 != 0);
        let unreported = all.iter().filter(|(is_edge, it)| !(*is_edge && has_data(it)));
        catch_up(unreported.map(|(_, it)| it)).into_iter().for_each(|fd| self.mark(fd));
    }

    /// Ends a wait whose time is over: returns the events of adopted members that own descriptors have reported.
    pub(crate) fn after_timeout(&self, engine: Option<&LiveEngine<'_>>, events: &mut [epoll_event]) -> usize {
        engine.into_iter().for_each(|engine| engine.check(engine.0.fetch())); // Of events since the sleep.
        self.collect(engine, events)
    }

    /// Returns the engine of an adopted member.
    pub(crate) fn engine(&self) -> Option<Arc<Engine>> {
        if self.adopted.load(Ordering::SeqCst) == 0 {
            return None;
        }
        self.inner.lock().engine.upgrade()
    }

    /// Records whether members of the kernel had events in a wait.
    pub(crate) fn set_checked(&self, had_events: bool) {
        self.checked_at.store(if had_events { 0 } else { now_ns() }, Ordering::Relaxed);
    }

    /// Returns `true` if members of the kernel had no events a moment ago.
    pub(crate) fn was_checked(&self) -> bool {
        now_ns().wrapping_sub(self.checked_at.load(Ordering::Relaxed)) < CHECK_INTERVAL
    }
}

impl Watcher for Set {
    /// Queues a member that may have an event.
    fn mark(&self, fd: c_int) {
        // The eventfd stays open while the lock is held.
        let mut inner = self.inner.lock();
        inner.enqueue(fd);
        let event = self.event.load(Ordering::Acquire);
        if self.sleepers.load(Ordering::SeqCst) > 0 && event >= 0 {
            own::signal(event);
        }
    }
}

impl Inner {
    fn insert(&mut self, fd: c_int, event: epoll_event, adopted: Option<Arc<Adopted>>) {
        let queued = self.members.get(&fd).map_or(0, |member| member.queued);
        let epoll_event { events, u64: data } = event;
        let changed = self.next_ticket();
        let member = Member { events, data, adopted, queued, changed, disabled: false, detached: false };
        self.members.insert(fd, member);
    }

    fn next_ticket(&mut self) -> u64 {
        self.ticket += 1;
        self.ticket
    }

    fn remove(&mut self, fd: c_int) -> Option<Member> {
        let member = self.members.remove(&fd)?;
        // Removed members stay in the queue, which must not grow with each of them.
        if member.queued != 0 && self.queue.len() > 2 * self.members.len() + MIN_QUEUE {
            let Inner { members, queue, .. } = self;
            queue.retain(|(fd, ticket)| members.get(fd).is_some_and(|member| member.queued == *ticket));
        }
        Some(member)
    }

    fn enqueue(&mut self, fd: c_int) {
        if let Some(member) = self.members.get_mut(&fd)
            && member.adopted.is_some()
            && !member.disabled
            && member.queued == 0
        {
            self.ticket += 1;
            member.queued = self.ticket;
            self.queue.push_back((fd, self.ticket));
        }
    }

    /// Returns a copy of the next queued member that can have an event.
    fn dequeue(&mut self) -> Option<(c_int, Member)> {
        let (fd, ticket) = self.queue.pop_front()?;
        let member = self.members.get_mut(&fd).filter(|member| member.queued == ticket)?;
        member.queued = 0;
        Some((fd, member.clone())).filter(|_| !member.disabled)
    }
}

impl Member {
    fn is_one_shot(&self) -> bool {
        self.events & EPOLLONESHOT as u32 != 0
    }
}

/// Returns `true` if the kernel's set may report a one-shot member, or if that is unknown. The kernel clears the events of
/// a member that it has reported, among them those that each other member has.
fn is_armed(set: c_int, fd: c_int) -> bool {
    // Of this thread: the main thread may have ended.
    let path = format!("/proc/thread-self/fdinfo/{set}");
    let Ok(info) = gate::inside(|| std::fs::read_to_string(path)) else { return true };
    let events = |line: &str| {
        let mut words = line.split_whitespace();
        let is_member = words.next() == Some("tfd:") && words.next()?.parse() == Ok(fd);
        let events = words.nth(1).filter(|_| is_member)?;
        Some(u32::from_str_radix(events, 16).unwrap_or(u32::MAX))
    };
    let mut members = info.lines().filter_map(events).peekable();
    members.peek().is_none() || members.any(|events| events & (EPOLLERR | EPOLLHUP) as u32 != 0)
}

/// Changes the kernel's set. Returns the number of an error.
fn control(set: c_int, operation: c_int, fd: c_int, event: Option<epoll_event>) -> Result<(), c_int> {
    let mut event = event;
    let pointer = event.as_mut().map_or(std::ptr::null_mut(), |event| &raw mut *event);
    // SAFETY: the event is readable, or null.
    match unsafe { real::epoll_ctl(set, operation, fd, pointer) } {
        0 => Ok(()),
        // SAFETY: the location of this thread's error is valid.
        _ => Err(unsafe { *libc::__errno_location() }),
    }
}

/// Data by which an event of this library is known: an address that no program has.
fn marker(of: &'static u8) -> u64 {
    (&raw const *of).addr() as u64
}

/// Members of a set up to which its one-shot members are adopted: the kernel reports the state of all for each of them.
const MAX_ONE_SHOT: usize = 1 << 10;
/// Entries of a queue that are not checked for removed members.
const MIN_QUEUE: usize = 64;
/// Time in nanoseconds after which the kernel's members are checked although adopted ones have events.
const CHECK_INTERVAL: u64 = 50_000;
static EVENT: u8 = 1;
static BELL: u8 = 2;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use libc::EPOLLOUT;

    use super::*;

    #[test]
    fn one_shot_member_is_disarmed_once_the_kernel_has_reported_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        // SAFETY: creates a descriptor.
        let set = unsafe { libc::epoll_create1(0) };
        let fd = far.as_raw_fd();
        let one_shot = |events| epoll_event { events: (events | EPOLLONESHOT) as u32, u64: 0 };
        assert!(is_armed(set, fd), "not a member");
        control(set, EPOLL_CTL_ADD, fd, Some(one_shot(EPOLLIN))).unwrap();
        control(set, EPOLL_CTL_ADD, near.as_raw_fd(), Some(one_shot(EPOLLOUT | EPOLLET))).unwrap();
        let mut events = [one_shot(0); 2];
        for armed in [true, false] {
            assert_eq!(is_armed(set, near.as_raw_fd()), armed);
            assert!(is_armed(set, fd));
            // SAFETY: the buffer has this length.
            assert_eq!(unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 2, 0) }, i32::from(armed));
        }
        near.write_all(b"x").unwrap();
        // SAFETY: the buffer has this length.
        assert_eq!(unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 2, -1) }, 1);
        assert!(!is_armed(set, fd));
        control(set, EPOLL_CTL_MOD, fd, Some(one_shot(EPOLLIN))).unwrap();
        assert!(is_armed(set, fd));
        // SAFETY: the descriptor belongs to this test.
        unsafe { libc::close(set) };
    }
}
