//! Table of the program's descriptors: what each is, as far as this library needs to know.
//!
//! Lock order: the entry of a descriptor, then an epoll set, then a stream's list of waiters. No other lock of this
//! library is taken under a stream's own lock.
//!
//! Invariant: a socket is adopted only while no other thread is in a call of the kernel on it. [`enter`] counts such
//! calls before it checks the state, and the adoption changes the state before it checks the count.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use isolane_attach::stream::Stream;
use parking_lot::{Mutex, MutexGuard};

use crate::adopted::Adopted;
use crate::engine::{self, Engine, Notified};
use crate::epoll::Set;
use crate::forks;
use crate::gate;
use crate::policy;
use crate::rings::{self, Rings};
use crate::sockets;
use crate::stats::{self, Reason};

/// Not of interest: all calls go to the kernel.
pub(crate) const OTHER: u32 = 0;
/// Epoll set that this process has created, and no other process shares.
pub(crate) const SET: u32 = 1;
/// TCP socket of this process that stays with the kernel.
pub(crate) const PINNED: u32 = 2;
/// The same, as long as a child has it.
pub(crate) const SHARED: u32 = 3;
/// TCP socket that this process has made, before it connects.
pub(crate) const NEW: u32 = 4;
/// TCP socket of this process that may be adopted.
pub(crate) const CANDIDATE: u32 = 5;
/// Candidate whose adoption is in progress.
pub(crate) const ADOPTING: u32 = 6;
/// Adopted TCP socket.
pub(crate) const ADOPTED: u32 = 7;

/// A descriptor of the program, on a cache line of its own: threads transfer on neighbors.
#[repr(align(64))]
pub(crate) struct Slot {
    state: AtomicU32,
    /// Threads in a call of the kernel on the socket.
    in_kernel: AtomicU32,
    /// See [`policy`].
    counts: policy::Counts,
    entry: Mutex<Option<Box<Entry>>>,
}

/// Objects of a descriptor.
#[derive(Default)]
pub(crate) struct Entry {
    /// Identity of the socket.
    cookie: u64,
    pub(crate) adopted: Option<Arc<Adopted>>,
    /// The set that the descriptor is.
    set: Option<Arc<Set>>,
    /// The sets that have the socket as a member.
    pub(crate) sets: Vec<Arc<Set>>,
}

/// Path of a call.
pub(crate) enum Path {
    /// To the kernel; [`leave`] follows.
    Kernel,
    /// To the engine.
    Engine(Arc<Adopted>),
}

impl Slot {
    pub(crate) const fn new() -> Slot {
        Slot {
            state: AtomicU32::new(OTHER),
            in_kernel: AtomicU32::new(0),
            counts: policy::Counts::new(),
            entry: Mutex::new(None),
        }
    }

    #[inline]
    pub(crate) fn state(&self) -> u32 {
        self.state.load(Ordering::Relaxed)
    }

    /// Returns `true` for a call of `isolane-attach` on a socket that it has.
    pub(crate) fn is_inside(&self) -> bool {
        self.state() >= ADOPTING && gate::is_inside()
    }

    /// Returns the stream of an adopted socket.
    pub(crate) fn adopted(&self) -> Option<Arc<Adopted>> {
        if self.state() != ADOPTED {
            return None;
        }
        self.entry.lock().as_ref()?.adopted.clone()
    }

    /// Updates what is known of an adopted socket after a call of the kernel has changed its settings. Waits for the end of
    /// an adoption, which may have read them before.
    pub(crate) fn update(&self, update: impl FnOnce(&Adopted)) {
        if self.state.load(Ordering::SeqCst) < ADOPTING {
            return;
        }
        let entry = self.entry.lock();
        if let Some(adopted) = entry.as_ref().and_then(|entry| entry.adopted.as_deref()) {
            update(adopted);
        }
    }

