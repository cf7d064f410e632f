//! Children that share sockets and epoll sets with this process.
//!
//! Each fork makes a pair of sockets, of which the child and its children have one. The other hangs up once all of them
//! have ended or called exec. A child sends a byte before it calls exec, because its program has the descriptors without
//! FD_CLOEXEC, and one when it makes a descriptor that lasts longer than the parent's.
//!
//! Invariant: a socket that exists at a fork is not adopted before the pair hangs up.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use crate::policy::now_ns;
use crate::{own, sockets};

/// Sockets to children that have not ended.
static CHILDREN: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Sockets of the fork in progress, for the parent and for the child.
static PAIR: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
/// Sockets to the processes that this one descends from.
static ANCESTORS: [AtomicI32; MAX_ANCESTORS] = [const { AtomicI32::new(-1) }; MAX_ANCESTORS];
const MAX_ANCESTORS: usize = 16;
/// Time of the next check.
static CHECK_AT: AtomicU64 = AtomicU64::new(0);
const CHECK_INTERVAL_NS: u64 = 10_000_000;
/// More children than that share sockets for good.
const MAX_CHILDREN: usize = 64;

/// Makes the pair. Returns `false` if there is none, so that the fork shares everything for good.
pub(crate) fn before() -> bool {
    let has_place = ANCESTORS.iter().any(|ancestor| ancestor.load(Ordering::Relaxed) < 0);
    if !has_place || COUNT.load(Ordering::Relaxed) >= MAX_CHILDREN {
        return false;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok((parent, child)) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None) else {
        return false;
    };
    let ends = [parent, child].map(own::raise);
    PAIR.iter().zip(ends).for_each(|(slot, end)| slot.store(end.into_raw_fd(), Ordering::Relaxed));
    true
}

pub(crate) fn in_parent() {
    let [parent, child] = [take(&PAIR[0]), take(&PAIR[1])];
    drop(child);
    if let Some(parent) = parent {
        let mut children = CHILDREN.lock();
        children.push(parent);
        COUNT.store(children.len(), Ordering::Relaxed);
    }
}

/// Keeps the child's socket, and forgets the parent's children.
pub(crate) fn in_child() {
    // SAFETY: no other thread exists.
    let children = unsafe { std::ptr::replace((&raw const CHILDREN).cast_mut(), Mutex::new(Vec::new())) };
    drop(children.into_inner());
    COUNT.store(0, Ordering::Relaxed);
    drop(take(&PAIR[0]));
    let own = PAIR[1].swap(-1, Ordering::Relaxed);
    if let Some(place) = ANCESTORS.iter().find(|ancestor| ancestor.load(Ordering::Relaxed) < 0) {
        place.store(own, Ordering::Relaxed);
    }
}

fn take(slot: &AtomicI32) -> Option<OwnedFd> {
    let fd = slot.swap(-1, Ordering::Relaxed);
    // SAFETY: the number was an owned descriptor.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Reports of a child.
#[derive(Clone, Copy)]
pub(crate) enum Report {
    /// A program will have the descriptors without FD_CLOEXEC.
    Exec = 1,
    /// The child has another descriptor of a socket of its parent.
    Duplicate = 2,
}

/// Sends a report to all ancestors.
pub(crate) fn report(report: Report) {
    for ancestor in ANCESTORS.iter().map(|ancestor| ancestor.load(Ordering::Relaxed)).filter(|fd| *fd >= 0) {
        // Fails only if many reports are unread, or the ancestor has ended.
        let _ = send(sockets::borrow(ancestor), &[report as u8], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// Returns `true` in a child.
pub(crate) fn has_ancestors() -> bool {
    ANCESTORS[0].load(Ordering::Relaxed) >= 0
}

/// Children that no longer have the sockets of this process.
pub(crate) struct Ended {
    /// A program has those without FD_CLOEXEC.
    pub(crate) has_program: bool,
    /// Any may have another descriptor.
    pub(crate) has_duplicate: bool,
    /// No other child has them.
    pub(crate) all: bool,
}

/// Checks the children, once in a while.
#[cold]
pub(crate) fn check() -> Option<Ended> {
    if COUNT.load(Ordering::Relaxed) == 0 || now_ns() < CHECK_AT.load(Ordering::Relaxed) {
        return None;
    }
    let mut children = CHILDREN.try_lock()?;
    CHECK_AT.store(now_ns() + CHECK_INTERVAL_NS, Ordering::Relaxed);
    let mut reports = 0;
    children.retain(|child| match reports_of_ended(child) {
        Some(found) => {
            reports |= found;
            false
        }
        None => true,
    });
    let count = children.len();
    COUNT.store(count, Ordering::Relaxed);
    let has = |report: Report| reports & report as u8 != 0;
    Some(Ended { has_program: has(Report::Exec), has_duplicate: has(Report::Duplicate), all: count == 0 })
}

/// Returns the bits of all reports, once all processes have ended or started a program.
fn reports_of_ended(child: &OwnedFd) -> Option<u8> {
    let mut polled = [PollFd::new(child, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).ok()?;
    if !polled[0].revents().contains(PollFlags::HUP) {
        return None;
    }
    let (mut reports, mut buffer) = (0, [0; 64]);
    while let Ok(count @ 1..) = rustix::io::read(child, &mut buffer) {
        reports |= buffer[..count].iter().fold(0, |all, report| all | report);
    }
    Some(reports)
}