    /// Runs `work` on the stream of an adopted socket, which is not returned or closed in the meantime.
    #[inline]
    pub(crate) fn with_adopted<T>(&self, work: impl FnOnce(&Adopted) -> T) -> Option<T> {
        if self.state() != ADOPTED {
            return None;
        }
        let entry = self.entry.lock();
        entry.as_ref()?.adopted.as_deref().map(work)
    }

    /// Runs `transfer` on the stream of an adopted socket. Returns `None` if it does not do the whole transfer, which
    /// [`enter`] continues.
    #[inline]
    pub(crate) fn transfer(
        &self,
        bytes: usize,
        transfer: impl FnOnce(&Adopted) -> Option<usize>,
    ) -> Option<usize> {
        if self.state() != ADOPTED || !policy::is_short(&self.counts, bytes) {
            return None;
        }
        self.with_adopted(transfer)?
    }

    /// Returns the set that the descriptor is.
    pub(crate) fn set(&self) -> Option<Arc<Set>> {
        if self.state() != SET {
            return None;
        }
        self.entry.lock().as_ref()?.set.clone()
    }

    /// Runs `change` on the entry of a socket, with its state, which does not change in the meantime.
    pub(crate) fn with_entry<T>(&self, change: impl FnOnce(u32, &mut Entry) -> T) -> T {
        let mut entry = self.entry.lock();
        change(self.state.load(Ordering::Acquire), entry.get_or_insert_default())
    }
}

static TABLE: [Slot; DESCRIPTORS] = [const { Slot::new() }; DESCRIPTORS];
/// Sockets with higher numbers stay with the kernel.
const DESCRIPTORS: usize = 1 << 16;
/// Number of slots that were in use.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Returns the slot of a descriptor. `None` for calls of `isolane-attach`, which are only on sockets that it has.
#[inline]
pub(crate) fn slot(fd: c_int) -> Option<&'static Slot> {
    TABLE.get(fd as u32 as usize).filter(|slot| !slot.is_inside())
}

/// Returns the slot of a TCP socket of this process, as [`slot`] does.
#[inline]
pub(crate) fn socket(fd: c_int) -> Option<&'static Slot> {
    TABLE.get(fd as u32 as usize).filter(|slot| slot.state() >= PINNED && !slot.is_inside())
}

/// Path of a transfer, as far as it is certain without a lock.
pub(crate) enum Route {
    /// To the kernel.
    Kernel,
    /// To the kernel; [`leave`] follows.
    Counted(&'static Slot),
    /// [`Slot::is_inside`], [`stays`], and [`enter`] decide.
    Unknown(&'static Slot),
}

/// Chooses the path of a transfer of `bytes()`.
#[inline(always)]
pub(crate) fn route(fd: c_int, bytes: impl FnOnce() -> usize) -> Route {
    let Some(slot) = TABLE.get(fd as u32 as usize) else { return Route::Kernel };
    let state = slot.state();
    if state == CANDIDATE {
        return if policy::is_early(&slot.counts, bytes()) && start_call(slot) {
            Route::Counted(slot)
        } else {
            Route::Unknown(slot)
        };
    }
    let is_kernels = state < PINNED || (state == PINNED && !stats::are_printed());
    if is_kernels { Route::Kernel } else { Route::Unknown(slot) }
}

/// Counts a call of the kernel on a candidate. Returns `false` if it is none any longer.
#[inline(always)]
fn start_call(slot: &Slot) -> bool {
    slot.in_kernel.fetch_add(1, Ordering::SeqCst);
    let is_candidate = slot.state.load(Ordering::SeqCst) == CANDIDATE;
    if !is_candidate {
        leave(slot);
    }
    is_candidate
}

/// Returns `true` if this process has never had a TCP connection or an epoll set.
pub(crate) fn is_empty() -> bool {
    USED.load(Ordering::Acquire) == 0
}

/// Returns all slots that were in use, with their descriptors.
pub(crate) fn used() -> impl Iterator<Item = (c_int, &'static Slot)> {
    let used = USED.load(Ordering::Acquire);
    TABLE[..used].iter().enumerate().map(|(fd, slot)| (fd as c_int, slot))
}

/// Records a socket that no other process has, and this one only under this number, if it is a TCP socket: [`NEW`], or
/// [`CANDIDATE`] if it was accepted.
pub(crate) fn insert_socket(fd: c_int, state: u32) {
    if let Some(slot) = slot(fd)
        && let Some(cookie) = sockets::tcp_cookie(fd)
    {
        insert(fd, slot, state, Entry { cookie, ..Entry::default() });
    }
}

/// Makes a new socket a candidate, because it connects.
pub(crate) fn set_connected(fd: c_int) {
    if let Some(slot) = slot(fd).filter(|slot| slot.state() == NEW) {
        slot.counts.reset();
        let _ = slot.state.compare_exchange(NEW, CANDIDATE, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Records a new epoll set.
pub(crate) fn insert_set(fd: c_int) {
    if let Some(slot) = slot(fd) {
        insert(fd, slot, SET, Entry { set: Some(Arc::new(Set::new(fd))), ..Entry::default() });
    }
}

fn insert(fd: c_int, slot: &'static Slot, state: u32, entry: Entry) {
    USED.fetch_max(fd as usize + 1, Ordering::AcqRel);
    let old = slot.entry.lock().replace(Box::new(entry));
    slot.counts.reset();
    slot.state.store(state, Ordering::Release);
    // The descriptor was closed past this library.
    for set in old.into_iter().flat_map(|entry| entry.sets) {
        set.remove(fd);
    }
}

/// Records a transfer on a candidate, and adopts it if it is due. Returns `true` if the kernel has it; [`leave`] follows.
pub(crate) fn stays(slot: &'static Slot, fd: c_int, bytes: usize) -> bool {
    if slot.state() != CANDIDATE || (policy::is_due(&slot.counts, bytes) && adopt(slot, fd)) {
        return false;
    }
    start_call(slot)
}

/// Starts a transfer of `bytes` on a socket of this process.
#[inline]
pub(crate) fn enter(slot: &'static Slot, fd: c_int, bytes: usize) -> Path {
    loop {
        match slot.state.load(Ordering::SeqCst) {
            CANDIDATE => {
                if policy::is_due(&slot.counts, bytes) && adopt(slot, fd) {
                    continue;
                }
                if start_call(slot) {
                    return Path::Kernel;
                }
            }
            ADOPTING => drop(slot.entry.lock()),
            ADOPTED => match slot.adopted() {
                Some(_) if policy::is_outgrown(&slot.counts, bytes) => release(fd, Reason::Size, CANDIDATE),
                Some(adopted) => return Path::Engine(adopted),
                None => {}
            },
            state => {
                if state == SHARED && policy::is_due(&slot.counts, bytes) {
                    check_children();
                }
                slot.in_kernel.fetch_add(1, Ordering::SeqCst);
                return Path::Kernel;
            }
        }
    }
}

/// Ends a call of the kernel.
#[inline]
pub(crate) fn leave(slot: &Slot) {
    slot.in_kernel.fetch_sub(1, Ordering::SeqCst);
}

/// Moves a candidate to the engine. Returns `false` if it stays with the kernel for now.
#[cold]
fn adopt(slot: &'static Slot, fd: c_int) -> bool {
    if !engine::may_be_available() {
        return false;
    }
    check_children();
    if gate::is_closed() {
        return false;
    }
    match rings::check() {
        Rings::Absent => {}
        Rings::Present => {
            stop_adoption();
            return false;
        }
        Rings::Unknown => return false,
    }
    let Some(engine) = engine::attached() else { return false };
    let mut guard = slot.entry.lock();
    let Some(entry) = guard.as_deref_mut() else { return false };
    let Ok(_) = slot.state.compare_exchange(CANDIDATE, ADOPTING, Ordering::SeqCst, Ordering::SeqCst) else {
        return true;
    };
    let stays = |state| {
        slot.state.store(state, Ordering::SeqCst);
        false
    };
    if slot.in_kernel.load(Ordering::SeqCst) > 0 || gate::is_closed() {
        return stays(CANDIDATE);
    }
    match sockets::adoptable(fd, entry.cookie) {
        sockets::Adoptable::Now { segments } => {
            if policy::stays_as_dialog(&slot.counts, engine.cores(), segments) {
                return stays(CANDIDATE);
            }
        }
        sockets::Adoptable::Later => return stays(CANDIDATE),
        sockets::Adoptable::Never => return stays(PINNED),
    }
    if entry.sets.iter().any(|set| !set.prepare(fd, &engine)) {
        return stays(CANDIDATE);
    }
    let Some(adopted) = Adopted::open(&engine, fd) else { return stays(PINNED) };
    let adopted = Arc::new(adopted);
    let notified: Arc<dyn Notified> = Arc::clone(&adopted) as _;
    engine.insert(adopted.id(), Arc::downgrade(&notified));
    for set in &entry.sets {
        set.adopt(fd, &adopted);
    }
    entry.adopted = Some(adopted);
    stats::adopted();
    slot.state.store(ADOPTED, Ordering::SeqCst);
    true
}

/// Returns a socket to the kernel, if the engine has it, and sets its next state: [`CANDIDATE`] or [`PINNED`]. Other
/// descriptors are unaffected.
#[cold]
pub(crate) fn release(fd: c_int, reason: Reason, next: u32) {
    if let Some(returning) = Returning::start(fd, reason, next) {
        returning.finish();
    }
}

/// Returns all sockets to the kernel. `next` chooses the next state of each. The engine releases them at the same time.
pub(crate) fn release_all(reason: Reason, next: impl Fn(c_int) -> u32) {
    let sockets = used().filter(|(_, slot)| slot.state.load(Ordering::SeqCst) >= SHARED);
    let returning: Vec<_> = sockets.filter_map(|(fd, _)| Returning::start(fd, reason, next(fd))).collect();
    returning.into_iter().for_each(Returning::finish);
}

/// The return of a socket, whose entry is locked. A thread that locks several does so in the order of their descriptors.
struct Returning {
    fd: c_int,
    slot: &'static Slot,
    entry: MutexGuard<'static, Option<Box<Entry>>>,
    adopted: Arc<Adopted>,
    stream: Option<Stream>,
    reason: Reason,
    next: u32,
}

impl Returning {
    /// Requests the release of the socket. Returns `None` if the engine does not have it.
    fn start(fd: c_int, reason: Reason, next: u32) -> Option<Returning> {
        let slot = slot(fd)?;
        if slot.state.load(Ordering::SeqCst) < PINNED {
            return None;
        }
        let mut entry = slot.entry.lock();
        let adopted = entry.as_deref_mut()?.adopted.clone();
        match slot.state.load(Ordering::SeqCst) {
            ADOPTED => {}
            CANDIDATE | NEW | SHARED if next == PINNED => slot.state.store(PINNED, Ordering::SeqCst),
            CANDIDATE | NEW if next == SHARED => slot.state.store(SHARED, Ordering::SeqCst),
            _ => {}
        }
        let adopted = adopted?;
        let stream = adopted.start_return();
        Some(Returning { fd, slot, entry, adopted, stream, reason, next })
    }

    /// Waits for the release.
    fn finish(mut self) {
        self.adopted.finish_return(self.stream.take());
        if let Some(entry) = self.entry.as_deref_mut() {
            entry.adopted = None;
            entry.sets.iter().for_each(|set| set.give_back(self.fd));
        }
        self.slot.counts.reset();
        self.slot.state.store(self.next, Ordering::SeqCst);
        self.adopted.wake_all();
        stats::returned(self.reason);
    }
}

/// Returns all sockets, and adopts none in this process and its children any longer.
#[cold]
pub(crate) fn stop_adoption() {
    if gate::close_for_good() {
        release_all(Reason::Call, |_| PINNED);
    }
}

/// Returns all sockets of an engine to the kernel, because it has ended or violates the protocol.
#[cold]
pub(crate) fn abandon(engine: &Arc<Engine>) {
    engine::forget(engine);
    for (fd, slot) in used() {
        if slot.adopted().is_some_and(|adopted| Arc::ptr_eq(adopted.engine(), engine)) {
            release(fd, Reason::Engine, CANDIDATE);
        }
    }
}

/// Makes sockets candidates again that no child has any longer.
pub(crate) fn check_children() {
    let Some(ended) = forks::check() else { return };
    if ended.has_duplicate {
        pin_shared(|_| true);
    } else if ended.has_program {
        // Before the others: the program may have them for long.
        pin_shared(sockets::is_inherited);
    }
    if ended.all {
        unshare();
    }
}

/// Returns all epoll sets of this process.
pub(crate) fn sets() -> impl Iterator<Item = (c_int, Arc<Set>)> {
    used().filter_map(|(fd, slot)| Some((fd, slot.set()?)))
}

/// Pins the shared sockets and sets for which `has` is true, because a program has them.
fn pin_shared(has: impl Fn(c_int) -> bool) {
    for (fd, slot) in used() {
        if slot.state() == SHARED && has(fd) {
            let _ = slot.state.compare_exchange(SHARED, PINNED, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
    sets().filter(|(fd, set)| set.is_shared() && has(*fd)).for_each(|(fd, _)| demote(fd));
}

/// Makes shared sockets candidates again, which no child has any longer.
fn unshare() {
    sets().for_each(|(_, set)| set.set_shared(false));
    for (_, slot) in used() {
        let _ = slot.state.compare_exchange(SHARED, CANDIDATE, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Forgets an adopted socket that the program closes, and closes it. Returns `false` if it is not adopted.
pub(crate) fn close_adopted(fd: c_int) -> bool {
    let Some(slot) = slot(fd).filter(|slot| slot.state() >= ADOPTING) else { return false };
    let mut guard = slot.entry.lock();
    let Some(mut entry) = guard.take_if(|entry| entry.adopted.is_some()) else { return false };
    slot.state.store(OTHER, Ordering::SeqCst);
    drop(guard);
    for set in entry.sets.drain(..) {
        set.remove(fd);
    }
    if let Some(adopted) = entry.adopted.take() {
        adopted.close();
        adopted.wake_all();
    }
    true
}

/// Forgets a descriptor before the kernel closes or replaces it. An adopted socket returns first.
pub(crate) fn forget(fd: c_int, reason: Reason) {
    let Some(slot) = slot(fd).filter(|slot| slot.state() != OTHER) else { return };
    if let Some(adopted) = slot.adopted() {
        adopted.set_closed();
    }
    release(fd, reason, PINNED);
    if slot.state() == SET {
        return demote(fd);
    }
    let entry = slot.entry.lock().take();
    slot.state.store(OTHER, Ordering::SeqCst);
    for set in entry.into_iter().flat_map(|entry| entry.sets) {
        set.remove(fd);
    }
}

/// Makes an epoll set one of the kernel only: its adopted members return, and no member is adopted again.
pub(crate) fn demote(fd: c_int) {
    let Some(slot) = slot(fd).filter(|slot| slot.state() == SET) else { return };
    let Some(set) = slot.entry.lock().take().and_then(|entry| entry.set) else { return };
    set.set_shared(true);
    for member in set.members() {
        release(member, Reason::Epoll, PINNED);
        if let Some(slot) = socket(member) {
            slot.with_entry(|_, entry| entry.sets.retain(|other| !Arc::ptr_eq(other, &set)));
        }
    }
    slot.state.store(OTHER, Ordering::SeqCst);
    set.withdraw();
}

/// Empties the table in a forked child, whose only thread calls it. Threads of the parent may have held the locks.
pub(crate) fn reset_in_child() {
    for (_, slot) in used() {
        // SAFETY: no other thread exists. The old value is not dropped: it belongs to the parent.
        unsafe { std::ptr::write((&raw const slot.entry).cast_mut(), Mutex::new(None)) };
        slot.state.store(OTHER, Ordering::SeqCst);
        slot.in_kernel.store(0, Ordering::SeqCst);
    }
}
